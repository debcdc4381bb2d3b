"""Which sizes people write in place of each other, and which numbers in place of a size."""

from __future__ import annotations

from fractions import Fraction

WIDTHS = (
    "d_model",
    "head_dim",
    "d_ff",
    "d_ff_expert",
    "d_ff_shared",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "d_embedding",
)
NARROW = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")
EXPERTS = ("n_experts", "top_k", "n_shared_experts")
REPEATED = (*EXPERTS, "n_heads", "n_layers", "batch_size", "seq_len", "bytes_per_value")
KINDS: tuple[tuple[str, ...], ...] = (
    WIDTHS,
    ("n_heads", "n_kv_heads"),
    EXPERTS,
    ("n_layers", "n_dense_layers", "n_encoder_layers"),
    ("seq_len", "kv_len", "source_len", "window"),
    ("vocab_size", "n_positions"),
)
# Products that are read as one size where a formula has another way to get it.
PAIRS = {
    ("d_model", "/n_heads"): ("head_dim", "v_head_dim", "qk_nope_head_dim"),
    ("head_dim", "n_heads"): ("d_model",),
}
# Products that people write one number for, beside a size squared.
NUMBERS = {
    ("n_heads", "head_dim"),
    ("n_kv_heads", "head_dim"),
    ("batch_size", "bytes_per_value"),
    ("batch_size", "seq_len"),
}
NEAR = 4  # times as large or as small: still a number for the same size
FAR = 64
# Of a width: 4·d and 8/3·d are usual, 19/6·d is an accident.
RATIOS = {Fraction(ratio) for ratio in ("1", "2", "3", "4", "8/3")}
RARE = {Fraction(ratio) for ratio in ("5", "8", "2/3", "4/3", "16/3", "3/2", "5/2", "7/2")}
NO_SEQ_LEN = "not multiplied by seq_len (counted for one token)"
