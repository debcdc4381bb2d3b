"""Scaled RoPE, growing queries, sines before cosines, SparseMixer: by hand, number by number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near
from torch import Tensor

from metacount.modules import apply_rope, sinusoid
from metacount.modules.moe import mixed
from metacount.modules.position import grown, speeds
from metacount.spec.position import QueryGrowth, RopeScaling

CPU: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float64}
LONG = RopeScaling(kind="longrope", n_trained=10, short_factors=(1.0, 2.0), long_factors=(4.0, 5.0))


def turning(width: int, theta: float, length: int = 1, **values: Any) -> Tensor:
    scaling = RopeScaling(**values) if values else None
    return speeds(width, theta, scaling, length, **CPU)


def test_linear_divides_every_speed() -> None:
    assert_near(turning(4, 10000.0, kind="linear", factor=4.0), [0.25, 0.0025])


def test_dynamic_grows_the_base_with_the_sequence() -> None:
    how: dict[str, Any] = {"kind": "dynamic", "factor": 3.0, "n_trained": 10}
    for length in (1, 10):
        assert_near(turning(4, 10000.0, length, **how), [1.0, 0.01])
    # 3·20/10 - 2 = 4; 4^(4/(4 - 2)) = 16; (16·10000)^(-2/4) = 1/400
    assert_near(turning(4, 10000.0, 20, **how), [1.0, 0.0025])


def test_llama3_keeps_fast_pairs_and_divides_slow_ones() -> None:
    how: dict[str, Any] = {"kind": "llama3", "factor": 8.0, "n_trained": 100}
    # turns in 100 positions: 100/2π = 15.9 above 4, 1.5915494309 between, 0.159 below 1
    # (1.5915494309 - 1)/(4 - 1) = 0.1971831436 stays; 0.8028168564/8 = 0.1003521071 more
    blend = turning(6, 1000.0, low_freq_factor=1.0, high_freq_factor=4.0, **how)
    assert_near(blend, [1.0, 0.02975352507, 0.00125], 1e-11)
    step = turning(6, 1000.0, low_freq_factor=1.0, high_freq_factor=1.0, **how)
    assert_near(step, [1.0, 0.1, 0.00125])


def test_yarn_has_a_ramp_over_the_pairs() -> None:
    how: dict[str, Any] = {
        "kind": "yarn",
        "factor": 4.0,
        "n_trained": 200,
        "beta_fast": 1.0,
        "beta_slow": 0.1,
    }
    # β turns in 200 positions at pair 8·ln(200/2πβ)/(2·ln 10000) = log10(31.83098862/β):
    # 1.50285 for 1, 2.50285 for 0.1; as whole numbers 1 and 3, so pair 2 is half way
    # 0.01·(0.5/4 + 0.5) = 0.00625
    assert_near(turning(8, 10000.0, **how), [1.0, 0.1, 0.00625, 0.00025])
    # pair 2 is (2 - 1.5028501278)/1 = 0.4971498722 of the way: 0.01·(0.4971498722/4 + 0.5028501278)
    exact = turning(8, 10000.0, truncate=False, **how)
    assert_near(exact, [1.0, 0.1, 0.006271375958, 0.00025], 1e-11)


def test_yarn_without_room_for_a_ramp_is_a_step() -> None:
    how: dict[str, Any] = {"kind": "yarn", "factor": 4.0, "n_trained": 200, "truncate": False}
    narrow = turning(8, 10000.0, beta_fast=1.0, beta_slow=1.0, **how)
    assert_near(narrow, [1.0, 0.1, 0.0025, 0.00025])


@pytest.mark.parametrize(("length", "expected"), [(10, [1.0, 0.005]), (11, [0.25, 0.002])])
def test_longrope_has_a_factor_for_each_pair(length: int, expected: list[float]) -> None:
    assert_near(speeds(4, 10000.0, LONG, length, **CPU), expected)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_the_attention_factor_is_on_what_is_rotated(style: str) -> None:
    x = torch.randn(1, 2, 3, 6, dtype=torch.float64)
    scaling = RopeScaling(kind="yarn", factor=4.0, n_trained=200, attention_factor=1.5)
    y = apply_rope(
        x, torch.arange(3), rotary_dim=4, theta=100.0, style=style, scaling=scaling, length=3
    )
    assert_near(y[..., :4].norm(dim=-1), (1.5 * x[..., :4].norm(dim=-1)).tolist())
    assert torch.equal(y[..., 4:], x[..., 4:])


def test_queries_grow_by_steps() -> None:
    q = torch.ones(1, 1, 6, 1, dtype=torch.float64)
    later = grown(q, torch.arange(6), QueryGrowth(weight=0.5, step=2.0))
    # floor(p / 2) = 0 0 1 1 2 2
    two, three = 1 + 0.5 * math.log(2), 1 + 0.5 * math.log(3)
    assert_near(later.flatten(), [1.0, 1.0, two, two, three, three])
    sooner = grown(q, torch.arange(6), QueryGrowth(weight=0.5, step=2.0, shift=1))
    # floor((p + 1) / 2) = 0 1 1 2 2 3
    assert_near(sooner.flatten(), [1.0, two, two, three, three, 1 + 0.5 * math.log(4)])


def test_sines_before_cosines() -> None:
    # width 5: two sines, two cosines, wavelengths 2π and 10000·2π, and a zero
    table = sinusoid(torch.tensor([1]), 5, style="halves")
    expected = [math.sin(1), math.sin(1e-4), math.cos(1), math.cos(1e-4), 0.0]
    assert_near(table, [expected])


def test_sparse_mixer_takes_one_expert_after_the_other() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.97, -3.0]], dtype=torch.float64)
    chosen, weights = mixed(logits, 2, 0.01)
    assert chosen.tolist() == [[1, 2]]
    # (2 - 1.97)/2 = 0.015 is within 0.02, 1.0 is not: 1/(1 + e^-0.03); then 1.97 is alone
    assert_near(weights, [[1 / (1 + math.exp(-0.03)), 1.0]])
    near = mixed(torch.tensor([[-1.0, -1.01, -3.0]], dtype=torch.float64), 2, 0.01)
    # (-1 + 1.01)/1.01 = 0.0099 is within 0.02
    assert_near(near[1], [[1 / (1 + math.exp(-0.01)), 1.0]])
