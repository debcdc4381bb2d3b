"""A mixer run in pieces with one cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metacount.modules.cache import StateCache


def in_pieces(module: Any, x_BSD: Tensor, *lengths: int) -> tuple[Tensor, StateCache]:
    """The outputs over `lengths` tokens one after the other, side by side, and the cache after."""
    cache, done = StateCache(), []
    for piece in x_BSD.split(lengths, dim=1):
        done.append(module(piece, cache=cache))
    return torch.cat(done, dim=1), cache
