"""Modules with random weights, and what they give compared with what it must be."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

Row = list[float]


def randomised(module: Any, seed: int = 7) -> Any:
    """`module` in float64, every parameter and stored buffer random: none is left at 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    module.double().eval()
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.copy_(0.4 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    return module


def assert_near(actual: Tensor, expected: Any, relative: float = 1e-12) -> None:
    """Same shape, float64, and the largest difference at most `relative` of the largest value."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert actual.dtype == torch.float64
    assert actual.shape == expected.shape
    largest = expected.abs().max().item()
    assert 1e-3 < largest < 1e9, "values that would compare equal whatever happened"
    assert (actual - expected).abs().max().item() <= relative * max(1.0, largest)


def rms_norm(row: Row, eps: float, weight: Row | None = None, offset: float = 0.0) -> Row:
    size = math.sqrt(math.fsum(x * x for x in row) / len(row) + eps)
    weight = [1.0 - offset] * len(row) if weight is None else weight
    return [x / size * (w + offset) for x, w in zip(row, weight, strict=True)]


def layer_norm(row: Row, eps: float) -> Row:
    mean = math.fsum(row) / len(row)
    variance = math.fsum((x - mean) ** 2 for x in row) / len(row)
    return [(x - mean) / math.sqrt(variance + eps) for x in row]


def tokens(length: int = 7, batch: int = 2) -> Tensor:
    """Random token ids, [batch, length]."""
    return torch.randint(0, 101, (batch, length))
