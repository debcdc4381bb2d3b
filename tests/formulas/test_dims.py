"""The operations on sizes, ints, arrays and symbols; the terms that counts are sums of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

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
from metacount.formulas.terms import PAIRS, Product, Weight

INTS = st.integers(-50, 50)
S, W = sympy.symbols("S w")


@given(st.lists(st.tuples(INTS, INTS), min_size=1))
def test_smaller_is_min(pairs: list[tuple[int, int]]) -> None:
    least = [min(a, b) for a, b in pairs]
    assert [smaller(a, b) for a, b in pairs] == least
    assert {type(smaller(a, b)) for a, b in pairs} == {int}
    left, right = np.array(pairs, dtype=np.int64).T
    assert smaller(left, right).tolist() == least
    assert smaller(left, 7).tolist() == [min(a, 7) for a, _ in pairs]


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
    with pytest.raises(ValueError, match=r"^7 must divide 93: the remainder is 2$"):
        exact_div(93, 7)
    with pytest.raises(ValueError, match="7 must divide"):
        exact_div(np.array([91, 93]), 7)


def test_structure_is_told_from_sizes() -> None:
    assert [is_symbolic(x) for x in (S, S + 1, 3, np.array([3]))] == [True, True, False, False]
    assert [is_zero(x) for x in (0, 1, -1, S, np.array([0]))] == [True, *4 * [False]]
    assert (when(True, S), when(False, S)) == (S, 0)


def test_chunks_are_those_of_a_list_cut_in_equal_lengths() -> None:
    for size in range(1, 25):
        for degree in range(1, 9):
            each = -(-size // degree)
            cut = [len(range(size)[i * each : (i + 1) * each]) for i in range(degree)]
            assert [chunk(size, degree, i) for i in range(degree)] == cut


def test_what_is_repeated_is_repeated_again() -> None:
    product = Product(role="attention", name="scores", width=3, per=PAIRS)
    assert product.repeated(2).repeated(5).times == 10
    weight = Weight(role="ffn", name="up", shape=(2, 3), used=2, uses=7, split=(("a", 6),))
    again = weight.repeated(2).repeated(5)
    assert (again.times, again.used, again.uses, again.split) == (10, 20, 70, (("a", 6),))
