"""What transformers' config classes refuse, and that `count` says so; remedies in every medium."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import ROOT
from helpers.release import daily, one_day_in, one_in
from helpers.small_configs import SMALL
from hypothesis import given, settings
from hypothesis import strategies as st

import metacount
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
from metacount.huggingface.config.to_spec import Unmapped, mapped_types, spec_from_config
from metacount.huggingface.module.model import build_transformers, config_class, version
from metacount.resolve import find_model

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
    free = sorted(unread - set(rules["shares"]) - {"cache_implementation"})

    @settings(max_examples=30)
    @given(st.sampled_from(free), VALUES)
    def check(key: str, value: Any) -> None:
        config = {**small, key: value}
        said = refusals(config, mapped.spec)
        assert bool(said) == (not constructs(config)), (key, value)

    check()


def builds(config: dict[str, Any]) -> bool:
    """Whether transformers makes a module of it, with all its keys."""
    try:
        with torch.device("meta"):
            transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    except Exception:  # whatever a constructor raises
        return False
    return True


LINEAR = {"rope_type": "linear", "factor": 2.0}


OF_ALL: list[dict[str, Any]] = [
    {"pad_token_id": 101},
    {"pad_token_id": -102},
    {"pad_token_id": 100},
    {"use_cache": None},
    {"id2label": [1, 2]},
    {"id2label": None},
    {"dtype": 3},
    {"ignore_keys_at_rope_validation": 2},
]
OF_ROPE: list[dict[str, Any]] = [
    {"rope_parameters": LINEAR},
    {"rope_parameters": {**LINEAR, "factor": "2"}},
    {"rope_parameters": {"rope_type": "dynamic", "factor": None}},
]


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        *itertools.product(("llama", "qwen3", "gpt2"), OF_ALL),
        *itertools.product(("llama", "qwen3"), OF_ROPE),
        ("cohere2_moe", {"ignore_keys_at_rope_validation": 2}),
        ("cohere2_moe", {"rope_parameters": {"rope_type": "default"}}),
        ("cohere2_moe", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    ],
)
def test_a_config_is_refused_where_no_module_is_built(
    model_type: str, keys: dict[str, Any]
) -> None:
    small = {"model_type": model_type, **SMALL[model_type], "vocab_size": 101}
    small.pop("architectures", None)
    spec = spec_from_config(small).spec
    assert bool(refusals({**small, **keys}, spec)) == (not builds({**small, **keys}))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention_dropout": "none"}, "attention_dropout must be a number or null: got 'none'"),
        (
            {"eos_token_id": 1.5},
            "eos_token_id must be a whole number, a list of whole numbers or null: got 1.5",
        ),
        ({"bos_token_id": 1.5}, "bos_token_id must be a whole number or null: got 1.5"),
        (
            {"initializer_range": 1},
            "initializer_range must be a number with a decimal point: got 1",
        ),
        ({"initializer_range": -0.5}, "initializer_range must be 0 to 1: got -0.5"),
        (
            {"hidden_size": 256, "num_attention_heads": 7},
            "the width must be a multiple of the heads: 256 % 7 = 4",
        ),
    ],
)
def test_what_transformers_refuses_is_counted_but_not_called_proven(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    file = tmp_path / "config.json"
    plain = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 8}
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


@pytest.mark.parametrize("key", ["is_llama_config", "transformers.js_config"])
def test_a_key_that_says_nothing_is_no_part_of_a_model(key: str) -> None:
    config = {"model_type": "llama", **SMALL["llama"]}
    module = build_transformers({**config, key: True})[0]
    assert sum(p.numel() for p in module.parameters()) == params(spec_from_config(config).spec)


# ---- remedies ----


def proposed(error: SpecError) -> list[str]:
    """The words that a remedy proposes."""
    _, asked, rest = error.remedy.partition("did you mean ")
    return rest.rstrip("?").split(", ") if asked else []


@daily(5)
@pytest.mark.parametrize("model_type", one_in(8, mapped_types()))
def test_no_remedy_proposes_the_word_that_stands_there(model_type: str) -> None:
    """Each key of the type's class, for each of its model classes, and each misspelt."""
    family = family_of(model_type)
    assert family is not None
    known = {
        *family.defaults,
        *family.aliases,
        *family.ignored,
        *recorded(model_type)["kinds"],
    }
    for name, end in family.classes.items():
        for key in [*known, *(f"{key}x" for key in known)] if end is not None else []:
            value = SMALL[model_type].get(key, True)
            config = {
                "model_type": model_type,
                **SMALL[model_type],
                "architectures": [name],
                key: value,
            }
            try:
                spec_from_config(config)
            except Unmapped as error:
                assert key not in proposed(error)
                if key in known:
                    assert "is not a key" not in str(error)
            except SpecError:
                pass


@pytest.mark.parametrize(
    ("model", "changes", "python", "typed"),
    [
        ("mixtral-8x7b", {"n_experts": None}, "pass top_k=None", "add `--set top_k=none`"),
        ("mixtral-8x7b", {"d_ff": 7}, "pass d_ff=None", "leave out `--set d_ff`"),
        (
            "llama-7b",
            {"n_experts": 4},
            "pass top_k as well",
            "add `--set top_k=NUMBER` `--set d_ff_expert=NUMBER`",
        ),
        (
            "llama-7b",
            {"activation": "clamped_swiglu", "gated": False},
            "pass gated as well",
            "add `--set gated=true`",
        ),
        ("gpt2", {"norm": "rmsnorm"}, "pass norm_bias=False", "add `--set norm_bias=false`"),
    ],
)
def test_remedies_in_the_words_of_the_medium(
    capsys: pytest.CaptureFixture[str], model: str, changes: dict[str, Any], python: str, typed: str
) -> None:
    with pytest.raises(SpecError, match="; ") as caught:
        find_model(model).spec.replace(**changes)
    assert caught.value.remedy == python
    settings = [f"--set={name}={str(value).lower()}" for name, value in changes.items()]
    assert main(["count", model, *settings]) == 2
    assert capsys.readouterr().err.endswith(f"; {typed}\n")
    with pytest.raises(SpecError, match=r"leave \w+ out|set \w+"):
        metacount.ModelSpec.from_dict({**find_model(model).spec.to_dict(), **changes})
