"""Norms and the softmax of attention against loops and literals, in reduced precision too."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.module_loops import Rows, assert_near, layer_norm, rms_norm
from torch import Tensor

from metacount.modules import LayerNorm, RMSNorm, ScaledDotProduct, Visibility
from metacount.modules.attention import l2_norm

D, S, B = 7, 11, 2  # head_dim 10 and 6 heads have nothing to do with d_model 7


def test_l2_norm_of_bf16_is_computed_in_float32() -> None:
    x = (torch.randn(61, 331) * 3 + 1).bfloat16()
    y = l2_norm(x, 1e-5)
    assert y.dtype == torch.bfloat16
    exact = torch.tensor([rms_norm(row, 1e-5) for row in x.tolist()]).double()
    half_step = 2.0 ** (exact.abs().log2().floor() - 8)
    assert ((y.double() - exact).abs() <= 1.001 * half_step).all()
    in_bf16 = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    assert ((in_bf16.double() - exact).abs() > 1.001 * half_step).any()


def test_a_sink_takes_weight_and_gives_no_value() -> None:
    core = ScaledDotProduct(scale=1.0, sinks=1).double()
    assert core.sinks is not None
    zero = torch.zeros(1, 1, 3, 2, dtype=torch.float64)
    value = torch.full((1, 1, 3, 2), 6.0, dtype=torch.float64)
    # sink logit 0 beside 1, 2, 3 scores of 0: 6 · (1 - 1/2), 6 · (1 - 1/3), 6 · (1 - 1/4)
    y = core(zero, zero, value, Visibility(n_queries=3, n_keys=3))
    assert_near(y[0, 0, :, 0], [3.0, 4.0, 4.5], 1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_softmax_is_in_float32(dtype: torch.dtype) -> None:
    """Scores of 0 to 3 over 700 keys: in the reduced dtype the weights would be off by more."""
    core = ScaledDotProduct(scale=1.0)
    q, v = torch.ones(1, 1, 1, 1, dtype=dtype), torch.randn(1, 1, 700, 3).to(dtype)
    k = torch.linspace(0, 3, 700).view(1, 1, 700, 1).to(dtype)
    y = core(q, k, v, Visibility(n_queries=1, n_keys=700, query_start=699))
    assert y.dtype == dtype
    weights = k.float().flatten().softmax(0).to(dtype)
    assert torch.equal(y.flatten(), weights @ v[0, 0])
    assert not torch.equal(weights, (k.flatten().exp() / k.flatten().exp().sum()))


def test_rms_norm_takes_the_mean_of_squares_not_their_sum() -> None:
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)
    # mean square (9 + 16) / 2; by the sum it would be 3/5, 4/5
    assert_near(
        RMSNorm(2, affine=False, eps=0.0)(x), [3 / math.sqrt(12.5), 4 / math.sqrt(12.5)], 1e-15
    )
    wide = torch.randn(1009, dtype=torch.float64)
    mean_square = RMSNorm(1009, affine=False, eps=0.0)(wide).square().mean()
    assert abs(mean_square.item() - 1) < 1e-12


def bf16_rows() -> Tensor:
    return (torch.randn(61, 331) * 3 + 1).bfloat16()


def rounded_once(y: Tensor, exact: Rows) -> bool:
    """Whether every value is within half a step of bf16 of the exact one.

    A thousandth of a half step more is allowed, for float32's own rounding.
    """
    assert y.dtype == torch.bfloat16
    wide = torch.tensor(exact, dtype=torch.float64)
    half_step = 2.0 ** (wide.abs().log2().floor() - 8)  # 7 bits after the leading one
    return bool(((y.double() - wide).abs() <= 1.001 * half_step).all())


def test_rms_norm_of_bf16_is_computed_in_float32() -> None:
    x, module = bf16_rows(), RMSNorm(331, eps=1e-5).bfloat16()
    exact = [rms_norm(row, 1e-5) for row in x.tolist()]
    assert rounded_once(module(x), exact)
    in_bf16 = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    assert not rounded_once(in_bf16, exact)  # the case can tell the two apart


def test_layer_norm_of_bf16_is_computed_in_float32() -> None:
    x, module = bf16_rows(), LayerNorm(331, bias=True, eps=1e-5).bfloat16()
    exact = [layer_norm(row, 1e-5) for row in x.tolist()]
    assert rounded_once(module(x), exact)
    centred = x - x.mean(-1, keepdim=True)
    in_bf16 = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    assert not rounded_once(in_bf16, exact)


def test_the_unit_offset_of_a_bf16_weight_is_added_in_float32() -> None:
    # bf16 has steps of 2^-7 above 1: there 1 + 0.003 is 1, and the weight would be lost
    x, module = bf16_rows(), RMSNorm(331, unit_offset=True, eps=1e-5).bfloat16()
    assert module.weight is not None
    torch.nn.init.constant_(module.weight, 0.003)
    stored = module.weight.tolist()
    exact = [rms_norm(row, 1e-5, stored, 1.0) for row in x.tolist()]
    assert rounded_once(module(x), exact)
    assert not rounded_once(RMSNorm(331, eps=1e-5).bfloat16()(x), exact)
