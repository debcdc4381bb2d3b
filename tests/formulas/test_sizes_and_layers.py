"""Sizes, pairs that a mask keeps, blocks of a kind: one by one, in arrays, in letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy
from helpers.random_models import changed
from helpers.structures import miniatures
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas.dim import (
    ceil_div,
    chunk,
    exact_div,
    floor_div,
    is_symbolic,
    is_zero,
    smaller,
    when,
)
from metacount.formulas.masks import (
    attended_positions,
    banded_pairs,
    cached_positions,
    causal_pairs,
    chunked_pairs,
    prefix_pairs,
    self_attention_pairs,
)
from metacount.formulas.pieces import (
    ANY_FFN,
    ANY_MIXER,
    layers_by_law,
    layers_with,
    windowed_layers,
)
from metacount.spec import ModelSpec

S, W = sympy.symbols("S w")


@pytest.mark.parametrize(
    ("divide", "a", "b", "expected"),
    [
        (exact_div, 91, 7, 13),
        (exact_div, np.array([91, 14]), 7, [13, 2]),
        (exact_div, S * (S + 1), 2, S * (S + 1) / 2),
        (exact_div, 6, S, 6 / S),
        (exact_div, sympy.Integer(7), 2, sympy.Rational(7, 2)),
        (floor_div, 13, 5, 2),
        (floor_div, 13, 1, 13),
        (floor_div, np.array([13, 4]), 5, [2, 0]),
        (floor_div, S, 1, S),
        (floor_div, S, 2, sympy.floor(S / 2)),
        (floor_div, sympy.Integer(13), 5, 2),
        (ceil_div, 13, 5, 3),
        (ceil_div, 10, 5, 2),
        (ceil_div, 1, 5, 1),
        (ceil_div, np.array([13, 10, 1]), 5, [3, 2, 1]),
        (ceil_div, S, 7, sympy.ceiling(S / 7)),
        (ceil_div, 7, S, sympy.ceiling(7 / S)),
        (smaller, S, W, sympy.Min(S, W)),
        (smaller, S, 7, sympy.Min(S, 7)),
        (smaller, 7, W, sympy.Min(7, W)),
    ],
)
def test_of_each_kind(divide: Callable[[Any, Any], Any], a: Any, b: Any, expected: Any) -> None:
    found = divide(a, b)
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected
    if isinstance(a, int) and isinstance(b, int):
        assert type(found) is int


def test_a_remainder_is_refused() -> None:
    with pytest.raises(ValueError, match="93"):
        exact_div(93, 7)
    with pytest.raises(ValueError, match="7 must divide"):
        exact_div(np.array([91, 93]), 7)


def test_structure_is_told_from_sizes() -> None:
    assert [is_symbolic(x) for x in (S, S + 1, 3, np.array([3]))] == [True, True, False, False]
    assert [is_zero(x) for x in (0, S - S, 1, -1, S, np.array([0]))] == 2 * [True] + 4 * [False]
    assert (when(True, S), when(False, S)) == (S, 0)


def test_chunks_are_those_of_a_list_cut_in_equal_lengths() -> None:
    for size in range(1, 25):
        for degree in range(1, 9):
            each = -(-size // degree)
            cut = [len(range(size)[i * each : (i + 1) * each]) for i in range(degree)]
            assert [chunk(size, degree, i) for i in range(degree)] == cut


# --- pairs of positions -----------------------------------------------------------------------

LENGTHS = st.integers(1, 24)
Sees = Callable[[int, int], bool]


def kept(kind: str, seq_len: int, window: int | None = None, **mask: Any) -> int:
    """`self_attention_pairs` where nothing special is said about the mask."""
    special = {"chunked": False, "prefix_len": 0, **mask}
    return self_attention_pairs(kind, seq_len, window=window, **special)


@given(LENGTHS, LENGTHS, st.integers(0, 24))
def test_pairs_against_the_cells_of_the_mask(s: int, w: int, p: int) -> None:
    p = min(p, s)
    # a mask, its count, and what a kind of model with such a mask counts
    masks: list[tuple[Sees, int, int]] = [
        (lambda t, u: u <= t, causal_pairs(s), kept("encoder-decoder", s)),
        (lambda t, u: u <= t, causal_pairs(s), kept("prefix-decoder", s)),
        (lambda t, u: u <= t, causal_pairs(s), kept("decoder", s, chunked=True)),
        (lambda t, u: u <= t and t - u < w, causal_pairs(s, w), kept("decoder", s, w)),
        (
            lambda t, u: u <= t and t // w == u // w,
            chunked_pairs(s, w),
            kept("decoder", s, w, chunked=True),
        ),
        (lambda t, u: u <= t or u < p, prefix_pairs(s, p), kept("prefix-decoder", s, prefix_len=p)),
        (lambda t, u: abs(t - u) <= w // 2, banded_pairs(s, w), kept("encoder", s, w)),
        (lambda t, u: True, s * s, kept("encoder", s)),
    ]
    for sees, count, of_kind in masks:
        cells = sum(sees(t, u) for t in range(s) for u in range(s))
        assert count == of_kind == cells
    # the last row of the mask, and what the next token reads of what is there
    assert attended_positions(s) == cached_positions(s) == s
    assert attended_positions(s, w) == sum(s - 1 - u < w for u in range(s))
    assert cached_positions(s, w) == sum(s - u < w for u in range(s))


COUNTS: list[Callable[..., Any]] = [
    lambda s, w: causal_pairs(s),
    causal_pairs,
    chunked_pairs,
    prefix_pairs,
    banded_pairs,
    attended_positions,
    cached_positions,
    lambda s, w: windowed_layers(s, "LLG"),
    lambda s, w: layers_by_law(s, moe_every=3, moe_offset=1),
]


@pytest.mark.parametrize("count", COUNTS)
def test_arrays_and_symbols_give_what_ints_give(count: Callable[..., Any]) -> None:
    sizes = [(s, w) for s in (1, 2, 5, 12) for w in (1, 2, 3, 7, 12, 13)]
    ints = [count(s, w) for s, w in sizes]
    assert all(type(n) is int for n in ints)
    assert count(*np.array(sizes, dtype=np.int64).T).tolist() == ints
    s, w = sympy.symbols("S w")
    closed = sympy.sympify(count(s, w))
    assert [closed.subs({s: a, w: b}) for a, b in sizes] == ints


# --- blocks of some kinds of mixer and feed-forward -------------------------------------------

MIXERS = st.sets(st.sampled_from(ANY_MIXER), min_size=1)
FFNS = st.sets(st.sampled_from(ANY_FFN), min_size=1)


def one_by_one(spec: ModelSpec, mixers: set[str], ffns: set[str]) -> int:
    last = spec.last_stack
    kinds = [(last.mixer_of(i), last.ffn_of(i)) for i in range(last.n_layers)]
    return sum(mixer in mixers and ffn in ffns for mixer, ffn in kinds)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(changed(miniatures()), MIXERS, FFNS)
def test_kinds_of_any_model(spec: ModelSpec, mixers: set[str], ffns: set[str]) -> None:
    found = layers_with(spec, spec.n_layers, mixers="".join(mixers), ffns="".join(ffns))
    assert found == one_by_one(spec, mixers, ffns)


def test_kinds_in_letters() -> None:
    n = sympy.Symbol("N", integer=True, positive=True)
    eighth = sympy.floor(n / 8 + sympy.Rational(3, 8))
    for name, mixers, ffns, expected in (
        ("deepseek-v3", "A", "E", n - 3),
        ("deepseek-v3", "A", "F", 3),
        ("deepseek-v3", "R", "E", 0),
        ("olmo-hybrid-7b", "A", "F", sympy.floor(n / 4)),
        ("jamba-1.5-large", "A", "F", eighth),
    ):
        assert layers_with(entry(name).spec(), n, mixers=mixers, ffns=ffns) == expected
    with pytest.raises(SpecError, match="mixer_pattern"):
        layers_with(entry("qwen3-next-80b-a3b").spec(), n, mixers="A", ffns="E")
