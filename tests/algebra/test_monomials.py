"""Tables of monomials: a polynomial put in a letter's place, by hand."""

from __future__ import annotations

from fractions import Fraction

import sympy

from metacount.algebra.exact import Space, less, plus, substituted, times

a, b, d = sympy.symbols("a b d", positive=True, integer=True)
SPACE = Space([a, b, d])


def put(expr: sympy.Expr, by: sympy.Expr) -> sympy.Expr | None:
    """`by` in the place of d."""
    found = substituted(SPACE.table(expr), SPACE.place[d], SPACE.table(by))
    return None if found is None else SPACE.expr(found)


def test_powers_of_a_sum() -> None:
    # (a + b)² = a² + 2·a·b + b²
    assert put(d**2, a + b) == a**2 + 2 * a * b + b**2
    # 3·b·(a + 2)³ + a = 3·a³·b + 18·a²·b + 36·a·b + 24·b + a
    assert put(3 * b * d**3 + a, a + 2) == 3 * a**3 * b + 18 * a**2 * b + 36 * a * b + 24 * b + a
    # (a + b)·(a - b): the mixed terms are gone, not zero
    squares = put(d * (d - 2 * b), a + b)
    assert squares == a**2 - b**2


def test_below_a_line_stands_one_monomial_alone() -> None:
    assert put(a / d, 2 * b) == a / (2 * b)
    assert put(a / d**2, 2 * b) == a / (4 * b**2)
    assert put(a / d, a + b) is None


def test_sums_and_multiples() -> None:
    x, y = SPACE.table(2 * a + 3 * b), SPACE.table(5 * a - 3 * b)
    assert plus(x, y) == SPACE.table(7 * a)
    assert less(x, y) == SPACE.table(-3 * a + 6 * b)
    assert times(x, Fraction(1, 2), SPACE.monomial({d: 2})) == SPACE.table(
        a * d**2 + 3 * b * d**2 / 2
    )
    values = SPACE.values({a: 7, b: 11, d: 13})
    # 2·7 + 3·11
    assert SPACE.value(x, values) == 47
