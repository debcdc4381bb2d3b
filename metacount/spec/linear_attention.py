"""Linear attention: a state of keys by values for each head, whatever the length."""

from __future__ import annotations

from metacount.spec.field import MAX_TOKENS, number, part, size


@part
class LinearAttention:
    """What all of them have: chunks that are run as matrix products, and a norm of the output."""

    chunk_size: int = size(
        "linear_chunk_size",
        "c_l",
        "positions that linear attention takes at once",
        "positions",
        most=MAX_TOKENS,
    )
    norm_eps: float | None = number(
        "linear_norm_eps",
        "norm_eps of the norm over its output; none: as in other norms",
        default=None,
    )


@part
class OneCountOfHeads(LinearAttention):
    """Linear attention with as many heads of keys as of values."""

    n_heads: int = size(
        "n_linear_heads", "h_l", "heads of linear attention", "heads", "linear_num_heads"
    )


@part
class LinearHeads(OneCountOfHeads):
    """Linear attention whose keys and values have as many heads, of one width."""

    head_dim: int = size("linear_head_dim", "d_l", "width of one of its keys and values", "values")


@part
class TwoWidths:
    """Keys and values of linear attention, each of a width of its own."""

    k_head_dim: int = size(
        "linear_k_head_dim",
        "d_lk",
        "width of one of its queries and keys",
        "values",
        "linear_key_head_dim",
    )
    v_head_dim: int = size(
        "linear_v_head_dim", "d_lv", "width of one of its values", "values", "linear_value_head_dim"
    )
