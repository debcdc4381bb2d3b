"""Norms of bf16, computed in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.module_loops import layer_norm, rms_norm
from torch import Tensor

from metacount.modules import LayerNorm, RMSNorm
from metacount.modules.attention import l2_norm

EPS = 1e-5


def with_offset(x: Tensor) -> Tensor:
    """bf16 has steps of 2^-7 above 1: there 1 + 0.003 is 1, and the weight would be lost."""
    module = RMSNorm(331, unit_offset=True, eps=EPS).bfloat16()
    assert module.weight is not None
    torch.nn.init.constant_(module.weight, 0.003)
    return module(x)  # type: ignore[no-any-return]


STORED = torch.tensor(0.003).bfloat16().item()
# what is computed, in loops, and in bf16 all the way: the case can tell the two apart
NORMED: dict[str, tuple[Callable[..., Tensor], Callable[..., list[float]], Callable[..., Tensor]]]
NORMED = {
    "rms": (
        RMSNorm(331, eps=EPS).bfloat16(),
        lambda row: rms_norm(row, EPS),
        lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS),
    ),
    "without weights": (
        lambda x: l2_norm(x, EPS),
        lambda row: rms_norm(row, EPS),
        lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS),
    ),
    "layer norm": (
        LayerNorm(331, bias=True, eps=EPS).bfloat16(),
        lambda row: layer_norm(row, EPS),
        lambda x: (
            (x - x.mean(-1, keepdim=True))
            * torch.rsqrt((x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + EPS)
        ),
    ),
    "unit offset": (
        with_offset,
        lambda row: rms_norm(row, EPS, [STORED] * 331, 1.0),
        RMSNorm(331, eps=EPS).bfloat16(),
    ),
}


@pytest.mark.parametrize("name", NORMED)
def test_a_norm_of_bf16_is_rounded_once(name: str) -> None:
    """Within half a step of bf16, and a thousandth more for float32 itself, of the exact value."""
    norm, in_loops, in_bf16 = NORMED[name]
    x = (torch.randn(61, 331) * 3 + 1).bfloat16()
    exact = torch.tensor([in_loops(row) for row in x.tolist()], dtype=torch.float64)
    step = 1.001 * 2.0 ** (exact.abs().log2().floor() - 8)  # 7 bits after the leading one
    with torch.no_grad():
        found, rounded = norm(x), in_bf16(x)
    assert found.dtype == torch.bfloat16
    assert ((found.double() - exact).abs() <= step).all()
    assert ((rounded.double() - exact).abs() > step).any()
