"""Where a difference is zero at the model's sizes but not everywhere: what makes it zero."""

from __future__ import annotations

import random
import re
from itertools import combinations
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import is_zero, value_at
from metacount.check.given.vocabulary import LETTERS, NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WORD = re.compile(r"[A-Za-z][A-Za-z_0-9]*")  # without the ² of S²

Relation = tuple[str, sympy.Expr, sympy.Expr]  # in words; a letter or call, and what it is equal to

MOST_RELATIONS = 60
AT_ONCE = 4  # relations that may be needed together
RATIOS = (2, 3, 4, 6, 8)


def condition(difference: sympy.Expr, numbers: Mapping[sympy.Expr, int]) -> str | None:
    """Find the fewest relations between the model's sizes under
    which `difference` is 0 for all others.

    None where four of them are not enough.
    """
    letters = sorted(difference.free_symbols, key=str)
    relations = [*_calls(difference, numbers), *_products(letters, numbers)]
    relations += [*_equals(letters, numbers), *_pins(letters, numbers)]
    relations = relations[:MOST_RELATIONS]
    # a difference of zero stays zero at primes that keep the relations
    draw = random.Random(0)
    primes = dict(zip(letters, draw.sample(_PRIMES, len(letters)), strict=True))
    for n in range(1, AT_ONCE + 1):
        for several in combinations(relations, n):
            if _zero_at(difference, several, primes) and _zero(difference, several):
                return " and ".join(words for words, _, _ in several)
    return None


_PRIMES = [p for p in range(101, 800) if all(p % n for n in range(2, 29))]


def _calls(difference: sympy.Expr, numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    for call in sorted(difference.atoms(sympy.Min, sympy.Max), key=str):
        here = value_at(call, numbers)
        for arg in call.args:
            if value_at(arg, numbers) == here:
                sign = "≤" if isinstance(call, sympy.Min) else "≥"
                others = " and ".join(named(other) for other in call.args if other != arg)
                yield f"{named(arg)} {sign} {others}", call, arg
    for call in sorted(difference.atoms(sympy.floor, sympy.ceiling), key=str):
        above, below = call.args[0].as_numer_denom()
        here = value_at(call, numbers)
        if isinstance(call, sympy.floor) and here == 0 <= value_at(call.args[0], numbers):
            yield f"{named(above)} < {named(below)}", call, sympy.Integer(0)
        if isinstance(call, sympy.ceiling) and here == 1:
            yield f"{named(above)} ≤ {named(below)}", call, sympy.Integer(1)
        if value_at(call.args[0], numbers) == value_at(call, numbers):
            _, below = call.args[0].as_numer_denom()
            if below.is_Integer or below.is_Symbol:
                yield f"{named(call.args[0])} is whole", call, call.args[0]


def _products(letters: list[sympy.Expr], numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    heads, width, d = LETTERS["n_heads"], LETTERS["head_dim"], LETTERS["d_model"]
    if d in letters and width in numbers and numbers[heads] * numbers[width] == numbers[d]:
        yield f"{named(heads * width)} = {named(d)}", d, heads * width


def _equals(letters: list[sympy.Expr], numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    for a, b in combinations(letters, 2):
        if numbers[a] == numbers[b]:
            yield f"{named(a)} = {named(b)}", a, b
        for large, small in ((a, b), (b, a)):
            if numbers[small] > 8 and numbers[large] in [n * numbers[small] for n in RATIOS]:
                n = numbers[large] // numbers[small]
                yield f"{named(large)} = {named(n * small)}", large, n * small


def _pins(letters: list[sympy.Expr], numbers: Mapping[sympy.Expr, int]) -> Iterator[Relation]:
    for letter in sorted(letters, key=lambda a: numbers[a]):
        yield f"{named(letter)} = {numbers[letter]}", letter, sympy.Integer(numbers[letter])


def _zero_at(
    difference: sympy.Expr, several: tuple[Relation, ...], primes: dict[sympy.Expr, int]
) -> bool:
    """Check quickly whether the difference is zero at primes. Calls are left to the slow check."""
    if any(not what.is_Symbol for _, what, _ in several):
        return True
    numbers = dict(primes)
    for _ in range(2):
        for _, letter, same in several:
            for other in same.free_symbols - numbers.keys():
                numbers[other] = 97
            numbers[letter] = int(value_at(same, numbers))
    try:
        return value_at(difference, numbers) == 0
    except ZeroDivisionError:
        return False


def _zero(difference: sympy.Expr, several: tuple[Relation, ...]) -> bool:
    expr = difference
    for _ in range(2):
        for _, what, same in several:
            expr = expr.xreplace({what: same})
    if expr.has(sympy.zoo, sympy.nan):
        return False
    return bool(is_zero(expr))


def named(expr: sympy.Expr) -> str:
    """Write an expression with our names in place of the letters.

    >>> named(2 * LETTERS["d_model"] ** 2 + 1)
    '2·d_model² + 1'
    """
    from metacount.algebra.writing import in_letters

    return WORD.sub(lambda letter: NAMES.get(letter[0], letter[0]), in_letters(expr))
