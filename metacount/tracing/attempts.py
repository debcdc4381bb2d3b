"""Forms as the code shows them: traced in one of several ways, here or at other sizes.

Sizes that code makes numbers of become letters again: the form is read at several numbers of one.
Slopes of ALiBi ask how many heads there are, a list of experts how many to make. Every coefficient
of the other letters is then a polynomial in such a size, solved for exactly from some readings;
others must confirm it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import sympy

from metacount.frozen import frozen
from metacount.huggingface.config.limits import LAYER_COUNTS
from metacount.tracing.confirm import Measured, Source, of_length
from metacount.tracing.count import OF_PARAMS, TooSlow, check_free
from metacount.tracing.domain import Asked, asked_of, in_domain
from metacount.tracing.layers import (
    FEW,
    CodePart,
    FormDiffers,
    Law,
    Layout,
    law,
    layout,
    parts_of,
    summed,
    totals,
)
from metacount.tracing.symbols import (
    NotTraced,
    OurError,
    Sizes,
    WrongHint,
    always,
    divides,
    is_of_that_code,
    known_counts,
    symbol,
)

HELD_OUT = 2  # readings that must confirm a polynomial
MISSES = 2  # readings of another shape, or none: then no more are tried
FEW_LAYERS = (6, 7, 8, 9, 5, 13)
LENGTHS = (7, 11, 13, 17, 19, 23)
MOST = 2  # sizes that are solved for in one form: the readings multiply


@frozen
class Reading:
    """A form's parts and its domain as one trace showed them.

    `solved_for` has sizes that were solved for, and the numbers that they had. `least` and `ratios`
    are those of `domain.Asked`.
    """

    parts: tuple[CodePart, ...]
    domain: tuple[sympy.Basic, ...]
    notes: tuple[str, ...] = ()
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
    equal = [c for c in here.domain if isinstance(c, sympy.Eq) and c.rhs.is_Integer]
    fixed = [c.lhs for c in equal if c.lhs.is_Symbol and c.lhs.name in names]
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
    """Solve the form for the number of layers, which parts outside of layers have, too."""
    changes = ({name: n} for n in FEW_LAYERS if n != number)
    return _from_readings(symbol(name), number, here, changes, read, 1) or here


def solved_length(read: Read) -> Reading | None:
    """Read the form of code that makes a number of S at several lengths, and solve for S."""
    changes = ({"S": n} for n in LENGTHS[1:])
    own = read({"S": LENGTHS[0]})
    return own and _from_readings(symbol("S"), LENGTHS[0], own, changes, read, 2)


def _from_readings(
    letter: sympy.Symbol,
    number: int,
    own: Reading,
    changes: Iterator[dict[str, int]],
    read: Read,
    degree: int,
) -> Reading | None:
    """Solve the form for a letter from `degree` + 1 readings, and some held out."""
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


if TYPE_CHECKING:
    from typing import TypeAlias

    from metacount.tracing.reference import ReferenceTrace
    from metacount.tracing.transformers import TransformersTrace

    Trace: TypeAlias = ReferenceTrace | TransformersTrace


class Readings:
    """What is read off one source's code; builds with symbols are made once."""

    def __init__(self, measured: Measured, *, strict: bool = False) -> None:
        self._measured, self._source, self._strict = measured, measured.source, strict
        self._ways = tuple(self._source.ways())
        self._built: list[Trace | Exception] = []
        self._layouts: dict[frozenset[tuple[str, int]], Layout | None] = {}
        self._asked: dict[tuple[int | None, ...], Asked] = {}
        self._length: int | None = None  # of a sequence, where S is to be that number
        self._lengths: dict[int, Readings] = {}
        self.by_length = False  # whether S is solved for

    def here(self, quantity: str) -> Reading:
        """Read the quantity at the model's own sizes: off all of its layers, or else off few."""
        try:
            return self._read(quantity)
        except TooSlow:
            return self._of_few_layers(quantity)

    def elsewhere(self, quantity: str, change: dict[str, int]) -> Reading | None:
        """Read the quantity where some sizes have other numbers; None where nothing can be read.

        Where there are many layers, few are read: parts and laws are those of all.
        """
        few = {name: FEW for name in self._many_layers() if name not in change}
        source = self._source.other({**change, **few}) or self._source.other(change)
        if source is None:
            return None
        if not change.items() <= {**source.sizes(), **source.layer_fields({})}.items():
            return None
        try:
            return self._of(source)._read(quantity)
        except OurError:
            raise
        except Exception:  # somebody else's code, at sizes that its config let through
            return None

    def _many_layers(self) -> dict[str, int]:
        fields = self._source.layer_fields({}).items()
        return {
            name: number
            for name, number in fields
            if name.rpartition(".")[2] in LAYER_COUNTS and number > 2 * FEW
        }

    def _of(self, source: Source) -> Readings:
        measured = Measured(source, self._measured.workload, self._measured.split)
        made = Readings(measured, strict=self._strict)
        made.by_length = self.by_length
        return made

    def _read(self, quantity: str) -> Reading:
        return self._solved_length(quantity) if self.by_length else self._first(quantity)

    def _solved_length(self, quantity: str) -> Reading:
        """Solve for S the form of code that goes through tokens one by one."""
        found = solved_length(partial(self._at_length, quantity))
        if found is None:
            raise NotTraced("the code needs the number S, and no polynomial in S is what it does")
        if "decode" not in quantity:
            return found
        # the S tokens are those that one token's work attends to
        return found.but(
            parts=tuple(
                CodePart(
                    role=part.role,
                    expr=part.expr.subs(symbol("S"), symbol("T")),
                    layers=part.layers,
                    where=part.where,
                )
                for part in found.parts
            )
        )

    def _at_length(self, quantity: str, change: dict[str, int]) -> Reading | None:
        length = change["S"]
        if length not in self._lengths:
            workload = of_length(self._measured.workload, length)
            measured = Measured(self._source, workload, self._measured.split)
            made = self._lengths[length] = Readings(measured, strict=self._strict)
            made._length = length
        try:
            return self._lengths[length]._first(quantity)
        except NotTraced:
            return None

    def _first(self, quantity: str) -> Reading:
        """Trace the quantity in the first way that comes to what is measured."""
        by_operator = self._measured.split_of(quantity) == "operator"
        scale = self._measured.scale(quantity)
        self._measured.here(quantity)  # nothing can be read of what is not there
        failures: list[Exception] = []
        for trace in self._traces(failures):
            for seq_len in (0,) if quantity in OF_PARAMS else self._hints_of_seq():
                try:
                    if seq_len:
                        trace.sizes.of_run(seq_len)
                    amounts, notes = trace.amounts(quantity, seq_len, by_operator)
                    amounts = {key: expr * scale for key, expr in amounts.items()}
                    check_free(trace.sizes)
                    if not self._measured.agrees(totals(amounts), quantity):
                        raise FormDiffers("at the model's sizes the form gives another number")
                    asked = self._asked_of(trace.sizes)
                    domain = self._with_here(asked.conditions)
                except WrongHint as error:
                    failures.append(error)
                    continue
                except TooSlow:
                    raise
                except Exception as error:
                    self._ours_fails(error)
                    failures.append(error)
                    if seq_len > self._measured.workload.seq_len:
                        continue  # perhaps more tokens than there are positions
                    break
                fields = self._source.layer_fields(trace.sizes.constants)
                law_of = partial(law, fields=fields, layout_at=self._layout_at)
                rounded = known_counts(domain)
                amounts = {key: sympy.expand(e.xreplace(rounded)) for key, e in amounts.items()}
                return Reading(
                    parts=tuple(parts_of(amounts, law_of)),
                    domain=domain,
                    notes=notes,
                    least=tuple(asked.least.items()),
                    ratios=asked.ratios,
                )
        raise failures[0]

    def _ours_fails(self, error: Exception) -> None:
        if self._strict and not is_of_that_code(error):
            raise OurError(f"{type(error).__name__}: {error}") from error

    def _asked_of(self, sizes: Sizes) -> Asked:
        """Work out what was asked of the sizes so far, once."""
        key = id(sizes), sizes.hints.get(symbol("S")), len(sizes.env.guards), len(sizes.conditions)
        if key not in self._asked:
            self._asked[key] = asked_of(sizes)
        return self._asked[key]

    def _with_here(self, asked: tuple[sympy.Basic, ...]) -> tuple[sympy.Basic, ...]:
        """Widen conditions by the model's own sizes, where the form has been measured.

        That two sizes differ, or one is below the other, which are equal there, is not asked.
        """
        kept = []
        value = self._measured.value
        for condition in asked:
            here = isinstance(condition, sympy.Rel) and value(condition.lhs) == value(condition.rhs)
            if here and isinstance(condition, sympy.Ne):
                continue
            if here and isinstance(condition, sympy.Gt | sympy.Lt):
                wider = sympy.Ge if isinstance(condition, sympy.Gt) else sympy.Le
                condition = wider(condition.lhs, condition.rhs, evaluate=False)
            if not always(condition):
                kept.append(condition)
        if not in_domain(tuple(kept), self._measured.numbers, self._measured.numbers):
            raise FormDiffers("the form is of sizes on another side of a limit")
        return tuple(kept)

    def _traces(self, failures: list[Exception]) -> Iterator[Trace]:
        """Yield the model built with symbols, in one way after the other; built once each."""
        for i, way in enumerate(self._ways):
            if i == len(self._built):
                try:
                    self._built.append(self._source.traced(way))
                except Exception as error:  # somebody else's code met a symbol
                    self._ours_fails(error)
                    self._built.append(error)
            made = self._built[i]
            if isinstance(made, Exception):
                failures.append(made)
            else:
                if self._length is not None:
                    made.sizes.stay_numbers = frozenset("S")
                yield made

    def _hints_of_seq(self) -> tuple[int, ...]:
        """Choose the numbers behind S: primes first, which are equal to no size."""
        if self._length is not None:
            return (self._length,)
        asked = self._measured.workload.seq_len
        return (sympy.prevprime(max(asked, 31)), sympy.nextprime(max(asked, 31)), max(asked, 5))

    def _of_few_layers(self, quantity: str) -> Reading:
        """Read the form off a model of few layers; laws say how many there are in this one.

        For code whose layers all run, where that takes too long with symbols.
        """
        for name, number in self._many_layers().items():
            source = self._source.other({name: FEW})
            if source is None:
                continue
            found = self._of(source)._read(quantity)
            if not self._measured.agrees(summed(found.parts), quantity):
                found = solved_layer_counts(found, name, FEW, partial(self.elsewhere, quantity))
            note = f"read off {FEW} layers: {number} take too long with symbols for sizes"
            return found.but(
                parts=tuple(map(self._counted_here, found.parts)), notes=(*found.notes, note)
            )
        raise TooSlow("the code takes too long with symbols for sizes")

    def _counted_here(self, part: CodePart) -> CodePart:
        if part.layers is None:
            return part
        counted = Law(
            expr=part.layers.expr,
            count=int(self._measured.value(part.layers.expr)),
            confirmed=part.layers.confirmed,
            moved=part.layers.moved,
        )
        return CodePart(
            role=part.role, expr=part.expr, layers=counted, where=f"{part.where} of {FEW}"
        )

    def _layout_at(self, change: dict[str, int]) -> Layout | None:
        key = frozenset(change.items())
        if key not in self._layouts:
            built = self._source.built(change)
            asked = built is not None and change.items() <= built.numbers.items()
            self._layouts[key] = layout(built.module) if built is not None and asked else None
        return self._layouts[key]
