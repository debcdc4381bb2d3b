"""Configs whose own code is remote, as their authors publish them: read by keys, never run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from metacount import catalog
from metacount.errors import InputError, SpecError
from metacount.formulas import model as formulas
from metacount.formulas import mtp
from metacount.huggingface.config.remote import REMOTE
from metacount.huggingface.config.to_spec import UnmappedType, mapped_types, spec_from_config
from metacount.resolve import find_model

BAICHUAN2_7B: dict[str, Any] = {
    "architectures": ["BaichuanForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_baichuan.BaichuanConfig",
        "AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM",
    },
    "tokenizer_class": "BaichuanTokenizer",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_max_length": 4096,
    "model_type": "baichuan",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "_from_model_config": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.29.2",
    "use_cache": True,
    "vocab_size": 125696,
}
BAICHUAN2_13B = {
    **{k: v for k, v in BAICHUAN2_7B.items() if k != "max_position_embeddings"},
    "gradient_checkpointing": [False],
    "hidden_size": 5120,
    "intermediate_size": 13696,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
}
INTERNLM2_20B = {
    "architectures": ["InternLM2ForCausalLM"],
    "attn_implementation": "eager",
    "bias": False,
    "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config"},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "fp16": True,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "initializer_range": 0.02,
    "intermediate_size": 16384,
    "max_position_embeddings": 32768,
    "model_type": "internlm2",
    "num_attention_heads": 48,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"factor": 3.0, "type": "dynamic"},
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 92544,
}
QWEN_7B = {
    "architectures": ["QWenLMHeadModel"],
    "attn_dropout_prob": 0.0,
    "bf16": False,
    "auto_map": {"AutoConfig": "configuration_qwen.QWenConfig"},
    "emb_dropout_prob": 0.0,
    "fp16": False,
    "fp32": False,
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 22016,
    "kv_channels": 128,
    "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 32768,
    "model_type": "qwen",
    "no_bias": True,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "onnx_safe": None,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "scale_attn_weights": True,
    "seq_length": 8192,
    "softmax_in_fp32": False,
    "tie_word_embeddings": False,
    "tokenizer_class": "QWenTokenizer",
    "transformers_version": "4.32.0",
    "use_cache": True,
    "use_cache_kernel": False,
    "use_cache_quantization": False,
    "use_dynamic_ntk": True,
    "use_flash_attn": "auto",
    "use_logn_attn": True,
    "vocab_size": 151936,
}
QWEN_72B = {
    **QWEN_7B,
    "hidden_size": 8192,
    "intermediate_size": 49152,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "rotary_emb_base": 1000000,
    "seq_length": 32768,
    "vocab_size": 152064,
}
CHATGLM3_6B = {
    "_name_or_path": "THUDM/chatglm3-6b",
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "auto_map": {"AutoConfig": "configuration_chatglm.ChatGLMConfig"},
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "ffn_hidden_size": 13696,
    "fp32_residual_connection": False,
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "kv_channels": 128,
    "layernorm_epsilon": 1e-5,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 28,
    "original_rope": True,
    "padded_vocab_size": 65024,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 8192,
    "use_cache": True,
    "torch_dtype": "float16",
    "transformers_version": "4.30.2",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GLM4_9B = {
    **CHATGLM3_6B,
    "num_layers": 40,
    "num_hidden_layers": 40,
    "padded_vocab_size": 151552,
    "vocab_size": 151552,
    "layernorm_epsilon": 1.5625e-7,
    "rope_ratio": 500,
    "seq_length": 131072,
}
DEEPSEEK_MOE = {
    "architectures": ["DeepseekForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekConfig"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 10944,
    "max_position_embeddings": 4096,
    "model_type": "deepseek",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 28,
    "num_key_value_heads": 16,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 102400,
}
MINICPM_2B = {
    "architectures": ["MiniCPMForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "auto_map": {"AutoConfig": "configuration_minicpm.MiniCPMConfig"},
    "hidden_act": "silu",
    "hidden_size": 2304,
    "initializer_range": 0.1,
    "intermediate_size": 5760,
    "max_position_embeddings": 2048,
    "model_type": "minicpm",
    "num_attention_heads": 36,
    "num_hidden_layers": 40,
    "num_key_value_heads": 36,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 122753,
    "scale_emb": 12,
    "dim_model_base": 256,
    "scale_depth": 1.4,
}
XVERSE_13B = {
    "architectures": ["XverseForCausalLM"],
    "bos_token_id": 2,
    "eos_token_id": 3,
    "auto_map": {"AutoConfig": "configuration_xverse.XverseConfig"},
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 13824,
    "max_position_embeddings": 8192,
    "max_tokenizer_truncation": 6144,
    "model_type": "xverse",
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 100278,
}
PHI_2 = {
    "_name_or_path": "microsoft/phi-2",
    "activation_function": "gelu_new",
    "architectures": ["PhiForCausalLM"],
    "attn_pdrop": 0.0,
    "auto_map": {"AutoConfig": "configuration_phi.PhiConfig"},
    "embd_pdrop": 0.0,
    "flash_attn": False,
    "flash_rotary": False,
    "fused_dense": False,
    "img_processor": None,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-5,
    "model_type": "phi-msft",
    "n_embd": 2560,
    "n_head": 32,
    "n_head_kv": None,
    "n_inner": None,
    "n_layer": 32,
    "n_positions": 2048,
    "resid_pdrop": 0.1,
    "rotary_dim": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.35.2",
    "vocab_size": 51200,
}

EXAONE_8B = {
    "activation_function": "silu",
    "architectures": ["ExaoneForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_exaone.ExaoneConfig"},
    "bos_token_id": 1,
    "embed_dropout": 0.0,
    "eos_token_id": 361,
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 4096,
    "model_type": "exaone",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_layers": 32,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "vocab_size": 102400,
}
MIMO_7B = {
    "architectures": ["MiMoForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"},
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "mimo",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 640000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151680,
}
LING_LITE = {
    "architectures": ["BailingMoeForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_bailing_moe.BailingMoeConfig"},
    "embedding_dropout": 0.0,
    "first_k_dense_replace": 0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.006,
    "intermediate_size": 5632,
    "max_position_embeddings": 16384,
    "max_window_layers": 28,
    "model_type": "bailing_moe",
    "moe_intermediate_size": 1408,
    "norm_head": False,
    "norm_softmax": False,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "num_shared_experts": 2,
    "output_dropout": 0.0,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 600000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_sliding_window": False,
    "vocab_size": 126464,
}

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
# 6,243,584,000: the safetensors' total of THUDM/chatglm3-6b. By hand: 2 tables; a layer's queries,
# keys and values with biases 4,096·4,608 + 4,608, output 4,096², FFN 3·4,096·13,696, two norms.
CHATGLM3_PARAMS = (
    2 * 65024 * 4096 + 28 * (4096 * 4608 + 4608 + 4096**2 + 3 * 4096 * 13696 + 8192) + 4096
)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (BAICHUAN2_13B, "baichuan2-13b"),
        (INTERNLM2_20B, "internlm2-20b"),
        (DEEPSEEK_MOE, "deepseek-moe-16b"),
        (QWEN_72B, "qwen1.5-72b"),
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
        (BAICHUAN2_7B, BAICHUAN2_7B_PARAMS),
        (CHATGLM3_6B, CHATGLM3_PARAMS),
        (CHATGLM3_6B, 6_243_584_000),
        (QWEN_7B, 7_721_324_544),
        (PHI_2, 2_779_683_840),
        (MINICPM_2B, 2_724_880_896),
        (GLM4_9B, 9_399_951_360),
        (EXAONE_8B, 7_818_448_896),
        # without its prediction module: 2 tables, 36 layers of attention (with three biases),
        # feed-forward and two norms, and the last norm
        (
            MIMO_7B,
            2 * 151680 * 4096
            + 36 * (2 * 4096**2 + 2 * 4096 * 1024 + 6144 + 3 * 4096 * 11008 + 8192)
            + 4096,
        ),
        # 2 tables, 28 layers of 16 query and 4 other heads of 128, a router of 64, 64 experts and 2
        # shared ones, and norms
        (
            LING_LITE,
            2 * 126464 * 2048
            + 28 * (2 * 2048**2 + 2 * 2048 * 512 + 64 * 2048 + 66 * 3 * 2048 * 1408 + 4096)
            + 2048,
        ),
    ],
)
def test_a_published_config_has_the_published_parameters(
    config: dict[str, Any], params: int
) -> None:
    assert formulas.params(spec_from_config(config).spec) == params


@pytest.mark.parametrize(
    ("config", "ported"), [(PHI_2, AS_PHI), (XVERSE_13B, AS_LLAMA), (GLM4_9B, AS_GLM)]
)
def test_a_remote_type_is_what_its_port_is(config: dict[str, Any], ported: dict[str, Any]) -> None:
    assert spec_from_config(config).spec == spec_from_config(ported).spec


def test_the_prediction_module_of_mimo_is_counted_apart() -> None:
    """A layer, a matrix that joins two hidden states, and three norms: with it 7,833,409,536."""
    spec = spec_from_config(MIMO_7B).spec
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 6144 + 3 * 4096 * 11008 + 8192
    assert mtp.params(spec) == layer + 2 * 4096**2 + 3 * 4096
    assert formulas.params(spec) + mtp.params(spec) == 7_833_409_536


def test_multipliers_of_minicpm() -> None:
    spec = spec_from_config(MINICPM_2B).spec
    assert (spec.embedding_scale, spec.logit_scale) == (12.0, 256 / 2304)
    assert spec.residual_scale == 1.4 / 40**0.5
    assert spec.tie_embeddings


def test_the_code_of_baichuan_is_told_by_its_keys() -> None:
    assert spec_from_config(BAICHUAN2_7B).spec.position == "rope"
    assert spec_from_config(BAICHUAN2_13B).spec.position == "alibi"
    neither = {k: v for k, v in BAICHUAN2_13B.items() if k != "model_max_length"}
    with pytest.raises(SpecError, match="model_max_length"):
        spec_from_config(neither)


EVERY = {
    "baichuan": BAICHUAN2_7B,
    "internlm2": INTERNLM2_20B,
    "qwen": QWEN_7B,
    "chatglm": CHATGLM3_6B,
    "deepseek": DEEPSEEK_MOE,
    "minicpm": MINICPM_2B,
    "xverse": XVERSE_13B,
    "phi-msft": PHI_2,
    "exaone": EXAONE_8B,
    "mimo": MIMO_7B,
    "bailing_moe": LING_LITE,
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
        (QWEN_7B, {"intermediate_size": 22017}, "intermediate_size must be even"),
        (
            QWEN_7B,
            {"kv_channels": 64},
            "kv_channels",
        ),
        (QWEN_7B, {"n_embd": 4000}, "n_embd"),
        (CHATGLM3_6B, {"vocab_size": 7}, "padded_vocab_size"),
        (CHATGLM3_6B, {"position_encoding_2d": True}, "position_encoding_2d is not a key"),
        (CHATGLM3_6B, {"multi_query_group_num": 5}, "multi_query_group_num must divide num_att"),
        (DEEPSEEK_MOE, {"moe_layer_freq": 2}, "moe_layer_freq"),
        (DEEPSEEK_MOE, {"n_routed_experts": None}, "n_shared_experts"),
        (INTERNLM2_20B, {"bias": "no"}, "bias"),
        (MINICPM_2B, {"num_experts": 8}, "num_experts"),
        (PHI_2, {"n_head": 33}, "n_head"),
        (
            BAICHUAN2_7B,
            {"architectures": ["BaichuanForTokens"], "auto_map": None},
            "",
        ),
        (XVERSE_13B, {"hidden_size": 10**30}, "hidden_size"),
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
    assert spec_from_config(without_type(CHATGLM3_6B)).model_type == "chatglm"
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
    file.write_text(json.dumps(PHI_2))
    model = find_model(str(file))
    assert model.source is None
    assert "PhiForCausalLM (named by architectures)" in model.notes
    file.write_text(json.dumps({**PHI_2, "n_head": 0}))
    with pytest.raises(InputError, match="n_head"):
        find_model(str(file))
