"""Configs whose own code is remote, as their authors publish them: read by keys, never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.published import CONFIGS

from metacount import catalog
from metacount.errors import SpecError
from metacount.formulas import model as formulas
from metacount.formulas import mtp
from metacount.huggingface.config.remote import REMOTE
from metacount.huggingface.config.to_spec import mapped_types, spec_from_config
from metacount.resolve import find_model


@pytest.mark.parametrize(
    "name", ["baichuan2-13b", "internlm2-20b", "deepseek-moe-16b", "qwen1.5-72b"]
)
def test_a_published_config_is_the_catalogs_model(name: str) -> None:
    mapped, theirs = spec_from_config(CONFIGS[name]), catalog.entry(name).spec()
    scaling = theirs.rope_scaling
    assert mapped.spec.to_dict() | {"rope_scaling": scaling} == theirs.to_dict()
    assert mapped.is_remote
    assert any("its own code is not run" in note for note in mapped.notes)


# Of MiMo: attention with three biases, feed-forward and two norms.
MIMO_LAYER = 2 * 4096**2 + 2 * 4096 * 1024 + 6144 + 3 * 4096 * 11008 + 8192
BY_HAND = {
    # one table and head; a layer's attention, feed-forward and two norms; the last norm
    "Baichuan2-7B": 2 * 125696 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 8192) + 4096,
    # 2 tables; a layer's queries, keys and values with biases, output, FFN, two norms
    "ChatGLM3-6B": 2 * 65024 * 4096
    + 28 * (4096 * 4608 + 4608 + 4096**2 + 3 * 4096 * 13696 + 8192)
    + 4096,
    "MiMo-7B": 2 * 151680 * 4096 + 36 * MIMO_LAYER + 4096,  # without its prediction module
    # 2 tables, 28 layers of 16 query and 4 other heads of 128, a router of 64, 64 experts and 2
    # shared ones, and norms
    "Ling-lite": 2 * 126464 * 2048
    + 28 * (2 * 2048**2 + 2 * 2048 * 512 + 64 * 2048 + 66 * 3 * 2048 * 1408 + 4096)
    + 2048,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_parameters_by_hand(name: str) -> None:
    spec = spec_from_config(CONFIGS[name]).spec
    assert formulas.params(spec) == BY_HAND[name]
    if name == "MiMo-7B":  # a layer, a matrix that joins two hidden states, and three norms
        assert mtp.params(spec) == MIMO_LAYER + 2 * 4096**2 + 3 * 4096
        assert formulas.params(spec) + mtp.params(spec) == 7_833_409_536


EVERY = {config["model_type"]: name for name, config in reversed(CONFIGS.items())
         if config.get("model_type") in REMOTE}  # fmt: skip
SIZES = (
    "hidden_size n_embd num_hidden_layers num_layers n_layer n_head num_attention_heads "
    "intermediate_size ffn_hidden_size ff_intermediate_size kv_channels vocab_size "
    "padded_vocab_size rotary_dim moe_intermediate_size scale_depth"
)


def test_every_remote_type_is_tried_here_and_is_none_of_transformers() -> None:
    assert set(EVERY) == set(REMOTE)
    assert set(EVERY) & set(mapped_types()) == set()
    without = {k: v for k, v in CONFIGS["baichuan2-13b"].items() if k != "model_max_length"}
    with pytest.raises(SpecError, match="model_max_length"):  # which tells the 13B's code
        spec_from_config(without)


@pytest.mark.parametrize("name", EVERY)
def test_a_key_that_is_not_understood_or_not_written_down_is_named(name: str) -> None:
    config = CONFIGS[EVERY[name]]
    with pytest.raises(SpecError, match="sparse_thing") as error:
        spec_from_config({**config, "sparse_thing": 7})
    assert type(error.value) is SpecError  # nor is it left to transformers, which has no such type
    given = [key for key in SIZES.split() if key in config]
    assert len(given) >= 5
    for left_out in given:
        fewer = {key: value for key, value in config.items() if key != left_out}
        with pytest.raises(SpecError, match=r"must be a (whole|positive) number: got None|has a v"):
            spec_from_config(fewer)


LLAMA = {"model_type": "llama", "hidden_size": 5120, "architectures": ["LlamaForCausalLM"]}


def without_type(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "model_type"}


def test_a_config_without_a_type_is_read_by_the_class_it_names(tmp_path: Path) -> None:
    bare = spec_from_config(without_type(LLAMA))
    assert bare.spec == spec_from_config(LLAMA).spec
    assert bare.notes[0] == "model_type llama: that of LlamaForCausalLM, which architectures names"
    assert spec_from_config(without_type(CONFIGS["ChatGLM3-6B"])).model_type == "chatglm"
    # the port goes before the remote code of the same class
    assert spec_from_config({"architectures": ["PhiForCausalLM"]}).model_type == "phi"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(without_type(LLAMA)))
    model = find_model(str(file))
    assert model.source is not None
    assert model.source.config["model_type"] == "llama"


@pytest.mark.parametrize(
    ("architectures", "message"),
    [
        (["ResNetForImages"], "model_type"),
        (["Qwen2ForCausaLM"], "did you mean Qwen2ForCausalLM"),
        ([7], "architectures"),
        ({}, "model_type must be text"),
    ],
)
def test_a_class_that_is_not_known(architectures: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_from_config({"architectures": architectures, "hidden_size": 64})


def test_a_remote_config_has_no_other_witness(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS["Phi-2"]))
    model = find_model(str(file))
    assert model.source is None
    assert "PhiForCausalLM (named by architectures)" in model.notes
