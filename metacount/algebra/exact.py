"""Exact values of expressions, and whether one is zero for all sizes that the rules allow."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import ceil, floor, lcm, prod
from typing import TYPE_CHECKING

import sympy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_REMAINDERS = 64
MOST_RESIDUES = 4096  # cases to look at, to see that a quotient is always whole


def value_at(expr: sympy.Expr, numbers: Mapping[sympy.Symbol, int]) -> Fraction:
    """Return the exact value of `expr` with a number for each of its letters.

    >>> d, h = sympy.symbols("d h")
    >>> value_at(sympy.floor(d / h) + d / 2, {d: 7, h: 3})
    Fraction(11, 2)
    """
    if expr.is_Symbol:
        return Fraction(numbers[expr])
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    if not expr.args:
        raise ValueError(f"{expr} has no exact value")
    values = [value_at(arg, numbers) for arg in expr.args]
    if expr.is_Add:
        return sum(values, Fraction(0))
    if expr.is_Mul:
        return prod(values, start=Fraction(1))
    if expr.is_Pow:
        power: Fraction = values[0] ** int(values[1])
        return power
    return Fraction(_CALLS[type(expr)](*values))


_CALLS: dict[type, Callable[..., Fraction | int]] = {
    sympy.floor: floor,
    sympy.ceiling: ceil,
    sympy.Min: min,
    sympy.Max: max,
}


def plain(expr: sympy.Expr) -> sympy.Expr:
    """Multiply out `expr` and drop the floors and ceilings that change nothing.

    >>> S = sympy.Symbol("S", integer=True, positive=True)
    >>> plain(sympy.floor(S * (S - 1) / 2) - S**2 / 2)
    -S/2
    """
    whole = {
        call: call.args[0]
        for call in expr.atoms(sympy.floor, sympy.ceiling)
        if is_whole(call.args[0])
    }
    return sympy.expand(expr.xreplace(whole) if whole else expr)


def is_whole(expr: sympy.Expr) -> bool:
    """Tell whether `expr` is a whole number whatever whole numbers its letters are.

    A polynomial over n is, when it is a multiple of n for every remainder of its letters.
    """
    if expr.is_integer:
        return True
    above, below = sympy.together(expr).as_numer_denom()
    letters = sorted(above.free_symbols, key=str)
    if not below.is_Integer or not above.is_polynomial(*letters):
        return False
    n = int(below)
    if n ** len(letters) > MOST_RESIDUES:
        return False
    return all(
        value_at(above, dict(zip(letters, rests, strict=True))) % n == 0
        for rests in product(range(n), repeat=len(letters))
    )


def is_zero(expr: sympy.Expr) -> bool | None:
    """Tell whether `expr` is 0 for all sizes; None where floors, min or max leave it open.

    Sizes are whole numbers from 1; those at which a divisor is 0 are not spoken of.
    """
    simple = plain(expr)
    if simple == 0:
        return True
    if not simple.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max):
        return bool(sympy.cancel(simple) == 0)
    if sympy.cancel(_opaque(simple)) == 0:
        return True
    cases = _by_remainder(simple)
    return True if cases and all(plain(case) == 0 for case in cases) else None


def _by_remainder(expr: sympy.Expr) -> list[sympy.Expr]:
    """Rewrite `expr` for each remainder of the one letter whose multiples its floors divide out."""
    calls = expr.atoms(sympy.floor, sympy.ceiling)
    below = {
        int(sympy.denom(sympy.together(c.args[0])))
        for c in calls
        if sympy.denom(sympy.together(c.args[0])).is_Integer
    }
    letters = {letter for call in calls for letter in call.free_symbols}
    period = lcm(*below) if below else 0
    if len(letters) != 1 or not 1 < period <= MOST_REMAINDERS:
        return []
    times = sympy.Dummy(integer=True, nonnegative=True)
    (letter,) = letters
    return [expr.xreplace({letter: period * times + rest}) for rest in range(period)]


def _opaque(expr: sympy.Expr) -> sympy.Expr:
    """Put a letter for each floor, ceiling, min and max of `expr`."""
    calls = expr.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max)
    outer = {call: sympy.Dummy() for call in sorted(calls, key=sympy.count_ops, reverse=True)}
    return expr.xreplace(outer)
