"""Gated DeltaNet, Kimi delta and lightning attention: tensors, products and states by hand."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from metacount.formulas.gated_delta import (
    gated_delta_products,
    gated_delta_run,
    gated_delta_scan_flops,
    gated_delta_states,
    gated_delta_weights,
)
from metacount.formulas.kimi_delta import (
    kimi_delta_products,
    kimi_delta_run,
    kimi_delta_scan_flops,
    kimi_delta_states,
    kimi_delta_weights,
)
from metacount.formulas.lightning import (
    lightning_products,
    lightning_run,
    lightning_scan_flops,
    lightning_states,
    lightning_weights,
)
from metacount.formulas.terms import TOKENS, flops_of, params_of

SMALL = st.integers(1, 40)

# gated DeltaNet: d=13, h_lk=2, h_lv=6, d_lk=5, d_lv=7, k_c=3, c_l=11; K = 10, V = 42
DELTA: dict[str, Any] = {
    "n_linear_k_heads": 2,
    "n_linear_v_heads": 6,
    "linear_k_head_dim": 5,
    "linear_v_head_dim": 7,
}
RULE: dict[str, Any] = {
    "n_linear_v_heads": 6,
    "linear_k_head_dim": 5,
    "linear_v_head_dim": 7,
    "linear_chunk_size": 11,
}
# the others: d=13, h_l=3, d_l=5; W = 15
HEADS: dict[str, Any] = {"n_linear_heads": 3, "linear_head_dim": 5}


def test_gated_delta_by_hand() -> None:
    weights = gated_delta_weights(13, **DELTA, conv_kernel=3)
    # q, k, v (10 + 10 + 42)·13 = 806, gate 42·13 = 546, rate and decay 2·6·13 = 156, out 546:
    # 2054; convolution 62·3 = 186; dt_bias and A_log 12; norm 7
    assert params_of(weights) == 2054 + 186 + 12 + 7
    assert params_of(w for w in weights if w.role == "norm") == 7
    # 3 tokens through 2054, 5 positions of the convolution
    run = {TOKENS: 3, **gated_delta_run(1, 3, conv_kernel=3, linear_chunk_size=11)}
    assert flops_of(weights, run) == 2 * (3 * 2054 + 5 * 186)
    states = gated_delta_states(**DELTA, conv_kernel=3)
    assert {s.name: (s.size, s.bytes_per_value) for s in states} == {
        "conv": (186, None),
        "recurrent": (210, 4),
    }


def test_a_chunk_of_gated_delta_by_hand() -> None:
    # per head: k·kᵀ, q·kᵀ 2·121·5 = 1210; triangle 55·(5 + 7) = 660; state 3·11·5·7 = 1155;
    # scores·v 121·7 = 847: 3872, of 6 heads 23232
    products = gated_delta_products(**RULE)
    for seq_len, chunks in ((1, 1), (11, 1), (12, 2), (33, 3)):
        run = gated_delta_run(5, seq_len, conv_kernel=3, linear_chunk_size=11)
        assert flops_of(products, run) == 2 * 5 * chunks * 23232
    step = gated_delta_run(5, 1, conv_kernel=3, linear_chunk_size=11, continued=True)
    assert (flops_of(products, step), step["convolved positions"]) == (0, 10)


def test_kimi_delta_by_hand() -> None:
    weights = kimi_delta_weights(13, **HEADS, conv_kernel=4)
    # q, k, v, out 4·15·13 = 780; decay and gate 2·(5·13 + 15·5) = 280; rate 3·13 = 39: 1099;
    # convolution 45·4 = 180; dt_bias 15, A_log 3; norm 5
    assert params_of(weights) == 1099 + 180 + 15 + 3 + 5
    assert params_of(w for w in weights if w.role == "norm") == 5
    run = {TOKENS: 7, **kimi_delta_run(1, 7, conv_kernel=4, linear_chunk_size=11)}
    assert flops_of(weights, run) == 2 * (7 * 1099 + 10 * 180)
    # a chunk and head: 3·121·5 + 3·11·25 = 2640
    products = kimi_delta_products(**HEADS, linear_chunk_size=11)
    assert flops_of(products, kimi_delta_run(2, 12, conv_kernel=4, linear_chunk_size=11)) == (
        2 * 2 * 2 * 3 * 2640
    )
    states = kimi_delta_states(**HEADS, conv_kernel=4)
    assert {s.name: (s.size, s.bytes_per_value) for s in states} == {
        "conv": (180, None),
        "recurrent": (75, 4),
    }


def test_lightning_by_hand() -> None:
    weights = lightning_weights(13, **HEADS)
    # 5·13·15 = 975 and a norm of 15
    assert params_of(weights) == 975 + 15
    matrices = [w for w in weights if w.role != "norm"]
    assert flops_of(matrices, {TOKENS: 7}) == 2 * 7 * 975
    # 25 tokens in chunks of 11: 121 + 121 + 9 pairs
    run = lightning_run(2, 25, linear_chunk_size=11)
    assert run == {"pairs of positions in a chunk": 502}
    products = lightning_products(**HEADS)
    # per head: 2·5 a pair, 2·25 a token
    assert flops_of(products, {TOKENS: 50, **run}) == 2 * 3 * (502 * 10 + 50 * 50)
    step = lightning_run(2, 1, linear_chunk_size=11, continued=True)
    assert flops_of(products, {TOKENS: 2, **step}) == 2 * 3 * 2 * 50
    (state,) = lightning_states(**HEADS)
    assert (state.name, state.size, state.bytes_per_value) == ("recurrent", 75, None)


def test_a_norm_is_multiplied_with_nothing() -> None:
    every = (
        *gated_delta_weights(13, **DELTA, conv_kernel=3),
        *kimi_delta_weights(13, **HEADS, conv_kernel=3),
        *lightning_weights(13, **HEADS),
    )
    assert [w.rows for w in every if w.role == "norm" or len(w.shape) == 1] == [""] * 6


def test_the_scans_by_hand() -> None:
    # 25 tokens: 3 chunks of 11
    assert gated_delta_scan_flops(25, **RULE) == 2 * 3 * 23232
    assert gated_delta_scan_flops(25, **RULE, recurrent=True) == 6 * 25 * 210
    # a chunk and head of KDA: 2640 products, 2·121·5 = 1210 compared, 11·10·9/6 = 165 inverted
    assert kimi_delta_scan_flops(25, **HEADS, linear_chunk_size=11) == 2 * 3 * 3 * 4015
    assert kimi_delta_scan_flops(25, **HEADS, linear_chunk_size=11, recurrent=True) == 11250
    assert lightning_scan_flops(25, **HEADS, linear_chunk_size=11) == 2 * 3 * (251 * 10 + 25 * 50)
    assert lightning_scan_flops(25, **HEADS, linear_chunk_size=11, recurrent=True) == 7500


@given(SMALL, SMALL, SMALL, st.integers(2, 40))
def test_the_inverse_of_a_triangle_takes_as_many_multiply_adds_as_its_rows(
    n: int, h: int, d: int, c: int
) -> None:
    sizes = {"n_linear_heads": h, "linear_head_dim": d, "linear_chunk_size": c}
    chunks = -(-n // c)
    inverted = sum(i - j - 1 for i in range(c) for j in range(i))
    products = flops_of(kimi_delta_products(**sizes), {"chunks": chunks})
    rest = 2 * chunks * h * (2 * c * c * d + inverted)
    assert kimi_delta_scan_flops(n, **sizes) == products + rest


@given(SMALL, SMALL, SMALL, SMALL)
def test_chunks_of_one_are_the_recurrence(n: int, h: int, k: int, v: int) -> None:
    one = {"linear_chunk_size": 1}
    delta = {"n_linear_v_heads": h, "linear_k_head_dim": k, "linear_v_head_dim": v, **one}
    heads = {"n_linear_heads": h, "linear_head_dim": k, **one}
    # what is left beside the recurrence is a position compared with itself
    apart = gated_delta_scan_flops(n, **delta) - gated_delta_scan_flops(n, **delta, recurrent=True)
    assert apart == 2 * n * h * (2 * k + v)
    apart = lightning_scan_flops(n, **heads) - lightning_scan_flops(n, **heads, recurrent=True)
    assert apart == 4 * n * h * k


@pytest.mark.parametrize("n", [1, 10, 11, 12, 23])
def test_symbols_give_what_ints_give(n: int) -> None:
    seq_len, chunk = sympy.symbols("S c_l", integer=True, positive=True)
    at = {seq_len: n, chunk: 11}
    symbolic = gated_delta_run(1, seq_len, conv_kernel=3, linear_chunk_size=chunk)
    rule = {**RULE, "linear_chunk_size": chunk}
    found = flops_of(gated_delta_products(**rule), symbolic).subs(at)
    assert found == gated_delta_scan_flops(n, **RULE)
    pairs = lightning_run(1, seq_len, linear_chunk_size=chunk)["pairs of positions in a chunk"]
    assert (
        pairs.subs(at) == lightning_run(1, n, linear_chunk_size=11)["pairs of positions in a chunk"]
    )
