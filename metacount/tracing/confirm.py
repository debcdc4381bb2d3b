"""A form tried at other sizes than its own: a model is built there, and must measure the same.

What a trace sees begins where its symbols begin. A size that a config's own code has already made
something of, or that happened to equal another, is found out here: it becomes part of the domain.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

import sympy
from torch import nn

from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, Workload
from metacount.tensors import DTYPES
from metacount.tracing.count import IN_BYTES, OF_PARAMS
from metacount.tracing.domain import in_domain
from metacount.tracing.layers import FEW, CodeForm, FormDiffers, agrees
from metacount.tracing.reference import ReferenceSource
from metacount.tracing.symbols import NotTraced, symbol
from metacount.tracing.transformers import TransformersSource

# A model as data and code: all that a form needs to be read and to be checked.
Source: TypeAlias = ReferenceSource | TransformersSource


def of_length(run: Workload, seq_len: int) -> Workload:
    """Return the same workload with sequences of another length."""
    return Workload(
        batch_size=run.batch_size,
        seq_len=seq_len,
        source_len=run.source_len,
        prefix_len=run.prefix_len,
        dtype=run.dtype,
    )


class Measured:
    """Quantities of one source under one workload; by operator where `split` says so."""

    def __init__(self, source: Source, workload: Workload, split: str) -> None:
        self.source, self.workload, self.split = source, workload, split
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

    def split_of(self, quantity: str) -> str:
        """Tell how a quantity is split: parameters and caches have no operators."""
        return "role" if quantity in OF_PARAMS or quantity in IN_BYTES else self.split

    def value(self, expr: sympy.Expr) -> sympy.Expr:
        """Evaluate an expression at the model's own sizes."""
        return expr.xreplace({s: sympy.Integer(self.numbers[s]) for s in expr.free_symbols}).doit()

    def agrees(self, by_role: dict[str, sympy.Expr], quantity: str) -> bool:
        """Tell whether a form gives what is measured at the model's own sizes."""
        return agrees(by_role, self.numbers, self.here(quantity), self.split)

    def here(self, quantity: str) -> dict[str, sympy.Expr]:
        """Measure a quantity at the model's own sizes. Raises `NotTraced` where there is none."""
        if quantity not in self._here:
            found = self.run(quantity, self.workload)
            if found is None:
                raise NotTraced(f"nothing is measured of {quantity}")
            self._here[quantity] = found
        return self._here[quantity]

    def run(
        self, quantity: str, workload: Workload, module: nn.Module | None = None
    ) -> dict[str, sympy.Expr] | None:
        """Measure a quantity of the model, or of another module; None if there is none."""
        by_operator = self.split_of(quantity) == "operator"
        module = self._own if module is None else module
        found = self.source.measured(module, quantity, workload, by_operator)
        scale = self.scale(quantity)
        return None if found is None else {part: value * scale for part, value in found.items()}

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
            found = self.run(quantity, workload, built.module)
        except Exception:  # somebody else's code, at sizes that its config let through
            return None
        if found is None:
            return None
        letters = {letter.name for letter in self.numbers}
        numbers = {name: value for name, value in built.numbers.items() if name in letters}
        return {**numbers, **lengths}, found

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


@frozen
class OtherSizes:
    """At how many other sizes a form was right; what must stay as it is; what was never changed."""

    confirmed: int
    stuck: tuple[sympy.Basic, ...]
    untried: tuple[str, ...]


def tried_at_other_sizes(
    form: CodeForm, sizes: set[str], layers: set[str], run: set[str], measure: Measure
) -> OtherSizes:
    """Try the form with other numbers for letters: of sizes, of layers and of the run.

    Raises `FormDiffers` where it is wrong for other numbers of sequences or tokens.
    """
    tried = _Tried(form, sizes, layers, run, measure)
    tried.at_random(random.Random(f"{form.quantity} {sorted(sizes)}"))
    tried.together()
    tried.one_by_one()
    if set(tried.stuck) & set(RUN):
        wrong = ", ".join(sorted(set(tried.stuck) & set(RUN)))
        raise FormDiffers(f"{form.quantity}: wrong for another {wrong}")
    return OtherSizes(
        confirmed=tried.confirmed,
        stuck=tuple(tried.stuck.values()),
        untried=tuple(tried.missed),
    )


class _Tried:
    """What is known so far: how often the form was right, which letters must stay as they are
    (`stuck`), and which were never changed (`missed`)."""

    def __init__(
        self, form: CodeForm, sizes: set[str], layers: set[str], run: set[str], measure: Measure
    ) -> None:
        self._form, self._layers, self._measure = form, layers, measure
        self._letters = sizes | layers | run
        self.stuck: dict[str, sympy.Rel] = {}
        self.missed: list[str] = []
        self.confirmed = 0

    def at_random(self, draw: random.Random) -> None:
        """Change several letters at a time; where the form is wrong, find those to blame."""
        form, changed = self._form, set[str]()
        builds, share = 0, 0.5
        for _ in range(DRAWS):
            if self.confirmed == CONFIRMED or builds == BUILDS:
                break
            free = sorted(self._letters - set(self.stuck))
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
                self.stuck |= {name: _as_it_is(form, name) for name in self._to_blame(change)}
                self.confirmed = 0
        # a size that the form leaves out may be one that it should have
        fixed = [c for c in form.domain if isinstance(c, sympy.Eq) and c.rhs.is_Integer]
        pinned = {c.lhs.name for c in fixed if c.lhs.is_Symbol}
        self.missed = sorted(self._letters - changed - set(self.stuck) - pinned)

    def together(self) -> None:
        """Test the form with the missed letters doubled together, in a model of few layers."""
        form = self._form
        sizes = [name for name in self.missed if name not in self._layers]
        doubled = {name: 2 * form.every_number[symbol(name)] for name in sizes}
        many = [name for name in self._layers if form.every_number[symbol(name)] > 2 * FEW]
        change = _completed(form, {**dict.fromkeys(many, FEW), **doubled})
        if len(self.missed) > 1 and self._inside(change):
            right, moved = self._right(change)
            if right:
                self.confirmed += 1
                self.missed = sorted(set(self.missed) - moved)

    def one_by_one(self) -> None:
        """Change each letter that was missed alone."""
        for name in list(self.missed):
            for change in _alone(self._form, name, self._layers):
                if not self._inside(change):
                    continue
                right, moved = self._right(change)
                if right is None or name not in moved:
                    continue
                if right:
                    self.confirmed += 1
                else:
                    self.stuck[name] = _as_it_is(self._form, name)
                self.missed.remove(name)
                break

    def _right(self, change: dict[str, int]) -> tuple[bool | None, set[str]]:
        """Tell whether the form is right at a change (None: unknown), and which letters changed."""
        form, found = self._form, self._measure(change)
        if found is None:
            return None, set()
        numbers = {n: v for n, v in found[0].items() if v != form.every_number[symbol(n)]}
        if not self._inside(numbers):
            return None, set()
        right = agrees(form.by_role, _numbers(form, numbers), found[1], form.split)
        return right, set(numbers)

    def _inside(self, change: dict[str, int]) -> bool:
        form = self._form
        asked, numbers = (*form.domain, *self.stuck.values()), _numbers(form, change)
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
    found = [value * 2, value * 3, value + 2 * draw.randint(1, 9)]
    return found + ([value // 2] if value % 2 == 0 and value > 4 else [])


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
