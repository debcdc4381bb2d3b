"""Names of switches and of a config's own keys: a right function is not called wrong for them."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.release import daily, one_day_in, one_in

import metacount
from metacount import Workload, entry, find_model
from metacount.check.names import ConfigKeys, Vocabulary, structure_of
from metacount.huggingface.config.to_spec import mapped_types
from metacount.resolve import Model, find_any
from metacount.textbook.count import fitted


def params(d: Any, n: Any, h: Any, kv: Any, w: Any, m: Any, v: Any, **has: Any) -> Any:
    """Parameters of LLaMA, Qwen2 and Qwen3."""
    block = 2 * d * w * (h + kv) + 3 * d * m + 2 * d
    block = block + (w * (h + 2 * kv) if has["biases"] else 0) + (2 * w if has["norms"] else 0)
    return n * block + d + (1 if has["tied"] else 2) * v * d


def general(cfg: Any) -> Any:
    heads = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    sizes = cfg.hidden_size, cfg.num_hidden_layers, *heads, cfg.intermediate_size, cfg.vocab_size
    tied = getattr(cfg, "tie_word_embeddings", True)
    biases = getattr(cfg, "attention_bias", False)
    return params(*sizes, biases=biases, norms=getattr(cfg, "use_qk_norm", False), tied=tied)


WITH_ARGUMENTS = eval(  # a signature with defaults
    "lambda d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size, qkv_bias=False,"
    " qk_norm=False, tied=False: params(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff,"
    " vocab_size, biases=qkv_bias, norms=qk_norm, tied=tied)"
)
MODELS = ["llama-7b", "llama2-70b", "qwen2-0.5b", "qwen2-7b", "qwen3-0.6b", "qwen3-32b"]


@daily(12)
@pytest.mark.parametrize("function", [general, WITH_ARGUMENTS])
@pytest.mark.parametrize("model", MODELS)
def test_a_switch_is_the_models_own(function: Any, model: str) -> None:
    assert metacount.check(function, model, timeout=60).verdict == "equal"


def test_what_was_asked_and_is_not_a_size_is_said() -> None:
    def mine(cfg: Any) -> Any:
        return general(cfg) + (1 if getattr(cfg, "use_frobs", True) else 0)

    (note,) = metacount.check(mine, "llama-7b").notes
    assert note.startswith("the function asks for use_frobs, which is not known here")
    notes = metacount.check(general, "qwen2-7b", timeout=60).notes
    assert notes == ("attention_bias is given as True: qwen2-7b has biases on q, k, v only",)
    result = metacount.check("max_window_layers*hidden_size", "type:qwen2_moe")
    assert result.theirs_value == 28 * 2048
    said = "max_window_layers is 28 at whatever sizes: it is none of those that vary here"
    assert result.notes == (said,)


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


@pytest.mark.parametrize(
    ("text", "model", "letters"),
    [
        ("2*num_hidden_layers*intermediate_size*hidden_size", "type:deepseek_v3", "2*N*d*m"),
        # where every layer has experts, the same key is an expert's width
        ("2*num_hidden_layers*intermediate_size*hidden_size", "type:gpt_oss", "2*N*d*m_e"),
        # a number that others call otherwise is one of ours
        ("num_nextn_predict_layers*hidden_size", "type:deepseek_v3", "N_p*d"),
        # a table with two more rows than positions
        ("(max_position_embeddings + 2)*hidden_size", "type:opt", "P*d"),
    ],
)
def test_a_key_means_what_its_type_does_with_it(text: str, model: str, letters: str) -> None:
    assert str(metacount.check(text, model).theirs) == letters


# Of published sizes no config is at hand: the classes that read these sizes say what a key is;
# nothing is asked of a class where one size alone is meant.
OF_A_CLASS = [
    ("deepseek-v3", "intermediate_size", "m", "deepseek_v3"),
    ("glm-4.5", "intermediate_size", "m", "glm4_moe"),
    ("mamba2-1.3b", "num_heads", "h_s", "mamba2"),
    ("mamba2-1.3b", "chunk_size", "c_s", None),
    ("recurrentgemma-2b", "attention_window_size", "w", None),
    ("mixtral-8x7b", "intermediate_size", "m_e", None),
]


@pytest.mark.parametrize(("model", "key", "letter", "model_type"), OF_A_CLASS)
def test_a_key_of_the_models_own_class(
    model: str, key: str, letter: str, model_type: str | None
) -> None:
    spec = find_model(model).spec
    words = Vocabulary(spec, fitted(spec, Workload()), "params", name=model)
    assert str(words.meanings([key])[key]) == letter
    assert [note.rpartition(" ")[2] for note in words.notes] == [t for t in [model_type] if t]


def test_keys_of_a_config_that_is_no_model() -> None:
    assert ConfigKeys({}).whole == {}
    assert ConfigKeys({"model_type": "frobs", "n": 3}).fields == {}


# what a config calls a part of the structure; a model that has it; a model that has not
SWITCHES = [
    ("gated_mlp use_glu swiglu glu is_gated_act gated_ffn", "llama-7b", "gpt2"),
    ("use_rmsnorm rmsnorm use_rope use_rotary", "llama-7b", "gpt2"),
    ("use_bias add_bias_linear layer_norm_bias", "gpt2", "llama-7b"),
    ("alibi use_alibi", "bloom-176b", "llama-7b"),
    ("is_encoder_decoder has_encoder", "t5-small", "llama-7b"),
    ("is_moe use_moe", "mixtral-8x7b", "llama-7b"),
    ("use_mla multi_latent_attention", "deepseek-v3", "llama-7b"),
    ("add_pooling_layer has_pooler", "bert-base", "llama-7b"),
    ("use_sliding_window has_sliding_window", "mistral-7b", "llama-7b"),
    ("use_qk_norm qk_norm qk_layernorm", "qwen3-32b", "llama-7b"),
    ("final_layernorm use_final_norm", "llama-7b", "bert-base"),
    ("attention_sink", "gpt-oss-20b", "llama-7b"),
    ("tie_word_embeddings tied weight_tying share_embeddings", "gpt2", "llama-7b"),
    ("attention_bias qkv_bias out_bias o_proj_bias mlp_bias ffn_bias", "gpt2", "llama-7b"),
    ("parallel_attn use_parallel_residual", "palm-540b", "llama-7b"),
]
CHOSEN = {
    ("hidden_act", "llama-7b"): "silu",
    ("norm_type", "gpt2"): "layernorm",
    ("position_embedding_type", "gpt2"): "learned",
    ("layer_norm_epsilon", "gpt2"): 1e-5,
    ("lm_head_bias", "llama-7b"): False,
}


def test_structure_by_the_names_of_configs() -> None:
    for names, having, lacking in SWITCHES:
        for name in names.split():
            for model, has in ((having, True), (lacking, False)):
                (value,) = structure_of(entry(model).spec(), name) or (None,)
                assert value is not None and bool(value) is has, (name, model)
    for (name, model), value in CHOSEN.items():
        assert structure_of(entry(model).spec(), name) == (value,)
    assert structure_of(entry("gpt2").spec(), "no_such_name") is None
    # "none" is a choice of ours, and false where a switch is asked for
    (kind,) = structure_of(find_model("llama-7b").spec, "window_kind") or (None,)
    assert kind == "sliding" and kind
