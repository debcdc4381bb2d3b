"""Forms as the code shows them: traced in one of several ways, here or at other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import sympy

from metacount.huggingface.config.limits import LAYER_COUNTS
from metacount.tracing.code_form import CodePart, FormDiffers, summed
from metacount.tracing.condition import in_domain
from metacount.tracing.confirm.measured import Measured, of_length
from metacount.tracing.domain import Asked, asked_of
from metacount.tracing.parts import levelled, parts_of, totals
from metacount.tracing.run.chunks import always, known_counts
from metacount.tracing.run.count import TooSlow, check_free
from metacount.tracing.run.errors import OurError, is_of_that_code
from metacount.tracing.run.sizes import NotTraced, Sizes, WrongHint, symbol
from metacount.tracing.run.source import OF_PARAMS, Source, Trace, of_parameters
from metacount.tracing.solve.constants import (
    Reading,
    solved_chunks,
    solved_layer_counts,
    solved_length,
)
from metacount.tracing.solve.layers import FEW, Law, Layout, Stack, law, layout
from metacount.training.setup import setup_of

# Layers of which a step is read, where that is enough: the first one may keep what all share.
FEWEST = (4, FEW)


class Readings:
    """What is read off one source's code; builds with symbols are made once."""

    def __init__(self, measured: Measured, *, strict: bool = False) -> None:
        self._measured, self._source, self._strict = measured, measured.source, strict
        self._ways = tuple(self._source.ways())
        self._built: list[Trace | Exception] = []
        self._layouts: dict[frozenset[tuple[str, int]], Layout | None] = {}
        self._asked: dict[tuple[int | None, ...], Asked] = {}
        self._few = FEW  # layers that are read where there are many
        self._length: int | None = None  # of a sequence, where S is to be that number
        self._lengths: dict[int, Readings] = {}
        self.by_length = False  # whether S is solved for

    def here(self, quantity: str) -> Reading:
        """Read the quantity at the model's own sizes: off all of its layers, or else off few."""
        try:
            return self._read(quantity) if setup_of(quantity) is None else self._of_step(quantity)
        except TooSlow:
            self._few = FEW
            return self._of_few_layers(quantity)

    def _of_step(self, quantity: str) -> Reading:
        """Read a quantity of a step, which goes through all layers, alike or not: off as few as
        give what is measured of all.
        """
        for few in FEWEST:
            self._few = few
            try:
                found = self._of_few_layers(quantity, few) if self._many_layers(few) else None
            except TooSlow:
                raise
            except Exception as error:  # somebody else's code, of another number of layers
                self._ours_fails(error)
                continue
            if found is not None and self._measured.agrees(summed(found.parts), quantity):
                return found
        return self._first(quantity)

    def elsewhere(self, quantity: str, change: dict[str, int]) -> Reading | None:
        """Read the quantity where some sizes have other numbers; None where nothing can be read.

        Where there are many layers, few are read: parts and laws are those of all.
        """
        few = {name: self._few for name in self._many_layers() if name not in change}
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

    def _many_layers(self, few: int = 2 * FEW) -> dict[str, int]:
        fields = self._source.layer_fields({}).items()
        return {
            name: number
            for name, number in fields
            if name.rpartition(".")[2] in LAYER_COUNTS and number > few
        }

    def _of(self, source: Source) -> Readings:
        measured = Measured(source, self._measured.workload, self._measured.split)
        made = Readings(measured, strict=self._strict)
        made.by_length = self.by_length
        return made

    def of_any_number_of_chunks(self, quantity: str, here: Reading) -> Reading | None:
        """Solve a form that was read at several chunks for how many there are."""
        counts = {
            c.lhs: int(c.rhs)
            for c in here.domain
            if isinstance(c, sympy.Eq) and c.rhs.is_Integer and symbol("S") in c.lhs.free_symbols
            if isinstance(c.lhs, sympy.floor | sympy.ceiling)
        }
        if not counts or (number := max(counts.values())) < 2:
            return None
        count = next(expr for expr, n in counts.items() if n == number)
        size = int(self._measured.value(sympy.together(count.args[0]).as_numer_denom()[1]))
        others = (number - 1, number + 1, number + 2, number + 3)
        lengths = {n: n * size - size // 2 for n in others if n > 1}

        def read(change: dict[str, int]) -> Reading | None:
            workload = of_length(self._measured.workload, change["S"])
            measured = Measured(self._source, workload, self._measured.split)
            try:
                return Readings(measured, strict=self._strict)._first(quantity)
            except NotTraced:
                return None

        return solved_chunks(here, count, number, lengths, read)

    def _read(self, quantity: str) -> Reading:
        return self._solved_length(quantity) if self.by_length else self._first(quantity)

    def _solved_length(self, quantity: str) -> Reading:
        """Solve for S the form of code that goes through tokens one by one,
        read at several lengths.
        """
        found = solved_length(partial(self._at_length, quantity))
        if found is None:
            raise NotTraced("the code needs the number S, and no polynomial in S is what it does")
        if "decode" not in quantity:
            return found
        return found.but(parts=tuple(map(_in_kv_len, found.parts)))

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
            if of_parameters(quantity) and not trace.in_sizes:
                break  # nothing but numbers
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
                if setup_of(quantity) is not None:
                    amounts = levelled(amounts, self._layout_at({}) or {})
                rounded = known_counts(domain)
                amounts = {key: sympy.expand(e.xreplace(rounded)) for key, e in amounts.items()}
                return Reading(
                    parts=tuple(parts_of(amounts, partial(self._law, trace.sizes))),
                    domain=domain,
                    notes=notes,
                    in_sizes=trace.in_sizes,
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
        """Choose the numbers behind S: primes beside the asked one first,
        to fall together with no size.
        """
        if self._length is not None:
            return (self._length,)
        asked = self._measured.workload.seq_len
        return (sympy.prevprime(max(asked, 31)), sympy.nextprime(max(asked, 31)), max(asked, 5))

    def _of_few_layers(self, quantity: str, more_than: int = 2 * FEW) -> Reading:
        """Read the form off a model of few layers; laws say how many there are in this one.

        For code whose layers all run, where that takes too long with symbols.
        """
        for name, number in self._many_layers(more_than).items():
            source = self._source.other({name: self._few})
            if source is None:
                continue
            found = self._of(source)._read(quantity)
            agrees = self._measured.agrees(summed(found.parts), quantity)
            if not agrees and self._few == FEW:
                found = solved_layer_counts(found, name, FEW, partial(self.elsewhere, quantity))
            note = f"read off {self._few} layers instead of {number}, which is quicker"
            if more_than > FEW:
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
            role=part.role, expr=part.expr, layers=counted, where=f"{part.where} of {self._few}"
        )

    def _law(self, sizes: Sizes, stack: Stack, indices: frozenset[int]) -> Law:
        return law(stack, indices, self._source.layer_fields(sizes.constants), self._layout_at)

    def _layout_at(self, change: dict[str, int]) -> Layout | None:
        key = frozenset(change.items())
        if key not in self._layouts:
            built = self._source.built(change)
            asked = built is not None and change.items() <= built.numbers.items()
            self._layouts[key] = layout(built.module) if built is not None and asked else None
        return self._layouts[key]


def _in_kv_len(part: CodePart) -> CodePart:
    """Write the part of one token's work in T: the S tokens are those that it attends to."""
    expr = part.expr.subs(symbol("S"), symbol("T"))
    return CodePart(role=part.role, expr=expr, layers=part.layers, where=part.where)
