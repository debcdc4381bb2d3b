"""The one linear layer that every other module is made of."""

from __future__ import annotations

from torch import Tensor, nn


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


class Adapter(nn.Module):
    """up(down(x)), of low rank: what one use of a shared projection adds to it.

    Hu et al. 2021, arXiv:2106.09685, eq. 3, their B·A; here it is part of the model, not tuning.
    """

    def __init__(self, d_in: int, rank: int, d_out: int) -> None:
        super().__init__()
        self.down_proj = Linear(d_in, rank, bias=False)
        self.up_proj = Linear(rank, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute up(down(x)): [..., d_in] -> [..., d_out]."""
        y: Tensor = self.up_proj(self.down_proj(x))
        return y


def adapted(y: Tensor, x: Tensor, name: str, adapters: nn.ModuleDict | None) -> Tensor:
    """Add to a projection y of x what the adapter `name` gives, where there is one."""
    if adapters is None or name not in adapters:
        return y
    added: Tensor = adapters[name](x)
    return y + added
