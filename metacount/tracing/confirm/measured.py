"""What is measured of a model, by role, at its own sizes and at others, to hold forms against."""

from __future__ import annotations

from functools import cached_property

import sympy
from torch import nn

from metacount.spec import DTYPE_BYTES, Workload
from metacount.tensors import DTYPES
from metacount.tracing.code_form import agrees
from metacount.tracing.run.sizes import NotTraced, symbol
from metacount.tracing.run.source import IN_BYTES, Source, of_parameters


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
        """Tell how a quantity is split: parameters,
        their gradients and caches have no operators.
        """
        return "role" if of_parameters(quantity) or quantity in IN_BYTES else self.split

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
        """Measure a quantity of the model, or of another module,
        in a workload; None if there is none.
        """
        by_operator = self.split_of(quantity) == "operator"
        module = self._own if module is None else module
        found = self.source.measured(module, quantity, workload, by_operator)
        scale = self.scale(quantity)
        return None if found is None else {part: value * scale for part, value in found.items()}

    def at(
        self, quantity: str, change: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, sympy.Expr]] | None:
        """Measure a quantity at a change of the letters' numbers, returned too;
        None where nothing runs so.
        """
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
