"""Gated DeltaNet: linear attention that corrects its state, each head forgetting as a whole."""

from __future__ import annotations

from metacount.spec.attention import at_most, divides
from metacount.spec.field import flag, part, size
from metacount.spec.linear_attention import LinearAttention, TwoWidths
from metacount.spec.recurrent import Recurrent


@part
class GroupedHeads(LinearAttention):
    """Groups of value heads share the queries and keys of one key head."""

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

    def check(self) -> None:
        """Raise `SpecError` unless the value heads fall into groups."""
        at_most("n_linear_k_heads", self.n_k_heads, "n_linear_v_heads", self.n_v_heads)
        divides("n_linear_k_heads", self.n_k_heads, "n_linear_v_heads", self.n_v_heads)


@part
class GatedDelta(TwoWidths, GroupedHeads, Recurrent):
    """Gated DeltaNet, with its convolution."""

    word = "gated_delta"

    negative: bool = flag(
        "linear_negative_eigenvalues",
        "a state may be turned round: its rate is up to 2, not 1",
        default=False,
    )
