"""Sizes that code makes numbers of, as letters again: the form is read at several numbers of one.

Slopes of ALiBi ask how many heads there are, a list of experts how many to make. Every coefficient
of the other letters is then a polynomial in such a size, solved for exactly from some readings;
others must confirm it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sympy

from metacount.frozen import frozen
from metacount.tracing.code_form import CodePart
from metacount.tracing.run.sizes import divides, symbol

HELD_OUT = 2  # readings that must confirm a polynomial
MISSES = 2  # readings of another shape, or none: then no more are tried
FEW_LAYERS = (6, 7, 8, 9, 5, 13)
LENGTHS = (7, 11, 13, 17, 19, 23)
MOST = 2  # sizes that are solved for in one form: the readings multiply


@frozen
class Reading:
    """A form's parts and its domain as one trace showed them.

    `solved_for` has sizes that were solved for, and the numbers that they had; `in_sizes` is false
    where only B and S are letters. `least` and `ratios` are those of `domain.Asked`.
    """

    parts: tuple[CodePart, ...]
    domain: tuple[sympy.Basic, ...]
    notes: tuple[str, ...] = ()
    in_sizes: bool = True
    solved_for: tuple[tuple[str, tuple[int, ...]], ...] = ()
    least: tuple[tuple[sympy.Symbol, int], ...] = ()
    ratios: tuple[sympy.Basic, ...] = ()

    def but(self, **changes: object) -> Reading:
        """Return a copy of the reading with some fields changed."""
        return Reading(**{**vars(self), **changes})


# The form read where some sizes have other numbers; None where it cannot be.
Read = Callable[[dict[str, int]], Reading | None]


def solved_constants(
    here: Reading, names: set[str], numbers: dict[sympy.Symbol, int], read: Read
) -> Reading:
    """Solve the form for the sizes of `names` that its domain has numbers for: they become letters.

    `numbers` are those of all letters. A size stays a number where the forms read elsewhere are
    of another shape.
    """
    fixed = [c.lhs for c in here.domain if _is_fixed(c) and c.lhs.name in names]
    if not fixed or len(fixed) > MOST:
        return here
    letter = fixed[0]
    rest = {other.name for other in fixed[1:]}

    def without(change: dict[str, int]) -> Reading | None:
        found = read(change)
        # another size that is a number here, too, is solved for at every reading
        return found and solved_constants(
            found,
            rest,
            {**numbers, letter: change[letter.name]},
            lambda more: read({**change, **more}),
        )

    own = solved_constants(here, rest, numbers, read) if rest else here
    changes = _changes(letter, numbers, here.domain)
    return _from_readings(letter, numbers[letter], own, changes, without, 2) or here


def solved_layer_counts(here: Reading, name: str, number: int, read: Read) -> Reading:
    """Solve the form for the number of layers,
    where what is outside of them, too, depends on it.
    """
    changes = ({name: n} for n in FEW_LAYERS if n != number)
    return _from_readings(symbol(name), number, here, changes, read, 1) or here


def solved_length(read: Read) -> Reading | None:
    """Read the form of code that makes a number of S at several lengths, and solve for S."""
    changes = ({"S": n} for n in LENGTHS[1:])
    own = read({"S": LENGTHS[0]})
    return own and _from_readings(symbol("S"), LENGTHS[0], own, changes, read, 2)


def solved_chunks(
    here: Reading, count: sympy.Expr, number: int, lengths: dict[int, int], read: Read
) -> Reading | None:
    """Solve the form of code that goes through chunks one by one for how many there are, `count`;
    it was read at `number` of them, and is read at others (`lengths` has S for each).
    """
    letter = sympy.Symbol("chunks", integer=True, positive=True)

    def at(change: dict[str, int]) -> Reading | None:
        return read({"S": lengths[change[letter.name]]})

    found = _from_readings(letter, number, here, ({letter.name: n} for n in lengths), at, 1)
    if found is None:
        return None
    asked = (c.xreplace({letter: count}) for c in found.domain)
    return found.but(
        parts=tuple(
            CodePart(role=p.role, expr=p.expr.subs(letter, count), layers=p.layers, where=p.where)
            for p in found.parts
        ),
        domain=(*(c for c in asked if c != sympy.true), sympy.Ge(count, 2, evaluate=False)),
        solved_for=here.solved_for,
        least=here.least,
    )


def _from_readings(
    letter: sympy.Symbol,
    number: int,
    own: Reading,
    changes: Iterator[dict[str, int]],
    read: Read,
    degree: int,
) -> Reading | None:
    """Solve the form for a letter, from as many readings
    as its degree asks for, and some held out.
    """
    readings, misses = [(number, own)], 0
    for change in changes:
        found = read(change)
        more = [*readings, (change[letter.name], found)] if found else readings
        if found is None or _shape(found) != _shape(own) or _common(letter, more) is None:
            misses += 1
            if misses == MISSES:
                break
            continue
        readings = more
        if len(readings) == degree + 1 + HELD_OUT:
            return _solved(letter, readings, degree)
    return None


def _is_fixed(condition: sympy.Basic) -> bool:
    return isinstance(condition, sympy.Eq) and condition.lhs.is_Symbol and condition.rhs.is_Integer


def _changes(
    letter: sympy.Symbol, numbers: dict[sympy.Symbol, int], domain: tuple[sympy.Basic, ...]
) -> Iterator[dict[str, int]]:
    """Yield other numbers for a size, and for the sizes that it must divide."""
    own = numbers[letter]
    along = {
        c.args[1]
        for c in domain
        if isinstance(c, divides) and c.args[0] == own and c.args[1].is_Symbol
    }
    others = [
        2 * own,
        3 * own,
        own // 2 if own % 2 == 0 else 5 * own,
        4 * own,
        own + 1,
        own + 2,
        6 * own,
    ]
    for number in others:
        if number > 4:  # smaller ones stand in forms for themselves
            yield {letter.name: number, **{x.name: numbers[x] // own * number for x in along}}


def _shape(reading: Reading) -> list[tuple[str, sympy.Expr | None]]:
    """Return what readings must have in common: roles, layers, and how many there are of them."""
    return [(p.role, p.layers and p.layers.expr) for p in reading.parts]


def _common(letter: sympy.Symbol, readings: list[tuple[int, Reading]]) -> list[sympy.Basic] | None:
    """Return the conditions of all readings, with the letter for its number where they differ in
    that, or for one less: the tokens before the last.

    What is asked of the letter alone may differ: each reading is of its own number.
    """
    ways = [
        [
            (c, *(c.xreplace({sympy.Integer(number - n): letter - n}) for n in (0, 1)))
            for c in reading.domain
            if c.free_symbols != {letter}
        ]
        for number, reading in readings
    ]
    shared = set.intersection(*({way for pair in found for way in pair} for found in ways))
    if not all(shared & set(pair) for found in ways for pair in found):
        return None
    return [next(way for way in pair if way in shared) for pair in ways[0]]


def _solved(
    letter: sympy.Symbol, readings: list[tuple[int, Reading]], degree: int
) -> Reading | None:
    own = readings[0][1]
    exprs = []
    for parts in zip(*(reading.parts for _, reading in readings), strict=True):
        seen = [(n, p.expr) for (n, _), p in zip(readings, parts, strict=True)]
        expr = _polynomial(letter, seen, degree)
        if expr is None:
            return None
        exprs.append(expr)
    return own.but(
        parts=tuple(
            CodePart(role=p.role, expr=expr, layers=p.layers, where=p.where)
            for p, expr in zip(own.parts, exprs, strict=True)
        ),
        domain=tuple(_common(letter, readings) or ()),
        solved_for=(*own.solved_for, (letter.name, tuple(sorted(n for n, _ in readings)))),
        least=(*own.least, (letter, min(n for n, _ in readings))),
    )


def _polynomial(
    letter: sympy.Symbol, readings: list[tuple[int, sympy.Expr]], degree: int
) -> sympy.Expr | None:
    """Find the expression whose coefficients are polynomials of that degree; None if none is."""
    terms = [(n, sympy.expand(expr.subs(letter, n)).as_coefficients_dict()) for n, expr in readings]
    found = sympy.Integer(0)
    for term in {term: None for _, one in terms for term in one}:
        seen = [(n, one[term]) for n, one in terms]
        for below in (sympy.Integer(1), letter):  # a width over a number of heads
            solved = sympy.interpolate(
                [(n, c * (1 if below == 1 else n)) for n, c in seen[: degree + 1]], letter
            )
            coefficient = solved / below
            if all(coefficient.subs(letter, n) == c for n, c in seen[degree + 1 :]):
                found += coefficient * term
                break
        else:
            return None
    return sympy.expand(found)
