"""Attention against torch's own product, and a loop over heads, queries and keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised, rms_norm
from helpers.module_parts import make_attention
from torch import Tensor

from metacount.modules import Attention, LayerCache, ScaledDotProduct, Visibility
from metacount.modules.attention import l2_norm

D, S, B = 7, 11, 2  # head_dim 10 and 6 heads have nothing to do with d_model 7


def make(n_kv_heads: int = 2, **options: Any) -> Attention:
    sizes = {"d_model": D, "n_heads": 6, "n_kv_heads": n_kv_heads, "head_dim": 10}
    return randomised(make_attention(**sizes, **options))  # type: ignore[no-any-return]


def inputs(length: int = S) -> Tensor:
    return torch.randn(B, length, D, dtype=torch.float64)


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


def test_cross_attention_makes_keys_and_values_once() -> None:
    module, x, source, cache = make(), inputs(5), inputs(8), LayerCache()
    whole = module(x, Visibility(n_queries=5, n_keys=8, kind="bidirectional"), source_BTD=source)
    calls = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 0}
    for name in calls:

        def count(*_: Any, name: str = name) -> None:
            calls[name] += 1

        getattr(module, name).register_forward_hook(count)
    steps = []
    for start, n in ((0, 2), (2, 1), (3, 1), (4, 1)):
        sees = Visibility(n_queries=n, n_keys=8, query_start=start, kind="bidirectional")
        part = x[:, start : start + n]
        steps.append(module(part, sees, source_BTD=source, cache=cache))
    assert calls == {"q_proj": 4, "k_proj": 1, "v_proj": 1, "o_proj": 4}
    assert_near(torch.cat(steps, dim=1), whole)
    assert [t.shape for t in cache.tensors] == [(B, 2, 8, 10)] * 2


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
