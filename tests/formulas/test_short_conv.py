"""The short convolution and the RG-LRU by hand, and as symbols."""

from __future__ import annotations

import sympy

from metacount.formulas.convolution import CONVOLVED
from metacount.formulas.mixers import RG_LRU
from metacount.formulas.rg_lru import (
    rg_lru_run,
    rg_lru_scan_flops,
    rg_lru_states,
    rg_lru_weights,
)
from metacount.formulas.short_conv import (
    short_conv_run,
    short_conv_scan_flops,
    short_conv_states,
    short_conv_weights,
)
from metacount.formulas.terms import TOKENS, flops_of, params_of


def test_short_convolution_by_hand() -> None:
    # in 3·13·13 = 507, conv 13·5 = 65, out 13·13 = 169
    plain = short_conv_weights(13, conv_kernel=5)
    assert params_of(plain) == 507 + 65 + 169
    # biases 39 + 13 + 13
    assert params_of(short_conv_weights(13, conv_kernel=5, conv_bias=True)) == 741 + 65
    # 2 sequences of 7 tokens: 14 tokens × 676, and 2·(7 + 4) = 22 positions × 65
    run = {TOKENS: 14, **short_conv_run(2, 7, conv_kernel=5)}
    assert flops_of(plain, run) == 2 * (14 * 676 + 22 * 65)
    assert [state.size for state in short_conv_states(13, 5)] == [65]
    # 14 tokens × 13 channels × (5 multiply-adds + 2 gates)
    assert short_conv_scan_flops(14, 13, conv_kernel=5) == 14 * 13 * 12


def test_positions_of_a_short_sequence() -> None:
    # 3 tokens are padded to 5, then 4 more; continued: 3 new ones and one of the 5 cached
    assert short_conv_run(2, 3, conv_kernel=5) == {CONVOLVED: 2 * (5 + 4)}
    assert short_conv_run(2, 5, conv_kernel=5) == {CONVOLVED: 2 * (5 + 4)}
    assert short_conv_run(2, 6, conv_kernel=5) == {CONVOLVED: 2 * (6 + 4)}
    assert short_conv_run(2, 3, conv_kernel=5, continued=True) == {CONVOLVED: 2 * 4}


def test_recurrent_block_by_hand() -> None:
    sizes = {"lru_width": 15, "n_lru_blocks": 3, "conv_kernel": 4}
    weights = rg_lru_weights(11, **sizes)
    # x, y, out 3·165; conv 60; gates 2·3·25; decays 15; biases 15 + 15 + 11 + 15 + 15 + 15
    assert params_of(weights) == 495 + 60 + 150 + 15 + 86
    # 2 sequences of 7: 14 tokens × (495 + 150), 2·(7 + 3) positions × 60
    run = {TOKENS: 14, **rg_lru_run(2, 7, conv_kernel=4)}
    assert flops_of(weights, run) == 2 * (14 * 645 + 20 * 60)
    decode = {TOKENS: 2, **RG_LRU.decode_run(None, 2)}
    assert flops_of(weights, decode) == 2 * 2 * 645
    assert [state.size for state in rg_lru_states(15, 4)] == [45, 15]
    assert rg_lru_scan_flops(14, 15) == 420


def test_symbols_give_closed_forms() -> None:
    d, k, s = sympy.symbols("d k_c S", positive=True, integer=True)
    assert sympy.expand(params_of(short_conv_weights(d, conv_kernel=k))) == 4 * d**2 + d * k
    positions = short_conv_run(1, s, conv_kernel=k)[CONVOLVED]
    assert positions.subs({s: 2, k: 5}) == 9
    assert positions.subs({s: 9, k: 5}) == 13
    w, h = sympy.symbols("w_l h_l", positive=True, integer=True)
    form = params_of(rg_lru_weights(d, lru_width=w, n_lru_blocks=h, conv_kernel=k))
    assert sympy.expand(form - (3 * d * w + k * w + 2 * w**2 / h + 6 * w + d)) == 0
