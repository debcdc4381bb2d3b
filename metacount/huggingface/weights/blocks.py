"""Names of the tensors of one block and of both ends, as transformers' families call them."""

from __future__ import annotations

from metacount.huggingface.weights.names import (
    Place,
    Table,
    alternating,
    codegen_qkv,
    conv1d,
    conv1d_qkv,
    grouped_qkv,
    halves,
    joined_qkv,
    transposed,
)
from metacount.spec import ModelSpec


def same(names: str) -> dict[str, str | Place]:
    """Map names that both sides use to themselves."""
    return {name: name for name in names.split()}


QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
SHARED_GATE_UP = ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")
FFN, EXPERTS = ("gate", "up", "down"), ("gate_up_proj", "down_proj")
NORMS = same("input_layernorm post_attention_layernorm")

LLAMA_BLOCK: Table = {
    **NORMS,
    **same("pre_feedforward_layernorm post_feedforward_layernorm"),
    **same(" ".join(QKV)),
    **same("self_attn.o_proj self_attn.q_norm self_attn.k_norm"),
    **same("self_attn.q_a_proj self_attn.q_a_layernorm self_attn.q_b_proj"),
    **same("self_attn.kv_a_proj_with_mqa self_attn.kv_a_layernorm self_attn.kv_b_proj"),
    **same(" ".join(f"self_attn.indexer.{p}" for p in ("wq_b", "wk", "k_norm", "weights_proj"))),
    **same(" ".join(f"self_attn.indexer.{p}" for p in ("q_proj", "k_proj", "q_norm"))),
    **same("mlp.gate_proj mlp.up_proj mlp.down_proj"),
    "mlp.gate": "mlp.gate.proj",
    **same("mlp.gate.e_score_correction_bias mlp.experts.gate_up_proj mlp.experts.down_proj"),
    **same("mlp.shared_experts.gate_proj mlp.shared_experts.up_proj mlp.shared_experts.down_proj"),
    # Qwen's shared expert
    **{f"mlp.shared_expert.{p}_proj": f"mlp.shared_experts.{p}_proj" for p in FFN},
    **same("mlp.shared_expert_gate"),
    # fused: Phi-3, GLM, Persimmon
    "self_attn.qkv_proj": Place(QKV, joined_qkv),
    "self_attn.query_key_value": Place(QKV, grouped_qkv),
    "mlp.gate_up_proj": Place(GATE_UP, halves),
    "mlp.shared_experts.gate_up_proj": Place(SHARED_GATE_UP, halves),
    # under other names: StarCoder2, Phi, Persimmon, Phi-MoE, MiniMax-M2
    "self_attn.dense": "self_attn.o_proj",
    "self_attn.q_layernorm": "self_attn.q_norm",
    "self_attn.k_layernorm": "self_attn.k_norm",
    **dict.fromkeys(("mlp.c_fc", "mlp.fc1", "mlp.dense_h_to_4h"), "mlp.up_proj"),
    **dict.fromkeys(("mlp.c_proj", "mlp.fc2", "mlp.dense_4h_to_h"), "mlp.down_proj"),
    "mlp.router": "mlp.gate.proj",
    "mlp.e_score_correction_bias": "mlp.gate.e_score_correction_bias",
    # GraniteMoE
    "block_sparse_moe.router": "mlp.gate.proj",
    **{f"block_sparse_moe.experts.{p}": f"mlp.experts.{p}" for p in EXPERTS},
    # Granite's sinks and its shared expert beside the mixture
    "self_attn.sinks": "self_attn.core.sinks",
    "shared_mlp.input_linear": Place(SHARED_GATE_UP, halves),
    "shared_mlp.output_linear": "mlp.shared_experts.down_proj",
    # Llama 4
    **{f"feed_forward.{p}_proj": f"mlp.{p}_proj" for p in FFN},
    "feed_forward.router": "mlp.gate.proj",
    **{f"feed_forward.experts.{p}": Place((f"mlp.experts.{p}",), transposed) for p in EXPERTS},
    **{f"feed_forward.shared_expert.{p}_proj": f"mlp.shared_experts.{p}_proj" for p in FFN},
}
LLAMA_ENDS: Table = {
    **same("embed_tokens lm_head"),
    **dict.fromkeys(("norm", "final_layernorm"), "decoder.norm"),
}

GLM4_BLOCK: Table = {
    **LLAMA_BLOCK,
    "post_self_attn_layernorm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}

LFM2_BLOCK: Table = {
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **same(" ".join(QKV)),
    "self_attn.out_proj": "self_attn.o_proj",
    "self_attn.q_layernorm": "self_attn.q_norm",
    "self_attn.k_layernorm": "self_attn.k_norm",
    **same("conv.in_proj conv.conv conv.out_proj"),
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.gate": "mlp.gate.proj",
    "feed_forward.expert_bias": "mlp.gate.e_score_correction_bias",
    **{f"feed_forward.experts.{p}": f"mlp.experts.{p}" for p in EXPERTS},
}

GRIFFIN = "temporal_block"
LRU = "recurrent_param input_gate_weight input_gate_bias recurrent_gate_weight recurrent_gate_bias"
GRIFFIN_BLOCK: Table = {
    "temporal_pre_norm": "input_layernorm",
    "channel_pre_norm": "post_attention_layernorm",
    **{f"{GRIFFIN}.{p}_proj": f"self_attn.{p}_proj" for p in "qkvo"},
    **same(" ".join(f"{GRIFFIN}.{p}" for p in ("linear_y", "linear_x", "linear_out", "conv_1d"))),
    **same(" ".join(f"{GRIFFIN}.rg_lru.{p}" for p in LRU.split())),
    **{f"mlp_block.{p}_proj": f"mlp.{p}_proj" for p in FFN},
}

# Of each layer of theirs two of ours, see `longcat`.
LONGCAT_BLOCK: Table = {
    **NORMS,
    **{name: place for name, place in LLAMA_BLOCK.items() if name.startswith("self_attn.")},
    **{f"mlps.{p}_proj": f"mlp.{p}_proj" for p in FFN},
    "mlp.router.classifier": "moe.gate.proj",
    "mlp.router.e_score_correction_bias": "moe.gate.e_score_correction_bias",
    **{f"mlp.experts.{p}": f"moe.experts.{p}" for p in EXPERTS},
}


def longcat(index: int, rest: str, spec: ModelSpec) -> tuple[str, str] | None:
    """Find where a tensor of layer `index` stands:
    `self_attn.1.` in the second of two, `mlp.` in the first.
    """
    module, number, below = (*rest.split(".", 2), "", "")[:3]
    if number in ("0", "1"):
        return f"decoder.layers.{2 * index + int(number)}.", f"{module}.{below}".rstrip(".")
    return f"decoder.layers.{2 * index}.", rest


HYPERCLOVAX_BLOCK: Table = {
    **LLAMA_BLOCK,
    "post_norm1": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_norm2": "post_feedforward_layernorm",
}

GPT_OSS_BLOCK: Table = {
    **NORMS,
    **same(" ".join(QKV)),
    **same("self_attn.o_proj mlp.experts.down_proj_bias"),
    "self_attn.sinks": "self_attn.core.sinks",
    "mlp.router": "mlp.gate.proj",
    "mlp.experts.gate_up_proj": Place(("mlp.experts.gate_up_proj",), alternating),
    "mlp.experts.gate_up_proj_bias": Place(("mlp.experts.gate_up_proj_bias",), alternating),
    "mlp.experts.down_proj": Place(("mlp.experts.down_proj",), transposed),
}

GPT2_BLOCK: Table = {
    "ln_1": "input_layernorm",
    "attn.c_attn": Place(QKV, conv1d_qkv),
    "attn.c_proj": Place(("self_attn.o_proj",), conv1d),
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": Place(("mlp.up_proj",), conv1d),
    "mlp.c_proj": Place(("mlp.down_proj",), conv1d),
}

GPT_NEO_BLOCK: Table = {
    "ln_1": "input_layernorm",
    **{f"attn.attention.{p}_proj": f"self_attn.{p}_proj" for p in "qkv"},
    "attn.attention.out_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}
GPTJ_BLOCK: Table = {
    "ln_1": "input_layernorm",
    **{f"attn.{p}_proj": f"self_attn.{p}_proj" for p in "qkv"},
    "attn.qkv_proj": Place(QKV, codegen_qkv),
    "attn.out_proj": "self_attn.o_proj",
    "mlp.fc_in": "mlp.up_proj",
    "mlp.fc_out": "mlp.down_proj",
}
MPT_BLOCK: Table = {
    "norm_1": "input_layernorm",
    "attn.Wqkv": Place(QKV, joined_qkv),
    "attn.out_proj": "self_attn.o_proj",
    "norm_2": "post_attention_layernorm",
    "ffn.up_proj": "mlp.up_proj",
    "ffn.down_proj": "mlp.down_proj",
}
GPT2_ENDS: Table = {
    "wte": "embed_tokens",
    "wpe": "decoder.embed_positions",
    **dict.fromkeys(("ln_f", "norm_f"), "decoder.norm"),
    **same("lm_head"),
}

FUSED_FFN: Table = {
    "mlp.dense_h_to_4h": "mlp.up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}
NEOX_BLOCK: Table = {
    **NORMS,
    **FUSED_FFN,
    "attention.query_key_value": Place(QKV, grouped_qkv),
    "attention.dense": "self_attn.o_proj",
}
BLOOM_BLOCK: Table = {  # and Falcon's
    **NORMS,
    **FUSED_FFN,
    "self_attention.query_key_value": Place(QKV, grouped_qkv),
    "self_attention.dense": "self_attn.o_proj",
    "ln_attn": "input_layernorm",  # Falcon's two norms of a parallel block
    "ln_mlp": "post_attention_layernorm",
}

OPT_BLOCK: Table = {
    "self_attn_layer_norm": "input_layernorm",
    **same(" ".join(QKV)),
    "self_attn.out_proj": "self_attn.o_proj",
    "final_layer_norm": "post_attention_layernorm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
}

BART_BLOCK: Table = {
    **{
        f"{theirs}.{part}_proj": f"{ours}.{part.replace('out', 'o')}_proj"
        for theirs, ours in (("self_attn", "self_attn"), ("encoder_attn", "cross_attn"))
        for part in ("q", "k", "v", "out")
    },
    "self_attn_layer_norm": "self_attention_layernorm",
    "encoder_attn_layer_norm": "cross_attention_layernorm",
    "final_layer_norm": "feedforward_layernorm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
}

MODERNBERT_BLOCK: Table = {
    "attn_norm": "input_layernorm",
    "attn.Wqkv": Place(QKV, joined_qkv),
    "attn.Wo": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.Wi": Place(GATE_UP, halves),
    "mlp.Wo": "mlp.down_proj",
}

BERT_BLOCK: Table = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.o_proj",
    "attention.output.LayerNorm": "self_attention_layernorm",
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "output.LayerNorm": "feedforward_layernorm",
}


def t5_block(*, cross: bool) -> Table:
    """Build the table of a T5 block, whose parts are numbered;
    the decoder's second is cross-attention.
    """
    ffn = 2 if cross else 1
    attentions = {"layer.0.SelfAttention": "self_attn"}
    norms = {"layer.0.layer_norm": "input_layernorm"}
    if cross:
        attentions["layer.1.EncDecAttention"] = "cross_attn"
        norms["layer.1.layer_norm"] = "cross_attention_layernorm"
    norms[f"layer.{ffn}.layer_norm"] = "post_attention_layernorm"
    matrices = {"wi": "up_proj", "wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
    return {
        **norms,
        **{f"{a}.{p}": f"{b}.{p}_proj" for a, b in attentions.items() for p in "qkvo"},
        **{f"layer.{ffn}.DenseReluDense.{a}": f"mlp.{b}" for a, b in matrices.items()},
    }


T5_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias"

BERT_ENDS: Table = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.position_embeddings": "encoder.embed_positions",
    "embeddings.token_type_embeddings": "embed_types",
    "embeddings.LayerNorm": "encoder.embed_norm",
    "embeddings_project": "encoder.embed_proj",
    "pooler.dense": "pooler.dense",
}
BERT_HEADS: dict[str, Table] = {
    "bert": {
        "cls.predictions.transform.dense": "head_transform.dense",
        "cls.predictions.transform.LayerNorm": "head_transform.norm",
        "cls.predictions.decoder": "lm_head",
        "cls.predictions": "lm_head",
    },
    "roberta": {
        "lm_head.dense": "head_transform.dense",
        "lm_head.layer_norm": "head_transform.norm",
        "lm_head.decoder": "lm_head",
        "lm_head": "lm_head",
    },
    "electra": {
        "generator_predictions.dense": "head_transform.dense",
        "generator_predictions.LayerNorm": "head_transform.norm",
        "generator_lm_head": "lm_head",
    },
}
