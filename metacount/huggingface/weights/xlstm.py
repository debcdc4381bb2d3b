"""Names of the tensors of xLSTM."""

from __future__ import annotations

from metacount.huggingface.weights.blocks import same
from metacount.huggingface.weights.names import Dialect, Table

OURS = "mlstm_layer"  # what a block calls its mixer
PARTS = "q k v ogate_preact igate_preact fgate_preact multihead_norm out_proj"

BLOCK: Table = {
    "norm_mlstm": "input_layernorm",
    "norm_ffn": "post_attention_layernorm",
    **same(" ".join(f"{OURS}.{part}" for part in PARTS.split())),
    "ffn.proj_up_gate": "mlp.gate_proj",
    "ffn.proj_up": "mlp.up_proj",
    "ffn.proj_down": "mlp.down_proj",
}

# Before Mamba, whose mark it has, too.
XLSTM = {
    "xlstm": Dialect(
        mark="blocks.0.norm_mlstm.weight",
        prefix="backbone.",
        ends={"embeddings": "embed_tokens", "out_norm": "decoder.norm", **same("lm_head")},
        stacks={"blocks.": ("decoder.layers", BLOCK)},
    )
}
