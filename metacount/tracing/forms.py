"""Closed forms of one model in its config's own fields: traced through the code, then checked.

A form is never only derived: put the model's sizes in, and the number must be the one measured
on the model itself, built and run with plain numbers; so at other sizes, and other lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import sympy
from torch import nn

from ..build import DTYPES
from ..frozen import frozen
from ..huggingface.limits import LAYER_COUNTS
from ..spec import DTYPE_BYTES, ModelSpec, SpecError, Workload
from .code_form import CodeForm, CodePart, FormDiffers, agrees, summed, without_law
from .count import Amounts, TooSlow, check_free
from .domain import conditions, in_domain
from .elsewhere import Elsewhere, tried_elsewhere
from .freed import Reading, freed, freed_of_layers
from .interpolate import FARTHEST, interpolated
from .layers import Law, Layout, Stack, law, layout
from .of_reference import ReferenceSource
from .of_transformers import TransformersSource
from .parts import counting, limits, moved, parts_of, totals
from .sizes import NotTraced, Sizes, WrongHint, symbol
from .source import IN_BYTES, OF_PARAMS, QUANTITIES, Source, Trace

FEW = 7  # layers that every kind is among, it is hoped; whether it was is measured


@frozen
class _Found:
    """A traced quantity that comes to what is measured."""

    trace: Any
    amounts: Amounts
    notes: tuple[str, ...]
    domain: tuple[Any, ...]


class Tracer:
    """The forms of one model, a spec of ours or a config of transformers'; what they share is done
    once.

    FLOPs can be had by operator instead of by role (`split`).
    """

    def __init__(
        self,
        model: ModelSpec | str | dict[str, Any] | Source,
        workload: Workload,
        *,
        split: str = "role",
    ) -> None:
        # no module runs in types of one byte; their cache is counted from that in bf16
        dtype = workload.dtype if workload.dtype in DTYPES else "bf16"
        self.source: Source
        if isinstance(model, ModelSpec):
            self.source = ReferenceSource(model, dtype, workload.prefix_len)
        elif isinstance(model, str | dict):
            self.source = TransformersSource(model, DTYPES[dtype])
        else:
            self.source = model
        self.workload, self.split = workload, split
        self._ways = tuple(self.source.ways())
        self._built: list[Trace | Exception] = []
        self._failures: list[Exception] = []
        self._layouts: dict[frozenset[tuple[str, int]], Layout | None] = {}

    def form(self, quantity: str) -> CodeForm:
        """One of `QUANTITIES`. Raises `NotTraced`, with the reason in one line."""
        try:
            return self._form(quantity)
        except (NotTraced, SpecError):
            raise
        except Exception as error:  # somebody else's code, at sizes that are none of its
            raise NotTraced(_line(error)) from error

    def _form(self, quantity: str) -> CodeForm:
        try:
            try:
                found = self._first(quantity)
                here, notes, in_sizes = self._reading(found), found.notes, found.trace.in_sizes
            except TooSlow:
                here, notes, in_sizes = self._of_few_layers(quantity)
            return self._traced_form(quantity, here, notes, in_sizes)
        except Exception as error:
            if quantity in OF_PARAMS:
                raise NotTraced(_line(error)) from error
            try:
                return self._interpolated(quantity, error)
            except Exception as other:
                raise NotTraced(f"{_line(other)}; not traced: {_line(error)}") from error

    def _first(self, quantity: str) -> _Found:
        """The first way in which the quantity is traced and comes to what is measured."""
        measured, scale = self._measured(quantity), self._scale(quantity)
        self._failures = []
        for trace in self._traces():
            if quantity in OF_PARAMS and not trace.in_sizes:
                break  # nothing but numbers
            for seq_len in (0,) if quantity in OF_PARAMS else self._hints_of_seq():
                try:
                    amounts, notes = trace.amounts(quantity, seq_len, self._by_operator(quantity))
                    amounts = {key: expr * scale for key, expr in amounts.items()}
                    check_free(trace.sizes)
                    if not self._agrees(totals(amounts), measured):
                        raise FormDiffers("at the model's sizes the form gives another number")
                    domain = self._with_here(conditions(trace.sizes))
                except WrongHint as error:
                    self._failures.append(error)
                    continue
                except TooSlow:
                    raise
                except Exception as error:
                    self._failures.append(error)
                    if seq_len > self.workload.seq_len:
                        continue  # perhaps more tokens than there are positions
                    break
                return _Found(trace=trace, amounts=amounts, notes=notes, domain=domain)
        raise self._failures[0]

    def _with_here(self, asked: tuple[Any, ...]) -> tuple[Any, ...]:
        """Conditions widened by the model's own sizes, where the form has been measured.

        That two sizes differ, or one is below the other, which are equal there, is not asked.
        """
        kept = []
        for condition in asked:
            here = isinstance(condition, sympy.Rel) and (
                self._value(condition.lhs) == self._value(condition.rhs))  # fmt: skip
            if here and isinstance(condition, sympy.Ne):
                continue
            if here and isinstance(condition, sympy.Gt | sympy.Lt):
                if not _rounded(condition.lhs - condition.rhs):
                    continue  # x is never above itself rounded up
                wider = sympy.Ge if isinstance(condition, sympy.Gt) else sympy.Le
                condition = wider(condition.lhs, condition.rhs, evaluate=False)
            kept.append(condition)
        if not in_domain(tuple(kept), self._numbers, self._numbers):
            raise FormDiffers("the form is of sizes on another side of a limit")
        return tuple(kept)

    def _traces(self) -> Iterator[Trace]:
        """The model built with symbols, in one way after the other; built once each."""
        for i, way in enumerate(self._ways):
            if i == len(self._built):
                try:
                    self._built.append(self.source.traced(way))
                except Exception as error:  # somebody else's code met a symbol
                    self._built.append(error)
            made = self._built[i]
            if isinstance(made, Exception):
                self._failures.append(made)
            else:
                yield made

    def _hints_of_seq(self) -> tuple[int, ...]:
        """Numbers behind S: primes beside the asked one, so that it falls together with no size."""
        asked = self.workload.seq_len
        return (sympy.prevprime(max(asked, 31)), sympy.nextprime(max(asked, 31)), max(asked, 5))

    def _by_operator(self, quantity: str) -> bool:
        return self.split == "operator" and quantity not in (*OF_PARAMS, *IN_BYTES)

    def _traced_form(
        self, quantity: str, here: Reading, notes: tuple[str, ...], in_sizes: bool
    ) -> CodeForm:
        names = set(self.source.sizes()) if in_sizes else set()
        read = partial(self._read, quantity)
        here = freed(here, names, self._numbers, read)
        form = self._made(quantity, here, in_sizes, notes)
        holds = self._laws_hold(form)
        if not holds and len(counted := counting(form.parts)) == 1:
            (name,) = counted
            here = freed_of_layers(here, name, self._numbers[symbol(name)], read)
            form = self._made(quantity, here, in_sizes, notes)
            holds = self._laws_hold(form)
        if not holds:
            here = Reading(
                parts=tuple(map(without_law, here.parts)),
                domain=here.domain,
                solved_for=here.solved_for,
            )
            notes += ("layers are counted in numbers: with others, the code does something else",)
            form = self._made(quantity, here, in_sizes, notes)
        if not self._agrees(form.by_role, self._measured(quantity)):
            raise FormDiffers(f"{quantity}: the form gives {form.value}, which is not measured")
        tried = tried_elsewhere(
            form, names, self._letters_of_layers(form), self._run_letters(quantity),
            lambda change: self._measured_at(quantity, change),
        )  # fmt: skip
        return self._made(quantity, here, in_sizes, notes, tried)

    def _reading(self, found: _Found) -> Reading:
        parts = tuple(parts_of(found.amounts, partial(self._law, found.trace.sizes)))
        return Reading(parts=parts, domain=found.domain, solved_for=())

    def _of_few_layers(self, quantity: str) -> tuple[Reading, tuple[str, ...], bool]:
        """The form read off a model of few layers; laws say how many there are in this one.

        For code whose layers all run, where that takes too long with symbols.
        """
        counts = {name: number for name, number in self.source.layer_fields({}).items()
                  if name.rpartition(".")[2] in LAYER_COUNTS and number > 2 * FEW}  # fmt: skip
        for name in counts:
            source = self.source.other({name: FEW})
            if source is None:
                continue
            tracer = Tracer(source, self.workload, split=self.split)
            found = tracer._first(quantity)
            here = tracer._reading(found)
            if not self._agrees(summed(here.parts), self._measured(quantity)):
                here = freed_of_layers(here, name, FEW, partial(self._read, quantity))
            parts = tuple(self._counted_here(part) for part in here.parts)
            note = f"read off {FEW} layers: {counts[name]} take too long with symbols for sizes"
            here = Reading(parts=parts, domain=here.domain, solved_for=here.solved_for)
            return here, (*found.notes, note), found.trace.in_sizes
        raise TooSlow("the code takes too long with symbols for sizes")

    def _counted_here(self, part: CodePart) -> CodePart:
        if part.layers is None:
            return part
        counted = Law(
            expr=part.layers.expr,
            count=int(self._value(part.layers.expr)),
            confirmed=part.layers.confirmed,
            moved=part.layers.moved,
        )
        return CodePart(
            role=part.role, expr=part.expr, layers=counted, where=f"{part.where} of {FEW}"
        )

    def _read(self, quantity: str, change: dict[str, int]) -> Reading | None:
        """The form where some sizes have other numbers, which then is right there; None if none."""
        source = self.source.other(change)
        if source is None:
            return None
        if not change.items() <= {**source.sizes(), **source.layer_fields({})}.items():
            return None
        tracer = Tracer(source, self.workload, split=self.split)
        try:
            return tracer._reading(tracer._first(quantity))
        except Exception:  # somebody else's code, at sizes that its config let through
            return None

    def _made(
        self, quantity: str, reading: Reading, in_sizes: bool, notes: tuple[str, ...],
        tried: Elsewhere | None = None,
    ) -> CodeForm:  # fmt: skip
        parts = reading.parts
        by_role = summed(parts)
        used = set().union(*(e.free_symbols for e in by_role.values())) if by_role else set()
        letters = {symbol(name) for name in counting(parts)}
        free = {symbol(name) for name in moved(parts)}  # no layer is of another kind for them
        return CodeForm(
            quantity=quantity,
            parts=parts,
            by_role=by_role,
            numbers={s.name: n for s, n in self._numbers.items() if s in used},
            value=sum(int(self._value(expr)) for expr in by_role.values()),
            domain=(
                *(
                    c
                    for c in reading.domain
                    if not c.free_symbols & letters
                    and not (isinstance(c, sympy.Eq) and c.lhs in free and c.rhs.is_Integer)
                ),
                *self._numbers_of_layers(parts),
                *limits(parts),
                *(tried.stuck if tried else ()),
            ),
            how="traced" if in_sizes else "traced in B and S",
            source=self.source.described(),
            notes=notes,
            every_number=self._numbers,
            split="operator" if self._by_operator(quantity) else "role",
            confirmed=tried.confirmed if tried else 0,
            untried=tried.untried if tried else (),
            solved_for=reading.solved_for,
        )

    def _letters_of_layers(self, form: CodeForm) -> set[str]:
        """Numbers of layers that the form has or may have, and of those of another kind."""
        patterns = set(self.source.layer_fields({})) - LAYER_COUNTS
        return counting(form.parts) | moved(form.parts) | patterns

    def _run_letters(self, quantity: str) -> set[str]:
        if quantity in OF_PARAMS:
            return set()
        return {"B", "S", "S_e"} if self.source.has_encoder else {"B", "S"}

    def _numbers_of_layers(self, parts: tuple[CodePart, ...]) -> Iterator[Any]:
        """Where a kind of layer has no law, the form is of one number of layers alone."""
        if any(part.layers is not None and not part.layers.confirmed for part in parts):
            for name, number in self.source.layer_fields({}).items():
                yield sympy.Eq(symbol(name), number, evaluate=False)

    def _laws_hold(self, form: CodeForm) -> bool:
        """Whether the whole form is measured, too, on models with other numbers of layers."""
        names = sorted(counting(form.parts))
        fields = {name: self._numbers[symbol(name)] for name in names}
        for name in names:
            near = (fields[name] + 1, max(fields[name] - 1, 1))
            for other in (9, 8) if fields[name] > 12 else near:
                found = None
                if other != fields[name]:
                    found = self._measured_at(form.quantity, {**fields, name: other})
                if found is None or found[0].get(name) != other:
                    continue
                numbers = {**self._numbers, **{symbol(n): v for n, v in found[0].items()}}
                if not agrees(form.by_role, numbers, found[1], form.split):
                    return False
                break
        return True

    def _interpolated(self, quantity: str, reason: Exception) -> CodeForm:
        """The form in B and the lengths alone, from plain runs; `reason`: why it is not traced."""
        measured, module, run = self._measured(quantity), self._own, self.workload
        length = "T" if quantity == "decode_matmul_flops" else "S"
        asked = {symbol("B"): run.batch_size, symbol(length): run.seq_len}
        if self.source.has_encoder:
            asked[symbol("S_e")] = run.encoder_len

        def at(numbers: tuple[int, ...]) -> dict[str, int]:
            workload = Workload(
                batch_size=numbers[0],
                seq_len=numbers[1],
                source_len=numbers[2] if self.source.has_encoder else None,
                prefix_len=run.prefix_len,
                dtype=run.dtype,
            )
            return self._of(module, quantity, workload) or {}

        by_role = interpolated(at, asked)
        if not self._agrees(by_role, measured):
            raise FormDiffers(f"{quantity}: the form gives another number than was measured")
        used = set().union(*(e.free_symbols for e in by_role.values())) if by_role else set()
        return CodeForm(
            quantity=quantity,
            parts=tuple(
                CodePart(role=role, expr=expr, layers=None, where="")
                for role, expr in by_role.items()
            ),
            by_role=by_role,
            numbers={s.name: n for s, n in self._numbers.items() if s in used},
            value=sum(int(self._value(expr)) for expr in by_role.values()),
            domain=(),
            how="interpolated in " + ("B, S and S_e" if self.source.has_encoder else "B and S"),
            source=self.source.described(),
            notes=(
                f"not traced: {_line(reason)}",
                f"from plain runs of {run.seq_len} to {run.seq_len + FARTHEST} tokens; "
                "nothing is known of other lengths",
            ),
            every_number=self._numbers,
            split="operator" if self._by_operator(quantity) else "role",
        )

    @cached_property
    def _own(self) -> nn.Module:
        built = self.source.built({})
        assert built is not None  # the source was built with these numbers
        return built.module

    def _measured(self, quantity: str) -> dict[str, Any]:
        found = self._of(self._own, quantity, self.workload)
        if found is None:
            raise NotTraced(f"nothing is measured of {quantity}")
        return found

    def _of(self, module: nn.Module, quantity: str, workload: Workload) -> dict[str, Any] | None:
        found = self.source.measured(module, quantity, workload, self._by_operator(quantity))
        scale = self._scale(quantity)
        return None if found is None else {part: value * scale for part, value in found.items()}

    def _measured_at(
        self, quantity: str, change: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, Any]] | None:
        """The letters' numbers and a quantity at a change of them; None where nothing runs so."""
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
            found = self._of(built.module, quantity, workload)
        except Exception:  # somebody else's code, at sizes that its config let through
            return None
        if found is None:
            return None
        letters = {letter.name for letter in self._numbers}
        numbers = {name: value for name, value in built.numbers.items() if name in letters}
        return {**numbers, **lengths}, found

    def _scale(self, quantity: str) -> Any:
        """Bytes of the asked type for one of the type that ran."""
        if self.workload.dtype in DTYPES or quantity not in IN_BYTES:
            return sympy.Integer(1)
        if quantity == "state_bytes":
            raise NotTraced(f"no module keeps its state in {self.workload.dtype}")
        return sympy.Rational(DTYPE_BYTES[self.workload.dtype], DTYPE_BYTES["bf16"])

    def _law(self, sizes: Sizes, stack: Stack, indices: frozenset[int]) -> Law:
        return law(stack, indices, self.source.layer_fields(sizes.constants), self._layout_at)

    def _layout_at(self, change: dict[str, int]) -> Layout | None:
        key = frozenset(change.items())
        if key not in self._layouts:
            built = self.source.built(change)
            asked = built is not None and change.items() <= built.numbers.items()
            self._layouts[key] = layout(built.module) if built is not None and asked else None
        return self._layouts[key]

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        """Every letter's number at the model's own sizes and the asked workload."""
        run = {
            "B": self.workload.batch_size,
            "S": self.workload.seq_len,
            "T": self.workload.seq_len,
            "S_e": self.workload.encoder_len,
        }
        fields = {**self.source.layer_fields({}), **self.source.sizes()}
        return {symbol(name): number for name, number in {**fields, **run}.items()}

    def _value(self, expr: Any) -> Any:
        return expr.xreplace({s: sympy.Integer(self._numbers[s]) for s in expr.free_symbols}).doit()

    def _agrees(self, by_role: dict[str, Any], measured: dict[str, Any]) -> bool:
        return agrees(by_role, self._numbers, measured, self.split)


def _rounded(expr: Any) -> Any:
    """An expression, nothing in it rounded up."""
    return sympy.expand(expr.replace(sympy.ceiling, lambda inner: inner))


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:120]
    return text if isinstance(error, NotTraced) else f"{type(error).__name__}: {text}"


__all__ = ["QUANTITIES", "CodeForm", "CodePart", "FormDiffers", "NotTraced", "Tracer"]
