"""Who sees whom: the mask of an attention, as positions and not as a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """Which of T keys each of S queries sees.

    `kind`: causal | bidirectional | prefix; `window` counts positions, the query itself included;
    `chunked` cuts the sequence into chunks of `window` instead of sliding. A bidirectional window
    reaches `window // 2` to either side.
    """

    n_queries: int
    n_keys: int
    query_start: int = 0
    key_start: int = 0
    kind: str = "causal"
    window: int | None = None
    chunked: bool = False
    prefix_len: int = 0

    def queries(self, device: torch.device) -> Tensor:
        """Return the positions of the queries, [S]."""
        return torch.arange(self.query_start, self.query_start + self.n_queries, device=device)

    def keys(self, device: torch.device) -> Tensor:
        """Return the positions of the keys, [T]."""
        return torch.arange(self.key_start, self.key_start + self.n_keys, device=device)

    def keep(self, device: torch.device, rows: slice = slice(None)) -> Tensor:
        """Tell where a query (row) sees a key (column), [S, T]; `rows` picks some queries."""
        q, k = self.queries(device)[rows, None], self.keys(device)[None, :]
        if self.kind == "bidirectional":
            if self.window is None:
                return (q >= 0) & (k >= 0)
            return (q - k).abs() <= self.window // 2
        keep = k <= q
        if self.kind == "prefix":
            keep = keep | (k < self.prefix_len)
        if self.window is not None and self.chunked:
            keep = keep & (k // self.window == q // self.window)
        elif self.window is not None:
            keep = keep & (q - k < self.window)
        return keep
