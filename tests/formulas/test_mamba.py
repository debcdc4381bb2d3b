"""Mamba: its tensors, what its scan multiplies, its two states."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metacount.formulas.convolution import CONVOLVED, convolved_positions
from metacount.formulas.mamba import (
    mamba_products,
    mamba_run,
    mamba_scan_flops,
    mamba_states,
    mamba_weights,
)
from metacount.formulas.terms import TOKENS, flops_of, params_of

# d=13, d_i=17, d_s=5, r_t=3, k_c=4
SIZES: dict[str, Any] = {"d_ssm": 17, "ssm_state_dim": 5, "dt_rank": 3, "conv_kernel": 4}
SMALL = st.integers(1, 30)

# in 2·17·13 = 442, conv 17·4 = 68, x (3 + 2·5)·17 = 221, dt 17·3 = 51 and 17, A 17·5 = 85,
# D 17, out 13·17 = 221


def test_params_by_hand() -> None:
    # 442 + 68 + 17 + 221 + 51 + 17 + 85 + 17 + 221
    assert params_of(mamba_weights(13, **SIZES)) == 1139
    # without the convolution's 17
    assert params_of(mamba_weights(13, **SIZES, conv_bias=False)) == 1122
    # + 2·17, + 13
    assert params_of(mamba_weights(13, **SIZES, in_bias=True)) == 1173
    assert params_of(mamba_weights(13, **SIZES, out_bias=True)) == 1152
    # + 3 + 5 + 5
    assert params_of(mamba_weights(13, **SIZES, norms=True)) == 1152


def test_norms_are_under_their_own_role() -> None:
    weights = mamba_weights(13, **SIZES, norms=True)
    assert params_of(w for w in weights if w.role == "norm") == 13
    assert params_of(w for w in weights if w.role == "recurrent") == 1139


@pytest.mark.parametrize(
    ("batch", "length", "continued", "positions"),
    [
        (1, 7, False, 10),  # 7 + 4 - 1
        (2, 7, False, 20),
        (1, 4, False, 7),
        (1, 2, False, 7),  # filled up to 4, + 4 - 1
        (1, 1, True, 2),  # of 4 kept and 1 new: 5 - 4 + 1
        (3, 1, True, 6),
        (1, 3, True, 4),
    ],
)
def test_convolved_positions_by_hand(
    batch: int, length: int, continued: bool, positions: int
) -> None:
    assert convolved_positions(batch, length, 4, continued=continued) == positions
    assert mamba_run(batch, length, conv_kernel=4, continued=continued) == {CONVOLVED: positions}


def test_flops_by_hand() -> None:
    terms = (*mamba_weights(13, **SIZES), *mamba_products(d_ssm=17, ssm_state_dim=5))
    # 7 tokens × (442 + 221 + 51 + 221 + 17·5) = 7140, 10 positions × 68 = 680: 7820 multiply-adds
    assert flops_of(terms, {TOKENS: 7, **mamba_run(1, 7, conv_kernel=4)}) == 15640
    # 1 token × 1020 + 2 positions × 68 = 1156
    run = {TOKENS: 1, **mamba_run(1, 1, conv_kernel=4, continued=True)}
    assert flops_of(terms, run) == 2312


def test_states_by_hand() -> None:
    conv, recurrent = mamba_states(d_ssm=17, ssm_state_dim=5, conv_kernel=4)
    assert (conv.name, conv.size, conv.bytes_per_value) == ("conv", 68, None)
    assert (recurrent.name, recurrent.size, recurrent.bytes_per_value) == ("recurrent", 85, 4)


@given(SMALL, SMALL, SMALL)
def test_the_scan_is_two_multiply_adds_of_which_reading_is_one(n: int, i: int, s: int) -> None:
    read = flops_of(mamba_products(d_ssm=i, ssm_state_dim=s), {TOKENS: n})
    assert mamba_scan_flops(n, i, s) == 2 * read


@given(SMALL, SMALL, SMALL, SMALL, SMALL)
def test_twice_the_channels_twice_the_params(d: int, i: int, s: int, r: int, k: int) -> None:
    """Every tensor has a row or a column for each channel."""

    def params(inner: int) -> int:
        sizes = {"ssm_state_dim": s, "dt_rank": r, "conv_kernel": k}
        return params_of(mamba_weights(d, d_ssm=inner, **sizes))  # type: ignore[no-any-return]

    assert params(2 * i) == 2 * params(i)
