"""transformers' modelling code as what a form is read off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from metacount.errors import SpecError
from metacount.huggingface.config.limits import EXPERT_COUNTS, LAYER_COUNTS
from metacount.huggingface.module.classes import config_class, version
from metacount.huggingface.module.model import (
    build_transformers,
    built_quietly,
    chosen_class,
    default_config,
)
from metacount.measure.counter import MeasuredRun
from metacount.measure.their_roles import Roles
from metacount.measure.theirs import (
    kind_of,
    measure_any_forward,
    measure_any_params,
)
from metacount.spec import Workload
from metacount.tracing.count import (
    IDLE_OF,
    IN_BYTES,
    OF_PARAMS,
    As,
    Built,
    TracedRun,
    Way,
    apart,
    flops_by,
    traced_forward,
    traced_params,
    with_kv_len,
)
from metacount.tracing.layers import Amounts
from metacount.tracing.symbols import NotTraced, Sizes, with_symbols

if TYPE_CHECKING:
    import sympy
    from transformers.configuration_utils import PreTrainedConfig

    from metacount.files import Json
    from metacount.huggingface.module.model import ClassChoice


# Whole numbers of a config that are no sizes: names of tokens, seeds, choices.
NO_SIZES = frozenset((
    "chunk_size_feed_forward", "num_return_sequences", "num_beams", "num_beam_groups", "top_k",
    "pretraining_tp", "seed", "max_length", "min_length", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
))  # fmt: skip

# Those that say which layers are of another kind.
LAYER_PATTERNS = frozenset((
    "first_k_dense_replace", "decoder_sparse_step", "encoder_sparse_step", "moe_layer_interval",
    "moe_layer_freq", "interleave_moe_layer_step", "expert_layer_period", "expert_layer_offset",
    "attn_layer_period", "attn_layer_offset", "full_attention_interval", "layer_group_size",
    "global_attn_every_n_layers", "no_rope_layer_interval", "cross_layer_interval",
    "cross_attention_frequency", "sliding_window_pattern", "num_kv_shared_layers",
))  # fmt: skip

# With a period of 1 all layers are of one kind: there is no pattern.
_EVERY = {name: 1 for name in LAYER_PATTERNS if name != "first_k_dense_replace"}


def size_fields(config: PreTrainedConfig, skipped: frozenset[str] = frozenset()) -> dict[str, int]:
    """Return the fields of a config that may be symbols: whole numbers from 2, none of layers."""
    return {
        name: value
        for name, value in vars(config).items()
        if type(value) is int
        and value >= 2
        and not name.startswith("_")
        and not name.endswith("_id")
        and name not in NO_SIZES
        and name not in LAYER_COUNTS
        and name not in LAYER_PATTERNS
        and name not in skipped
    }


def traced_module(
    source: str | Json,
    sizes: Sizes,
    *,
    hints: dict[str, int] | None = None,
    skipped: frozenset[str] = frozenset(),
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[nn.Module, PreTrainedConfig, ClassChoice]:
    """Build transformers' module with its config's sizes as symbols;
    return it, the config object, the choice.

    `hints` puts other numbers behind the symbols; `skipped` names fields that stay numbers.
    """
    chosen, config, choice = chosen_class(source)
    for owner, prefix in configs_of(config):
        for name, value in size_fields(owner, skipped).items():
            full = prefix + name
            # past the checks of the config's class, which want a Python int
            vars(owner)[name] = sizes.new(full, (hints or {}).get(full, value))
    with sizes.tracing(), with_symbols(chosen):
        module = built_quietly(chosen, config, dtype)
    return module, config, choice


def configs_of(config: PreTrainedConfig) -> list[tuple[PreTrainedConfig, str]]:
    """List a config and those inside it, with what their fields' names begin with."""
    found = [(config, "")]
    for name in getattr(config, "sub_configs", {}) or {}:
        part = getattr(config, name, None)
        if part is not None and not isinstance(part, dict):
            found += [(inner, f"{name}.{prefix}") for inner, prefix in configs_of(part)]
    return found


def size_values(source: str | Json) -> dict[str, int]:
    """Return the sizes of a config that a trace makes symbols of, by their full names."""
    return _by_full_name(source, size_fields)


def whole_fields(source: str | Json) -> dict[str, int]:
    """Return every whole number of a config, as its class has read it, by full name."""
    return _by_full_name(source, _whole)


def _whole(config: PreTrainedConfig) -> dict[str, int]:
    return {name: value for name, value in vars(config).items() if type(value) is int}


def _by_full_name(
    source: str | Json, fields: Callable[[PreTrainedConfig], dict[str, int]]
) -> dict[str, int]:
    """Return what `fields` picks of a config and of those inside it."""
    _, config, _ = chosen_class(source)
    return {
        prefix + name: value
        for owner, prefix in configs_of(config)
        for name, value in fields(owner).items()
    }


def layer_fields(source: str | Json, constants: dict[sympy.Symbol, int]) -> dict[str, int]:
    """Return the numbers of a config that may say how many layers there are of a kind: its counts
    of layers, which of them are of another kind, and what code made constant, perhaps for that.
    """
    _, config, _ = chosen_class(source)
    found = {
        prefix + name: value
        for owner, prefix in configs_of(config)
        for name, value in vars(owner).items()
        if name in LAYER_COUNTS | LAYER_PATTERNS
        and type(value) is int
        and value > _EVERY.get(name, 0)
    }
    return {**found, **{letter.name: number for letter, number in constants.items()}}


def with_fields(source: str | Json, values: dict[str, int]) -> Json:
    """Return the config with other values of some fields, `part.field` for one of a config inside.

    A part that is written out for the first time keeps its numbers of layers: left to itself it
    would take those of its own class, not those that the whole model gives it.
    """
    config = default_config(source) if isinstance(source, str) else dict(source)
    inner = _inner(source)
    inside = {name.rpartition(".")[0] for name in values} - {""}
    kept = {
        name: value
        for name, value in layer_fields(source, {}).items()
        if name.rpartition(".")[0] in inside
    }
    for name, value in {**kept, **values}.items():
        *parts, last = (inner + name).split(".")
        owner = config
        for part in parts:
            owner[part] = dict(owner.get(part) or {})
            owner = owner[part]
        owner[last] = value
    return {**config, **_layers_spelled_out(source, values)}


def _layers_spelled_out(source: str | Json, values: dict[str, int]) -> Json:
    """Write GPT-Neo's `attention_types` for another number of layers."""
    if "num_layers" not in values:
        return {}
    _, config, _ = chosen_class(source)
    match getattr(config, "attention_types", None):
        case [[[*kinds], int()]] if kinds:
            times, rest = divmod(values["num_layers"], len(kinds))
            told = [[kinds, times], [kinds[:rest], 1]]
            return {"attention_types": [one for one in told if one[0] and one[1]]}
    return {}


def _inner(source: str | Json) -> str:
    """Return the prefix of fields' names in the whole config, where a class takes a part of it."""
    _, config, choice = chosen_class(source)
    whole = config_class(choice.model_type)
    if isinstance(config, whole):
        return ""
    return next(
        (
            f"{name}."
            for name in ("text_config", "decoder")
            if name in getattr(whole, "sub_configs", {})
        ),
        "",
    )


HEADS = {"num_key_value_heads": "num_attention_heads", "num_kv_heads": "num_attention_heads"}
EVERY_PAIR = (
    "transformers' eager attention computes every pair and masks afterwards, so its code has no "
    "causal FLOPs; our reference modules have them: ask for a model of the catalog"
)


class TransformersTrace:
    """transformers' module with symbols for its config's sizes."""

    def __init__(self, sizes: Sizes, module: nn.Module, run_as: As) -> None:
        self.sizes, self._module, self._run_as = sizes, module, run_as
        self._roles = Roles(module)
        self._runs: dict[tuple[int, bool], TracedRun | Exception] = {}

    def amounts(
        self, quantity: str, seq_len: int, by_operator: bool
    ) -> tuple[Amounts, tuple[str, ...]]:
        """Return a quantity by role (or operator) and layer, and notes; `seq_len` is behind S."""
        if quantity == "causal_matmul_flops":
            raise NotTraced(EVERY_PAIR)
        if quantity in OF_PARAMS:
            every, active = traced_params(self._module, self._roles, self.sizes)
            found = every if quantity == "params" else active
            if found is None:
                raise NotTraced("nothing says how many experts a token meets")
            return found, ()
        decode = "decode" in quantity
        run = self._run(seq_len, decode)
        found = {"kv_cache_bytes": run.cache, "state_bytes": run.state}.get(quantity)
        products = run.decode if decode else run.prefill
        if quantity not in IN_BYTES and products is not None:
            idle = quantity in IDLE_OF.values()
            found = flops_by(products, by_operator=by_operator, idle=idle)
            found = with_kv_len(found) if decode else found
        if found is None:
            raise NotTraced(f"its class does not generate: there is no {quantity}")
        return found, run.assumed

    def _run(self, seq_len: int, decode: bool) -> TracedRun:
        key = seq_len, decode
        if key not in self._runs:
            try:
                with with_symbols(type(self._module)):
                    self._runs[key] = traced_forward(
                        self._module,
                        self._roles,
                        self.sizes,
                        seq_len,
                        self._run_as,
                        decode=decode,
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
        """Yield the ways to build with symbols, best first."""
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
        key = id(module), workload
        if self._last_run is None or self._last_run[0] != key or module is not self._own:
            run = measure_any_forward(module, workload, Roles(module))
            self._last_run = key, run
        run = self._last_run[1]
        if quantity in IDLE_OF.values():
            flops = run.decode if "decode" in quantity else run.prefill
            return None if flops is None else {"moe": flops.idle}
        return run.parts(quantity, by_operator=by_operator)
