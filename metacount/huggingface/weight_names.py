"""The names of transformers' weights and their places in a reference module, family by family.

A `Dialect` is a plain table from the names of one family of transformers' modules to ours. Tensors
that are stored otherwise (fused, transposed, alternating) are taken apart by a `Place`. RoPE needs
no permutation: the spec's `rope_style` says which columns are a pair, there as here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..spec import ModelSpec

Apart = Callable[[Tensor, ModelSpec], tuple[Tensor, ...]]


def as_it_is(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """One tensor, stored as ours."""
    return (tensor,)


def transposed(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """[in, out], as GPT-2's Conv1D and gpt-oss's experts have it; a vector stays."""
    return (tensor.transpose(-2, -1) if tensor.dim() > 1 else tensor,)


def transposed_thirds(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """GPT-2: [in, q + k + v], three equal parts."""
    return transposed(tensor, spec)[0].chunk(3)


def grouped_qkv(tensor: Tensor, spec: ModelSpec) -> tuple[Tensor, ...]:
    """Group by group: its R query heads, then its key, then its value.

    With G = H this is GPT-NeoX's and BLOOM's [H, 3, K], with G = 1 Falcon-7B's q, k, v.
    """
    n_groups, width = spec.n_kv_heads or spec.n_heads, spec.head_dim or 0
    per_group = spec.n_heads // n_groups + 2
    if tensor.shape[0] != n_groups * per_group * width:
        return ()
    parts = tensor.unflatten(0, (n_groups, per_group, width)).split((per_group - 2, 1, 1), dim=1)
    return tuple(part.flatten(0, 2) for part in parts)


def alternating(tensor: Tensor, _spec: ModelSpec) -> tuple[Tensor, ...]:
    """gpt-oss: gate and up alternate in the last axis; ours has all of the gate first."""
    fused = torch.cat((tensor[..., 0::2], tensor[..., 1::2]), dim=-1)
    return (fused.transpose(-2, -1) if tensor.dim() == 3 else fused,)


@dataclass(frozen=True)
class Place:
    """Where a tensor of theirs goes: one module of ours or more, and how it is taken apart."""

    modules: tuple[str, ...]
    apart: Apart = as_it_is


Table = Mapping[str, str | Place]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The names of a family: of modules, without `.weight` and `.bias`.

    `mark` is a tensor that tells the dialect; `prefix` stands before the body's names when there
    is a head. `stacks`: what stands before a block's number -> our stack, and its blocks' names.
    """

    mark: str
    prefix: str
    ends: Table
    stacks: Mapping[str, tuple[str, Table]]
    positions: frozenset[str] = frozenset()  # buffers that hold 0, 1, 2, ...


def same(names: str) -> dict[str, str | Place]:
    """Names that both sides use."""
    return {name: name for name in names.split()}


QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
NORMS = same("input_layernorm post_attention_layernorm")

LLAMA_BLOCK: Table = {
    **NORMS,
    **same("pre_feedforward_layernorm post_feedforward_layernorm"),
    **same(" ".join(QKV)),
    **same("self_attn.o_proj self_attn.q_norm self_attn.k_norm"),
    **same("self_attn.q_a_proj self_attn.q_a_layernorm self_attn.q_b_proj"),
    **same("self_attn.kv_a_proj_with_mqa self_attn.kv_a_layernorm self_attn.kv_b_proj"),
    **same("mlp.gate_proj mlp.up_proj mlp.down_proj"),
    "mlp.gate": "mlp.gate.proj",
    **same("mlp.gate.e_score_correction_bias mlp.experts.gate_up_proj mlp.experts.down_proj"),
    **same("mlp.shared_experts.gate_proj mlp.shared_experts.up_proj mlp.shared_experts.down_proj"),
    # Qwen's shared expert
    **{
        f"mlp.shared_expert.{p}_proj": f"mlp.shared_experts.{p}_proj"
        for p in ("gate", "up", "down")
    },
    **same("mlp.shared_expert_gate"),
}
LLAMA_ENDS: Table = {**same("embed_tokens lm_head"), "norm": "decoder.norm"}

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
    "attn.c_attn": Place(QKV, transposed_thirds),
    "attn.c_proj": Place(("self_attn.o_proj",), transposed),
    "ln_2": "post_attention_layernorm",
    "mlp.c_fc": Place(("mlp.up_proj",), transposed),
    "mlp.c_proj": Place(("mlp.down_proj",), transposed),
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
    """T5 numbers the parts of a block; the decoder's second is cross-attention."""
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

DIALECTS = {
    "t5": Dialect(
        mark="shared.weight",
        prefix="",
        ends={
            **dict.fromkeys(
                ("shared", "encoder.embed_tokens", "decoder.embed_tokens"), "embed_tokens"
            ),
            **{f"{s}.final_layer_norm": f"{s}.norm" for s in ("encoder", "decoder")},
            **{
                f"{s}.{T5_BIAS}": f"{s}.relative_bias.relative_attention_bias"
                for s in ("encoder", "decoder")
            },
            **same("lm_head"),
        },
        stacks={
            "encoder.block.": ("encoder.layers", t5_block(cross=False)),
            "decoder.block.": ("decoder.layers", t5_block(cross=True)),
        },
    ),
    "gpt_oss": Dialect(
        mark="layers.0.self_attn.sinks",
        prefix="model.",
        ends=LLAMA_ENDS,
        stacks={"layers.": ("decoder.layers", GPT_OSS_BLOCK)},
    ),
    "llama": Dialect(
        mark="embed_tokens.weight",
        prefix="model.",
        ends=LLAMA_ENDS,
        stacks={"layers.": ("decoder.layers", LLAMA_BLOCK)},
    ),
    "gpt2": Dialect(
        mark="wte.weight",
        prefix="transformer.",
        ends={
            "wte": "embed_tokens",
            "wpe": "decoder.embed_positions",
            "ln_f": "decoder.norm",
            **same("lm_head"),
        },
        stacks={"h.": ("decoder.layers", GPT2_BLOCK)},
    ),
    "gpt_neox": Dialect(
        mark="embed_in.weight",
        prefix="gpt_neox.",
        ends={"embed_in": "embed_tokens", "final_layer_norm": "decoder.norm", **same("lm_head")},
        stacks={"layers.": ("decoder.layers", NEOX_BLOCK)},
    ),
    "bloom": Dialect(
        mark="word_embeddings.weight",
        prefix="transformer.",
        ends={
            "word_embeddings": "embed_tokens",
            "word_embeddings_layernorm": "decoder.embed_norm",
            "ln_f": "decoder.norm",
            **same("lm_head"),
        },
        stacks={"h.": ("decoder.layers", BLOOM_BLOCK)},
    ),
    "opt": Dialect(
        mark="decoder.embed_tokens.weight",
        prefix="model.",
        ends={
            "decoder.embed_tokens": "embed_tokens",
            "decoder.embed_positions": "decoder.embed_positions",
            "decoder.final_layer_norm": "decoder.norm",
            **same("lm_head"),
        },
        stacks={"decoder.layers.": ("decoder.layers", OPT_BLOCK)},
    ),
    "bert": Dialect(
        mark="embeddings.word_embeddings.weight",
        prefix="bert.",
        ends={
            "embeddings.word_embeddings": "embed_tokens",
            "embeddings.position_embeddings": "encoder.embed_positions",
            "embeddings.token_type_embeddings": "embed_types",
            "embeddings.LayerNorm": "encoder.embed_norm",
            "pooler.dense": "pooler.dense",
            "cls.predictions.transform.dense": "head_transform.dense",
            "cls.predictions.transform.LayerNorm": "head_transform.norm",
            "cls.predictions.decoder": "lm_head",
            "cls.predictions": "lm_head",
        },
        stacks={"encoder.layer.": ("encoder.layers", BERT_BLOCK)},
        positions=frozenset(["embeddings.position_ids"]),
    ),
}
