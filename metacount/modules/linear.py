"""The one linear layer that every other module is made of."""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """`nn.Linear` that skips the random initialisation of a weight that has no storage."""

    def reset_parameters(self) -> None:
        """Initialise as `nn.Linear` does; on meta there is nothing to initialise."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Table(nn.Embedding):
    """`nn.Embedding` with the same rule: rows of a learned table, [rows, width]."""

    def reset_parameters(self) -> None:
        """Initialise as `nn.Embedding` does; on meta there is nothing to initialise."""
        if not self.weight.is_meta:
            super().reset_parameters()
