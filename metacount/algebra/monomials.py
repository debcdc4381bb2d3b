"""Expanded expressions as tables from monomial to coefficient: quick to add, compare and rewrite.

Exponents may be negative (d/h). A floor, a min or a max counts as one more letter.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import value_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Monomial = tuple[int, ...]
Table = dict[Monomial, Fraction]
Key = frozenset[tuple[Monomial, Fraction]]


class NotMonomials(ValueError):
    """An expression that is no sum of monomials, such as 1/(d + 1)."""


class Space:
    """The letters of some expressions, in order, and the tables over them."""

    def __init__(self, exprs: Iterable[sympy.Expr]) -> None:
        letters: set[sympy.Expr] = set()
        for expr in exprs:
            calls = expr.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max)
            letters |= expr.free_symbols | calls
        self.letters = sorted(letters, key=str)
        self.place = {letter: i for i, letter in enumerate(self.letters)}
        self.one: Monomial = (0,) * len(self.letters)

    def table(self, expr: sympy.Expr) -> Table:
        """Multiply out `expr` into a table."""
        found: Table = {}
        for term in sympy.Add.make_args(sympy.expand(expr)):
            factor, rest = term.as_coeff_Mul()
            if not factor.is_Rational:
                raise NotMonomials(str(term))
            exponents = [0] * len(self.letters)
            for power in () if rest == 1 else sympy.Mul.make_args(rest):
                base, exponent = (power, 1) if power in self.place else power.as_base_exp()
                if base not in self.place or not sympy.sympify(exponent).is_Integer:
                    raise NotMonomials(str(term))
                exponents[self.place[base]] += int(exponent)
            key = tuple(exponents)
            found[key] = found.get(key, Fraction(0)) + Fraction(int(factor.p), int(factor.q))
        return {key: value for key, value in found.items() if value}

    def expr(self, table: Table) -> sympy.Expr:
        """Return a table as a SymPy expression."""
        return sympy.Add(
            *(
                sympy.Rational(value.numerator, value.denominator)
                * sympy.Mul(*(a**n for a, n in zip(self.letters, key, strict=True) if n))
                for key, value in table.items()
            )
        )

    def values(self, numbers: Mapping[sympy.Symbol, int]) -> list[Fraction]:
        """Return the value of each letter."""
        return [value_at(letter, numbers) for letter in self.letters]

    def value(self, table: Table, values: list[Fraction]) -> Fraction:
        """Return the value of a table with a value for each letter."""
        total = Fraction(0)
        for key, factor in table.items():
            above, below = factor.numerator, factor.denominator
            for value, n in zip(values, key, strict=True):
                if n > 0:
                    above, below = above * value.numerator**n, below * value.denominator**n
                elif n < 0:
                    above, below = above * value.denominator**-n, below * value.numerator**-n
            total += Fraction(above, below) if above % below else above // below
        return total

    def monomial(self, powers: Mapping[sympy.Symbol, int]) -> Monomial | None:
        """Return the monomial of some letters; None where the space does not have one of them."""
        if not powers.keys() <= self.place.keys():
            return None
        return tuple(powers.get(letter, 0) for letter in self.letters)


def substituted(table: Table, place: int, by: Table) -> Table | None:
    """Return the table with a polynomial in a letter's place;
    None where it would stand below a line.
    """
    found: Table = {}
    powers: dict[int, Table] = {}
    for key, value in table.items():
        n = key[place]
        if not n:
            found[key] = found[key] + value if key in found else value
            continue
        if n not in powers:
            power = _power(by, n)
            if power is None:
                return None
            powers[n] = power
        rest = (*key[:place], 0, *key[place + 1 :])
        for other, factor in powers[n].items():
            new, more = tuple(map(int.__add__, rest, other)), value * factor
            found[new] = found[new] + more if new in found else more
    return {key: value for key, value in found.items() if value}


def _power(by: Table, n: int) -> Table | None:
    if len(by) == 1:
        ((key, value),) = by.items()
        return {tuple(n * e for e in key): value**n}
    if n < 0:
        return None
    found = by
    for _ in range(n - 1):
        product: Table = {}
        for a, x in found.items():
            for b, y in by.items():
                key = tuple(map(int.__add__, a, b))
                product[key] = product.get(key, Fraction(0)) + x * y
        found = {key: value for key, value in product.items() if value}
    return found


def less(a: Table, b: Table) -> Table:
    """Subtract b from a."""
    rest = dict(a)
    for key, value in b.items():
        if key not in rest:
            rest[key] = -value
        elif rest[key] == value:
            del rest[key]
        else:
            rest[key] -= value
    return rest


def plus(a: Table, b: Table) -> Table:
    """Add b to a."""
    return less(a, times(b, Fraction(-1)))


def times(a: Table, factor: Fraction, powers: Monomial | None = None) -> Table:
    """Multiply `a` by a number and a monomial."""
    if powers is None:
        return {key: factor * value for key, value in a.items()}
    return {tuple(map(int.__add__, key, powers)): factor * value for key, value in a.items()}


def key_of(table: Table) -> Key:
    """Return a key that two equal tables have in common."""
    return frozenset(table.items())
