"""What transformers' config classes refuse, and that `count` says so; remedies in every medium."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import ROOT
from helpers.release import daily, one_day_in
from helpers.small_configs import SMALL
from hypothesis import given, settings
from hypothesis import strategies as st

from metacount.cli import main
from metacount.errors import SpecError
from metacount.formulas.model import params
from metacount.huggingface.config.keys import HARMLESS
from metacount.huggingface.config.record import (
    FILE,
    family_of,
    recorded,
    recorded_version,
    refusals,
)
from metacount.huggingface.config.to_spec import mapped_types, spec_from_config
from metacount.huggingface.module.model import build_transformers, config_class, version

BENCHMARKS = ROOT / "benchmarks"
VERSION = recorded_version()


@one_day_in(12)
def test_the_record_is_what_the_installed_transformers_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if version() != VERSION:
        pytest.skip(f"recorded for transformers {VERSION}, here is {version()}")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("config_rules")
    sys.modules.pop("config_rules")
    assert script.text_of(script.records()) == Path(FILE).read_text("utf-8")


def constructs(config: dict[str, Any]) -> bool:
    """Whether transformers' own config class takes it."""
    keys = {key: value for key, value in config.items() if key != "model_type"}
    try:
        config_class(config["model_type"])(**keys)
    except Exception:  # whatever a validator raises
        return False
    return True


VALUES = st.sampled_from(
    [None, True, False, 0, 1, 7, -3, 0.5, 2.0, "x", "relu", [], [1], ["x"], {}]
)


@daily(16)
@pytest.mark.parametrize("model_type", mapped_types())
def test_kinds_are_told_apart_as_transformers_does(model_type: str) -> None:
    """Keys that change no count, one at a time: said to be refused exactly where it is."""
    family = family_of(model_type)
    assert family is not None
    small = {"model_type": model_type, **SMALL[model_type]}
    small.pop("architectures", None)
    mapped = spec_from_config({**small, **SMALL[model_type]})
    rules = recorded(model_type)
    unread = set(rules["kinds"]) & (HARMLESS | set(family.ignored)) - set(family.defaults)
    free = sorted(unread - set(rules["shares"]) - {*rules["refuses"]} - {"cache_implementation"})

    @settings(max_examples=30)
    @given(st.sampled_from(free), VALUES)
    def check(key: str, value: Any) -> None:
        config = {**small, key: value}
        said = refusals(config, mapped.spec, [])
        assert bool(said) == (not constructs(config)), (key, value)

    check()


def builds(config: dict[str, Any]) -> bool:
    """Whether transformers makes a module of it, with all its keys."""
    try:
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    except Exception:  # whatever a constructor raises
        return False
    return True


def scaled(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, **numbers}}


CHANGES: dict[str, list[dict[str, Any]]] = {
    "llama qwen3 gpt2": [
        *({"pad_token_id": token} for token in (101, -102, 100)),
        {"use_cache": None},
        {"id2label": [1, 2]},
        {"id2label": None},
        {"dtype": 3},
        {"ignore_keys_at_rope_validation": 2},
    ],
    # without head_dim its class makes no width of a head
    "mixtral": [scaled("linear", factor=2.0), scaled("yarn", factor=2.0),
                {"head_dim": 8, **scaled("yarn", factor=2.0)}],
    "phi3": [scaled("linear", factor=2.0)],
    "kimi_linear": [{"rope_parameters": 1}, {"rope_scaling": "x"}, {"rope_scaling": False}],
    "xglm": [{"vocab_size": 1}, {"vocab_size": 2}],
    "gptj": [{"n_positions": -1}],
    "mamba2": [
        {"time_step_limit": [0.0, 1.0]},
        {"time_step_limit": [1, 1]},
        {"time_step_rank": "x"},
        {"time_step_rank": "auto"},
    ],
    "nemotron_h": [{"hybrid_override_pattern": None}, {"mamba_dt_min": 1},
                   {"mtp_hybrid_override_pattern": "x"}, {"mtp_hybrid_override_pattern": "M*"}],
    "olmo_hybrid": [{"linear_dt_min": -0.5}, {"linear_dt_min": 0.5}],
    "glm4_moe": [{"head_dim": None}, {"head_dim": 8}],
    "deepseek_v3 youtu": [{"head_dim": 3}, {"head_dim": 7}, {"head_dim": 8}],
    "mellum": [{"num_mtp_layers": 2}, {"rope_parameters": {}}, {"num_nextn_predict_layers": 2}],
    "cohere2_moe": [
        {"ignore_keys_at_rope_validation": 2},
        scaled("default"),
        scaled("default", rope_theta=1e4),
    ],
}  # fmt: skip
CASES = [(t, keys) for types, rows in CHANGES.items() for t in types.split() for keys in rows]


@pytest.mark.parametrize(("model_type", "keys"), CASES)
def test_a_config_is_refused_where_no_module_is_built(
    model_type: str, keys: dict[str, Any]
) -> None:
    small = {"model_type": model_type, **SMALL[model_type], **keys}
    small.pop("architectures", None)
    assert bool(spec_from_config(small).refused) == (not builds(small))


ROPE_NAMES = {
    "linear": "factor",
    "dynamic": "factor",
    "llama3": "factor low_freq_factor high_freq_factor original_max_position_embeddings",
    "yarn": "factor original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim "
    "attention_factor rope_theta",
    "longrope": "short_factor long_factor original_max_position_embeddings factor attention_factor",
}
ODD_NUMBERS = st.sampled_from([None, True, 0, 1, 2.0, -1, 32, "2", [], [1.0], [1.0] * 4, [1.0] * 3])


@one_day_in(3)
@settings(max_examples=150)
@given(
    st.sampled_from([*ROPE_NAMES]), st.sampled_from(["llama", "gpt_neox", "ministral3"]), st.data()
)
def test_numbers_of_rope_are_refused_where_no_angles_are_made(
    kind: str, model_type: str, data: st.DataObject
) -> None:
    right = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "mscale": 1.0,
             "mscale_all_dim": 0.7, "original_max_position_embeddings": 32, "beta_fast": 32,
             "beta_slow": 1, "short_factor": [1.0] * 4, "long_factor": [1.0] * 4,
             "rope_theta": 1e4}  # fmt: skip
    names = ROPE_NAMES[kind].split()
    odd = data.draw(st.dictionaries(st.sampled_from(names), ODD_NUMBERS, max_size=2))
    rope = {name: right[name] for name in names if name in right} | odd
    config = {"model_type": model_type, **SMALL[model_type], **scaled(kind, **rope)}
    try:
        refused = spec_from_config(config).refused
    except SpecError:  # ours goes no further
        return
    assert bool(refused) == (not builds(config)), (rope, refused)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention_dropout": "none"}, "attention_dropout must be a number or null: got 'none'"),
        (
            {"eos_token_id": 1.5},
            "eos_token_id must be a whole number, a list of whole numbers or null: got 1.5",
        ),
        ({"initializer_range": -0.5}, "initializer_range must be 0 to 1: got -0.5"),
        (
            {"hidden_size": 256, "num_attention_heads": 7},
            "the width must be a multiple of the heads: 256 % 7 = 4",
        ),
        (
            {"model_type": "mpt", "attn_config": {"softmax_scale": 1}},
            "attn_config.softmax_scale must be a number with a decimal point or null: got 1",
        ),
    ],
)
def test_what_transformers_refuses_is_counted_but_not_called_proven(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    file = tmp_path / "config.json"
    model_type = keys.get("model_type", "llama")
    plain = {"model_type": model_type, "hidden_size": 256, "num_attention_heads": 8}
    for config, refused in ((plain, False), ({**plain, **keys}, True)):
        assert constructs(config) is not refused
        file.write_text(json.dumps(config))
        assert main(["count", str(file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        sentence = f"transformers {VERSION} refuses this config: {said}"
        assert (sentence in found["notes"]) is refused
        assert (found["proof"] is None) is refused
        assert main(["count", str(file)]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert ("refuses this config" in text) is refused
        assert ("proven" in text) is not refused


def test_a_class_under_its_older_name_is_built_under_the_one_of_today() -> None:
    """T5's configs on the hub name T5WithLMHeadModel, which transformers loads all the same."""
    config = {"model_type": "t5", **SMALL["t5"], "architectures": ["T5WithLMHeadModel"]}
    module, choice = build_transformers(config)
    reason = "named by architectures, as T5WithLMHeadModel"
    assert (choice.class_name, choice.reason) == ("T5ForConditionalGeneration", reason)
    mapped = spec_from_config(config)
    assert mapped.refused == ()
    assert params(mapped.spec) == sum(p.numel() for p in module.parameters())
