"""Which names a whole model of transformers has: its ends, its stacks, and how it is recognised."""

from __future__ import annotations

from metacount.huggingface.weights.blocks import (
    BART_BLOCK,
    BERT_BLOCK,
    BERT_ENDS,
    BERT_HEADS,
    BLOOM_BLOCK,
    GLM4_BLOCK,
    GPT2_BLOCK,
    GPT2_ENDS,
    GPT_NEO_BLOCK,
    GPT_OSS_BLOCK,
    GPTJ_BLOCK,
    GRIFFIN_BLOCK,
    HYPERCLOVAX_BLOCK,
    LFM2_BLOCK,
    LLAMA_BLOCK,
    LLAMA_ENDS,
    LONGCAT_BLOCK,
    MODERNBERT_BLOCK,
    MPT_BLOCK,
    NEOX_BLOCK,
    OPT_BLOCK,
    T5_BIAS,
    longcat,
    same,
    t5_block,
)
from metacount.huggingface.weights.gemma3n import GEMMA3N
from metacount.huggingface.weights.linear_attention import DECAYS, LINEAR_ATTENTION
from metacount.huggingface.weights.names import Dialect
from metacount.huggingface.weights.shared_block import SHARED_BLOCK
from metacount.huggingface.weights.state_space import STATE_SPACE
from metacount.huggingface.weights.xlstm import XLSTM

DIALECTS = {
    **XLSTM,
    **STATE_SPACE,
    **SHARED_BLOCK,
    **GEMMA3N,
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
        mark="layers.0.mlp.router.bias",
        prefix="model.",
        ends=LLAMA_ENDS,
        stacks={"layers.": ("decoder.layers", GPT_OSS_BLOCK)},
    ),
    "glm4": Dialect(
        mark="layers.0.post_self_attn_layernorm.weight",
        prefix="model.",
        ends=LLAMA_ENDS,
        stacks={"layers.": ("decoder.layers", GLM4_BLOCK)},
    ),
    "hyperclovax": Dialect(
        mark="layers.0.post_norm1.weight",
        prefix="model.",
        ends=LLAMA_ENDS,
        stacks={"layers.": ("decoder.layers", HYPERCLOVAX_BLOCK)},
    ),
    "longcat": Dialect(
        mark="layers.0.input_layernorm.0.weight",
        prefix="model.",
        ends=LLAMA_ENDS,
        stacks={"layers.": ("decoder.layers", LONGCAT_BLOCK)},
        outside=longcat,
    ),
    "lfm2": Dialect(
        mark="layers.0.operator_norm.weight",
        prefix="model.",
        ends={**same("embed_tokens lm_head"), "embedding_norm": "decoder.norm"},
        stacks={"layers.": ("decoder.layers", LFM2_BLOCK)},
    ),
    "griffin": Dialect(
        mark="layers.0.temporal_pre_norm.weight",
        prefix="model.",
        ends={**same("embed_tokens lm_head"), "final_norm": "decoder.norm"},
        stacks={"layers.": ("decoder.layers", GRIFFIN_BLOCK)},
    ),
    "xglm": Dialect(
        mark="layers.0.self_attn_layer_norm.weight",
        prefix="model.",
        ends={**same("embed_tokens lm_head"), "layer_norm": "decoder.norm"},
        stacks={"layers.": ("decoder.layers", OPT_BLOCK)},
    ),
    "biogpt": Dialect(
        mark="layers.0.self_attn_layer_norm.weight",
        prefix="biogpt.",
        ends={
            **same("embed_tokens"),
            "embed_positions": "decoder.embed_positions",
            "layer_norm": "decoder.norm",
            "output_projection": "lm_head",
        },
        stacks={"layers.": ("decoder.layers", OPT_BLOCK)},
    ),
    "llama": Dialect(
        mark="embed_tokens.weight",
        prefix="model.",
        ends=LLAMA_ENDS,
        stacks={"layers.": ("decoder.layers", {**LLAMA_BLOCK, **LINEAR_ATTENTION})},
        fixed=DECAYS,
    ),
    "gpt_neo": Dialect(
        mark="h.0.attn.attention.q_proj.weight",
        prefix="transformer.",
        ends=GPT2_ENDS,
        stacks={"h.": ("decoder.layers", GPT_NEO_BLOCK)},
    ),
    "gptj": Dialect(
        mark="h.0.mlp.fc_in.weight",
        prefix="transformer.",
        ends=GPT2_ENDS,
        stacks={"h.": ("decoder.layers", GPTJ_BLOCK)},
    ),
    "mpt": Dialect(
        mark="blocks.0.attn.Wqkv.weight",
        prefix="transformer.",
        ends=GPT2_ENDS,
        stacks={"blocks.": ("decoder.layers", MPT_BLOCK)},
    ),
    "gpt2": Dialect(
        mark="wte.weight",
        prefix="transformer.",
        ends=GPT2_ENDS,
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
    "bart": Dialect(
        mark="decoder.layers.0.encoder_attn.k_proj.weight",
        prefix="model.",
        ends={
            **dict.fromkeys(
                ("shared", "encoder.embed_tokens", "decoder.embed_tokens"), "embed_tokens"
            ),
            **same("encoder.embed_positions decoder.embed_positions lm_head"),
            **{f"{s}.layernorm_embedding": f"{s}.embed_norm" for s in ("encoder", "decoder")},
            **{f"{s}.layer_norm": f"{s}.norm" for s in ("encoder", "decoder")},
        },
        stacks={f"{s}.layers.": (f"{s}.layers", BART_BLOCK) for s in ("encoder", "decoder")},
        zeros=frozenset(["final_logits_bias"]),
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
    "modernbert": Dialect(
        mark="embeddings.tok_embeddings.weight",
        prefix="model.",
        ends={
            "embeddings.tok_embeddings": "embed_tokens",
            "embeddings.norm": "encoder.embed_norm",
            "final_norm": "encoder.norm",
            "head.dense": "head_transform.dense",
            "head.norm": "head_transform.norm",
            "decoder": "lm_head",
        },
        stacks={"layers.": ("encoder.layers", MODERNBERT_BLOCK)},
    ),
    **{
        name: Dialect(
            mark="embeddings.word_embeddings.weight",
            prefix=f"{name}.",
            ends={**BERT_ENDS, **head},
            stacks={"encoder.layer.": ("encoder.layers", BERT_BLOCK)},
            positions=frozenset(["embeddings.position_ids"]),
        )
        for name, head in BERT_HEADS.items()
    },
}
