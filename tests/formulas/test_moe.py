"""Mixture of experts: stored, active and multiplied."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
from helpers.small_specs import MLA
from hypothesis import given
from hypothesis import strategies as st

from metacount.catalog import entry
from metacount.formulas import model
from metacount.formulas.ffn import ffn_matmul_flops, ffn_params
from metacount.formulas.moe import (
    moe_active_params,
    moe_layers,
    moe_matmul_flops,
    moe_params,
    moe_weights,
    router_params,
    shared_matmul_flops,
    shared_params,
)
from metacount.formulas.shared_experts import shared_weights
from metacount.spec import ModelSpec

SMALL = st.integers(1, 30)

# d=13, m_e=17, E=7, k=3: plain expert 2·13·17 = 442, gated 3·13·17 = 663, router 7·13 = 91


def test_router_by_hand() -> None:
    assert router_params(13, 7) == 91
    assert router_params(13, 7, bias=True) == 98


def test_what_is_not_said_is_not_there() -> None:
    shared = shared_weights(13, 17, 2, gated=False)
    assert [one.name.partition(".weight")[0] for one in shared] == [
        "mlp.shared_experts.up_proj",
        "mlp.shared_experts.down_proj",
    ]
    weights = moe_weights(13, 17, 7, 3, gated=True, n_shared_experts=2, n_zero_experts=4)
    assert [(one.name, one.shape, one.times) for one in weights] == [
        ("mlp.gate.proj.weight", (11, 13), 1),
        ("mlp.experts.gate_up_proj", (34, 13), 7),
        ("mlp.experts.down_proj", (13, 17), 7),
        ("mlp.shared_experts.gate_proj.weight", (34, 13), 1),
        ("mlp.shared_experts.up_proj.weight", (34, 13), 1),
        ("mlp.shared_experts.down_proj.weight", (13, 34), 1),
    ]
    named = moe_weights(13, 17, 7, 3, gated=True, n_shared_experts=2, name="block")
    assert {one.name.partition(".")[0] for one in named} == {"block"}


def test_without_zero_experts_the_least_is_what_each_token_uses() -> None:
    for name in ("llama-7b", "mixtral-8x7b"):
        spec = entry(name).spec()
        assert model.least_active_params(spec) == model.active_params(spec)


def test_shared_by_hand() -> None:
    # two shared experts of width 5: one feed-forward of width 10
    assert shared_params(13, 5, 2, gated=False) == 260
    assert shared_params(13, 5, 2, gated=True) == 390
    # biases of one feed-forward: 10 + 13, or 10 + 10 + 13
    assert shared_params(13, 5, 2, gated=False, bias=True) == 283
    assert shared_params(13, 5, 2, gated=True, bias=True) == 423
    assert shared_params(13, 5, 2, gated=False, gate=True) == 273
    assert shared_params(13, 5, 0, gated=False, bias=True, gate=True) == 0
    # 3 tokens
    assert shared_matmul_flops(3, 13, 5, 2, gated=False) == 1560
    assert shared_matmul_flops(3, 13, 5, 2, gated=True) == 2340
    assert shared_matmul_flops(3, 13, 5, 2, gated=False, gate=True) == 1638
    assert shared_matmul_flops(3, 13, 5, 0, gated=False, gate=True) == 0


def test_params_by_hand() -> None:
    # 91 + 7·442
    assert moe_params(13, 17, 7, gated=False) == 3185
    # 91 + 7·663
    assert moe_params(13, 17, 7, gated=True) == 4732
    assert moe_params(13, 17, 7, gated=False, router_bias=True) == 3192
    # 7·(17 + 13) more
    assert moe_params(13, 17, 7, gated=False, expert_bias=True) == 3395
    # + shared 2·13·(2·5) = 260, of the experts' width 2·13·(2·17) = 884
    assert moe_params(13, 17, 7, gated=False, n_shared_experts=2, d_ff_shared=5) == 3445
    assert moe_params(13, 17, 7, gated=False, n_shared_experts=2) == 4069
    shared = {"gated": False, "n_shared_experts": 2, "d_ff_shared": 5}
    assert moe_params(13, 17, 7, **shared, shared_bias=True) == 3468
    assert moe_params(13, 17, 7, **shared, shared_gate=True) == 3458


def test_active_params_by_hand() -> None:
    # 91 + 3·442
    assert moe_active_params(13, 17, 7, 3, gated=False) == 1417
    # 91 + 3·663
    assert moe_active_params(13, 17, 7, 3, gated=True) == 2080
    assert moe_active_params(13, 17, 7, 3, gated=False, router_bias=True) == 1424
    # 3·(17 + 13) more
    assert moe_active_params(13, 17, 7, 3, gated=False, expert_bias=True) == 1507
    shared = {"gated": False, "n_shared_experts": 2}
    assert moe_active_params(13, 17, 7, 3, **shared) == 2301
    assert moe_active_params(13, 17, 7, 3, **shared, d_ff_shared=5) == 1677
    # biases 10 + 13, gate 13
    assert moe_active_params(13, 17, 7, 3, **shared, d_ff_shared=5, shared_bias=True) == 1700
    assert moe_active_params(13, 17, 7, 3, **shared, d_ff_shared=5, shared_gate=True) == 1690


def test_flops_by_hand() -> None:
    # 2 tokens × (91 + 3·442) = 2834 multiply-adds
    assert moe_matmul_flops(2, 13, 17, 7, 3, gated=False) == 5668
    # 2 tokens × (91 + 3·663) = 4160
    assert moe_matmul_flops(2, 13, 17, 7, 3, gated=True) == 8320
    shared = {"gated": False, "n_shared_experts": 2}
    # + 2 × 260, or 2 × 884 in the experts' width, and 2 × 13 for the gate
    assert moe_matmul_flops(2, 13, 17, 7, 3, **shared, d_ff_shared=5) == 6708
    assert moe_matmul_flops(2, 13, 17, 7, 3, **shared) == 9204
    assert moe_matmul_flops(2, 13, 17, 7, 3, **shared, d_ff_shared=5, shared_gate=True) == 6760


def test_zero_experts_by_hand() -> None:
    # 5 rows of the router more, and nothing else: 5·13 = 65
    zero = {"gated": True, "n_zero_experts": 5}
    assert moe_params(13, 17, 7, **zero) == 4732 + 65
    assert moe_active_params(13, 17, 7, 3, **zero) == 2080 + 65
    assert moe_matmul_flops(2, 13, 17, 7, 3, **zero) == 8320 + 2 * 2 * 65
    # gate and up of 5 experts more that nobody reads: 5·2·13·17 = 2210; plain, up alone
    assert moe_params(13, 17, 7, **zero, zero_expert_rows=True) == 4732 + 65 + 2210
    plain = {"gated": False, "n_zero_experts": 5, "zero_expert_rows": True}
    assert moe_params(13, 17, 7, **plain) == 3185 + 65 + 1105
    # their biases too: 5·17; a bias of the router for each score
    assert moe_params(13, 17, 7, **plain, expert_bias=True) == 3395 + 65 + 1105 + 85
    assert moe_params(13, 17, 7, **zero, router_bias=True) == 4732 + 65 + 12


@pytest.mark.parametrize(("n_zero", "given_back"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_the_least_that_a_token_uses(n_zero: int, given_back: int) -> None:
    """Of 3 choices as many fall on zero experts as there are; 2 of 4 layers have experts."""
    sizes = {"n_experts": 7, "top_k": 3, "d_ff_expert": 17, "n_zero_experts": n_zero}
    spec = ModelSpec.from_dict({**MLA, **sizes, "n_layers": 4, "ffn_pattern": "BF"})
    for rows in (False, True)[: 1 + bool(n_zero)]:
        one = spec.replace(zero_expert_rows=rows)
        spared = model.active_params(one) - model.least_active_params(one)
        assert spared == 2 * given_back * 663


def test_a_feed_forward_and_experts_beside_it_by_hand() -> None:
    sizes = {"n_experts": 7, "top_k": 3, "d_ff_expert": 17, "n_zero_experts": 5}
    spec = ModelSpec.from_dict({**MLA, **sizes, "n_layers": 6, "ffn_pattern": "BFF"})
    by_role = model.params_by_role(spec)
    # 6 feed-forwards of 3·13·17, 2 mixtures, 2 norms in each layer and the last one
    assert (by_role["ffn"], by_role["moe"]) == (6 * 663, 2 * 4797)
    assert by_role["norm"] == 13 * 13 + 6 * (11 + 5)
    assert model.active_params_by_role(spec)["moe"] == 2 * 2145
    run = {"batch_size": 1, "seq_len": 2}
    flops = model.matmul_flops_by_role(spec, **run)
    assert (flops["ffn"], flops["moe"]) == (2 * 2 * 6 * 663, 2 * 2 * 2 * 2145)
    assert model.kv_cache_bytes_per_token(spec, bytes_per_value=1) == 6 * (5 + 4)


@given(SMALL, SMALL, SMALL, st.booleans(), st.booleans())
def test_one_expert_is_dense_with_a_router(d: int, m: int, n: int, gated: bool, bias: bool) -> None:
    dense = ffn_params(d, m, gated=gated, bias=bias)
    assert moe_params(d, m, 1, gated=gated, expert_bias=bias) == dense + d
    assert moe_active_params(d, m, 1, 1, gated=gated, expert_bias=bias) == dense + d
    flops = moe_matmul_flops(n, d, m, 1, 1, gated=gated)
    assert flops == ffn_matmul_flops(n, d, m, gated=gated) + 2 * n * d


@given(SMALL, SMALL, SMALL)
def test_all_experts_chosen_makes_all_active(d: int, m: int, e: int) -> None:
    assert moe_active_params(d, m, e, e, gated=True) == moe_params(d, m, e, gated=True)


def is_moe(i: int, dense: int, every: int, offset: int) -> bool:
    return i >= dense and (i + 1 - offset) % every == 0


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 9), st.integers(0, 8))
def test_moe_layers_one_by_one(n: int, dense: int, every: int, offset: int) -> None:
    offset %= every
    by_layer = sum(is_moe(i, dense, every, offset) for i in range(n))
    layout = {"n_dense_layers": dense, "moe_every": every, "moe_offset": offset}
    assert moe_layers(n, **layout) == by_layer
    assert moe_layers(np.array([n, n]), **layout).tolist() == [by_layer, by_layer]


def test_moe_layers_by_default_are_all() -> None:
    assert moe_layers(7) == 7
    # layers 1, 3, 5
    assert moe_layers(7, moe_every=2) == 3
    assert moe_layers(7, n_dense_layers=2) == 5
    # layers 2 and 5
    assert moe_layers(8, moe_every=3) == 2
    # layers 1, 5, 9; layers 2, 6, 10 without the first
    assert moe_layers(12, moe_every=4, moe_offset=2) == 3
    assert moe_layers(12, n_dense_layers=3, moe_every=4, moe_offset=3) == 2


def test_moe_layers_in_symbols() -> None:
    n, dense, every = sympy.symbols("N N_dense e")
    assert moe_layers(n) == n
    assert moe_layers(n, n_dense_layers=3) == n - 3
    assert moe_layers(n, n_dense_layers=dense) == n - dense
    assert moe_layers(61, n_dense_layers=dense) == 61 - dense
    closed = moe_layers(n, n_dense_layers=3, moe_every=every)
    assert closed.subs({n: 12, every: 2}) == 5  # layers 3, 5, 7, 9, 11
