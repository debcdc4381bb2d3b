"""Closed forms of one model in its config's own fields: traced through the code, then checked.

A form is never only derived: put the model's sizes in, and the number must be the one measured
on the model itself, built and run with plain numbers; so at other sizes, and other lengths.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import sympy
from torch import nn

from metacount.errors import InputError
from metacount.frozen import frozen
from metacount.huggingface.config.limits import LAYER_COUNTS
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.spec.field import altered
from metacount.tensors import DTYPES
from metacount.tracing.domain import Asked, asked_of, in_domain
from metacount.tracing.layers import (
    FEW,
    CodeForm,
    CodePart,
    FormDiffers,
    Layout,
    agrees,
    counting,
    law,
    layout,
    limits,
    moved,
    parts_of,
    summed,
    totals,
    without_law,
)
from metacount.tracing.sources import (
    IDLE_OF,
    IN_BYTES,
    OF_PARAMS,
    QUANTITIES,
    As,
    ReferenceSource,
    TooSlow,
    TransformersSource,
    check_free,
)
from metacount.tracing.symbols import (
    NeedsLength,
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

if TYPE_CHECKING:
    from typing import TypeAlias

    from metacount.tracing.sources import ReferenceTrace, TransformersTrace

    Trace: TypeAlias = ReferenceTrace | TransformersTrace
    from metacount.files import Json


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


# The form read where some sizes have other numbers; None where it cannot be.
Read = Callable[[dict[str, int]], Reading | None]


def solved_constants(
    reading: Reading, names: set[str], numbers: dict[sympy.Symbol, int], read: Read
) -> Reading:
    """Solve the form for the sizes of `names` that its domain has numbers for: they become letters.

    `numbers` are those of all letters. A size stays a number where the forms read elsewhere are
    of another shape.
    """
    equal = [c for c in reading.domain if isinstance(c, sympy.Eq) and c.rhs.is_Integer]
    fixed = [c.lhs for c in equal if c.lhs.is_Symbol and c.lhs.name in names]
    if not fixed or len(fixed) > MOST:
        return reading
    letter = fixed[0]
    rest = {other.name for other in fixed[1:]}

    def without(change: dict[str, int]) -> Reading | None:
        changed = read(change)
        # another size that is a number here, too, is solved for at every reading
        return changed and solved_constants(
            changed,
            rest,
            {**numbers, letter: change[letter.name]},
            lambda more: read({**change, **more}),
        )

    own = solved_constants(reading, rest, numbers, read) if rest else reading
    changes = _other_numbers(letter, numbers, reading.domain)
    return _from_readings(letter, numbers[letter], own, changes, without, 2) or reading


def solved_layer_counts(reading: Reading, name: str, number: int, read: Read) -> Reading:
    """Solve the form for the number of layers, which parts outside of layers have, too."""
    changes = ({name: n} for n in FEW_LAYERS if n != number)
    return _from_readings(symbol(name), number, reading, changes, read, 1) or reading


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
        reading = read(change)
        more = [*readings, (change[letter.name], reading)] if reading else readings
        if reading is None or _shape(reading) != _shape(own) or _common(letter, more) is None:
            misses += 1
            if misses == MISSES:
                break
            continue
        readings = more
        if len(readings) == degree + 1 + HELD_OUT:
            return _solved(letter, readings, degree)
    return None


def _other_numbers(
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
    shared = set.intersection(*({way for pair in pairs for way in pair} for pairs in ways))
    if not all(shared & set(pair) for pairs in ways for pair in pairs):
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
    return altered(
        own,
        parts=tuple(altered(p, expr=expr) for p, expr in zip(own.parts, exprs, strict=True)),
        domain=tuple(_common(letter, readings) or ()),
        solved_for=(*own.solved_for, (letter.name, tuple(sorted(n for n, _ in readings)))),
        least=(*own.least, (letter, min(n for n, _ in readings))),
    )


def _polynomial(
    letter: sympy.Symbol, readings: list[tuple[int, sympy.Expr]], degree: int
) -> sympy.Expr | None:
    """Find the expression whose coefficients are polynomials of that degree; None if none is."""
    terms = [(n, sympy.expand(expr.subs(letter, n)).as_coefficients_dict()) for n, expr in readings]
    polynomial = sympy.Integer(0)
    for term in {term: None for _, terms_at in terms for term in terms_at}:
        seen = [(n, terms_at[term]) for n, terms_at in terms]
        for below in (sympy.Integer(1), letter):  # a width over a number of heads
            solved = sympy.interpolate(
                [(n, c * (1 if below == 1 else n)) for n, c in seen[: degree + 1]], letter
            )
            coefficient = solved / below
            if all(coefficient.subs(letter, n) == c for n, c in seen[degree + 1 :]):
                polynomial += coefficient * term
                break
        else:
            return None
    return sympy.expand(polynomial)


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

    def at_own_sizes(self, quantity: str) -> Reading:
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
        measured = Measured(source, self._measured.workload)
        made = Readings(measured, strict=self._strict)
        made.by_length = self.by_length
        return made

    def _read(self, quantity: str) -> Reading:
        return self._solved_length(quantity) if self.by_length else self._first(quantity)

    def _solved_length(self, quantity: str) -> Reading:
        """Solve for S the form of code that goes through tokens one by one."""
        read = partial(self._at_length, quantity)
        own = read({"S": LENGTHS[0]})
        changes = ({"S": n} for n in LENGTHS[1:])
        reading = own and _from_readings(symbol("S"), LENGTHS[0], own, changes, read, 2)
        if reading is None:
            raise NotTraced("the code needs the number S, and no polynomial in S is what it does")
        if "decode" not in quantity:
            return reading
        # the S tokens are those that one token's work attends to
        in_T = (altered(p, expr=p.expr.subs(symbol("S"), symbol("T"))) for p in reading.parts)
        return altered(reading, parts=tuple(in_T))

    def _at_length(self, quantity: str, change: dict[str, int]) -> Reading | None:
        length = change["S"]
        if length not in self._lengths:
            workload = altered(self._measured.workload, seq_len=length)
            measured = Measured(self._source, workload)
            made = self._lengths[length] = Readings(measured, strict=self._strict)
            made._length = length
        try:
            return self._lengths[length]._first(quantity)
        except NotTraced:
            return None

    def _first(self, quantity: str) -> Reading:
        """Trace the quantity in the first way that comes to what is measured."""
        scale = self._measured.scale(quantity)
        self._measured.at_own_sizes(quantity)  # nothing can be read of what is not there
        failures: list[Exception] = []
        for trace in self._traces(failures):
            for seq_len in (0,) if quantity in OF_PARAMS else self._hints_of_seq():
                try:
                    if seq_len:
                        trace.sizes.of_run(seq_len)
                    amounts, notes = trace.amounts(quantity, seq_len)
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
        conditions = []
        value = self._measured.value
        for condition in asked:
            holds = isinstance(condition, sympy.Rel) and value(condition.lhs) == value(
                condition.rhs
            )
            if holds and isinstance(condition, sympy.Ne):
                continue
            if holds and isinstance(condition, sympy.Gt | sympy.Lt):
                wider = sympy.Ge if isinstance(condition, sympy.Gt) else sympy.Le
                condition = wider(condition.lhs, condition.rhs, evaluate=False)
            if not always(condition):
                conditions.append(condition)
        if not in_domain(tuple(conditions), self._measured.numbers, self._measured.numbers):
            raise FormDiffers("the form is of sizes on another side of a limit")
        return tuple(conditions)

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
            reading = self._of(source)._read(quantity)
            if not self._measured.agrees(summed(reading.parts), quantity):
                reading = solved_layer_counts(reading, name, FEW, partial(self.elsewhere, quantity))
            note = f"read off {FEW} layers: {number} take too long with symbols for sizes"
            parts = tuple(map(self._counted_here, reading.parts))
            return altered(reading, parts=parts, notes=(*reading.notes, note))
        raise TooSlow("the code takes too long with symbols for sizes")

    def _counted_here(self, part: CodePart) -> CodePart:
        if part.layers is None:
            return part
        count = int(self._measured.value(part.layers.expr))
        counted = altered(part.layers, count=count, alone=False)
        return altered(part, layers=counted, where=f"{part.where} of {FEW}")

    def _layout_at(self, change: dict[str, int]) -> Layout | None:
        key = frozenset(change.items())
        if key not in self._layouts:
            built = self._source.built(change)
            asked = built is not None and change.items() <= built.numbers.items()
            self._layouts[key] = layout(built.module) if built is not None and asked else None
        return self._layouts[key]


# A model as data and code: all that a form needs to be read and to be checked.
Source: TypeAlias = ReferenceSource | TransformersSource


class Measured:
    """Quantities of one source under one workload, by role."""

    def __init__(self, source: Source, workload: Workload) -> None:
        self.source, self.workload = source, workload
        self._here: dict[str, dict[str, sympy.Expr]] = {}

    @cached_property
    def numbers(self) -> dict[sympy.Symbol, int]:
        """Every letter's number at the model's own sizes and the asked workload."""
        run = {
            "B": self.workload.batch_size,
            "S": self.workload.seq_len,
            "T": self.workload.seq_len,
            "S_e": self.workload.encoder_len,
        }
        fields = {**self.source.layer_fields({}), **self.source.sizes()}
        return {symbol(name): number for name, number in {**fields, **run}.items()}

    def value(self, expr: sympy.Expr) -> sympy.Expr:
        """Evaluate an expression at the model's own sizes."""
        return expr.xreplace({s: sympy.Integer(self.numbers[s]) for s in expr.free_symbols}).doit()

    def agrees(self, by_role: dict[str, sympy.Expr], quantity: str) -> bool:
        """Tell whether a form gives what is measured at the model's own sizes."""
        return agrees(by_role, self.numbers, self.at_own_sizes(quantity))

    def at_own_sizes(self, quantity: str) -> dict[str, sympy.Expr]:
        """Measure a quantity at the model's own sizes. Raises `NotTraced` where there is none."""
        if quantity not in self._here:
            measured = self.run(quantity, self.workload)
            if measured is None:
                raise NotTraced(f"nothing is measured of {quantity}")
            self._here[quantity] = measured
        return self._here[quantity]

    def run(
        self, quantity: str, workload: Workload, module: nn.Module | None = None
    ) -> dict[str, sympy.Expr] | None:
        """Measure a quantity of the model, or of another module; None if there is none."""
        module = self._own if module is None else module
        measured = self.source.measured(module, quantity, workload)
        scale = self.scale(quantity)
        return (
            None if measured is None else {part: value * scale for part, value in measured.items()}
        )

    def at(
        self, quantity: str, change: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, sympy.Expr]] | None:
        """Measure a quantity at other numbers, returned too; None where nothing runs so."""
        run = self.workload
        workload = Workload(
            batch_size=change.get("B", run.batch_size),
            seq_len=change.get("S", run.seq_len),
            source_len=change.get("S_e", run.encoder_len) if self.source.has_encoder else None,
            prefix_len=run.prefix_len,
            dtype=run.dtype,
        )
        lengths = {name: value for name, value in change.items() if name in ("B", "S", "S_e")}
        built = self.source.built({n: v for n, v in change.items() if n not in lengths})
        if built is None:
            return None
        try:
            measured = self.run(quantity, workload, built.module)
        except Exception:  # somebody else's code, at sizes that its config let through
            return None
        if measured is None:
            return None
        letters = {letter.name for letter in self.numbers}
        numbers = {name: value for name, value in built.numbers.items() if name in letters}
        return {**numbers, **lengths}, measured

    def scale(self, quantity: str) -> sympy.Expr:
        """Return the bytes of the asked dtype for one byte of the dtype that ran."""
        if self.workload.dtype in DTYPES or quantity not in IN_BYTES:
            return sympy.Integer(1)
        if quantity == "state_bytes":
            raise NotTraced(f"no module keeps its state in {self.workload.dtype}")
        return sympy.Rational(DTYPE_BYTES[self.workload.dtype], DTYPE_BYTES["bf16"])

    @cached_property
    def _own(self) -> nn.Module:
        built = self.source.built({})
        assert built is not None  # the source was built with these numbers
        return built.module


CONFIRMED = 3  # other sizes at which a form is measured
DRAWS = 120  # of sizes, most of which are not in the domain
BUILDS = 24  # attempts to build, which the config may refuse
RUN = ("B", "S", "S_e")
LAYERS = (2, 9)  # of a kind, where the form says how they count

# Measures at other numbers for letters: the numbers that the model then has, which may be others
# than those asked for, and what is measured, by role. None where the model cannot be built so.
Measure = Callable[[dict[str, int]], tuple[dict[str, int], dict[str, sympy.Expr]] | None]


class OtherSizes:
    """A form tried with other numbers for letters: of sizes, of layers and of the run.

    `confirmed`: at how many other sizes it was right; `stuck`: what must stay as it is; `untried`:
    letters that were never changed. Raises `FormDiffers` where it is wrong for other numbers of
    sequences or tokens.
    """

    def __init__(
        self, form: CodeForm, sizes: set[str], layers: set[str], run: set[str], measure: Measure
    ) -> None:
        self._form, self._layers, self._measure = form, layers, measure
        self._letters = sizes | layers | run
        self._stuck: dict[str, sympy.Rel] = {}
        self.confirmed, self.untried = 0, list[str]()
        self.at_random(random.Random(f"{form.quantity} {sorted(sizes)}"))
        self.together()
        self.one_by_one()
        if wrong := ", ".join(sorted(set(self._stuck) & set(RUN))):
            raise FormDiffers(f"{form.quantity}: wrong for another {wrong}")
        self.stuck = tuple(self._stuck.values())

    def at_random(self, draw: random.Random) -> None:
        """Change several letters at a time; where the form is wrong, find those to blame."""
        form, changed = self._form, set[str]()
        builds, share = 0, 0.5
        for _ in range(DRAWS):
            if self.confirmed == CONFIRMED or builds == BUILDS:
                break
            free = sorted(self._letters - set(self._stuck))
            change = _drawn(form, free, self._layers, draw, share)
            if not change or not self._inside(change):
                continue
            builds += 1
            right, moved = self._right(change)
            if right is None:
                share = max(share * 0.8, 0.1)
            elif right:
                self.confirmed += 1
                changed |= moved
            else:
                self._stuck |= {name: _as_it_is(form, name) for name in self._to_blame(change)}
                self.confirmed = 0
        # a size that the form leaves out may be one that it should have
        fixed = [c for c in form.domain if isinstance(c, sympy.Eq) and c.rhs.is_Integer]
        pinned = {c.lhs.name for c in fixed if c.lhs.is_Symbol}
        self.untried = sorted(self._letters - changed - set(self._stuck) - pinned)

    def together(self) -> None:
        """Test the form with the missed letters doubled together, in a model of few layers."""
        form = self._form
        sizes = [name for name in self.untried if name not in self._layers]
        doubled = {name: 2 * form.every_number[symbol(name)] for name in sizes}
        many = [name for name in self._layers if form.every_number[symbol(name)] > 2 * FEW]
        change = _completed(form, {**dict.fromkeys(many, FEW), **doubled})
        if len(self.untried) > 1 and self._inside(change):
            right, moved = self._right(change)
            if right:
                self.confirmed += 1
                self.untried = sorted(set(self.untried) - moved)

    def one_by_one(self) -> None:
        """Change each letter that was missed alone."""
        for name in list(self.untried):
            for change in _alone(self._form, name, self._layers):
                if not self._inside(change):
                    continue
                right, moved = self._right(change)
                if right is None or name not in moved:
                    continue
                if right:
                    self.confirmed += 1
                else:
                    self._stuck[name] = _as_it_is(self._form, name)
                self.untried.remove(name)
                break

    def _right(self, change: dict[str, int]) -> tuple[bool | None, set[str]]:
        """Tell whether the form is right at a change (None: unknown), and which letters changed."""
        form, measured = self._form, self._measure(change)
        if measured is None:
            return None, set()
        numbers = {n: v for n, v in measured[0].items() if v != form.every_number[symbol(n)]}
        if not self._inside(numbers):
            return None, set()
        right = agrees(form.by_role, _numbers(form, numbers), measured[1])
        return right, set(numbers)

    def _inside(self, change: dict[str, int]) -> bool:
        form = self._form
        asked, numbers = (*form.domain, *self._stuck.values()), _numbers(form, change)
        return in_domain(asked, numbers, form.every_number)

    def _to_blame(self, change: dict[str, int]) -> list[str]:
        """Find the letters of a change that alone make the form wrong."""
        left = dict(change)
        for name in sorted(change):
            fewer = {n: v for n, v in left.items() if n != name}
            if fewer and self._right(fewer)[0] is False:
                left = fewer
        return sorted(left)


def _as_it_is(form: CodeForm, name: str) -> sympy.Rel:
    letter = symbol(name)
    return sympy.Eq(letter, form.every_number[letter], evaluate=False)


def _drawn(
    form: CodeForm, free: list[str], layers: set[str], draw: random.Random, share: float
) -> dict[str, int]:
    """Draw other numbers for some letters, and for those that the domain makes of them."""
    change: dict[str, int] = {}
    for name in free:
        value = form.every_number[symbol(name)]
        # a model of few layers is built quickly
        if draw.random() >= (1 - (1 - share) ** 3 if name in layers else share):
            continue
        if name in layers:
            change[name] = draw.randint(*LAYERS)
        elif name in RUN:
            change[name] = value + draw.randint(1, 7)
        else:
            change[name] = draw.choice(_others(value, draw))
    return {n: v for n, v in _completed(form, change).items() if v != form.every_number[symbol(n)]}


def _completed(form: CodeForm, change: dict[str, int]) -> dict[str, int]:
    """Add to a change what the domain's equations make of it."""
    for relation in form.domain:
        if not isinstance(relation, sympy.Eq) or not relation.lhs.is_Symbol:
            continue
        left, right = relation.lhs, relation.rhs
        if {s.name for s in right.free_symbols} & set(change):
            change[left.name] = int(_at(right, form, change))
        elif left.name in change and right.is_Symbol:
            change[right.name] = change[left.name]
    return change


def _others(value: int, draw: random.Random) -> list[int]:
    values = [value * 2, value * 3, value + 2 * draw.randint(1, 9)]
    return values + ([value // 2] if value % 2 == 0 and value > 4 else [])


def _alone(form: CodeForm, name: str, layers: set[str]) -> list[dict[str, int]]:
    value = form.every_number[symbol(name)]
    others = [6, 7, value + 1] if name in layers else [value * 2, value * 3, value + 1, value // 2]
    return [_completed(form, {name: n}) for n in others if n > 1 and n != value]


def _at(expr: sympy.Expr, form: CodeForm, change: dict[str, int]) -> sympy.Expr:
    numbers = _numbers(form, change)
    return expr.xreplace({s: sympy.Integer(numbers[s]) for s in expr.free_symbols}).doit()


def _numbers(form: CodeForm, change: dict[str, int]) -> dict[sympy.Symbol, int]:
    numbers = {**form.every_number, **{symbol(name): value for name, value in change.items()}}
    return {**numbers, symbol("T"): numbers[symbol("S")]}  # the same tokens, seen from the last


LONG = (331, 1031)  # tokens at which a form that is solved for S is measured
LOWER, UPPER = (sympy.Gt, sympy.Ge), (sympy.Lt, sympy.Le)
FEW_TOKENS = 8  # that S is more than so many is asked of a convolution's kernel


class Tracer:
    """The forms of one model, a spec of ours or a config of transformers'; what they share is done
    once.
    """

    def __init__(
        self,
        model: ModelSpec | str | Json,
        workload: Workload,
        *,
        run_as: As = As(),
    ) -> None:
        # no module runs in types of one byte; their cache is counted from that in bf16
        dtype = workload.dtype if workload.dtype in DTYPES else "bf16"
        self.source: Source = (
            ReferenceSource(model, dtype, workload.prefix_len, run_as)
            if isinstance(model, ModelSpec)
            else TransformersSource(model, DTYPES[dtype], run_as)
        )
        self._one_sequence, self._strict = run_as.one_sequence, run_as.strict
        self._measured = Measured(self.source, workload)
        self._readings = Readings(self._measured, strict=run_as.strict)

    def form(self, quantity: str) -> CodeForm:
        """Return the form of a quantity.

        Raises `NotTraced`, with the reason in one line; `OurError` for one of ours where it is
        strict.
        """
        try:
            try:
                form = self._traced(quantity)
            except NeedsLength:
                return self._solved_in_length(quantity)
            return self._widened(quantity, form)
        except InputError:
            raise
        except Exception as error:  # somebody else's code, at sizes that are none of its
            if self._strict and not is_of_that_code(error):
                raise OurError(_line(error)) from error
            raise NotTraced(_line(error)) from error

    def _solved_in_length(self, quantity: str) -> CodeForm:
        """Solve for S the form of code that makes a number of S, from short and long lengths."""
        self._readings.by_length = True
        try:
            form = self._traced(quantity)
        finally:
            self._readings.by_length = False
        for length in LONG:
            measured = self._measured.at(quantity, {"S": length})
            numbers = {**self._measured.numbers, symbol("S"): length, symbol("T"): length}
            if measured is None or not agrees(form.by_role, numbers, measured[1]):
                raise NotTraced(f"the code needs the number S, and does something else at {length}")
        return form

    def _widened(self, quantity: str, form: CodeForm) -> CodeForm:
        """Return the form of any S, for code that halves or doubles S; else `form` as it is."""
        between = {type(c) for c in form.domain if _is_limit_of_length(c)}
        if between.isdisjoint(UPPER) or between.isdisjoint(LOWER):
            return form
        try:
            return self._solved_in_length(quantity)
        except NotTraced:
            return form

    def _traced(self, quantity: str) -> CodeForm:
        reading = self._readings.at_own_sizes(quantity)
        numbers = self._measured.numbers
        names = set(self.source.sizes())
        read = partial(self._readings.elsewhere, quantity)
        reading = solved_constants(reading, names, numbers, read)
        form = self._made(quantity, reading)
        holds = self._laws_hold(form)
        if not holds and len(counted := counting(form.parts)) == 1:
            (name,) = counted
            reading = solved_layer_counts(reading, name, numbers[symbol(name)], read)
            form = self._made(quantity, reading)
            holds = self._laws_hold(form)
        if not holds:
            note = "layers are counted in numbers: with others, the code does something else"
            parts = tuple(map(without_law, reading.parts))
            reading = altered(reading, parts=parts, notes=(*reading.notes, note))
            form = self._made(quantity, reading)
        if not self._measured.agrees(form.by_role, quantity):
            raise FormDiffers(f"{quantity}: the form gives {form.value}, which is not measured")
        tried = OtherSizes(
            form,
            names,
            self._letters_of_layers(form),
            self._run_letters(quantity),
            partial(self._measured.at, quantity),
        )
        return self._made(quantity, reading, tried)

    def _made(self, quantity: str, reading: Reading, tried: OtherSizes | None = None) -> CodeForm:
        parts = reading.parts
        by_role = summed(parts)
        letters = {symbol(name) for name in counting(parts)}
        free = {symbol(name) for name in moved(parts)}  # no layer is of another kind for them
        asked = [
            c
            for c in reading.domain
            if not c.free_symbols & letters
            and not (isinstance(c, sympy.Eq) and c.lhs in free and c.rhs.is_Integer)
        ]
        if self._one_sequence and quantity not in OF_PARAMS:
            asked.append(sympy.Eq(symbol("B"), 1, evaluate=False))
        stuck = tried.stuck if tried else ()
        return CodeForm(
            quantity=quantity,
            parts=parts,
            by_role=by_role,
            **self._in_numbers(by_role),
            domain=(*asked, *self._numbers_of_layers(parts), *limits(parts), *stuck),
            source=self.source.described(),
            notes=reading.notes,
            confirmed=tried.confirmed if tried else 0,
            untried=tuple(tried.untried) if tried else (),
            solved_for=reading.solved_for,
            least=reading.least,
            ratios=reading.ratios,
        )

    def _in_numbers(self, by_role: dict[str, sympy.Expr]) -> dict[str, Any]:
        numbers = self._measured.numbers
        used = set().union(*(e.free_symbols for e in by_role.values())) if by_role else set()
        return {
            "numbers": {s.name: n for s, n in numbers.items() if s in used},
            "value": sum(int(self._measured.value(expr)) for expr in by_role.values()),
            "every_number": numbers,
        }

    def _letters_of_layers(self, form: CodeForm) -> set[str]:
        """Name the numbers of layers that the form has or may have."""
        named = set(self.source.layer_fields({}))
        # what is kept is kept by layers: outside of them nobody saw how many there are
        unseen = form.quantity in IN_BYTES and any(part.layers is None for part in form.parts)
        patterns = named if unseen else named - LAYER_COUNTS
        return counting(form.parts) | moved(form.parts) | patterns

    def _run_letters(self, quantity: str) -> set[str]:
        if quantity in OF_PARAMS:
            return set()
        lengths = {"S", "S_e"} if self.source.has_encoder else {"S"}
        return lengths if self._one_sequence else lengths | {"B"}

    def _numbers_of_layers(self, parts: tuple[CodePart, ...]) -> Iterator[sympy.Rel]:
        """Yield each number of layers as fixed where a kind of layer has no law:
        the form is of it alone. So those that had no other value where a law was seen to hold.
        """
        laws = [part.layers for part in parts if part.layers is not None]
        fixed = any(not law.confirmed for law in laws)
        of_law = set().union(*(law.moved for law in laws if law.alone))
        for name, number in self.source.layer_fields({}).items() if fixed or of_law else ():
            if fixed or name not in of_law:
                yield sympy.Eq(symbol(name), number, evaluate=False)

    def _laws_hold(self, form: CodeForm) -> bool:
        """Tell whether the whole form also gives what is measured with other numbers of layers."""
        names = sorted(counting(form.parts))
        fields = {name: self._measured.numbers[symbol(name)] for name in names}
        for name in names:
            near = (fields[name] + 1, max(fields[name] - 1, 1))
            for other in (9, 8) if fields[name] > 12 else near:
                measured = None
                if other != fields[name]:
                    measured = self._measured.at(form.quantity, {**fields, name: other})
                if measured is None or measured[0].get(name) != other:
                    continue
                numbers = {
                    **self._measured.numbers,
                    **{symbol(n): v for n, v in measured[0].items()},
                }
                if not agrees(form.by_role, numbers, measured[1]):
                    return False
                break
        return True


def _is_limit_of_length(condition: sympy.Basic) -> bool:
    """Tell whether a condition says that S is above or below a number over `FEW_TOKENS`."""
    if not isinstance(condition, LOWER + UPPER) or condition.lhs != symbol("S"):
        return False
    return bool(condition.rhs.is_Integer and condition.rhs > FEW_TOKENS)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:120]
    return text if isinstance(error, NotTraced) else f"{type(error).__name__}: {text}"


__all__ = ["IDLE_OF", "QUANTITIES", "CodeForm", "CodePart", "FormDiffers", "NotTraced", "Tracer"]
