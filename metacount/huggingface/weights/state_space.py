"""Names of the tensors of Mamba and Mamba-2, alone and beside attention."""

from __future__ import annotations

from metacount.huggingface.weights.blocks import (
    EXPERTS,
    FFN,
    GATE_UP,
    LLAMA_BLOCK,
    LLAMA_ENDS,
    QKV,
    same,
)
from metacount.huggingface.weights.names import Dialect, Place, Table, halves

OURS = "mamba"  # what a block calls its mixer
PARTS = (
    "in_proj",
    "conv1d",
    "out_proj",
    "A_log",
    "D",
    "x_proj",
    "dt_proj",
    "dt_layernorm",
    "b_layernorm",
    "c_layernorm",
    "dt_bias",
    "norm",
)
SHARED = ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj")


def mixer(theirs: str) -> Table:
    """Map the tensors of a mixer, under their name for it, to ours."""
    return {f"{theirs}.{part}": f"{OURS}.{part}" for part in PARTS}


PURE_BLOCK: Table = {"norm": "input_layernorm", **mixer("mixer")}
PURE_ENDS: Table = {"embeddings": "embed_tokens", "norm_f": "decoder.norm", **same("lm_head")}

# Jamba, Bamba and Falcon-H1
FEED_FORWARD_BLOCK: Table = {
    **mixer("mamba"),
    **same("input_layernorm self_attn.o_proj"),
    **same(" ".join(QKV)),
    "pre_ff_layernorm": "post_attention_layernorm",
    **{f"feed_forward.{part}_proj": f"mlp.{part}_proj" for part in FFN},
    "feed_forward.router": "mlp.gate.proj",
    **{f"feed_forward.experts.{part}": f"mlp.experts.{part}" for part in EXPERTS},
}

GRANITE_BLOCK: Table = {
    **LLAMA_BLOCK,
    **mixer("mamba"),
    "shared_mlp.input_linear": Place(GATE_UP, halves),
    "shared_mlp.output_linear": "mlp.down_proj",
}
GRANITE_EXPERTS_BLOCK: Table = {
    **GRANITE_BLOCK,
    "shared_mlp.input_linear": Place(SHARED, halves),
    "shared_mlp.output_linear": "mlp.shared_experts.down_proj",
}

NEMOTRON_BLOCK: Table = {
    **PURE_BLOCK,
    **{f"mixer.{part}_proj": f"self_attn.{part}_proj" for part in "qkvo"},
    **{f"mixer.{part}_proj": f"mlp.{part}_proj" for part in ("up", "down")},
    "mixer.gate": "mlp.gate.proj",
    "mixer.gate.e_score_correction_bias": "mlp.gate.e_score_correction_bias",
    **{f"mixer.experts.{part}_proj": f"mlp.experts.{part}_proj" for part in ("up", "down")},
    **{
        f"mixer.shared_experts.{part}_proj": f"mlp.shared_experts.{part}_proj"
        for part in ("up", "down")
    },
}

# Before others: some have the marks of these.
STATE_SPACE = {
    name: Dialect(
        mark=mark, prefix=prefix, ends=ends, stacks={"layers.": ("decoder.layers", block)}
    )
    for name, (mark, prefix, ends, block) in {
        "mamba": ("backbone.embeddings.weight", "backbone.", PURE_ENDS, PURE_BLOCK),
        "nemotron_h": ("embeddings.weight", "model.", PURE_ENDS, NEMOTRON_BLOCK),
        "jamba": ("layers.0.pre_ff_layernorm.weight", "model.", LLAMA_ENDS, FEED_FORWARD_BLOCK),
        "granite_experts": (
            "layers.0.block_sparse_moe.router.weight",
            "model.",
            LLAMA_ENDS,
            GRANITE_EXPERTS_BLOCK,
        ),
        "granite_hybrid": (
            "layers.0.shared_mlp.input_linear.weight",
            "model.",
            LLAMA_ENDS,
            GRANITE_BLOCK,
        ),
    }.items()
}
