"""Expanded expressions as tables from monomial to coefficient: quick to add, compare and rewrite.

Exponents may be negative (d/h). A floor, a min or a max counts as one more letter.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import sympy

from metacount.judge.exact import value_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Monomial = tuple[int, ...]
Table = dict[Monomial, Fraction]
Key = frozenset[tuple[Monomial, Fraction]]


class NotMonomials(ValueError):
    """An expression that is no sum of monomials, such as 1/(d + 1)."""


class Space:
    """The letters of some expressions, in order, and the tables over them."""

    def __init__(self, exprs: Iterable[Any]) -> None:
        letters: set[Any] = set()
        for expr in exprs:
            calls = expr.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max)
            letters |= expr.free_symbols | calls
        self.letters = sorted(letters, key=str)
        self.place = {letter: i for i, letter in enumerate(self.letters)}

    def table(self, expr: Any) -> Table:
        """`expr` multiplied out."""
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

    def expr(self, table: Table) -> Any:
        """A table as an expression."""
        return sympy.Add(
            *(
                sympy.Rational(value.numerator, value.denominator)
                * sympy.Mul(*(a**n for a, n in zip(self.letters, key, strict=True) if n))
                for key, value in table.items()
            )
        )

    def value(self, table: Table, numbers: Mapping[Any, int]) -> Fraction:
        """The value of a table with a number for each letter."""
        total = Fraction(0)
        for key, value in table.items():
            for letter, n in zip(self.letters, key, strict=True):
                if n:
                    value *= value_at(letter, numbers) ** n
            total += value
        return total

    def swapped(self, table: Table, letter: Any, other: Monomial) -> Table:
        """The table with a monomial in the letter's place."""
        i = self.place[letter]
        found: Table = {}
        for key, value in table.items():
            n = key[i]
            new = key
            if n:
                new = tuple((0 if j == i else e) + n * o
                            for j, (e, o) in enumerate(zip(key, other, strict=True)))  # fmt: skip
            found[new] = found.get(new, Fraction(0)) + value
        return {key: value for key, value in found.items() if value}

    def monomial(self, powers: Mapping[Any, int]) -> Monomial | None:
        """The monomial of some letters; None where the space does not have one of them."""
        if not powers.keys() <= self.place.keys():
            return None
        return tuple(powers.get(letter, 0) for letter in self.letters)


def less(a: Table, b: Table) -> Table:
    """a - b."""
    found = dict(a)
    for key, value in b.items():
        left = found.get(key, Fraction(0)) - value
        if left:
            found[key] = left
        else:
            found.pop(key, None)
    return found


def times(a: Table, factor: Fraction, powers: Monomial | None = None) -> Table:
    """`a` multiplied by a number and a monomial."""
    if powers is None:
        return {key: factor * value for key, value in a.items()}
    return {
        tuple(x + y for x, y in zip(key, powers, strict=True)): factor * value
        for key, value in a.items()
    }


def within(part: Table, whole: Table) -> bool:
    """Whether every monomial of `part` is in `whole`, with the same sign and not more of it."""
    return all(
        key in whole and (whole[key] > 0) == (value > 0) and abs(whole[key]) >= abs(value)
        for key, value in part.items()
    )


def key_of(table: Table) -> Key:
    """What two equal tables have in common."""
    return frozenset(table.items())
