"""Mapped configs against transformers' own config and module, for every mapped type."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from helpers.mutated_configs import KEEPS_ALL
from helpers.release import daily, one_in
from helpers.small_configs import NEEDED, small_config
from transformers.activations import ACT2FN

import metacount
from metacount.figures import PREDICTED
from metacount.huggingface.config.keys import ACTIVATIONS as ACTIVATIONS_READ
from metacount.huggingface.config.keys import words
from metacount.huggingface.config.to_spec import mapped_types, spec_from_config
from metacount.huggingface.module.model import config_class
from metacount.modules.ffn import ACTIVATIONS
from metacount.spec import Workload

torch.set_num_threads(1)

TYPES = mapped_types()


@pytest.mark.parametrize("model_type", TYPES)
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    needed = NEEDED.get(model_type, {})
    config = config_class(model_type)(**{k: v for k, v in needed.items() if k != "architectures"})
    full = {**needed, **json.loads(config.to_json_string(use_diff=False))}
    full |= {k: v for k, v in needed.items() if k == "architectures"}
    bare, whole = (spec_from_config({"model_type": model_type, **keys}) for keys in (needed, full))
    assert (bare.spec, bare.class_name) == (whole.spec, whole.class_name)


# Types whose code does other work for one token, or keeps more, than the textbook: no opinion.
EXPANDED = words(
    "deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa minicpm3 glm4_moe_lite youtu kimi_linear "
    "longcat_flash"
)
ENCODERS = words("bert roberta camembert xlm-roberta electra modernbert")
CACHE = {"kv_cache_bytes_per_token", "kv_cache_bytes", "cross_kv_cache_bytes", "state_bytes"}


def check_agreement(config: dict[str, Any]) -> None:
    """Formula, our module and transformers' agree, and the last is silent on no figure of a kind.

    Figures by role, buffers, what a step of decoding takes and keeps, products layer by layer.
    """
    model_type = config["model_type"]
    found = metacount.verify(config, Workload(batch_size=2, seq_len=24))
    known = ("decode", "kv_cache") if model_type in KEEPS_ALL else ()
    assert [line for line in found.differences if not line.startswith(known)] == []
    assert [witness.name for witness in found.witnesses] == ["formula", "reference", "transformers"]
    silent = {"causal_matmul_flops", *PREDICTED}
    if model_type in ENCODERS and not config.get("is_decoder"):
        silent |= {"decode_matmul_flops", *CACHE}
    elif model_type == "recurrent_gemma":  # it keeps its states in its modules
        silent.add("state_bytes")
    elif model_type in EXPANDED:
        silent.add("decode_matmul_flops")
    theirs = found.witnesses[-1]
    of_text = {name for name, figure in found.witnesses[0].figures.items() if figure is not None}
    assert {name for name in of_text if theirs.figures[name] is None} <= silent, theirs.detail
    roles = ["by_role", "active_by_role", "matmul_flops_by_role", "buffers"]
    roles += [] if "decode_matmul_flops" in silent else ["decode_matmul_flops_by_role"]
    assert all(theirs.parts[name] is not None for name in roles)


@daily(20)
@pytest.mark.parametrize("model_type", one_in(3, TYPES))
def test_a_small_config_is_counted_and_run_like_transformers(model_type: str) -> None:
    check_agreement(small_config(model_type))


def test_bert_as_a_decoder_is_causal() -> None:
    check_agreement({**small_config("bert"), "is_decoder": True})


# xIELU learns two numbers: whole models are compared
PLAIN = [(theirs, ours) for theirs, ours in ACTIVATIONS_READ.items() if ours != "xielu"]


@pytest.mark.parametrize(("theirs", "ours"), PLAIN)
def test_an_activation_is_the_function_of_its_name(theirs: str, ours: str) -> None:
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    assert (ACT2FN[theirs](x) - ACTIVATIONS[ours](x)).abs().max() < 1e-9
