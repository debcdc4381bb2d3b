"""Published configs are read as they are published: keys that no row reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metacount.errors import SpecError
from metacount.formulas import model as formulas
from metacount.huggingface.config.to_spec import UnmappedKey, UnmappedType, spec_from_config
from metacount.resolve import find_model

QWEN2_5_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
PHI_3_MINI = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "sliding_window": 2047,
    "vocab_size": 32064,
}
QWEN3_CODER_480B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "intermediate_size": 8192,
    "max_position_embeddings": 262144,
    "max_window_layers": 62,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 2560,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts": 160,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "qkv_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.0,
    "shared_expert_intermediate_size": 0,
    "sliding_window": None,
    "use_qk_norm": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
NEMOTRON_3_NANO = {
    "architectures": ["NemotronHForCausalLM"],
    "attention_bias": False,
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 128,
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-5,
    "mamba_head_dim": 64,
    "mamba_num_heads": 64,
    "mlp_hidden_act": "relu2",
    "model_type": "nemotron_h",
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "n_groups": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_eps": 1e-5,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 52,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 1.0,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "ssm_state_size": 128,
    "topk_group": 1,
    "use_conv_bias": True,
    "vocab_size": 131072,
}
KIMI_K2 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 131072,
    "model_type": "kimi_k2",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 163840,
}


@pytest.mark.parametrize(
    ("config", "params", "passed"),
    [
        # 7,615,616,512, 3,821,079,552 and 480,154,875,392 are the totals of their safetensors
        (QWEN2_5_7B, 7_615_616_512, "use_mrope=false"),
        (PHI_3_MINI, 3_821_079_552, "attention_bias=false"),
        (
            QWEN3_CODER_480B,
            480_154_875_392,
            "qkv_bias=false, shared_expert_intermediate_size=0, use_qk_norm=true",
        ),
        (
            NEMOTRON_3_NANO,
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
    mapped = spec_from_config(KIMI_K2)
    mla = 7168 * 1536 + 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 + 512 * 64 * 256 + 64 * 128 * 7168
    expert, dense = 3 * 7168 * 2048, 3 * 7168 * 18432
    layers = 61 * (mla + 2 * 7168) + dense + 60 * (385 * expert + 384 * 7168)
    assert formulas.params(mapped.spec) == 2 * 163840 * 7168 + layers + 7168
    assert (mapped.model_type, mapped.is_remote) == ("deepseek_v3", False)
    said = "model_type kimi_k2 is not known to transformers: counted as deepseek_v3, whose "
    assert mapped.notes[0] == f"{said}DeepseekV3ForCausalLM architectures names"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(KIMI_K2))
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
