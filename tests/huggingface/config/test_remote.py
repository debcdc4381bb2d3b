"""Configs whose own code is remote, as their authors publish them: read by keys, never run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.published import CONFIGS

from metacount import catalog
from metacount.errors import InputError, SpecError
from metacount.formulas import model as formulas
from metacount.formulas import mtp
from metacount.huggingface.config.remote import REMOTE
from metacount.huggingface.config.to_spec import UnmappedType, mapped_types, spec_from_config
from metacount.resolve import find_model

# The same model under the names of a type that transformers has.
AS_PHI = {
    "model_type": "phi",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "partial_rotary_factor": 0.4,
    "vocab_size": 51200,
}
AS_LLAMA = {
    "model_type": "llama",
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "vocab_size": 100278,
}
AS_GLM = {
    "model_type": "glm",
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "attention_bias": True,
    "rope_theta": 5000000.0,
    "vocab_size": 151552,
    "rms_norm_eps": 1.5625e-7,
}
# Of 7B: one table and head of 125,696·4,096 each; a layer 4·4,096² + 3·4,096·11,008 + 2·4,096.
BAICHUAN2_7B_PARAMS = 2 * 125696 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 8192) + 4096
# Of ChatGLM3-6B: 2 tables; a layer's queries,
# keys and values with biases 4,096·4,608 + 4,608, output 4,096², FFN 3·4,096·13,696, two norms.
CHATGLM3_PARAMS = (
    2 * 65024 * 4096 + 28 * (4096 * 4608 + 4608 + 4096**2 + 3 * 4096 * 13696 + 8192) + 4096
)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (CONFIGS["baichuan2-13b"], "baichuan2-13b"),
        (CONFIGS["internlm2-20b"], "internlm2-20b"),
        (CONFIGS["deepseek-moe-16b"], "deepseek-moe-16b"),
        (CONFIGS["qwen1.5-72b"], "qwen1.5-72b"),
    ],
)
def test_a_published_config_is_the_catalogs_model(config: dict[str, Any], name: str) -> None:
    mapped, theirs = spec_from_config(config), catalog.entry(name).spec()
    scaling = theirs.rope_scaling
    assert mapped.spec.to_dict() | {"rope_scaling": scaling} == theirs.to_dict()
    assert mapped.is_remote
    assert any("its own code is not run" in note for note in mapped.notes)


@pytest.mark.parametrize(
    ("config", "params"),
    [
        (CONFIGS["Baichuan2-7B"], BAICHUAN2_7B_PARAMS),
        (CONFIGS["ChatGLM3-6B"], CHATGLM3_PARAMS),
        # without its prediction module: 2 tables, 36 layers of attention (with three biases),
        # feed-forward and two norms, and the last norm
        (
            CONFIGS["MiMo-7B"],
            2 * 151680 * 4096
            + 36 * (2 * 4096**2 + 2 * 4096 * 1024 + 6144 + 3 * 4096 * 11008 + 8192)
            + 4096,
        ),
        # 2 tables, 28 layers of 16 query and 4 other heads of 128, a router of 64, 64 experts and 2
        # shared ones, and norms
        (
            CONFIGS["Ling-lite"],
            2 * 126464 * 2048
            + 28 * (2 * 2048**2 + 2 * 2048 * 512 + 64 * 2048 + 66 * 3 * 2048 * 1408 + 4096)
            + 2048,
        ),
    ],
)
def test_parameters_by_hand(config: dict[str, Any], params: int) -> None:
    assert formulas.params(spec_from_config(config).spec) == params


@pytest.mark.parametrize(
    ("config", "ported"),
    [(CONFIGS["Phi-2"], AS_PHI), (CONFIGS["XVERSE-13B"], AS_LLAMA), (CONFIGS["GLM-4-9B"], AS_GLM)],
)
def test_a_remote_type_is_what_its_port_is(config: dict[str, Any], ported: dict[str, Any]) -> None:
    assert spec_from_config(config).spec == spec_from_config(ported).spec


def test_the_prediction_module_of_mimo_is_counted_apart() -> None:
    """A layer, a matrix that joins two hidden states, and three norms: with it 7,833,409,536."""
    spec = spec_from_config(CONFIGS["MiMo-7B"]).spec
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 6144 + 3 * 4096 * 11008 + 8192
    assert mtp.params(spec) == layer + 2 * 4096**2 + 3 * 4096
    assert formulas.params(spec) + mtp.params(spec) == 7_833_409_536


def test_multipliers_of_minicpm() -> None:
    spec = spec_from_config(CONFIGS["MiniCPM-2B"]).spec
    assert (spec.embedding_scale, spec.logit_scale) == (12.0, 256 / 2304)
    assert spec.residual_scale == 1.4 / 40**0.5
    assert spec.tie_embeddings


def test_the_code_of_baichuan_is_told_by_its_keys() -> None:
    assert spec_from_config(CONFIGS["Baichuan2-7B"]).spec.position == "rope"
    assert spec_from_config(CONFIGS["baichuan2-13b"]).spec.position == "alibi"
    neither = {k: v for k, v in CONFIGS["baichuan2-13b"].items() if k != "model_max_length"}
    with pytest.raises(SpecError, match="model_max_length"):
        spec_from_config(neither)


EVERY = {
    "baichuan": CONFIGS["Baichuan2-7B"],
    "internlm2": CONFIGS["internlm2-20b"],
    "qwen": CONFIGS["Qwen-7B"],
    "chatglm": CONFIGS["ChatGLM3-6B"],
    "deepseek": CONFIGS["deepseek-moe-16b"],
    "minicpm": CONFIGS["MiniCPM-2B"],
    "xverse": CONFIGS["XVERSE-13B"],
    "phi-msft": CONFIGS["Phi-2"],
    "exaone": CONFIGS["EXAONE-3.5-8B"],
    "mimo": CONFIGS["MiMo-7B"],
    "bailing_moe": CONFIGS["Ling-lite"],
    "phi3small": CONFIGS["phi3-small"],
}


def test_every_remote_type_is_tried_here_and_is_none_of_transformers() -> None:
    assert set(EVERY) == set(REMOTE)
    assert set(EVERY) & set(mapped_types()) == set()


@pytest.mark.parametrize("name", EVERY)
def test_a_key_that_is_not_understood_is_named(name: str) -> None:
    with pytest.raises(SpecError, match="sparse_thing") as error:
        spec_from_config({**EVERY[name], "sparse_thing": 7})
    assert type(error.value) is SpecError  # nor is it left to transformers, which has no such type


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (CONFIGS["Qwen-7B"], {"intermediate_size": 22017}, "intermediate_size must be even"),
        (
            CONFIGS["Qwen-7B"],
            {"kv_channels": 64},
            "kv_channels",
        ),
        (CONFIGS["Qwen-7B"], {"n_embd": 4000}, "n_embd"),
        (CONFIGS["ChatGLM3-6B"], {"vocab_size": 7}, "padded_vocab_size"),
        (
            CONFIGS["ChatGLM3-6B"],
            {"position_encoding_2d": True},
            "position_encoding_2d is not a key",
        ),
        (
            CONFIGS["ChatGLM3-6B"],
            {"multi_query_group_num": 5},
            "multi_query_group_num must divide num_att",
        ),
        (CONFIGS["deepseek-moe-16b"], {"moe_layer_freq": 2}, "moe_layer_freq"),
        (CONFIGS["deepseek-moe-16b"], {"n_routed_experts": None}, "n_shared_experts"),
        (CONFIGS["internlm2-20b"], {"bias": "no"}, "bias"),
        (CONFIGS["MiniCPM-2B"], {"num_experts": 8}, "num_experts"),
        (CONFIGS["Phi-2"], {"n_head": 33}, "n_head"),
        (CONFIGS["Ling-mini-2.0"], {"score_function": "tanh"}, "score_function"),
        (CONFIGS["Ling-mini-2.0"], {"moe_shared_expert_intermediate_size": 7}, "moe_shared_ex"),
        (CONFIGS["phi3-small"], {"hidden_act": "gelu"}, "hidden_act"),
        (
            CONFIGS["Baichuan2-7B"],
            {"architectures": ["BaichuanForTokens"], "auto_map": None},
            "",
        ),
        (CONFIGS["XVERSE-13B"], {"hidden_size": 10**30}, "hidden_size"),
    ],
)
def test_a_contradiction_is_one_line(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(message) or None):
        spec_from_config({**config, **changes})


SIZES = (
    "hidden_size",
    "n_embd",
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_head",
    "num_attention_heads",
    "intermediate_size",
    "ffn_hidden_size",
    "ff_intermediate_size",
    "kv_channels",
    "vocab_size",
    "padded_vocab_size",
    "rotary_dim",
    "moe_intermediate_size",
    "scale_depth",
)


@pytest.mark.parametrize("name", EVERY)
def test_a_size_that_is_not_written_down_is_an_error(name: str) -> None:
    given = [key for key in SIZES if key in EVERY[name]]
    assert len(given) >= 5
    for left_out in given:
        config = {key: value for key, value in EVERY[name].items() if key != left_out}
        with pytest.raises(SpecError, match=r"must be a (whole|positive) number: got None|has a v"):
            spec_from_config(config)


def without_type(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "model_type"}


def test_a_config_without_a_type_is_read_by_the_class_it_names(tmp_path: Path) -> None:
    llama = {**AS_LLAMA, "architectures": ["LlamaForCausalLM"]}
    bare = spec_from_config(without_type(llama))
    assert bare.spec == spec_from_config(llama).spec
    assert bare.notes[0] == "model_type llama: that of LlamaForCausalLM, which architectures names"
    assert spec_from_config(without_type(CONFIGS["ChatGLM3-6B"])).model_type == "chatglm"
    # the port goes before the remote code of the same class
    assert spec_from_config({"architectures": ["PhiForCausalLM"]}).model_type == "phi"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(without_type(llama)))
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


def test_a_type_that_nobody_has_is_still_left_to_transformers() -> None:
    with pytest.raises(UnmappedType, match="model_type has no spec"):
        spec_from_config({"model_type": "grok-1"})


def test_a_remote_config_has_no_other_witness(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS["Phi-2"]))
    model = find_model(str(file))
    assert model.source is None
    assert "PhiForCausalLM (named by architectures)" in model.notes
    file.write_text(json.dumps({**CONFIGS["Phi-2"], "n_head": 0}))
    with pytest.raises(InputError, match="n_head"):
        find_model(str(file))
