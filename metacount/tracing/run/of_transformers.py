"""transformers' modelling code as what a form is read off."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from metacount.errors import SpecError
from metacount.huggingface.config.limits import EXPERT_COUNTS
from metacount.huggingface.module.classes import version
from metacount.huggingface.module.model import build_transformers
from metacount.measure.others.forward import as_it_runs, kind_of, measure_any_forward
from metacount.measure.others.params import distinct_tensors, measure_any_params
from metacount.measure.others.roles import Roles, role_name
from metacount.measure.result import MeasuredRun
from metacount.spec import Workload
from metacount.tracing.run.build import (
    layer_fields,
    size_values,
    traced_module,
    whole_fields,
    with_fields,
)
from metacount.tracing.run.count import (
    Amounts,
    EveryExpert,
    OneExpert,
    TracedRun,
    traced_forward,
    traced_params,
)
from metacount.tracing.run.patches import with_symbols
from metacount.tracing.run.sizes import NotTraced, Sizes
from metacount.tracing.run.source import IDLE, OF_PARAMS, OF_TENSORS, As, Built, Way, apart
from metacount.tracing.run.steps import measured_step, traced_step
from metacount.tracing.solve.layers import places_by_name
from metacount.training.others import BookByClass, foreign_program
from metacount.training.setup import Setup, check_dtypes, setup_of

if TYPE_CHECKING:
    import sympy

    from metacount.files import Json

HEADS = {"num_key_value_heads": "num_attention_heads", "num_kv_heads": "num_attention_heads"}
EVERY_PAIR = (
    "transformers' eager attention computes every pair and masks afterwards, so its code has no "
    "causal FLOPs; our reference modules have them: ask for a model of the catalog"
)


class TransformersTrace:
    """transformers' module with symbols for its config's sizes."""

    def __init__(self, sizes: Sizes, module: nn.Module, run_as: As) -> None:
        self.sizes, self._module, self._run_as = sizes, module, run_as
        self.in_sizes = bool(sizes.hints)
        self._roles = Roles(module)
        self._runs: dict[tuple[int, bool], TracedRun | Exception] = {}

    def amounts(
        self, quantity: str, seq_len: int, by_operator: bool
    ) -> tuple[Amounts, tuple[str, ...]]:
        """Return a quantity by role (or operator) and layer, and notes;
        `seq_len` is the hint behind S.
        """
        if quantity == "causal_matmul_flops":
            raise NotTraced(EVERY_PAIR)
        if quantity in OF_PARAMS:
            every, active = traced_params(self._module, self._roles, self.sizes)
            found = every if quantity == "params" else active
            if found is None:
                raise NotTraced("nothing says how many experts a token meets")
            return found, ()
        setup = setup_of(quantity)
        if setup is not None:
            return self._of_step(quantity, setup, seq_len, by_operator)
        run = self._run(seq_len, "decode" in quantity)
        found = {
            IDLE["matmul_flops"]: run.prefill.idle,
            IDLE["decode_matmul_flops"]: None if run.decode is None else run.decode.idle,
            "matmul_flops": run.prefill.split(by_operator),
            "decode_matmul_flops": None if run.decode is None else run.decode.split(by_operator),
            "kv_cache_bytes": run.cache,
            "state_bytes": run.state,
        }[quantity]
        if found is None:
            raise NotTraced(f"its class does not generate: there is no {quantity}")
        return found, run.assumed

    def _of_step(
        self, quantity: str, setup: Setup, seq_len: int, by_operator: bool
    ) -> tuple[Amounts, tuple[str, ...]]:
        lengths = {
            "batch_size": 1 if self._run_as.one_sequence else self.sizes.new("B", 5),
            "seq_len": self.sizes.new("S", seq_len),
            "encoder_len": self.sizes.new("S_e", 53),
        }
        run = cast("Workload", SimpleNamespace(**lengths))

        def step() -> tuple[Amounts, tuple[str, ...]]:
            with with_symbols(type(self._module)), self.sizes.tracing():
                program = foreign_program(self._module, run, setup)
                assert isinstance(program.book, BookByClass)
                experts = EveryExpert if quantity.startswith(OF_TENSORS) else OneExpert
                program.book.ordinary = experts(run.seq_len - 1)
                amounts = traced_step(
                    program,
                    quantity,
                    _roles(self._module, self._roles),
                    by_operator=by_operator,
                    sizes=self.sizes,
                    places=places_by_name(self._module),
                )
            return amounts, tuple(sorted(program.book.ordinary.assumed))

        (amounts, assumed), widened = as_it_runs(self._module, step)
        if widened and not quantity.partition(":")[0].endswith("flops"):
            raise NotTraced(f"no form of bytes: {widened[0]}")
        return amounts, (*widened, *assumed)

    def _run(self, seq_len: int, decode: bool) -> TracedRun:
        key = seq_len, decode
        if key not in self._runs:
            try:
                with with_symbols(type(self._module)):
                    self._runs[key] = traced_forward(
                        self._module,
                        self._roles,
                        self.sizes,
                        seq_len=seq_len,
                        decode=decode,
                        batch=1 if self._run_as.one_sequence else 5,
                        seconds=self._run_as.seconds,
                    )
            except Exception as error:
                self._runs[key] = error
        found = self._runs[key]
        if isinstance(found, Exception):
            raise found
        return found


class TransformersSource:
    """One config, and the class of transformers that it means."""

    def __init__(
        self,
        config: str | Json,
        dtype: torch.dtype,
        run_as: As = As(),
    ) -> None:
        self._config, self._dtype, self._run_as = config, dtype, run_as
        self._values = size_values(config)
        self._last_run: tuple[tuple[int, Workload], MeasuredRun] | None = None
        module, self._choice = build_transformers(config, dtype=dtype)
        self._own = module
        self.has_encoder = kind_of(module) == "encoder-decoder"

    def described(self) -> str:
        """Say whose code this is, with versions."""
        return f"transformers {version()}, torch {torch.__version__}: {self._choice}"

    def sizes(self) -> dict[str, int]:
        """Return the sizes that may be symbols, by their full names."""
        return dict(self._values)

    def layer_fields(self, constants: dict[sympy.Symbol, int]) -> dict[str, int]:
        """Return the numbers that may say how many layers there are of a kind."""
        return layer_fields(self._config, constants)

    def ways(self) -> Iterator[Way]:
        """Yield the ways to build with symbols, best first:
        hints behind them, and fields that stay numbers.
        """
        hints = apart(self._values, HEADS)
        if hints and not self._run_as.tied:
            yield {"hints": hints}
        yield {}
        last = frozenset(name.rpartition(".")[2] for name in self._values)
        positions = frozenset(name for name in last if "position" in name)
        if positions:
            yield {"skipped": positions}
        experts = last & EXPERT_COUNTS
        if experts:
            yield {"skipped": experts}
        # only B and S
        yield {"skipped": last}

    def traced(self, way: Way) -> TransformersTrace:
        """Build the module with symbols, in one of the ways."""
        sizes = Sizes()
        module, _, _ = traced_module(
            self._config,
            sizes,
            dtype=self._dtype,
            hints=way.get("hints"),
            skipped=way.get("skipped", frozenset()),
        )
        return TransformersTrace(sizes, module, self._run_as)

    def built(self, change: dict[str, int]) -> Built | None:
        """Build the module with other numbers, with all the numbers that its config then has."""
        if not change:
            return Built(module=self._own, numbers=whole_fields(self._config))
        other = with_fields(self._config, change)
        try:
            module, _ = build_transformers(other, dtype=self._dtype)
            return Built(module=module, numbers=whole_fields(other))
        except SpecError:
            return None

    def other(self, change: dict[str, int]) -> TransformersSource | None:
        """Return the config with other numbers for some sizes; None where no model has them."""
        try:
            return TransformersSource(with_fields(self._config, change), self._dtype, self._run_as)
        except SpecError:
            return None

    def measured(
        self, module: nn.Module, quantity: str, workload: Workload, by_operator: bool
    ) -> dict[str, int] | None:
        """Measure a quantity of a module that was built with numbers, by role (or operator)."""
        if quantity == "causal_matmul_flops":
            raise NotTraced(EVERY_PAIR)
        if quantity in OF_PARAMS:
            found = measure_any_params(module, Roles(module))
            return found.by_role if quantity == "params" else found.active_by_role
        setup = setup_of(quantity)
        if setup is not None:
            check_dtypes(setup, workload.dtype)
            return _of_step(module, quantity, setup, workload, by_operator)
        key = id(module), workload
        if self._last_run is None or self._last_run[0] != key or module is not self._own:
            run = measure_any_forward(module, workload, Roles(module))
            self._last_run = key, run
        return _of_run(self._last_run[1], quantity, by_operator)


def _of_step(
    module: nn.Module, quantity: str, setup: Setup, workload: Workload, by_operator: bool
) -> dict[str, int]:
    roles = _roles(module, Roles(module))

    def step() -> dict[str, int]:
        program = foreign_program(module, workload, setup)
        return measured_step(program, quantity, roles, by_operator=by_operator)

    found, widened = as_it_runs(module, step)
    if widened and not quantity.partition(":")[0].endswith("flops"):
        raise NotTraced(f"no {quantity}: {widened[0]}")
    return found


def _roles(module: nn.Module, roles: Roles) -> dict[str, str]:
    """Return the role of each parameter, by its name."""
    owners = distinct_tensors(module, roles)
    by_id = {id(tensor): role_name(roles.role[id(owner)]) or "other" for _, owner, tensor in owners}
    return {name: by_id[id(p)] for name, p in module.named_parameters()}


def _of_run(run: MeasuredRun, quantity: str, by_operator: bool) -> dict[str, int] | None:
    if quantity in IDLE.values():
        flops = run.decode if "decode" in quantity else run.prefill
        return None if flops is None else {"moe": flops.idle}
    return run.parts(quantity, by_operator=by_operator)
