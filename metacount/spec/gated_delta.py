"""Gated DeltaNet: linear attention that corrects its state, each head forgetting as a whole."""

from __future__ import annotations

from metacount.spec.attention import at_most, divides
from metacount.spec.field import flag, part, size
from metacount.spec.linear_attention import LinearAttention
from metacount.spec.recurrent import Recurrent


@part
class GatedDelta(LinearAttention, Recurrent):
    """Gated DeltaNet: groups of value heads share the queries and keys of one key head."""

    word = "gated_delta"

    n_k_heads: int = size(
        "n_linear_k_heads",
        "h_lk",
        "query and key heads of gated DeltaNet",
        "heads",
        "linear_num_key_heads",
    )
    n_v_heads: int = size(
        "n_linear_v_heads",
        "h_lv",
        "value heads of gated DeltaNet, each with a state",
        "heads",
        "linear_num_value_heads",
    )
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
    negative: bool = flag(
        "linear_negative_eigenvalues",
        "a state may be turned round: its rate is up to 2, not 1",
        default=False,
    )

    def check(self) -> None:
        """Raise `SpecError` unless the value heads fall into groups."""
        at_most("n_linear_k_heads", self.n_k_heads, "n_linear_v_heads", self.n_v_heads)
        divides("n_linear_k_heads", self.n_k_heads, "n_linear_v_heads", self.n_v_heads)
