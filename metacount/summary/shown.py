"""Results that print themselves: as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

from metacount.flow import result
from metacount.training import result as training


class Flow(result.Flow):
    """The steps of one forward, in the order in which they ran."""

    def __str__(self) -> str:
        from metacount.views.flow import flow_text

        return flow_text(self)


class Training(training.Training):
    """What one training step showed."""

    def __str__(self) -> str:
        from metacount.views.train import train_text

        return train_text(self)
