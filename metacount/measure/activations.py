"""Activations as the modules run them, with autograd's derivative: points of a curve."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from metacount.errors import InputError, nearest, shown
from metacount.modules.ffn import ACTIVATIONS, activate

STEP = 1 / 128  # of x: exact in binary, so that 0 is a point


@dataclass(frozen=True, kw_only=True)
class Curve:
    """y and dy/dx of one activation at each x."""

    name: str
    x: list[float]
    y: list[float]
    derivative: list[float]


def curve(name: str, reach: int = 4, swish_beta: float = 1.0) -> Curve:
    """Compute the activation `name` from -reach to reach, in float64.

    >>> relu = curve("relu", 1)
    >>> relu.y[0], relu.y[-1], relu.derivative[0], relu.derivative[-1]
    (0.0, 1.0, 0.0, 1.0)
    """
    if name not in ACTIVATIONS:
        remedy = nearest(name, ACTIVATIONS, f"choose of {', '.join(ACTIVATIONS)}")
        raise InputError(f"there is no activation '{shown(name)}'; {remedy}")
    n = round(reach / STEP)
    x = torch.arange(-n, n + 1, dtype=torch.float64) * STEP
    x.requires_grad_()
    y = activate(x, name, swish_beta)
    (slope,) = torch.autograd.grad(y.sum(), x)
    return Curve(name=name, x=x.tolist(), y=y.tolist(), derivative=slope.tolist())
