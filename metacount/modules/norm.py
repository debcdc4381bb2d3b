"""LayerNorm and RMSNorm. Where they stand in a block is `block.py`'s business."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from metacount.spec.stack import Norms


def at_least_float32(x: Tensor) -> Tensor:
    """Convert `x` to float32, or leave it unchanged in float64: reduced precision ends here."""
    return x if x.dtype == torch.float64 else x.float()


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) · weight + bias over the last axis.

    Ba, Kiros, Hinton 2016, arXiv:1607.06450. Weight [D] and bias [D] are each optional.
    """

    def __init__(self, width: int, *, bias: bool, affine: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply LayerNorm to the last axis: [..., D] -> [..., D]."""
        wide = at_least_float32(x)
        centred = wide - wide.mean(-1, keepdim=True)
        y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            y = y * self.weight
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last axis; the mean of squares, not their sum.

    Zhang, Sennrich 2019, arXiv:1910.07467, eq. 4. With `unit_offset` the stored weight is w - 1
    (Gemma), so that a zero tensor is the identity.
    """

    def __init__(
        self, width: int, *, affine: bool = True, unit_offset: bool = False, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.eps = eps
        self.unit_offset = unit_offset
        start = torch.zeros(width) if unit_offset else torch.ones(width)
        self.weight = nn.Parameter(start) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply RMSNorm to the last axis: [..., D] -> [..., D]."""
        wide = at_least_float32(x)
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            # in float32: above 1, bf16 has steps of 2^-7
            y = y * (at_least_float32(self.weight) + 1 if self.unit_offset else self.weight)
        return y.to(x.dtype)


def eps_of(part: Any, norms: Norms) -> float:
    """Return what is added below the root of a mixer's own norms: its own, or the model's."""
    return norms.eps if part.norm_eps is None else part.norm_eps


def make_norm(norms: Norms, width: int) -> LayerNorm | RMSNorm:
    """Make a norm over `width` values."""
    if norms.kind == "layernorm":
        return LayerNorm(width, bias=norms.bias, affine=norms.affine, eps=norms.eps)
    return RMSNorm(width, affine=norms.affine, unit_offset=norms.unit_offset, eps=norms.eps)
