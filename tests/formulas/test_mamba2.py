"""Mamba-2: its tensors, the products of its chunks and of its recurrence, its two states."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metacount.formulas.mamba2 import (
    mamba2_decode_products,
    mamba2_decode_run,
    mamba2_products,
    mamba2_run,
    mamba2_scan_flops,
    mamba2_states,
    mamba2_weights,
)
from metacount.formulas.terms import TOKENS, flops_of, params_of

# d=13, h_s=6, p_s=5, g_s=2, d_s=7, k_c=4, c_s=3: d_i = 30, 58 = 30 + 2·2·7 convolved channels
SCAN: dict[str, Any] = {"n_ssm_heads": 6, "ssm_head_dim": 5, "ssm_state_dim": 7}
SIZES: dict[str, Any] = {**SCAN, "n_ssm_groups": 2, "conv_kernel": 4}
CHUNK: dict[str, Any] = {"conv_kernel": 4, "ssm_chunk_size": 3}

# in (30 + 58 + 6)·13 = 1222, conv 58·4 = 232 and 58, dt_bias, A, D 18, out 30·13 = 390, norm 30


def test_params_by_hand() -> None:
    # 1222 + 232 + 58 + 18 + 390 + 30
    assert params_of(mamba2_weights(13, **SIZES)) == 1950
    assert params_of(mamba2_weights(13, **SIZES, conv_bias=False)) == 1892
    # + 94, + 13, - 30
    assert params_of(mamba2_weights(13, **SIZES, in_bias=True)) == 2044
    assert params_of(mamba2_weights(13, **SIZES, out_bias=True)) == 1963
    assert params_of(mamba2_weights(13, **SIZES, norm=False)) == 1920
    normed = [w for w in mamba2_weights(13, **SIZES) if w.role == "norm"]
    assert [w.params for w in normed] == [30]


@pytest.mark.parametrize(("length", "chunks"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_the_last_chunk_is_filled_up(length: int, chunks: int) -> None:
    found = mamba2_run(2, length, **CHUNK)
    # max(S, 4) + 3 positions, for two sequences
    assert found["convolved positions"] == 2 * (max(length, 4) + 3)
    assert found["chunks"] == 2 * chunks
    assert found["pairs of chunk states"] == 2 * (chunks + 1) ** 2


def test_flops_by_hand() -> None:
    terms = (*mamba2_weights(13, **SIZES), *mamba2_products(**SCAN, ssm_chunk_size=3))
    # 7 tokens × (1222 + 390) = 11284; 10 positions × 232 = 2320;
    # 3 chunks × 6 heads × (9·7 + 9·5 + 2·3·5·7) = 18·318 = 5724; 16 pairs × 6·35 = 3360
    assert flops_of(terms, {TOKENS: 7, **mamba2_run(1, 7, **CHUNK)}) == 2 * 22688
    # 1 token × 1612 + 2 positions × 232 + 6·35
    terms = (*mamba2_weights(13, **SIZES), *mamba2_decode_products(**SCAN))
    assert flops_of(terms, {TOKENS: 1, **mamba2_decode_run(1)}) == 2 * 2286


def test_scan_by_hand() -> None:
    # 7 tokens × 6·35 values × 2 multiply-adds
    assert mamba2_scan_flops(7, **SCAN, ssm_chunk_size=3, recurrent=True) == 2 * 2940
    # 5724 + 3360, as above
    assert mamba2_scan_flops(7, **SCAN, ssm_chunk_size=3) == 2 * 9084


def test_states_by_hand() -> None:
    conv, recurrent = mamba2_states(**SIZES)
    assert (conv.name, conv.size, conv.bytes_per_value) == ("conv", 232, None)
    assert (recurrent.name, recurrent.size, recurrent.bytes_per_value) == ("recurrent", 210, 4)


@given(st.integers(1, 40), st.integers(2, 9))
def test_a_whole_last_chunk_costs_what_a_begun_one_does(chunks: int, size: int) -> None:
    def scan(n: int) -> int:
        return mamba2_scan_flops(n, **SCAN, ssm_chunk_size=size)  # type: ignore[no-any-return]

    assert scan(chunks * size) == scan((chunks - 1) * size + 1) < scan(chunks * size + 1)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_groups_are_paid_for_in_parameters_alone(h: int, p: int, s: int, k: int) -> None:
    sizes: dict[str, Any] = {"n_ssm_heads": 2 * h, "ssm_head_dim": p, "ssm_state_dim": s}
    one, two = (
        params_of(mamba2_weights(11, **sizes, n_ssm_groups=g, conv_kernel=k)) for g in (1, 2)
    )
    # 2·d_s more channels: a row of in_proj, a filter and its bias each
    assert two - one == 2 * s * (11 + k + 1)
