"""Models built with symbols for sizes: transformers' class of a config, or our reference module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from metacount.huggingface.config.limits import LAYER_COUNTS
from metacount.huggingface.module.classes import config_class
from metacount.huggingface.module.model import built_quietly, chosen_class, default_config
from metacount.tracing.run.patches import with_symbols
from metacount.tracing.run.sizes import Sizes

if TYPE_CHECKING:
    import sympy
    from transformers.configuration_utils import PreTrainedConfig

    from metacount.files import Json
    from metacount.huggingface.module.model import ClassChoice

# Whole numbers of a config that are no sizes: names of tokens, seeds, choices.
NO_SIZES = frozenset(
    [
        "chunk_size_feed_forward",
        "num_return_sequences",
        "num_beams",
        "num_beam_groups",
        "top_k",
        "pretraining_tp",
        "seed",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
    ]
)

# Those that say which layers are of another kind.
LAYER_PATTERNS = frozenset(
    [
        "first_k_dense_replace",
        "decoder_sparse_step",
        "encoder_sparse_step",
        "moe_layer_interval",
        "moe_layer_freq",
        "interleave_moe_layer_step",
        "expert_layer_period",
        "expert_layer_offset",
        "attn_layer_period",
        "attn_layer_offset",
        "full_attention_interval",
        "layer_group_size",
        "global_attn_every_n_layers",
        "no_rope_layer_interval",
        "cross_layer_interval",
        "cross_attention_frequency",
        "sliding_window_pattern",
        "num_kv_shared_layers",
    ]
)

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
    """Write GPT-Neo's `attention_types`, [[kinds, repetitions], …],
    for another number of layers.
    """
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
