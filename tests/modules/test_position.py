"""Positions by hand: RoPE and its scalings, ALiBi, T5's buckets, Transformer-XL."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import (
    Rows,
    assert_near,
    dot,
    linear,
    parts,
    randomised,
    weighted,
)
from helpers.module_loops import (
    sinusoid as sinusoid_row,
)
from helpers.module_parts import make_attention
from torch import Tensor

from metacount.modules import (
    Attention,
    RelativeBias,
    Visibility,
    apply_rope,
    sinusoid,
)
from metacount.modules.moe import mixed
from metacount.modules.position import alibi_slopes, grown, speeds
from metacount.spec.position import QueryGrowth, RelativeBuckets, RopeScaling

STYLES = pytest.mark.parametrize("style", ["half", "interleaved"])


@STYLES
@pytest.mark.parametrize("rotary_dim", [6, 10])
def test_rope_depends_on_the_difference_alone(style: str, rotary_dim: int) -> None:
    q, k = torch.randn(2, 1, 1, 1, 10, dtype=torch.float64)

    def product(i: int, j: int) -> float:
        how = {"rotary_dim": rotary_dim, "theta": 10000.0, "style": style}
        turned = (apply_rope(x, torch.tensor([p]), **how) for x, p in ((q, i), (k, j)))
        return dot(*(t.flatten().tolist() for t in turned))

    for shift in (1, 13, 100):
        for i, j in ((0, 0), (5, 2), (2, 5), (17, 1)):
            assert abs(product(i, j) - product(i + shift, j + shift)) < 1e-12
    assert abs(product(5, 2) - product(5, 3)) > 1e-3
    assert abs(product(5, 2) - product(2, 5)) > 1e-3  # and on its sign


def test_alibi_slopes_of_the_paper() -> None:
    # Press et al. 2022, section 3: for 8 heads 1/2, 1/4, …, 1/256
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    # 16 heads: a geometric sequence that starts at 2^(-1/2) and whose ratio is the same
    root = 0.7071067811865476
    expected = [root ** (i + 1) for i in range(16)]
    assert_near(torch.tensor(alibi_slopes(16), dtype=torch.float64), expected, 1e-15)
    # 12 heads: those of 8, then every other one of 16: 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5
    more = [0.7071067811865476, 0.3535533905932738, 0.1767766952966369, 0.08838834764831845]
    assert alibi_slopes(12)[:8] == alibi_slopes(8)
    assert_near(torch.tensor(alibi_slopes(12)[8:], dtype=torch.float64), more, 1e-15)
    assert alibi_slopes(1) == [1 / 256]
    assert alibi_slopes(2) == [1 / 16, 1 / 256]
    assert alibi_slopes(3) == [1 / 16, 1 / 256, 1 / 4]


def t5(n_buckets: int, max_distance: int, bidirectional: bool, n_heads: int = 3) -> RelativeBias:
    return randomised(  # type: ignore[no-any-return]
        RelativeBias(
            RelativeBuckets(n_buckets=n_buckets, max_distance=max_distance),
            n_heads,
            bidirectional=bidirectional,
        )
    )


@pytest.mark.parametrize(
    ("offset", "decoder", "encoder"),
    [
        # T5's own sizes: 32 buckets to distance 128. A decoder holds 0..15 exactly, then
        # 16·8^(j/16): bucket 17 from 18.2, 18 from 20.7, 24 from 45.3, 31 from 112.3.
        # An encoder has half for either side, exact to 7, then 8·16^(j/8): 16 is bucket 10.
        (0, 0, 0),
        (-1, 1, 1),
        (1, 0, 17),
        (-7, 7, 7),
        (-8, 8, 8),
        (8, 0, 24),
        (-15, 15, 9),
        (-16, 16, 10),
        (-18, 16, 10),
        (-19, 17, 10),
        (-20, 17, 10),
        (-21, 18, 10),
        (-45, 23, 12),
        (-46, 24, 13),
        (-112, 30, 15),
        (-113, 31, 15),
        (-128, 31, 15),
        (-5000, 31, 15),
        (5000, 0, 31),
    ],
)
def test_t5_buckets_by_hand(offset: int, decoder: int, encoder: int) -> None:
    assert t5(32, 128, False).bucket(torch.tensor([offset])).tolist() == [decoder]
    assert t5(32, 128, True).bucket(torch.tensor([offset])).tolist() == [encoder]


def xl_by_loop(module: Attention, rows: Rows, window: int) -> Rows:
    """Eq. of section 3.3: (a) + (b) + (c) + (d), each term on its own."""
    assert module.relative is not None
    relative, heads = module.relative, 3
    u, v = relative.content_bias.tolist(), relative.position_bias.tolist()
    q, k, values = (
        [parts(linear(p, x), 5) for x in rows]
        for p in (module.q_proj, module.k_proj, module.v_proj)
    )
    r = [parts(linear(relative.r_proj, sinusoid_row(n, 7)), 5) for n in range(len(rows))]

    def score(h: int, s: int, t: int) -> float:
        content, place = k[t][h * len(k[t]) // heads], r[s - t][h]
        terms = [dot(q[s][h], content), dot(q[s][h], place), dot(u[h], content), dot(v[h], place)]
        return math.fsum(terms) / math.sqrt(5)

    by_head = [[row[g] for row in values] for g in range(len(values[0]))]
    mixed = weighted(score, by_head, heads, len(rows), lambda s, t: t <= s < t + window)
    return [linear(module.o_proj, row) for row in mixed]


@pytest.mark.parametrize("n_kv_heads", [3, 1])
@pytest.mark.parametrize("window", [None, 3])
def test_transformer_xl_attention_is_the_papers_loop(n_kv_heads: int, window: int | None) -> None:
    module: Attention = randomised(
        make_attention(d_model=7, n_heads=3, n_kv_heads=n_kv_heads, head_dim=5, relative=True)
    )
    x: Tensor = torch.randn(2, 8, 7, dtype=torch.float64)
    sees = Visibility(n_queries=8, n_keys=8, window=window)
    expected = [xl_by_loop(module, rows, window or 99) for rows in x.tolist()]
    assert_near(module(x, sees), expected)


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
