"""Runs of our reference modules with symbols for sizes: forwards, and a training step."""

from __future__ import annotations

import math
import sys
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from metacount.measure.ours.flops import ReferenceCounter
from metacount.measure.ours.params import owned
from metacount.measure.ours.roles import role_of
from metacount.modules.attention import Visibility
from metacount.modules.model import Model
from metacount.tracing.run.count import WithSymbols
from metacount.tracing.run.patches import with_symbols
from metacount.training.ours import reference_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.modules.cache import Cache
    from metacount.modules.moe import Experts
    from metacount.spec import Workload
    from metacount.tracing.run.sizes import Sizes
    from metacount.tracing.run.source import As
    from metacount.training.setup import Setup
    from metacount.training.step import Program


class SymbolicCounter(WithSymbols, ReferenceCounter):
    """Counts with symbols for sizes; visibilities of symbolic sizes stand in `seen`."""

    deadline, may_run = math.inf, sys.maxsize  # our own modules go through no tokens one by one

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.seen: dict[object, Visibility] = {}

    def hashable(self, value: object) -> object:
        """Make a value hashable, with expressions for symbols; sizes alone can be compared so."""
        if isinstance(value, torch.SymInt):
            return self.sizes.expr(value)
        if isinstance(value, tuple | list):
            return tuple(map(self.hashable, value))
        if isinstance(value, Visibility):
            key = self.hashable(tuple(vars(value).items()))
            self.seen[key] = value
            return key
        return value


class ReferenceRun:
    """One workload of B sequences of S tokens: prefill, one more token, and what is kept."""

    def __init__(
        self, model: Model, sizes: Sizes, seq_len: int, prefix_len: int, run_as: As
    ) -> None:
        self._model, self._sizes = model, sizes
        lengths = _lengths(model, sizes, seq_len, run_as)
        self._batch, length = lengths["batch_size"], lengths["seq_len"]
        self._source_len = lengths["encoder_len"]
        self._length, self._prefix_len = length, prefix_len
        self.cache = model.new_cache() if model.spec.kind != "encoder" else None
        with sizes.tracing(), with_symbols(Model):
            self.prefill, _ = self._prefill(length, self.cache)

    @cached_property
    def decode(self) -> SymbolicCounter | None:
        """One token more; None for an encoder. It is run when it is asked for."""
        if self.cache is None:
            return None
        shorter = self._model.new_cache()
        with self._sizes.tracing(), with_symbols(Model):
            _, memory = self._prefill(self._length - 1, shorter)
            with self._counter().watching(self._model) as counter, torch.no_grad():
                self._model(self._input(1), memory_BTD=memory, cache=shorter, absorbed=True)
        return counter

    def _counter(self) -> SymbolicCounter:
        return SymbolicCounter(self._sizes)

    def _prefill(
        self, length: int | torch.SymInt, cache: Cache | None
    ) -> tuple[SymbolicCounter, Tensor | None]:
        with self._counter().watching(self._model) as counter, torch.no_grad():
            memory = None
            if self._model.spec.has_encoder:
                memory = self._model.encode(self._input(self._source_len))
            self._model(
                self._input(length), memory_BTD=memory, cache=cache, prefix_len=self._prefix_len
            )
        return counter, memory

    def _input(self, length: int | torch.SymInt) -> Tensor:
        if self._model.spec.vocab_size is None:
            dtype = next(self._model.parameters()).dtype
            width = self._model.spec.d_model
            return torch.empty(self._batch, length, width, device="meta", dtype=dtype)
        return torch.empty(self._batch, length, device="meta", dtype=torch.long)


def _lengths(model: Model, sizes: Sizes, seq_len: int, run_as: As) -> dict[str, int | torch.SymInt]:
    """Make B, S and S_e symbols; one sequence is the number 1."""
    return {
        "batch_size": 1 if run_as.one_sequence else sizes.new("B", 5),
        "seq_len": sizes.new("S", seq_len),
        "encoder_len": sizes.new("S_e", 53) if model.spec.has_encoder else 0,
    }


def _together(experts: Experts) -> Callable[..., Tensor]:
    """Return what multiplies all rows with one expert: how many rows there are stays a symbol."""

    def rows(x_RD: Tensor, name: str, expert_R: Tensor, counts: list[int]) -> Tensor:
        weight_MD, bias_EM = experts.get_parameter(name)[0], getattr(experts, f"{name}_bias")
        # as parts of several experts are put together
        y = torch.cat([x_RD.new_empty(0, weight_MD.shape[0]), x_RD @ weight_MD.T])
        return y if bias_EM is None else y + bias_EM[expert_R]

    return rows


def roles_of_parameters(model: Model) -> dict[str, str]:
    """Return the role of each parameter, by its name."""
    by_id = {id(tensor): role_of(path) or "other" for path, _, tensor in owned(model)}
    return {name: by_id[id(p)] for name, p in model.named_parameters()}


def symbolic_program(
    model: Model, sizes: Sizes, setup: Setup, seq_len: int, prefix_len: int, run_as: As
) -> Program:
    """Make a training step of B sequences of S tokens;
    to be made and run inside `sizes.tracing()`.
    """
    lengths = _lengths(model, sizes, seq_len, run_as)
    run = cast("Workload", SimpleNamespace(**lengths, prefix_len=prefix_len))
    return reference_program(model, run, setup, rows_of=_together)
