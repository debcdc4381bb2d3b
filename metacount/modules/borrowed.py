"""Attention of layers that borrow the keys and values of earlier ones."""

from __future__ import annotations

from torch import Tensor

from metacount.modules.attention import RMS, Attention
from metacount.modules.cache import LayerCache, Lent
from metacount.spec import attention as parts
from metacount.spec.position import QueryGrowth, Rope
from metacount.spec.stack import Norms


class BorrowingAttention(Attention):
    """Attention that makes no keys and values: it reads those that an earlier layer left.

    Brandon et al. 2024, arXiv:2405.12981 (between layers); Gemma 3n. It has what any attention has
    but for their projections and the norm of keys, and keeps nothing.
    """

    borrows = True

    def __init__(
        self,
        part: parts.Attention,
        d_model: int,
        *,
        norms: Norms = RMS,
        rope: Rope | None = None,
        windowed: bool = False,
        growth: QueryGrowth | None = None,
    ) -> None:
        super().__init__(part, d_model, norms=norms, rope=rope, windowed=windowed, growth=growth)
        del self.k_proj, self.v_proj, self.k_norm

    def _given(self, cache: LayerCache | None, lent: Lent | None) -> tuple[Tensor, ...]:
        """Return the keys and values left by the last layer that sees as far as this one."""
        assert lent is not None  # the stack gives it where a layer borrows
        return lent.tensors[self.windowed]
