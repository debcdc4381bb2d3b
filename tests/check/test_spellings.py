"""Names of switches and of a config's own keys: a right function is not called wrong for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.release import daily, one_day_in, one_in

import metacount
from metacount import Workload, entry, find_model
from metacount.check.names import STRUCTURE, ConfigKeys, Vocabulary, structure_of
from metacount.huggingface.config.to_spec import mapped_types
from metacount.resolve import Model, find_any
from metacount.textbook.count import fitted


def general(cfg: Any) -> Any:
    """Parameters of LLaMA, Qwen2 and Qwen3, as a config says."""
    d, w = cfg.hidden_size, cfg.head_dim
    h, kv = cfg.num_attention_heads, cfg.num_key_value_heads
    block = 2 * d * w * (h + kv) + 3 * d * cfg.intermediate_size + 2 * d
    if getattr(cfg, "attention_bias", False):
        block = block + w * (h + 2 * kv)
    if getattr(cfg, "use_qk_norm", False):
        block = block + 2 * w
    heads = 1 if getattr(cfg, "tie_word_embeddings", True) else 2
    return cfg.num_hidden_layers * block + d + heads * cfg.vocab_size * d


def with_arguments(
    d_model: Any,
    n_layers: Any,
    n_heads: Any,
    n_kv_heads: Any,
    head_dim: Any,
    d_ff: Any,
    vocab_size: Any,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    tied: bool = False,
) -> Any:
    """The same with arguments whose defaults are LLaMA's."""
    block = 2 * d_model * head_dim * (n_heads + n_kv_heads) + 3 * d_model * d_ff + 2 * d_model
    block = block + (head_dim * (n_heads + 2 * n_kv_heads) if qkv_bias else 0)
    block = block + (2 * head_dim if qk_norm else 0)
    return n_layers * block + d_model + (1 if tied else 2) * vocab_size * d_model


@daily(12)
@pytest.mark.parametrize("function", [general, with_arguments])
@pytest.mark.parametrize(
    "model",
    ["llama-7b", "llama2-70b", "qwen2-0.5b", "qwen2-7b", "qwen3-0.6b", "qwen3-32b"],
)
def test_a_switch_is_the_models_own(function: Any, model: str) -> None:
    assert metacount.check(function, model, timeout=60).verdict == "equal"


def test_a_name_that_nobody_knows_is_said() -> None:
    def mine(cfg: Any) -> Any:
        return general(cfg) + (1 if getattr(cfg, "use_frobs", True) else 0)

    result = metacount.check(mine, "llama-7b")
    assert result.verdict == "wrong"
    (note,) = result.notes
    assert note == (
        "the function asks for use_frobs, which is not known here: where it has a default of its "
        "own, that is taken"
    )


def test_biases_on_some_are_said() -> None:
    result = metacount.check(general, "qwen2-7b", timeout=60)
    assert result.notes == ("attention_bias is given as True: qwen2-7b has biases on q, k, v only",)


def test_no_other_name_of_a_switch_is_a_size() -> None:
    from metacount.spec import legend

    assert [name for name in STRUCTURE if legend.ours(name)] == []
    spec = find_model("qwen3-32b").spec
    assert structure_of(spec, "use_qk_norm") == (True,)
    assert structure_of(spec, "frobs") is None
    # "none" is a choice of ours, and false where a switch is asked for
    (none,) = structure_of(find_model("llama-7b").spec, "window_kind") or (None,)
    assert none == "sliding" and none
    assert structure_of(find_model("llama-7b").spec, "qk_norm") == (False,)


@pytest.mark.parametrize("model_type", one_in(6, mapped_types()))
def test_every_type_knows_the_numbers_of_its_own_config(model_type: str) -> None:
    model = find_any(f"type:{model_type}")
    if not isinstance(model, Model):  # its default config makes no spec: nothing to judge
        assert model_type in ("deepseek_v2", "dots1", "lfm2_moe", "bart", "mbart", "plbart")
        return
    assert model.source is not None
    workload = fitted(model.spec, Workload())
    words = Vocabulary(model.spec, workload, "params", name="it", config=model.source.config)
    keys = [key for key, value in words.config.items() if type(value) is int]
    assert len(keys) > 3
    alone = {key: words.meanings([key])[key] for key in keys}
    assert words.meanings(keys).keys() == alone.keys()
    # each stands for the number that the config has
    for key, meaning in alone.items():
        value = meaning.subs(dict(words.numbers))
        assert value == words.config[key], key


DEEPSEEK = """2*vocab_size*hidden_size + hidden_size + num_hidden_layers*(hidden_size*q_lora_rank
 + q_lora_rank*num_attention_heads*(qk_nope_head_dim + qk_rope_head_dim)
 + hidden_size*(kv_lora_rank + qk_rope_head_dim)
 + kv_lora_rank*num_attention_heads*(qk_nope_head_dim + v_head_dim)
 + num_attention_heads*v_head_dim*hidden_size + 2*hidden_size + q_lora_rank + kv_lora_rank)
 + first_k_dense_replace*3*hidden_size*intermediate_size
 + (num_hidden_layers - first_k_dense_replace)*(n_routed_experts*hidden_size
 + 3*hidden_size*moe_intermediate_size*(n_routed_experts + n_shared_experts))"""


@one_day_in(4)
def test_a_config_is_judged_in_its_own_words() -> None:
    assert metacount.check(DEEPSEEK, "type:deepseek_v3").verdict == "equal"
    spelled = "2*num_hidden_layers*intermediate_size*hidden_size"
    result = metacount.check(spelled, "type:deepseek_v3")
    assert str(result.theirs) == "2*N*d*m"
    # where every layer has experts, the same key is an expert's width
    assert str(metacount.check(spelled, "type:gpt_oss").theirs) == "2*N*d*m_e"


# Of published sizes no config is at hand: the classes that read these sizes say what a key is.
OF_A_CLASS = [
    ("deepseek-v3", "intermediate_size", "m", "deepseek_v3"),
    ("deepseek-v2", "intermediate_size", "m", "deepseek_v3"),
    ("glm-4.5", "intermediate_size", "m", "glm4_moe"),
    ("mamba2-1.3b", "num_heads", "h_s", "mamba2"),
    ("mamba2-1.3b", "chunk_size", "c_s", None),
    ("recurrentgemma-2b", "attention_window_size", "w", None),
    # nothing is asked of a class where one size alone is meant
    ("mixtral-8x7b", "intermediate_size", "m_e", None),
    ("llama3-8b", "intermediate_size", "m", None),
]


@pytest.mark.parametrize(("model", "key", "letter", "model_type"), OF_A_CLASS)
def test_a_key_of_the_models_own_class(
    model: str, key: str, letter: str, model_type: str | None
) -> None:
    spec = find_model(model).spec
    words = Vocabulary(spec, fitted(spec, Workload()), "params", name=model)
    assert str(words.meanings([key])[key]) == letter
    assert [note.rpartition(" ")[2] for note in words.notes] == [t for t in [model_type] if t]


def deepseek(cfg: Any) -> Any:
    d, h, dense = cfg.hidden_size, cfg.num_attention_heads, cfg.first_k_dense_replace
    head = cfg.qk_nope_head_dim + cfg.qk_rope_head_dim
    block = d * cfg.q_lora_rank + cfg.q_lora_rank * (h * head + 1) + 2 * d
    block += d * (cfg.kv_lora_rank + cfg.qk_rope_head_dim) + h * cfg.v_head_dim * d
    block += cfg.kv_lora_rank * (h * (cfg.qk_nope_head_dim + cfg.v_head_dim) + 1)
    experts = cfg.num_experts_per_tok + cfg.n_shared_experts
    moe = cfg.n_routed_experts * d + 3 * d * cfg.moe_intermediate_size * experts
    layers = cfg.num_hidden_layers
    blocks = layers * block + dense * 3 * d * cfg.intermediate_size + (layers - dense) * moe
    return 2 * cfg.vocab_size * d + d + blocks


def test_a_function_in_the_words_of_deepseek() -> None:
    result = metacount.check(deepseek, "deepseek-v3", quantity="active_params", timeout=60)
    assert result.verdict == "equal"


def test_a_number_that_is_no_size_is_said() -> None:
    result = metacount.check("max_window_layers*hidden_size", "type:qwen2_moe")
    assert result.theirs_value == 28 * 2048
    assert result.notes == (
        "max_window_layers is 28 at whatever sizes: it is none of those that vary here",
    )
    # a number that others call otherwise is one of ours
    result = metacount.check("num_nextn_predict_layers*hidden_size", "type:deepseek_v3")
    assert str(result.theirs) == "N_p*d"
    # a table with two more rows than positions
    result = metacount.check("(max_position_embeddings + 2)*hidden_size", "type:opt")
    assert str(result.theirs) == "P*d"


def test_a_file_is_judged_in_its_own_words(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = {
        "model_type": "qwen3",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "num_hidden_layers": 3,
    }
    file.write_text(json.dumps(config))
    assert metacount.check(general_qwen3, str(file), timeout=60).verdict == "equal"


def general_qwen3(config: Any) -> Any:
    """What stands in the config, and QK-norm, which its type always has."""
    d, w = config.hidden_size, config.head_dim
    h, kv = config.num_attention_heads, config.num_key_value_heads
    block = 2 * d * w * (h + kv) + 3 * d * config.intermediate_size + 2 * d + 2 * w
    biases = w * (h + 2 * kv) if config.attention_bias is not False else 0
    heads = 1 if config.tie_word_embeddings is True else 2
    return config.num_hidden_layers * (block + biases) + d + heads * config.vocab_size * d


def test_keys_of_a_config_that_is_no_model() -> None:
    assert ConfigKeys({}).whole == {}
    assert ConfigKeys({"model_type": "frobs", "n": 3}).fields == {}


# what a config calls a part of the structure; a model that has it; a model that has not
SWITCHES = [
    (
        "gated_mlp use_glu use_swiglu swiglu glu is_gated_act gated_ffn gated_linear_unit",
        "llama-7b",
        "gpt2",
    ),
    ("use_rmsnorm rmsnorm rms_norm", "llama-7b", "gpt2"),
    ("use_rope rotary use_rotary", "llama-7b", "gpt2"),
    ("use_bias bias add_bias_linear layer_norm_bias", "gpt2", "llama-7b"),
    ("alibi use_alibi", "bloom-176b", "llama-7b"),
    ("is_encoder_decoder has_encoder", "t5-small", "llama-7b"),
    ("is_moe use_moe", "mixtral-8x7b", "llama-7b"),
    ("use_mla is_mla multi_latent_attention", "deepseek-v3", "llama-7b"),
    ("add_pooling_layer has_pooler add_pooler", "bert-base", "llama-7b"),
    ("use_sliding_window has_sliding_window", "mistral-7b", "llama-7b"),
    ("use_qk_norm qk_norm qk_layernorm use_query_key_norm", "qwen3-32b", "llama-7b"),
    ("final_layernorm add_final_layer_norm use_final_norm", "llama-7b", "bert-base"),
    ("attention_sink", "gpt-oss-20b", "llama-7b"),
    (
        "tie_word_embeddings tied_embeddings tie_embedding tied tie_weights weight_tying "
        "share_embeddings tie_encoder_decoder_embeddings",
        "gpt2",
        "llama-7b",
    ),
    (
        "attention_bias attn_bias use_attention_bias attn_qkv_bias qkv_bias use_qkv_bias "
        "add_qkv_bias attention_qkv_bias attention_out_bias attention_output_bias out_bias "
        "o_proj_bias mlp_bias use_mlp_bias feed_forward_bias ffn_bias",
        "gpt2",
        "llama-7b",
    ),
    ("parallel_attn use_parallel_residual parallel_residual", "palm-540b", "llama-7b"),
]
CHOSEN = [
    ("hidden_act hidden_activation activation_function act_fn activation_fn", "llama-7b", "silu"),
    ("norm_type normalization", "gpt2", "layernorm"),
    ("position_embedding_type", "gpt2", "learned"),
    ("rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon", "gpt2", 1e-5),
]


@pytest.mark.parametrize(("names", "having", "lacking"), SWITCHES)
def test_structure_by_the_names_of_configs(names: str, having: str, lacking: str) -> None:
    for name in names.split():
        for model, has in ((having, True), (lacking, False)):
            found = structure_of(entry(model).spec(), name)
            assert found is not None and bool(found[0]) is has, (name, model)


def test_a_bias_of_the_head_by_the_names_of_configs() -> None:
    spec = entry("llama-7b").spec()
    for name in ("lm_head_bias", "head_bias", "output_bias"):
        assert structure_of(spec, name) == (False,)
        assert structure_of(spec.replace(head_bias=True), name) == (True,)


@pytest.mark.parametrize(("names", "model", "value"), CHOSEN)
def test_choices_by_the_names_of_configs(names: str, model: str, value: object) -> None:
    for name in names.split():
        assert structure_of(entry(model).spec(), name) == (value,)
    assert structure_of(entry(model).spec(), "no_such_name") is None
