"""Keys that older versions of transformers wrote into a config.json, and today's does not."""

from __future__ import annotations

from typing import Any

import pytest

from metacount.huggingface.config.keys import UnmappedKey
from metacount.huggingface.config.to_spec import spec_from_config

TODAY = {"num_hidden_layers": 3, "layer_types": ["linear_attention"] * 2 + ["full_attention"]}
BEFORE = {**TODAY, "layer_types": ["mamba"] * 2 + ["attention"]}
# type, the version that wrote it so, what it wrote, what it means, a value that means another model
OLDER: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("gpt_neox", "4.46.3", {"partial_rotary_factor": 0.25}, {}, {"partial_rotary_factor": 0.5}),
    ("gpt_neox", "4.57.6", {"rope_theta": 10000}, {}, {"rope_theta": 500000}),
    ("solar_open", "5.17.0", {"partial_rotary_factor": 1.0}, {}, {"partial_rotary_factor": 0.5}),
    (
        "granitemoe",
        "4.57.6",
        {"position_embedding_type": "rope"},
        {},
        {"position_embedding_type": "nope"},
    ),
    (
        "deepseek_v32",
        "5.17.0",
        {"layer_types": ["deepseek_sparse_attention"] * 61},
        {},
        {"layer_types": ["full_attention"] * 61},
    ),
    ("granitemoehybrid", "4.57.6", BEFORE, TODAY, {**TODAY, "layer_types": ["conv"] * 3}),
]


@pytest.mark.parametrize(("model_type", "version", "written", "today", "wrong"), OLDER)
def test_a_key_of_before(
    model_type: str,
    version: str,
    written: dict[str, Any],
    today: dict[str, Any],
    wrong: dict[str, Any],
) -> None:
    config = {"model_type": model_type, "transformers_version": version}
    assert (
        spec_from_config({**config, **written}).spec == spec_from_config({**config, **today}).spec
    )
    with pytest.raises(UnmappedKey):
        spec_from_config({**config, **wrong})


@pytest.mark.parametrize(
    ("model_type", "written"),
    [
        # beside `layer_types`, which says it
        ("cohere2", {"_sliding_window_pattern": 4}),
        # what every config had before 5.0
        ("llama", {"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}),
        # a mark for transformers itself, which 5.0.0 left in the file
        ("phi3", {"ignore_keys_at_rope_validation": None}),
    ],
)
def test_a_key_that_says_nothing(model_type: str, written: dict[str, Any]) -> None:
    config = {"model_type": model_type}
    assert spec_from_config({**config, **written}).spec == spec_from_config(config).spec
