"""Configs of Gemma 3n's text model: the published keys, lists of layers, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import one_line
from helpers.small_configs import SMALL

from metacount.errors import SpecError
from metacount.huggingface.config.keys import Unmapped
from metacount.huggingface.config.to_spec import Mapped, spec_from_config
from metacount.huggingface.module.classes import config_class

KINDS = ["sliding_attention"] * 4 + ["full_attention"]


def mapped(**keys: Any) -> Mapped:
    return spec_from_config({"model_type": "gemma3n_text", **SMALL["gemma3n_text"], **keys})


def test_what_save_pretrained_writes_is_the_same_model() -> None:
    small = {**SMALL["gemma3n_text"]}
    written = config_class("gemma3n_text")(**small).to_dict()
    assert spec_from_config(written).spec == mapped().spec


def test_widths_and_sparsity_are_patterns_of_layers() -> None:
    spec = mapped().spec
    assert (spec.d_ff, spec.d_ff_second, spec.d_ff_pattern) == (72, 40, "MMMWWWW")
    assert (spec.activation_sparsity, spec.sparsity_pattern) == (0.9, "TTFFFFF")
    alike = mapped(intermediate_size=40, activation_sparsity_pattern=[0.0] * 7).spec
    assert (alike.d_ff, alike.d_ff_second, alike.activation_sparsity) == (40, None, None)
    assert mapped(intermediate_size=[40] * 7).spec.d_ff_second is None
    # by default the first ten of more than ten layers are sparse
    assert mapped(activation_sparsity_pattern=None).spec.activation_sparsity is None


def test_a_scale_that_is_not_used_is_counted_and_not_loaded() -> None:
    found = mapped(altup_correct_scale=False)
    assert found.spec == mapped().spec
    (why,) = found.differs
    assert why == "altup_correct_scale: transformers stores the scale and leaves it out"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"altup_num_inputs": 0}, "altup_num_inputs must be at least 1: got 0; choose 1 to"),
        ({"altup_active_idx": 3}, "altup_active_idx must be below altup_num_inputs = 3: copies"),
        ({"altup_active_idx": -1}, "altup_active_idx must be at least 0: got -1"),
        ({"altup_coef_clip": 0}, "altup_coef_clip must be a positive number: got 0"),
        ({"num_kv_shared_layers": 8}, "num_kv_shared_layers must be below num_hidden_layers = 7"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers must be below num_hidden_layers = 7"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers leaves 2 blocks that see everything"),
        ({"laurel_rank": 0}, "laurel_rank must be at least 1: got 0"),
        ({"sliding_window": None}, "sliding_window must be a whole number: got None"),
        ({"intermediate_size": [72] * 6}, "intermediate_size must have one item a layer: 7"),
        ({"intermediate_size": [72.0] * 7}, "intermediate_size must be a whole number for each"),
        ({"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern must have one item"),
        ({"activation_sparsity_pattern": [1.0] * 7}, "activation_sparsity_pattern must be 0, or"),
        ({"layer_types": KINDS}, "layer_types must have one item a layer: 7"),
    ],
)
def test_what_cannot_be_is_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        mapped(**keys)
    assert one_line(caught.value).startswith(message)
    assert "\n" not in one_line(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"intermediate_size": [72, 72, 72, 40, 40, 40, 41]},  # three widths
        {"activation_sparsity_pattern": [0.9, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0]},  # two shares
        {"activation_sparsity_pattern": 0.5},  # transformers takes its length
        {"layer_types": ["chunked_attention"] * 7},
        {"use_bidirectional_attention": True},
    ],
)
def test_what_no_spec_says_is_left_to_transformers(keys: dict[str, Any]) -> None:
    with pytest.raises(Unmapped):
        mapped(**keys)
