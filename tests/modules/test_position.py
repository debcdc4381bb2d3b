"""Sinusoids, RoPE, ALiBi, T5's buckets, Transformer-XL against loops, literals and identities."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.module_loops import (
    Rows,
    assert_near,
    dot,
    linear,
    parts,
    randomised,
    sinusoid,
    weighted,
)
from helpers.module_parts import make_attention
from torch import Tensor

from metacount.modules import (
    Attention,
    RelativeBias,
    Visibility,
    apply_rope,
)
from metacount.modules.position import alibi_slopes
from metacount.spec.position import RelativeBuckets

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


@STYLES
def test_rope_of_bf16_is_computed_in_float32(style: str) -> None:
    x = torch.randn(1, 1, 300, 10).bfloat16()
    how = {"rotary_dim": 10, "theta": 10000.0, "style": style}
    y = apply_rope(x, torch.arange(300), **how)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, apply_rope(x.float(), torch.arange(300), **how).bfloat16())


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
    r = [parts(linear(relative.r_proj, sinusoid(n, 7)), 5) for n in range(len(rows))]

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
