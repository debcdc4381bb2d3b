"""Closed forms of one model in its config's own fields: traced through the code, then checked.

A form is never only derived: put the model's sizes in, and the number must be the one measured
on the model itself, built and run with plain numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import sympy
import torch
from torch import nn

from ..build import DTYPES
from ..frozen import frozen
from ..huggingface.classes import version
from ..huggingface.limits import EXPERT_COUNTS
from ..huggingface.model import build_transformers
from ..measure.foreign import measure_foreign_params
from ..measure.foreign_forward import ForeignRun, measure_foreign_forward
from ..measure.foreign_forward import kind_of as run_kind
from ..measure.foreign_roles import Roles
from ..spec import DTYPE_BYTES, SpecError, Workload
from .build import layer_fields, size_values, traced_module, with_fields
from .count import Amounts, TooSlow, TracedRun, traced_forward, traced_params
from .domain import conditions
from .interpolate import FARTHEST, interpolated
from .layers import Law, Stack, law
from .sizes import NotTraced, Sizes, symbol

QUANTITIES = ("params", "active_params", "matmul_flops", "decode_matmul_flops", "kv_cache_bytes",
              "state_bytes")  # fmt: skip
RUN_QUANTITIES = frozenset(QUANTITIES) - {"params", "active_params"}


@frozen
class CodePart:
    """One role's share in one kind of layer (`layers` of them), or outside of all layers."""

    role: str
    expr: Any
    layers: Law | None
    where: str


@frozen
class CodeForm:
    """A closed form read off code.

    `total` is in the config's fields and B, S, S_e (T for decode). `numbers` are the model's own,
    `value` what the form gives for them, which was measured too. `domain` are the conditions that
    the code put on sizes. `how` is "traced", "traced in B and S" or "interpolated".
    """

    quantity: str
    parts: tuple[CodePart, ...]
    by_role: dict[str, Any]
    numbers: dict[str, int]
    value: int
    domain: tuple[Any, ...]
    how: str
    source: str
    notes: tuple[str, ...]
    every_number: dict[Any, int]  # of letters that the form does not need, too

    @property
    def total(self) -> Any:
        """The sum of the roles."""
        return sympy.expand(sum(self.by_role.values(), sympy.Integer(0)))


class FormDiffers(NotTraced):
    """A form whose value at the model's own sizes is not what was measured there."""


class Trace:
    """One build with symbols for sizes, and what it was asked so far."""

    def __init__(self, sizes: Sizes, module: nn.Module) -> None:
        self.sizes, self._module = sizes, module
        self.in_sizes = bool(sizes.hints)  # not only in B and S
        self._roles = Roles(module)
        self._runs: dict[tuple[int, bool], TracedRun | Exception] = {}

    def amounts(self, quantity: str, seq_len: int) -> tuple[Amounts, tuple[str, ...]]:
        """A quantity by role and layer; `seq_len` is the hint behind S of a forward."""
        if quantity in ("params", "active_params"):
            every, active = traced_params(self._module, self._roles, self.sizes)
            found = every if quantity == "params" else active
            if found is None:
                raise NotTraced("nothing says how many experts a token meets")
            return found, ()
        run = self._run(seq_len, quantity == "decode_matmul_flops")
        found = {
            "matmul_flops": run.prefill,
            "decode_matmul_flops": run.decode,
            "kv_cache_bytes": run.cache,
            "state_bytes": run.state,
        }[quantity]
        if found is None:
            raise NotTraced(f"its class does not generate: there is no {quantity}")
        return found, run.assumed

    def check_free(self) -> None:
        """That the code left B and S symbols: else the form is of one number of them alone."""
        for letter, number in self.sizes.constants.items():
            if letter.name in ("B", "S", "S_e"):
                raise NotTraced(f"the code needs the number {letter} = {number}")

    def _run(self, seq_len: int, decode: bool) -> TracedRun:
        key = seq_len, decode
        if key not in self._runs:
            try:
                self._runs[key] = traced_forward(
                    self._module, self._roles, self.sizes, seq_len=seq_len, decode=decode
                )
            except Exception as error:
                self._runs[key] = error
        found = self._runs[key]
        if isinstance(found, Exception):
            raise found
        return found


class Tracer:
    """The forms of one config; what they share is done once."""

    def __init__(self, config: Any, workload: Workload) -> None:
        self.config, self.workload = config, workload
        self._all_ways = tuple(self._ways())
        self._built: list[Trace | Exception] = []
        self._failures: list[Exception] = []

    @property
    def _dtype(self) -> torch.dtype:
        """No module runs in types of one byte; their cache is counted from that in bf16."""
        return DTYPES.get(self.workload.dtype, torch.bfloat16)

    def _scale(self, quantity: str) -> Any:
        """Bytes of the asked type for one of the type that ran."""
        if self.workload.dtype in DTYPES or quantity not in ("kv_cache_bytes", "state_bytes"):
            return sympy.Integer(1)
        if quantity == "state_bytes":
            raise NotTraced(f"no module keeps its state in {self.workload.dtype}")
        return sympy.Rational(DTYPE_BYTES[self.workload.dtype], DTYPE_BYTES["bf16"])

    @cached_property
    def _measured(self) -> tuple[nn.Module, Any, Roles]:
        module, choice = build_transformers(self.config, dtype=self._dtype)
        return module, choice, Roles(module)

    @cached_property
    def _run_measured(self) -> ForeignRun:
        module, _, roles = self._measured
        return measure_foreign_forward(module, self.workload, roles)

    def _ways(self) -> Iterator[dict[str, Any]]:
        """Hints behind the symbols, and fields that stay numbers, best first."""
        values = size_values(self.config)
        apart = _apart(values)
        if apart:
            yield {"hints": apart}
        yield {}
        last = {name: name.rpartition(".")[2] for name in values}
        positions = frozenset(name for name in last.values() if "position" in name)
        if positions:
            yield {"skipped": positions}
        experts = frozenset(name for name in last.values() if name in EXPERT_COUNTS)
        if experts:
            yield {"skipped": experts}
        # only B and S
        yield {"skipped": frozenset(last.values())}

    def _trace(self, way: dict[str, Any]) -> Trace:
        sizes = Sizes()
        module, _, _ = traced_module(self.config, sizes, dtype=self._dtype, **way)
        return Trace(sizes, module)

    def _traces(self) -> Iterator[Trace]:
        """The model built with symbols, in one way after the other; built once each."""
        for i, way in enumerate(self._all_ways):
            if i == len(self._built):
                try:
                    self._built.append(self._trace(way))
                except Exception as error:  # somebody else's code met a symbol
                    self._built.append(error)
            made = self._built[i]
            if isinstance(made, Trace):
                yield made
            else:
                self._failures.append(made)

    def _first(self, quantity: str) -> tuple[Trace, Amounts, tuple[str, ...], int]:
        """The first way in which the quantity is traced and comes to what is measured."""
        measured, scale = self._measured_amount(quantity), self._scale(quantity)
        self._failures = []
        for trace in self._traces():
            if quantity not in RUN_QUANTITIES and not trace.in_sizes:
                break  # nothing but numbers
            for seq_len in self._hints_of_seq() if quantity in RUN_QUANTITIES else (0,):
                try:
                    found, notes = trace.amounts(quantity, seq_len)
                    amounts = {key: expr * scale for key, expr in found.items()}
                    trace.check_free()
                    self._agrees(_sum(amounts), measured)
                except FormDiffers as error:
                    self._failures.append(error)
                    continue
                except TooSlow:
                    raise
                except Exception as error:
                    self._failures.append(error)
                    break
                return trace, amounts, notes, measured
        raise self._failures[0]

    def _hints_of_seq(self) -> tuple[int, ...]:
        """Numbers behind S: primes beside the asked one, so that it falls together with no size."""
        asked = self.workload.seq_len
        return (sympy.nextprime(max(asked, 31)), sympy.prevprime(max(asked, 31)), max(asked, 5))

    def form(self, quantity: str) -> CodeForm:
        """One quantity. Raises `NotTraced`, with the reason in one line."""
        try:
            return self._form(quantity)
        except (NotTraced, SpecError):
            raise
        except Exception as error:  # somebody else's code, at sizes that are none of its
            raise NotTraced(_line(error)) from error

    def _form(self, quantity: str) -> CodeForm:
        try:
            trace, amounts, notes, measured = self._first(quantity)
        except Exception as error:
            if quantity not in RUN_QUANTITIES:
                raise NotTraced(_line(error)) from error
            return self._interpolated(quantity, error)
        parts = tuple(self._parts(amounts, trace.sizes))
        if not self._laws_hold(parts, quantity):
            parts = tuple(_without_law(part) for part in parts)
            notes += ("layers are counted in numbers: with others, the code does something else",)
        by_role = _by_role(parts)
        used = set().union(*(e.free_symbols for e in by_role.values())) if by_role else set()
        value = sum(self._value(expr) for expr in by_role.values())
        if value != measured:
            raise FormDiffers(f"{quantity}: the form gives {value}, measured are {measured}")
        counting = {s for part in parts if part.layers for s in part.layers.expr.free_symbols}
        return CodeForm(
            quantity=quantity,
            parts=parts,
            by_role=by_role,
            numbers={s.name: n for s, n in self._numbers.items() if s in used},
            value=int(value),
            domain=(
                *(c for c in conditions(trace.sizes) if not c.free_symbols & counting),
                *self._numbers_of_layers(parts),
            ),
            how="traced" if trace.in_sizes else "traced in B and S",
            source=f"transformers {version()}, torch {torch.__version__}: {self._measured[1]}",
            notes=notes,
            every_number=self._numbers,
        )

    def _numbers_of_layers(self, parts: tuple[CodePart, ...]) -> Iterator[Any]:
        """Where a kind of layer has no law, the form is of one number of layers alone."""
        stuck = {part.layers.count for part in parts
                 if part.layers is not None and not part.layers.confirmed}  # fmt: skip
        if stuck:
            for name, number in layer_fields(self.config, {}).items():
                yield sympy.Eq(symbol(name), number, evaluate=False)

    def _laws_hold(self, parts: tuple[CodePart, ...], quantity: str) -> bool:
        """Whether the whole form is measured, too, on models with other numbers of layers."""
        laws = [part.layers for part in parts if part.layers is not None]
        names = sorted({s.name for one in laws for s in one.expr.free_symbols})
        total = sum(_by_role(parts).values(), sympy.Integer(0))
        fields = {name: self._numbers[symbol(name)] for name in names}
        for name in names:
            for other in (fields[name] + 1, max(fields[name] - 1, 1)):
                change = {**fields, name: other}
                module = self._rebuilt(change) if other != fields[name] else None
                if module is None:
                    continue
                numbers = {**self._numbers, **{symbol(n): v for n, v in change.items()}}
                value = total.xreplace({s: sympy.Integer(numbers[s]) for s in total.free_symbols})
                found = self._measure(module, quantity)
                if found is None or value.doit() != found * self._scale(quantity):
                    return False
                break
        return True

    def _measure(self, module: nn.Module, quantity: str) -> int | None:
        roles = Roles(module)
        if quantity in ("params", "active_params"):
            found = measure_foreign_params(module, roles)
            return found.params if quantity == "params" else found.active_params
        return _of_run(measure_foreign_forward(module, self.workload, roles), quantity)

    def _interpolated(self, quantity: str, reason: Exception) -> CodeForm:
        """The form in B and S alone, from plain runs; `reason` is why it was not traced."""
        measured = self._measured_amount(quantity)
        module, choice, roles = self._measured

        def run(batch: int, length: int) -> dict[str, int]:
            workload = Workload(batch_size=batch, seq_len=length, dtype=self.workload.dtype)
            return _parts_of_run(measure_foreign_forward(module, workload, roles), quantity)

        letter = "T" if quantity == "decode_matmul_flops" else "S"
        asked = self.workload
        if asked.source_len is not None or run_kind(module) == "encoder-decoder":
            raise NotTraced(f"{_line(reason)}; two lengths are not interpolated") from reason
        scale = self._scale(quantity)
        forms = interpolated(run, asked.batch_size, asked.seq_len, letter)
        by_role = {role: expr * scale for role, expr in forms.items()}
        value = sum(self._value(expr) for expr in by_role.values())
        if value != measured:
            raise FormDiffers(f"{quantity}: the form gives {value}, measured are {measured}")
        used = set().union(*(e.free_symbols for e in by_role.values())) if by_role else set()
        return CodeForm(
            quantity=quantity,
            parts=tuple(
                CodePart(role=role, expr=expr, layers=None, where="")
                for role, expr in by_role.items()
            ),
            by_role=by_role,
            numbers={s.name: n for s, n in self._numbers.items() if s in used},
            value=int(value),
            domain=(),
            how="interpolated in B and S",
            source=f"transformers {version()}, torch {torch.__version__}: {choice}",
            notes=(
                f"not traced: {_line(reason)}",
                f"from plain runs of {asked.seq_len} to {asked.seq_len + FARTHEST} tokens; "
                "nothing is known of other lengths",
            ),
            every_number=self._numbers,
        )

    def _measured_amount(self, quantity: str) -> int:
        if quantity in ("params", "active_params"):
            amount = self._measure(self._measured[0], quantity)
        else:
            amount = _of_run(self._run_measured, quantity)
        if amount is None:
            raise NotTraced(f"nothing is measured of {quantity}")
        return int(amount * self._scale(quantity))

    def _parts(self, amounts: Amounts, sizes: Sizes) -> Iterator[CodePart]:
        """Layers with equal expressions together, each with the law of how many there are."""
        outside: dict[str, Any] = {}
        layers: dict[Stack, dict[int, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
        for (role, place), expr in amounts.items():
            if place is None:
                outside[role] = sympy.expand(outside.get(role, 0) + expr)
            else:
                now = layers[place.stack][place.index]
                now[role] = sympy.expand(now.get(role, 0) + expr)
        for role, expr in outside.items():
            if expr != 0:
                yield CodePart(role=role, expr=expr, layers=None, where="")
        for stack, found in layers.items():
            kinds: dict[Any, set[int]] = defaultdict(set)
            for index, exprs in found.items():
                kinds[tuple(sorted((r, e) for r, e in exprs.items() if e != 0))].add(index)
            for kind, indices in kinds.items():
                if not kind:
                    continue
                number = self._law(stack, frozenset(indices), sizes)
                for role, expr in kind:
                    yield CodePart(role=role, expr=expr, layers=number,
                                   where=f"{stack.path}[{_ranges(indices)}]")  # fmt: skip

    def _law(self, stack: Stack, indices: frozenset[int], sizes: Sizes) -> Law:
        fields = layer_fields(self.config, sizes.constants)
        return law(stack, indices, self._measured[0], fields, self._rebuilt)

    def _rebuilt(self, change: dict[str, int]) -> nn.Module | None:
        try:
            return build_transformers(with_fields(self.config, change), dtype=self._dtype)[0]
        except SpecError:
            return None

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        """Every letter's number at the model's own sizes and the asked workload."""
        fields = {**layer_fields(self.config, {}), **size_values(self.config)}
        run = {
            "B": self.workload.batch_size,
            "S": self.workload.seq_len,
            "T": self.workload.seq_len,
            "S_e": self.workload.encoder_len,
        }
        return {symbol(name): number for name, number in {**fields, **run}.items()}

    def _value(self, expr: Any) -> Any:
        return expr.xreplace({s: sympy.Integer(self._numbers[s]) for s in expr.free_symbols})

    def _agrees(self, expr: Any, measured: int) -> None:
        value = self._value(expr)
        if value != measured:
            raise FormDiffers(f"at the model's sizes the form gives {value}, measured: {measured}")


def _of_run(run: ForeignRun, quantity: str) -> int | None:
    if quantity == "matmul_flops":
        return run.prefill.matmul_flops - run.prefill.idle
    if quantity == "decode_matmul_flops":
        return None if run.decode is None else run.decode.matmul_flops - run.decode.idle
    if run.cache is None:
        return None
    return run.cache.kv_bytes if quantity == "kv_cache_bytes" else run.cache.state_bytes


def _by_role(parts: tuple[CodePart, ...]) -> dict[str, Any]:
    found: dict[str, Any] = defaultdict(lambda: sympy.Integer(0))
    for part in parts:
        found[part.role] += part.expr * (1 if part.layers is None else part.layers.expr)
    return {role: sympy.expand(expr) for role, expr in found.items() if expr != 0}


def _without_law(part: CodePart) -> CodePart:
    if part.layers is None:
        return part
    count = part.layers.count
    plain = Law(expr=sympy.Integer(count), count=count, confirmed=0)
    return CodePart(role=part.role, expr=part.expr, layers=plain, where=part.where)


def _parts_of_run(run: ForeignRun, quantity: str) -> dict[str, int]:
    """What `_of_run` adds up, by role or by what is cached."""
    if quantity in ("matmul_flops", "decode_matmul_flops"):
        flops = run.prefill if quantity == "matmul_flops" else run.decode
        return {} if flops is None else flops.chosen_by_role
    if run.cache is None:
        return {}
    if quantity == "state_bytes":
        return {"state": run.cache.state_bytes}
    return {"self-attention": run.cache.kv_bytes - run.cache.cross_kv_bytes}


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:120]
    return text if isinstance(error, NotTraced) else f"{type(error).__name__}: {text}"


def _sum(amounts: Amounts) -> Any:
    return sympy.expand(sum(amounts.values(), sympy.Integer(0)))


def _apart(values: dict[str, int]) -> dict[str, int]:
    """Other hints where there are as many key/value heads as heads: that form would be special."""
    found: dict[str, int] = {}
    if any(name.endswith("kv_lora_rank") for name in values):
        return found  # latent attention knows one number of heads
    for name, value in values.items():
        last = name.rpartition(".")[2]
        if last in ("num_key_value_heads", "num_kv_heads") and value % 2 == 0 and value > 3:
            heads = name.removesuffix(last) + "num_attention_heads"
            if values.get(heads) == value:
                found[name] = value // 2
    return found


def _ranges(indices: set[int]) -> str:
    """Indices as ranges, ends included.

    >>> _ranges({0, 1, 2, 5})
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for i in sorted(indices):
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


__all__ = ["QUANTITIES", "CodeForm", "CodePart", "FormDiffers", "NotTraced", "Tracer"]
