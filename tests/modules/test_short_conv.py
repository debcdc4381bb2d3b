"""Short convolution and RG-LRU against loops over positions, transformers, and themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.module_loops import Rows, add, assert_near, linear, matrix, randomised, sigmoid
from torch import Tensor, nn

from metacount.modules.cache import StateCache
from metacount.modules.rg_lru import RecurrentBlock, doubled, recurrence
from metacount.modules.short_conv import ShortConvolution
from metacount.spec.mixers import RgLru, ShortConv

D, W = 6, 10


def short(kernel: int = 3, bias: bool = True) -> Any:
    return randomised(ShortConvolution(ShortConv(conv_kernel=kernel, conv_bias=bias), D))


def griffin(kernel: int = 4, activation: str = "gelu_tanh") -> Any:
    part = RgLru(conv_kernel=kernel, lru_width=W, n_lru_blocks=2, activation=activation)
    return randomised(RecurrentBlock(part, D))


def convolved(conv: nn.Conv1d, rows: Rows) -> Rows:
    """Each channel's filter over a position and those before it, which begin with zeros."""
    weights, width = conv.weight[:, 0].tolist(), conv.kernel_size[0]
    bias = [0.0] * len(weights) if conv.bias is None else conv.bias.tolist()
    found = []
    for t in range(len(rows)):
        row = list(bias)
        for c, filter_ in enumerate(weights):
            for back in range(min(width, t + 1)):
                row[c] += filter_[width - 1 - back] * rows[t - back][c]
        found.append(row)
    return found


def short_by_loop(module: Any, rows: Rows) -> Rows:
    three = [linear(module.in_proj, row) for row in rows]
    inner = [[b * x for b, x in zip(row[:D], row[2 * D :], strict=True)] for row in three]
    outer = [
        [c * y for c, y in zip(row[D : 2 * D], y, strict=True)]
        for row, y in zip(three, convolved(module.conv, inner), strict=True)
    ]
    return [linear(module.out_proj, row) for row in outer]


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def blocks(weight: Tensor, bias: Tensor, row: list[float]) -> list[float]:
    found: list[float] = []
    for i, (matrix_, b) in enumerate(zip(weight.tolist(), bias.tolist(), strict=True)):
        size = len(b)
        columns = [list(column) for column in zip(*matrix_, strict=True)]
        found += add(matrix(columns, row[i * size : (i + 1) * size]), b)
    return [sigmoid(x) for x in found]


def griffin_by_loop(module: Any, rows: Rows) -> Rows:
    lru, state, found = module.rg_lru, [0.0] * W, []
    lambdas = lru.recurrent_param.tolist()
    xs = convolved(module.conv_1d, [linear(module.linear_x, row) for row in rows])
    for t, (x, row) in enumerate(zip(xs, rows, strict=True)):
        i_gate = blocks(lru.input_gate_weight, lru.input_gate_bias, x)
        r_gate = blocks(lru.recurrent_gate_weight, lru.recurrent_gate_bias, x)
        for c in range(W):
            a = math.exp(-8 * r_gate[c] * math.log1p(math.exp(lambdas[c])))
            factor = math.sqrt(1 - a * a) if t else 1.0
            state[c] = a * state[c] + factor * i_gate[c] * x[c]
        y = [gelu_tanh(value) for value in linear(module.linear_y, row)]
        found.append(linear(module.linear_out, [h * v for h, v in zip(state, y, strict=True)]))
    return found


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any, Rows], Rows]]] = {
    "short": (short, short_by_loop),
    "short, without biases": (lambda: short(4, False), short_by_loop),
    "short, kernel of one": (lambda: short(1), short_by_loop),
    "griffin": (griffin, griffin_by_loop),
    "griffin, kernel of two": (lambda: griffin(2), griffin_by_loop),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_equals_a_loop_over_positions(name: str, length: int) -> None:
    make, loop = CASES[name]
    module, x = make(), torch.randn(2, length, D, dtype=torch.float64)
    expected = [loop(module, rows) for rows in x.tolist()]
    assert_near(module(x), expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cuts", [(1,) * 8, (2, 6), (5, 1, 2), (7, 1)])
def test_a_cache_continues(name: str, cuts: tuple[int, ...]) -> None:
    module, x = CASES[name][0](), torch.randn(2, 8, D, dtype=torch.float64)
    cache, found = StateCache(), []
    for piece in x.split(cuts, dim=1):
        found.append(module(piece, cache=cache))
    assert_near(torch.cat(found, dim=1), module(x))
    assert cache.length == 8


def test_state_is_constant_and_its_own() -> None:
    for module, sizes in (
        (short(3), {"conv": 2 * D * 3}),
        (griffin(4), {"conv": 2 * W * 3, "recurrent": 2 * W}),
    ):
        for length in (1, 2, 30):
            cache = StateCache()
            module(torch.randn(2, length, D, dtype=torch.float64), cache=cache)
            assert {k: v.untyped_storage().nbytes() // 8 for k, v in cache.states.items()} == sizes


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_both_forms_of_the_recurrence_are_equal(length: int) -> None:
    a, x = torch.rand(2, length, W).double(), torch.randn(2, length, W).double()
    state = torch.randn(2, W).double()
    assert_near(doubled(a, x, state), recurrence(a, x, state))
    wrong = doubled(a, x, torch.zeros_like(state))
    assert not torch.allclose(wrong, recurrence(a, x, state))


def test_short_convolution_is_that_of_transformers() -> None:
    from transformers import DynamicCache, Lfm2Config
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    config = Lfm2Config(
        hidden_size=D,
        num_hidden_layers=2,
        layer_types=["conv", "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        conv_bias=True,
        conv_L_cache=3,
    )
    ours, theirs = short(), Lfm2ShortConv(config, 0).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, D, dtype=torch.float64)
    assert_near(ours(x), theirs(x).detach(), 1e-10)
    cache, past = StateCache(), DynamicCache(config=config)
    for piece in x.split((2, 1, 1, 1), dim=1):
        assert_near(ours(piece, cache=cache), theirs(piece, past_key_values=past).detach(), 1e-10)
        assert torch.equal(cache.states["conv"], past.get_conv_state(0))


def test_recurrent_block_is_that_of_transformers() -> None:
    from transformers import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import (
        RecurrentGemmaRecurrentBlock,
    )

    config = RecurrentGemmaConfig(
        hidden_size=D, lru_width=D, num_attention_heads=2, num_hidden_layers=1, conv1d_width=4
    )
    part = RgLru(conv_kernel=4, lru_width=D, n_lru_blocks=2)
    ours: Any = randomised(RecurrentBlock(part, D))
    theirs = RecurrentGemmaRecurrentBlock(config, 0).double()
    theirs.load_state_dict(ours.state_dict())
    x, at = torch.randn(2, 7, D, dtype=torch.float64), torch.arange(7)[None]
    # transformers adds up its recurrence in float32, whatever the model's type
    whole, _ = theirs(x, at, None, use_cache=False)
    assert_near(ours(x), whole.detach(), 1e-6)
    cache = StateCache()
    for start, stop in ((0, 5), (5, 6), (6, 7)):
        y, _ = theirs(x[:, start:stop], at[:, start:stop], None, use_cache=True)
        assert_near(ours(x[:, start:stop], cache=cache), y.detach(), 1e-6)
    assert torch.equal(cache.states["conv"], theirs.conv1d_state)
