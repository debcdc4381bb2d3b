"""The mLSTM of xLSTM: linear attention whose heads have an input gate and a forget gate."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.field import number, part
from metacount.spec.linear_attention import OneCountOfHeads, TwoWidths


@part
class MLstm(TwoWidths, OneCountOfHeads):
    """An mLSTM: a matrix memory for each head, two exponential gates, a normaliser."""

    word = "mlstm"

    gate_softcap: float = number(
        "mlstm_gate_softcap", "bound that a tanh keeps an mLSTM's gates in", default=15.0
    )
    divisor_eps: float = number(
        "mlstm_divisor_eps", "added to what an mLSTM's output is divided by", default=1e-6
    )

    def check(self) -> None:
        """Raise `SpecError` for chunks of one position: one is a step of the recurrence."""
        if self.chunk_size == 1:
            raise SpecError(
                "linear_chunk_size", "must be at least 2 in an mLSTM", 1, "choose 2 or more"
            )
