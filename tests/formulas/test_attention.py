"""Attention: parameters, FLOPs, pairs under every mask, cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from metacount.formulas.attention import (
    attended_positions,
    attention_pair_flops,
    attention_params,
    attention_projection_flops,
    banded_pairs,
    cached_positions,
    causal_pairs,
    chunked_pairs,
    kv_cache_values,
    lettered_layers,
    prefix_pairs,
    self_attention_pairs,
    windowed_layers,
)

LENGTHS = st.integers(1, 24)


def kept(kind: str, seq_len: int, window: int | None = None, **mask: Any) -> int:
    """`self_attention_pairs` where nothing special is said about the mask."""
    special = {"chunked": False, "prefix_len": 0, **mask}
    return self_attention_pairs(kind, seq_len, window=window, **special)


def count(seq_len: int, sees: Callable[[int, int], bool]) -> int:
    """True cells of the mask, one by one."""
    return sum(sees(t, u) for t in range(seq_len) for u in range(seq_len))


def test_params_by_hand() -> None:
    # q 13·30 + k 13·10 + v 13·10 + o 30·13 = 1040, with 6 heads, 2 KV heads, head_dim 5
    assert attention_params(13, 6, 2, 5) == 1040
    assert attention_params(13, 6, 2, 5, q_bias=True) == 1070
    assert attention_params(13, 6, 2, 5, k_bias=True) == 1050
    assert attention_params(13, 6, 2, 5, v_bias=True) == 1050
    assert attention_params(13, 6, 2, 5, o_bias=True) == 1053
    assert attention_params(13, 6, 2, 5, sinks=True) == 1046
    # 1040 + 30 + 10 + 10 + 13 + 6
    assert (
        attention_params(
            13, 6, 2, 5, q_bias=True, k_bias=True, v_bias=True, o_bias=True, sinks=True
        )
        == 1109
    )


@given(LENGTHS, LENGTHS, LENGTHS)
def test_as_many_kv_heads_as_heads_is_mha(d: int, h: int, head_dim: int) -> None:
    # four matrices of the same shape
    assert attention_params(d, h, h, head_dim) == 4 * (d * h * head_dim)


def test_projection_flops_by_hand() -> None:
    # 3 tokens × 1040 multiply-adds
    assert attention_projection_flops(3, 13, 6, 2, 5) == 6240
    # q and o: 3 tokens × 780; k and v: 7 tokens × 260; 2340 + 1820 = 4160 multiply-adds
    assert attention_projection_flops(3, 13, 6, 2, 5, n_kv_tokens=7) == 8320
    # cached: q and o only
    assert attention_projection_flops(3, 13, 6, 2, 5, n_kv_tokens=0) == 4680


def test_pair_flops_by_hand() -> None:
    # 7 pairs × 6 heads × (5 for the score + 5 for the sum) = 420 multiply-adds
    assert attention_pair_flops(7, 6, 5) == 840


def test_cache_by_hand() -> None:
    # a key and a value of 2 heads × 5
    assert kv_cache_values(2, 5) == 20


def test_pairs_by_hand() -> None:
    # 1 + 2 + 3 + 4 + 5
    assert causal_pairs(5) == 15
    # 1 + 2 + 3 + 3 + 3
    assert causal_pairs(5, 3) == 12
    # chunks of 3 and 2: 1 + 2 + 3 + 1 + 2
    assert chunked_pairs(5, 3) == 9
    # 3 + 3 + 3 + 4 + 5
    assert prefix_pairs(5, 3) == 18
    # two on either side: 3 + 4 + 5 + 4 + 3
    assert banded_pairs(5, 4) == 19
    assert banded_pairs(5, 5) == 19


@given(LENGTHS, LENGTHS)
def test_causal_pairs_against_the_mask(s: int, w: int) -> None:
    assert causal_pairs(s) == count(s, lambda t, u: u <= t)
    assert causal_pairs(s, w) == count(s, lambda t, u: u <= t and t - u < w)
    assert kept("decoder", s, window=w) == causal_pairs(s, w)
    assert kept("encoder-decoder", s) == causal_pairs(s)


@given(LENGTHS, LENGTHS)
def test_chunked_pairs_against_the_mask(s: int, w: int) -> None:
    assert chunked_pairs(s, w) == count(s, lambda t, u: u <= t and t // w == u // w)
    chunked = kept("decoder", s, window=w, chunked=True)
    assert chunked == chunked_pairs(s, w)
    assert kept("decoder", s, chunked=True) == causal_pairs(s)


@given(LENGTHS, st.integers(0, 24))
def test_prefix_pairs_against_the_mask(s: int, p: int) -> None:
    p = min(p, s)
    assert prefix_pairs(s, p) == count(s, lambda t, u: u <= t or u < p)
    assert kept("prefix-decoder", s, prefix_len=p) == prefix_pairs(s, p)
    assert kept("prefix-decoder", s) == causal_pairs(s)


@given(LENGTHS, LENGTHS)
def test_banded_pairs_against_the_mask(s: int, w: int) -> None:
    assert banded_pairs(s, w) == count(s, lambda t, u: abs(t - u) <= w // 2)
    assert kept("encoder", s, window=w) == banded_pairs(s, w)
    assert kept("encoder", s) == s * s


PAIRS = [
    lambda s, w: causal_pairs(s),
    causal_pairs,
    chunked_pairs,
    prefix_pairs,
    banded_pairs,
    attended_positions,
    cached_positions,
    lambda s, w: windowed_layers(s, "LLG"),
]


@pytest.mark.parametrize("pairs", PAIRS)
def test_arrays_and_symbols_give_what_ints_give(pairs: Callable[..., int]) -> None:
    sizes = [(s, w) for s in (1, 2, 5, 12) for w in (1, 2, 3, 7, 12, 13)]
    ints = [pairs(s, w) for s, w in sizes]
    assert all(type(n) is int for n in ints)
    assert pairs(*np.array(sizes, dtype=np.int64).T).tolist() == ints
    s, w = sympy.symbols("S w")
    closed = sympy.sympify(pairs(s, w))
    assert [closed.subs({s: a, w: b}) for a, b in sizes] == ints


def test_closed_forms_read_well() -> None:
    s = sympy.Symbol("S")
    assert sympy.expand(causal_pairs(s)) == s**2 / 2 + s / 2
    assert windowed_layers(s, "L") == s
    assert windowed_layers(s, "LL") == s
    assert windowed_layers(s, "G") == 0
    assert windowed_layers(s, "LG") == sympy.floor(s / 2 + sympy.Rational(1, 2))
    # the fewer letters are counted; of as many, those asked for
    eighths = sympy.Rational(3, 8)
    assert lettered_layers(s, "RRRRARRR", "A") == sympy.floor(s / 8 + eighths)
    assert lettered_layers(s, "RRRRARRR", "R") == s - sympy.floor(s / 8 + eighths)
    assert lettered_layers(s, "RA", "R") == sympy.floor(s / 2 + sympy.Rational(1, 2))


@given(st.integers(0, 40), st.text("LG", min_size=1, max_size=7))
def test_windowed_layers_are_the_letters(n: int, pattern: str) -> None:
    assert windowed_layers(n, pattern) == (pattern * n)[:n].count("L")


@given(st.integers(0, 40), st.text("ARM", min_size=1, max_size=7), st.sets(st.sampled_from("ARM")))
def test_lettered_layers_are_the_letters(n: int, pattern: str, letters: set[str]) -> None:
    asked = sum((pattern * n)[:n].count(letter) for letter in letters)
    assert lettered_layers(n, pattern, "".join(letters)) == asked


@given(LENGTHS, LENGTHS)
def test_newest_token_attends_to_its_row_of_the_mask(t: int, w: int) -> None:
    assert attended_positions(t) == t
    assert attended_positions(t, w) == causal_pairs(t, w) - causal_pairs(t - 1, w)


@given(LENGTHS, LENGTHS)
def test_cache_holds_what_the_next_token_attends_to(t: int, w: int) -> None:
    assert cached_positions(t) == t
    assert cached_positions(t, w) == attended_positions(t + 1, w) - 1
