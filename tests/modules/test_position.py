"""Positions by hand: ALiBi, T5's buckets, Transformer-XL, scalings of RoPE, sinusoids.

RoPE and its scalings are transformers' in `tests/huggingface/module/test_computes_the_same.py`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.module_parts import make_attention
from torch import Tensor

from metacount.modules import Attention, RelativeBias, Visibility, sinusoid
from metacount.modules.moe import mixed
from metacount.modules.position import alibi_slopes, grown, speeds
from metacount.spec.position import QueryGrowth, RelativeBuckets, RopeScaling


def test_alibi_slopes_of_the_paper() -> None:
    # Press et al. 2022, section 3: for 8 heads 1/2, 1/4, …, 1/256
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    # 12 heads: those of 8, then every other one of 16: 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5
    more = [0.7071067811865476, 0.3535533905932738, 0.1767766952966369, 0.08838834764831845]
    assert alibi_slopes(12)[:8] == alibi_slopes(8)
    assert_near(torch.tensor(alibi_slopes(12)[8:], dtype=torch.float64), more, 1e-15)
    assert (alibi_slopes(1), alibi_slopes(3)) == ([1 / 256], [1 / 16, 1 / 256, 1 / 4])


# T5's own sizes: 32 buckets to distance 128. A decoder holds 0..15 exactly, then 16·8^(j/16):
# bucket 17 from 18.2, 18 from 20.7, 24 from 45.3, 31 from 112.3. An encoder has half for either
# side, exact to 7, then 8·16^(j/8): 16 is bucket 10.
OFFSETS = [0, 1, -7, -8, 8, -15, -16, -18, -19, -20, -21, -45, -46, -112, -113, -5000, 5000]
OF_DECODER = [0, 0, 7, 8, 0, 15, 16, 16, 17, 17, 18, 23, 24, 30, 31, 31, 0]
OF_ENCODER = [0, 17, 7, 8, 24, 9, 10, 10, 10, 10, 10, 12, 13, 15, 15, 15, 31]


@pytest.mark.parametrize(("both_sides", "buckets"), [(False, OF_DECODER), (True, OF_ENCODER)])
def test_t5_buckets_by_hand(both_sides: bool, buckets: list[int]) -> None:
    part = RelativeBuckets(n_buckets=32, max_distance=128)
    bias = RelativeBias(part, 3, bidirectional=both_sides)
    assert bias.bucket(torch.tensor(OFFSETS)).tolist() == buckets


@pytest.mark.parametrize("n_kv_heads", [3, 1])
@pytest.mark.parametrize("window", [None, 3])
def test_transformer_xl_attention_is_the_papers(n_kv_heads: int, window: int | None) -> None:
    """Dai et al. 2019, section 3.3: (a) + (b) + (c) + (d), each term on its own."""
    module: Attention = randomised(
        make_attention(d_model=7, n_heads=3, n_kv_heads=n_kv_heads, head_dim=5, relative=True)
    )
    relative: Any = module.relative
    x = torch.randn(8, 7, dtype=torch.float64)
    q, k, v = (p(x).unflatten(-1, (-1, 5)) for p in (module.q_proj, module.k_proj, module.v_proj))
    k, v = (each.expand(8, 3, 5) for each in (k, v))
    r = relative.r_proj(sinusoid(torch.arange(8), 7)).unflatten(-1, (3, 5))
    rows = []
    for s in range(8):
        seen = range(max(0, s + 1 - window) if window else 0, s + 1)
        scores = [
            (q[s] * k[t] + q[s] * r[s - t]).sum(-1)
            + (relative.content_bias * k[t] + relative.position_bias * r[s - t]).sum(-1)
            for t in seen
        ]
        shares = (torch.stack(scores) / math.sqrt(5)).softmax(0)
        rows.append(sum(w[:, None] * v[t] for w, t in zip(shares, seen, strict=True)).flatten())
    sees = Visibility(n_queries=8, n_keys=8, window=window)
    assert_near(module(x[None], sees)[0], module.o_proj(torch.stack(rows)))


LLAMA3: dict[str, Any] = {"kind": "llama3", "factor": 8.0, "n_trained": 100}
YARN: dict[str, Any] = {"kind": "yarn", "factor": 4.0, "n_trained": 200}
RAMP = {**YARN, "beta_fast": 1.0, "beta_slow": 0.1}
LONG = {"kind": "longrope", "n_trained": 10}
LONG |= {"short_factors": (1.0, 2.0), "long_factors": (4.0, 5.0)}
# width, theta, tokens, a scaling, and the speed of each pair
SPEEDS: list[tuple[int, float, int, dict[str, Any], list[float]]] = [
    (4, 10000.0, 1, {"kind": "linear", "factor": 4.0}, [0.25, 0.0025]),
    (4, 10000.0, 10, {"kind": "dynamic", "factor": 3.0, "n_trained": 10}, [1.0, 0.01]),
    # 3·20/10 - 2 = 4; 4^(4/(4 - 2)) = 16; (16·10000)^(-2/4) = 1/400
    (4, 10000.0, 20, {"kind": "dynamic", "factor": 3.0, "n_trained": 10}, [1.0, 0.0025]),
    # turns in 100 positions: 100/2π = 15.9 above 4, 1.5915494309 between, 0.159 below 1
    # (1.5915494309 - 1)/(4 - 1) = 0.1971831436 stays; 0.8028168564/8 = 0.1003521071 more
    (6, 1000.0, 1, {**LLAMA3, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
     [1.0, 0.02975352507, 0.00125]),
    (6, 1000.0, 1, {**LLAMA3, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
     [1.0, 0.1, 0.00125]),
    # β turns in 200 positions at pair 8·ln(200/2πβ)/(2·ln 10000) = log10(31.83098862/β):
    # 1.50285 for 1, 2.50285 for 0.1; as whole numbers 1 and 3, so pair 2 is half way
    (8, 10000.0, 1, RAMP, [1.0, 0.1, 0.00625, 0.00025]),
    # pair 2 is (2 - 1.5028501278)/1 = 0.4971498722 of the way: 0.01·(0.4971498722/4 + 0.5028501278)
    (8, 10000.0, 1, {**RAMP, "truncate": False}, [1.0, 0.1, 0.006271375958, 0.00025]),
    # no room for a ramp: a step
    (8, 10000.0, 1, {**YARN, "truncate": False, "beta_fast": 1.0, "beta_slow": 1.0},
     [1.0, 0.1, 0.0025, 0.00025]),
    (4, 10000.0, 10, LONG, [1.0, 0.005]),
    (4, 10000.0, 11, LONG, [0.25, 0.002]),
]  # fmt: skip


@pytest.mark.parametrize(("width", "theta", "length", "scaling", "expected"), SPEEDS)
def test_scaled_speeds_by_hand(
    width: int, theta: float, length: int, scaling: dict[str, Any], expected: list[float]
) -> None:
    cpu: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float64}
    assert_near(speeds(width, theta, RopeScaling(**scaling), length, **cpu), expected, 1e-11)


@pytest.mark.parametrize(("shift", "steps"), [(0, [0, 0, 1, 1, 2, 2]), (1, [0, 1, 1, 2, 2, 3])])
def test_queries_grow_by_steps(shift: int, steps: list[int]) -> None:
    """Steps are floor((p + shift) / 2)."""
    q = torch.ones(1, 1, 6, 1, dtype=torch.float64)
    found = grown(q, torch.arange(6), QueryGrowth(weight=0.5, step=2.0, shift=shift))
    assert_near(found.flatten(), [1 + 0.5 * math.log(1 + step) for step in steps])


def test_sines_before_cosines() -> None:
    # width 5: two sines, two cosines, wavelengths 2π and 10000·2π, and a zero
    table: Tensor = sinusoid(torch.tensor([1]), 5, style="halves")
    assert_near(table, [[math.sin(1), math.sin(1e-4), math.cos(1), math.cos(1e-4), 0.0]])


def test_sparse_mixer_takes_one_expert_after_the_other() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.97, -3.0]], dtype=torch.float64)
    chosen, weights = mixed(logits, 2, 0.01)
    assert chosen.tolist() == [[1, 2]]
    # (2 - 1.97)/2 = 0.015 is within 0.02, 1.0 is not: 1/(1 + e^-0.03); then 1.97 is alone
    assert_near(weights, [[1 / (1 + math.exp(-0.03)), 1.0]])
    near = mixed(torch.tensor([[-1.0, -1.01, -3.0]], dtype=torch.float64), 2, 0.01)
    # (-1 + 1.01)/1.01 = 0.0099 is within 0.02
    assert_near(near[1], [[1 / (1 + math.exp(-0.01)), 1.0]])
