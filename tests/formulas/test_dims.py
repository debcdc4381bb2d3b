"""The operations on sizes: ints, arrays and symbols; and that formulas load nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import sympy
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st

from metacount.formulas.dim import (
    ceil_div,
    exact_div,
    floor_div,
    is_symbolic,
    is_zero,
    smaller,
    when,
)

INTS = st.integers(-50, 50)


@given(INTS, INTS)
def test_smaller_of_ints_is_min(a: int, b: int) -> None:
    assert smaller(a, b) == min(a, b)
    assert type(smaller(a, b)) is int


@given(st.lists(st.tuples(INTS, INTS), min_size=1))
def test_smaller_of_arrays_is_elementwise_min(pairs: list[tuple[int, int]]) -> None:
    left, right = np.array(pairs, dtype=np.int64).T
    assert smaller(left, right).tolist() == [min(a, b) for a, b in pairs]
    assert smaller(left, 7).tolist() == [min(a, 7) for a, _ in pairs]


def test_smaller_of_symbols_is_min_of_sympy() -> None:
    s, w = sympy.symbols("S w")
    assert smaller(s, w) == sympy.Min(s, w)
    assert smaller(s, 7) == sympy.Min(s, 7)
    assert smaller(7, w) == sympy.Min(7, w)


def test_exact_div_of_ints_and_arrays() -> None:
    assert exact_div(91, 7) == 13
    assert type(exact_div(91, 7)) is int
    assert exact_div(np.array([91, 14]), 7).tolist() == [13, 2]


def test_ceil_div_of_symbols_is_ceiling() -> None:
    s = sympy.Symbol("S")
    assert str(ceil_div(s, 7)) == "ceiling(S/7)"
    assert str(ceil_div(7, s)) == "ceiling(7/S)"


def test_exact_div_of_symbols_stays_exact() -> None:
    s = sympy.Symbol("S")
    assert exact_div(s * (s + 1), 2) == s * (s + 1) / 2
    assert exact_div(6, s) == 6 / s
    assert exact_div(sympy.Integer(7), 2) == sympy.Rational(7, 2)


def test_exact_div_refuses_a_remainder() -> None:
    with pytest.raises(ValueError, match="93"):
        exact_div(93, 7)
    with pytest.raises(ValueError, match="7 must divide"):
        exact_div(np.array([91, 93]), 7)


def test_floor_div() -> None:
    s = sympy.Symbol("S")
    assert (floor_div(13, 5), floor_div(13, 1)) == (2, 13)
    assert floor_div(np.array([13, 4]), 5).tolist() == [2, 0]
    assert floor_div(s, 1) is s
    assert floor_div(s, 2) == sympy.floor(s / 2)
    assert floor_div(sympy.Integer(13), 5) == 2


def test_ceil_div() -> None:
    s = sympy.Symbol("S")
    assert (ceil_div(13, 5), ceil_div(10, 5), ceil_div(1, 5)) == (3, 2, 1)
    assert ceil_div(np.array([13, 10, 1]), 5).tolist() == [3, 2, 1]
    assert ceil_div(s, 5) == sympy.ceiling(s / 5)
    assert ceil_div(13, s).subs(s, 5) == 3


def test_structure_is_told_from_sizes() -> None:
    s = sympy.Symbol("S")
    assert [is_symbolic(x) for x in (s, s + 1, 3, np.array([3]))] == [True, True, False, False]
    assert is_zero(0) is True
    assert [is_zero(x) for x in (1, -1, s, np.array([0]), sympy.Integer(0))] == [False] * 5
    assert (when(True, s), when(False, s)) == (s, 0)


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def heavy(loaded: set[str]) -> set[str]:
    return loaded & {"torch", "numpy", "sympy", "transformers", "metacount.modules"}


def test_formulas_load_nothing_heavy() -> None:
    loaded = modules_after("import metacount.formulas.model")
    assert "metacount.formulas.mla" in loaded
    assert heavy(loaded) == set()


def test_the_test_above_can_fail() -> None:
    assert heavy(modules_after("import numpy")) == {"numpy"}
