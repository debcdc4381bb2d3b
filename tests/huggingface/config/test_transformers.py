"""Mapped configs against transformers' own config and module, for every mapped type."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from helpers.release import daily, one_in
from helpers.small_configs import NEEDED, SMALL
from transformers.activations import ACT2FN

from metacount.formulas import model as formulas
from metacount.huggingface.config.keys import ACTIVATIONS as ACTIVATIONS_READ
from metacount.huggingface.config.keys import words
from metacount.huggingface.config.to_spec import Mapped, mapped_types, spec_from_config
from metacount.huggingface.module.model import build_transformers, config_class
from metacount.measure.ours import measure_params
from metacount.measure.theirs import measure_any_forward, measure_any_params
from metacount.modules.build import build
from metacount.modules.ffn import ACTIVATIONS
from metacount.spec import Workload

torch.set_num_threads(1)

TYPES = mapped_types()


@cache
def full_default(model_type: str) -> dict[str, Any]:
    """The type's default config as transformers would write it, every key."""
    keys = {k: v for k, v in NEEDED.get(model_type, {}).items() if k != "architectures"}
    config = config_class(model_type)(**keys)
    return {**NEEDED.get(model_type, {}), **json.loads(config.to_json_string(use_diff=False))} | {
        k: v for k, v in NEEDED.get(model_type, {}).items() if k == "architectures"
    }


@pytest.mark.parametrize("model_type", TYPES)
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    bare = spec_from_config({"model_type": model_type, **NEEDED.get(model_type, {})})
    whole = spec_from_config(full_default(model_type))
    assert bare.spec == whole.spec
    assert bare.class_name == whole.class_name


# ---- small configs ----

# Where transformers does other work than the textbook, and so has another count of FLOPs.
ALL_EXPERTS = {"llama4_text"}  # every expert runs on every token, times zero for most
EXPANDED = words(
    "deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa minicpm3 glm4_moe_lite youtu kimi_linear "
    "longcat_flash"
)
STATES_IN_MODULES = {"recurrent_gemma"}  # it keeps its states in its modules, not in the cache
KEEPS_ALL = {"gpt_neo"}  # its windowed layers keep and multiply all positions, then mask


# Buffers of others: of logits, and decays that follow from sizes.
NO_BIAS = ("logits_bias", "logits_per_text", "slope_rate", "_decay")


def check_counts(config: dict[str, Any]) -> Mapped:
    """Parameters, active parameters and roles: formula == our module == transformers'."""
    mapped = spec_from_config(config)
    spec = mapped.spec
    theirs, _ = build_transformers(config)
    found, ours = measure_any_params(theirs), measure_params(build(spec))
    expected = {role: n for role, n in formulas.params_by_role(spec).items() if n}
    assert {role: n for role, n in found.by_role.items() if n} == expected
    assert {role: n for role, n in ours.by_role.items() if n} == expected
    assert found.params == ours.params == formulas.params(spec)
    assert found.active_params == ours.active_params == formulas.active_params(spec)
    assert found.no_embed == ours.no_embed == formulas.active_params_no_embed(spec)
    of_routers = {k: n for k, n in formulas.buffers(spec).items() if k != "layer_scalar"}
    others = sum(n for name, n in found.buffers.items() if not name.endswith(NO_BIAS))
    assert others == sum(of_routers.values())
    return mapped


def check_runs(config: dict[str, Any], workload: Workload) -> None:
    """FLOPs by role, decoded FLOPs and the cache: formula == transformers."""
    model_type, spec = config["model_type"], spec_from_config(config).spec
    theirs, _ = build_transformers(config)
    run = measure_any_forward(theirs, workload)
    source = workload.encoder_len if spec.has_encoder else None
    sizes = {"batch_size": workload.batch_size, "source_len": source}
    loose = {"moe"} if model_type in ALL_EXPERTS else set()

    def kept(by_role: dict[str, int]) -> dict[str, int]:
        return {role: n for role, n in by_role.items() if n and role not in loose}

    forward = formulas.matmul_flops_by_role(spec, **sizes, seq_len=workload.seq_len)
    assert kept(run.prefill.by_role) == kept(forward)
    if spec.kind == "encoder":
        assert run.decode is None
        return
    assert run.decode is not None and run.cache is not None
    if model_type not in EXPANDED | KEEPS_ALL:
        decode = formulas.decode_matmul_flops_by_role(spec, **sizes, kv_len=workload.seq_len)
        assert kept(run.decode.by_role) == kept(decode)
    if model_type not in STATES_IN_MODULES:
        states = {"batch_size": workload.batch_size, "bytes_per_value": 2}
        assert run.cache.state_bytes == formulas.state_bytes(spec, **states)
    if config.get("new_decoder_architecture"):
        return  # Falcon repeats keys and values for every query head before it keeps them
    per_token = formulas.kv_cache_bytes_per_token(spec, bytes_per_value=2)
    assert run.kv_bytes_per_token == per_token
    if model_type not in KEEPS_ALL:
        total = formulas.kv_cache_bytes(spec, **sizes, seq_len=workload.seq_len, bytes_per_value=2)
        assert run.cache.kv_bytes == total


@daily(3)
@pytest.mark.parametrize("model_type", one_in(4, TYPES))
def test_a_small_config_counts_like_transformers(model_type: str) -> None:
    check_counts({"model_type": model_type, **SMALL[model_type]})


@daily(20)
@pytest.mark.parametrize("model_type", one_in(4, TYPES, first=1))
def test_a_small_config_runs_like_transformers(model_type: str) -> None:
    config = {"model_type": model_type, **SMALL[model_type]}
    check_runs(config, Workload(batch_size=2, seq_len=24))


def test_bert_as_a_decoder_is_causal() -> None:
    config = {"model_type": "bert", **SMALL["bert"], "is_decoder": True}
    assert check_counts(config).spec.kind == "decoder"
    check_runs(config, Workload(batch_size=2, seq_len=24))


# xIELU learns two numbers: whole models are compared
PLAIN = [(theirs, ours) for theirs, ours in ACTIVATIONS_READ.items() if ours != "xielu"]


@pytest.mark.parametrize(("theirs", "ours"), PLAIN)
def test_an_activation_is_the_function_of_its_name(theirs: str, ours: str) -> None:
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    assert (ACT2FN[theirs](x) - ACTIVATIONS[ours](x)).abs().max() < 1e-9
