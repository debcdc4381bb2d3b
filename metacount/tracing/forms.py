"""Closed forms of one model in its config's own fields: traced through the code, then checked.

A form is never only derived: put the model's sizes in, and the number must be the one measured
on the model itself, built and run with plain numbers; so at other sizes, and other lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import sympy

from metacount.errors import InputError
from metacount.huggingface.config.limits import LAYER_COUNTS
from metacount.spec import ModelSpec, Workload
from metacount.tensors import DTYPES
from metacount.tracing.attempts import (
    Reading,
    Readings,
    solved_constants,
    solved_layer_counts,
)
from metacount.tracing.confirm import Measured, OtherSizes, Source, tried_at_other_sizes
from metacount.tracing.count import IDLE_OF, IN_BYTES, OF_PARAMS, QUANTITIES, As
from metacount.tracing.layers import (
    CodeForm,
    CodePart,
    FormDiffers,
    agrees,
    counting,
    limits,
    moved,
    summed,
    without_law,
)
from metacount.tracing.reference import ReferenceSource
from metacount.tracing.symbols import NeedsLength, NotTraced, OurError, is_of_that_code, symbol
from metacount.tracing.transformers import TransformersSource

if TYPE_CHECKING:
    from metacount.files import Json

LONG = (331, 1031)  # tokens at which a form that is solved for S is measured
LOWER, UPPER = (sympy.Gt, sympy.Ge), (sympy.Lt, sympy.Le)
FEW_TOKENS = 8  # that S is more than so many is asked of a convolution's kernel


class Tracer:
    """The forms of one model, a spec of ours or a config of transformers'; what they share is done
    once.

    FLOPs can be had by operator instead of by role (`split`).
    """

    def __init__(
        self,
        model: ModelSpec | str | Json,
        workload: Workload,
        *,
        split: str = "role",
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
        self._measured = Measured(self.source, workload, split)
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
            found = self._measured.at(quantity, {"S": length})
            numbers = {**self._measured.numbers, symbol("S"): length, symbol("T"): length}
            if found is None or not agrees(form.by_role, numbers, found[1], form.split):
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
        here = self._readings.here(quantity)
        numbers = self._measured.numbers
        names = set(self.source.sizes())
        read = partial(self._readings.elsewhere, quantity)
        here = solved_constants(here, names, numbers, read)
        form = self._made(quantity, here)
        holds = self._laws_hold(form)
        if not holds and len(counted := counting(form.parts)) == 1:
            (name,) = counted
            here = solved_layer_counts(here, name, numbers[symbol(name)], read)
            form = self._made(quantity, here)
            holds = self._laws_hold(form)
        if not holds:
            note = "layers are counted in numbers: with others, the code does something else"
            parts = tuple(map(without_law, here.parts))
            here = here.but(parts=parts, notes=(*here.notes, note))
            form = self._made(quantity, here)
        if not self._measured.agrees(form.by_role, quantity):
            raise FormDiffers(f"{quantity}: the form gives {form.value}, which is not measured")
        tried = tried_at_other_sizes(
            form,
            names,
            self._letters_of_layers(form),
            self._run_letters(quantity),
            partial(self._measured.at, quantity),
        )
        return self._made(quantity, here, tried)

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
            split=self._measured.split_of(quantity),
            confirmed=tried.confirmed if tried else 0,
            untried=tried.untried if tried else (),
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
                found = None
                if other != fields[name]:
                    found = self._measured.at(form.quantity, {**fields, name: other})
                if found is None or found[0].get(name) != other:
                    continue
                numbers = {**self._measured.numbers, **{symbol(n): v for n, v in found[0].items()}}
                if not agrees(form.by_role, numbers, found[1], form.split):
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
