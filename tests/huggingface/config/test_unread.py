"""Published configs are read as they are published: keys that no row reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.published import CONFIGS

from metacount.errors import SpecError
from metacount.formulas import model as formulas
from metacount.huggingface.config.to_spec import UnmappedKey, UnmappedType, spec_from_config
from metacount.resolve import find_model


@pytest.mark.parametrize(
    ("config", "params", "passed"),
    [
        # 7,615,616,512, 3,821,079,552 and 480,154,875,392 are the totals of their safetensors
        (CONFIGS["Qwen2.5-7B"], 7_615_616_512, "use_mrope=false"),
        (CONFIGS["Phi-3-mini-4k"], 3_821_079_552, "attention_bias=false"),
        (
            CONFIGS["Qwen3-Coder-480B-A35B-Instruct"],
            480_154_875_392,
            "qkv_bias=false, shared_expert_intermediate_size=0, use_qk_norm=true",
        ),
        (
            CONFIGS["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"],
            31_577_937_344,
            "norm_eps=1e-05, partial_rotary_factor=1.0, rope_theta=10000",
        ),
    ],
)
def test_keys_that_change_nothing_are_named_in_one_line(
    config: dict[str, Any], params: int, passed: str
) -> None:
    mapped = spec_from_config(config)
    assert formulas.params(mapped.spec) == params
    lines = [note for note in mapped.notes if "passed over" in note]
    assert lines == [f"passed over, for they change nothing: {passed}"]
    assert {part.split("=")[0] for part in passed.split(", ")} <= set(mapped.ignored)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "phi3", "attention_bias": True},
            "attention_bias is not read by this type, and says something else: got True; "
            "false is read: remove it",
        ),
        ({"model_type": "qwen2", "attention_bias": False}, "true is read"),
        ({"model_type": "phi3", "num_experts": 4}, "none is read"),
        ({"model_type": "llama", "norm_eps": 1e-5}, "1e-06 is read"),
        ({"model_type": "llama", "use_qk_norm": True}, "false is read"),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 32}, "layer_types"),
        ({"model_type": "gpt2", "hidden_act": "relu"}, "'gelu_tanh' is read"),
        ({"model_type": "mixtral", "shared_expert_intermediate_size": 64}, "none is read"),
        ({"model_type": "llama", "sparse_thing": 7}, "remove it if it changes nothing"),
        ({"model_type": "llama", "sparse_thing": [1, 2]}, "remove it if it changes nothing"),
    ],
)
def test_keys_that_change_the_model_are_refused_with_what_is_read(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnmappedKey, match="is not ") as error:
        spec_from_config(config)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "value", [None, False, 0, 0.0, 1.0, [], {}, [7, 7, 7], ["full", "full"]], ids=repr
)
def test_values_that_say_nothing(value: object) -> None:
    plain = spec_from_config({"model_type": "llama"})
    mapped = spec_from_config({"model_type": "llama", "some_switch": value})
    assert mapped.spec == plain.spec
    assert len(mapped.notes) == len(plain.notes) + 1


def test_the_line_is_bounded_whatever_the_keys_are() -> None:
    many = {f"\x1b{i}" * 50: False for i in range(40)}
    (line,) = (n for n in spec_from_config({"model_type": "llama", **many}).notes if "over" in n)
    assert line.endswith(" and 28 more")
    assert len(line) < 2000
    assert "\x1b" not in line


def test_a_type_that_nobody_knows_is_that_of_the_class_it_names(tmp_path: Path) -> None:
    """Kimi K2. By hand, in millions of a layer: 101.1 of MLA; 44.04 an expert, 385 of them."""
    mapped = spec_from_config(CONFIGS["Kimi-K2-Instruct"])
    mla = 7168 * 1536 + 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 + 512 * 64 * 256 + 64 * 128 * 7168
    expert, dense = 3 * 7168 * 2048, 3 * 7168 * 18432
    layers = 61 * (mla + 2 * 7168) + dense + 60 * (385 * expert + 384 * 7168)
    assert formulas.params(mapped.spec) == 2 * 163840 * 7168 + layers + 7168
    assert (mapped.model_type, mapped.is_remote) == ("deepseek_v3", False)
    said = "model_type kimi_k2 is not known to transformers: counted as deepseek_v3, whose "
    assert mapped.notes[0] == f"{said}DeepseekV3ForCausalLM architectures names"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS["Kimi-K2-Instruct"]))
    model = find_model(str(file))
    assert model.source is not None
    assert model.source.config["model_type"] == "deepseek_v3"  # which transformers can build


@pytest.mark.parametrize("architectures", [None, [], ["NobodysForCausalLM"], [7], "", {}])
def test_a_type_and_a_class_that_nobody_knows(architectures: object) -> None:
    with pytest.raises(UnmappedType, match="model_type has no spec"):
        spec_from_config({"model_type": "grok-1", "architectures": architectures})


def test_a_type_that_transformers_knows_is_its_own() -> None:
    with pytest.raises(UnmappedType, match="model_type has no spec"):
        spec_from_config({"model_type": "qwen2_vl", "architectures": ["Qwen2ForCausalLM"]})


def test_heads_without_a_width_are_refused() -> None:
    config = {"model_type": "zamba2", "hidden_size": 1, "num_attention_heads": 6}
    with pytest.raises(SpecError, match="num_attention_heads must leave a width"):
        spec_from_config(config)
