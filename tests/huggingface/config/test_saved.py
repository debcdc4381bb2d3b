"""What `save_pretrained` writes is read again, for every type: NaN and Infinity among it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers.release import daily, one_in
from transformers import AutoConfig

from metacount.errors import SpecError
from metacount.files import read_json
from metacount.huggingface.config.limits import DROPPED
from metacount.huggingface.config.to_spec import mapped_types
from metacount.huggingface.module.model import (
    chosen_class,
    config_class,
    default_config,
    model_types,
)
from metacount.resolve import Model, TransformersOnly, find_any

TYPES = mapped_types()
CAUSAL = sorted(set(model_types("causal-LM")) - set(TYPES))


def saved(folder: Path, config: dict[str, Any]) -> Path:
    """The folder to which transformers' config object of `config` was saved."""
    keys = {key: value for key, value in config.items() if key != "model_type"}
    config_class(config["model_type"])(**keys).save_pretrained(folder)
    return folder


def plain(config: Any) -> dict[str, Any]:
    """All that a config object holds; NaN and Infinity as text, so that they can be compared."""
    data: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return {k: v for k, v in data.items() if k != "architectures" and k not in DROPPED}


# Where transformers fills a null in while it saves.
FILLED_IN = {"moshi": {"audio_vocab_size"}}


@daily(5)
@pytest.mark.parametrize("model_type", one_in(3, CAUSAL))
def test_what_another_type_saves_is_read_as_transformers_reads_it(
    model_type: str, tmp_path: Path
) -> None:
    try:
        _, wanted, choice = chosen_class(model_type)
    except SpecError as error:
        pytest.skip(f"transformers makes no default config of it: {error}")
    model = find_any(str(saved(tmp_path, default_config(model_type))))
    assert model.source is not None
    _, found, again = chosen_class(model.source.config)
    assert again.class_name == choice.class_name
    whole = AutoConfig.from_pretrained(tmp_path)
    parts = (whole, getattr(whole, "text_config", None), getattr(whole, "decoder", None))
    assert plain(found) == plain(next(part for part in parts if type(part) is type(found)))
    filled = FILLED_IN.get(model_type, set())
    assert {k: v for k, v in plain(found).items() if k not in filled} == {
        k: v for k, v in plain(wanted).items() if k not in filled
    }
    if model_type == "gpt-sw3":  # it saves itself as gpt2
        assert isinstance(model, Model)
    else:
        assert isinstance(model, TransformersOnly)
        assert f"the model type {model_type} has no textbook spec" in model.problem


def test_numbers_that_are_not_finite_in_either_spelling(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        '{"a": [0.0, Infinity], "b": {"__float__": "-Infinity"}, "c": NaN, '
        '"d": {"e": {"__float__": "NaN"}}, "f": {"__float__": "7"}, '
        '"g": {"__float__": "NaN", "h": 1}}'
    )
    data = read_json(str(file))
    assert (data["a"], data["b"]) == ([0.0, math.inf], -math.inf)
    assert math.isnan(data["c"]) and math.isnan(data["d"]["e"])
    # transformers keeps what is no tag of its own
    assert data["f"] == {"__float__": "7"}
    assert data["g"] == {"__float__": "NaN", "h": 1}
