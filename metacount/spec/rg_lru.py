"""The recurrent block of Griffin and RecurrentGemma around its RG-LRU."""

from __future__ import annotations

from metacount.spec.attention import divides
from metacount.spec.field import choice, part, size
from metacount.spec.recurrent import Recurrent


@part
class RgLru(Recurrent):
    """A real-gated linear recurrence, one value a channel, beside a gating branch."""

    word = "rg_lru"

    lru_width: int = size("lru_width", "w_l", "channels of an RG-LRU", "values")
    n_lru_blocks: int = size(
        "n_lru_blocks", "b_l", "blocks that each gate of an RG-LRU is made of", "blocks"
    )
    activation: str = choice(
        "lru_activation",
        "of the branch beside an RG-LRU",
        "gelu_tanh",
        "gelu",
        "silu",
        "relu",
        default="gelu_tanh",
    )

    def check(self) -> None:
        """Raise `SpecError` unless the channels fall into blocks."""
        divides("n_lru_blocks", self.n_lru_blocks, "lru_width", self.lru_width)
