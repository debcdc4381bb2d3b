"""The mapping of a config.json: which class, which values. No transformers needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from helpers import one_line
from hypothesis import given
from hypothesis import strategies as st

from metacount.huggingface.config.experts import moe_layout
from metacount.huggingface.config.keys import words
from metacount.huggingface.config.parts import shortest_period
from metacount.huggingface.config.to_spec import (
    Mapped,
    UnmappedClass,
    mapped_types,
    spec_from_config,
)

ASKED = words(
    "llama mistral ministral3 qwen2 qwen3 phi3 gemma gemma2 gemma3_text olmo olmo2 cohere cohere2 "
    "granite glm glm4 starcoder2 stablelm smollm3 seed_oss internlm3 helium gpt2 gpt_neo gpt_neox "
    "gptj codegen opt bloom falcon mpt phi xglm biogpt persimmon mixtral qwen2_moe qwen3_moe olmoe "
    "phimoe granitemoe gpt_oss minimax_m2 glm4_moe deepseek_v2 deepseek_v3 minicpm3 llama4_text t5 "
    "switch_transformers bart bert roberta electra modernbert qwen3_next qwen3_5_text "
    "qwen3_5_moe_text olmo_hybrid minimax kimi_linear "
    "arcee bamba camembert cwm deepseek_v32 dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe "
    "falcon_h1 falcon_mamba flex_olmo glm4_moe_lite gpt_bigcode granite_swa granitemoe_swa "
    "granitemoehybrid granitemoeshared hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax "
    "iquestcoder jais2 jamba kolibri1 lfm2 lfm2_moe mamba mamba2 mbart mellum ministral mt5 "
    "nanochat nemotron nemotron_h olmo3 plbart recurrent_gemma solar_open vaultgemma xlm-roberta "
    "glm_moe_dsa youtu zamba2 longcat_flash minimax_m3_vl_text gemma3n_text xlstm"
)


def mapped(model_type: str, **keys: Any) -> Mapped:
    return spec_from_config({"model_type": model_type, **keys})


def test_every_type_asked_for_is_mapped() -> None:
    assert set(ASKED) == set(mapped_types())
    assert len(ASKED) == 112


def test_mapping_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from metacount.huggingface.config.to_spec import mapped_types, spec_from_config\n"
        "for name in mapped_types():\n"
        "    try: spec_from_config({'model_type': name})\n"
        "    except ValueError: pass\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'dataclasses') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# ---- the class ----


def test_the_class_that_architectures_names() -> None:
    found = mapped("llama", architectures=["LlamaModel"])
    assert found.class_name == "LlamaModel"
    assert found.notes == ("LlamaModel (named by architectures)",)
    assert not found.spec.has_head and not found.spec.tie_embeddings


def test_without_architectures_the_causal_class() -> None:
    found = mapped("bert")
    assert found.class_name == "BertLMHeadModel"
    assert found.notes == ("BertLMHeadModel (the causal-LM class of its type)",)
    assert found.spec.kind == "encoder"  # is_decoder is false
    assert mapped("t5").notes[0] == "T5ForConditionalGeneration (the seq2seq class of its type)"
    assert (
        mapped("modernbert").notes[0] == "ModernBertForMaskedLM (the masked-LM class of its type)"
    )


def test_an_empty_list_of_architectures_names_none() -> None:
    assert mapped("llama", architectures=[]) == mapped("llama", architectures=None)


def test_a_base_class_has_no_head_and_bert_a_pooler() -> None:
    spec = mapped("bert", architectures=["BertModel"]).spec
    assert (spec.has_head, spec.pooler, spec.head_transform) == (False, True, False)
    spec = mapped("gemma2", architectures=["Gemma2Model"]).spec
    assert (spec.has_head, spec.logit_softcap, spec.attention_softcap) == (False, None, 50.0)


def test_t5_encoder_alone_is_an_encoder() -> None:
    spec = mapped("t5", architectures=["T5EncoderModel"], num_layers=3, num_decoder_layers=5).spec
    assert (spec.kind, spec.n_layers, spec.n_encoder_layers) == ("encoder", 3, 0)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("llama", "LlamaForSequenceClassification"),
        ("bert", "BertForPreTraining"),
        ("electra", "ElectraForPreTraining"),
        ("bart", "BartForCausalLM"),
        ("llama", "Qwen2Model"),
    ],
)
def test_a_class_without_a_spec_is_named(model_type: str, name: str) -> None:
    with pytest.raises(UnmappedClass, match=name):
        mapped(model_type, architectures=[name])


def test_bart_needs_architectures() -> None:
    with pytest.raises(UnmappedClass) as refused:
        mapped("bart")
    assert "architectures" in one_line(refused.value)


def test_remote_code_is_not_run_and_language_models_are_taken_for_our_own() -> None:
    remote = {"auto_map": {"AutoModel": "modeling.X"}}
    found = mapped("internlm3", architectures=["InternLM3ForCausalLM"], **remote)
    assert found.class_name == "LlamaForCausalLM"
    assert "remote code, which is not run" in found.notes[0]
    with pytest.raises(UnmappedClass, match="InternLM3ForReward"):
        mapped("internlm3", architectures=["InternLM3ForReward"], **remote)


# ---- values ----


def test_activations() -> None:
    assert mapped("phi", hidden_act="gelu_new").spec.activation == "gelu_tanh"
    assert mapped("phi", hidden_act="gelu").spec.activation == "gelu"
    quick = mapped("phi", hidden_act="quick_gelu").spec
    assert (quick.activation, quick.swish_beta) == ("silu", 1.702)
    assert mapped("gemma", hidden_act="gelu").spec.activation == "gelu_tanh"
    gated = mapped("t5", feed_forward_proj="gated-gelu").spec
    assert (gated.activation, gated.gated) == ("gelu_tanh", True)
    plain = mapped("t5", feed_forward_proj="gelu").spec
    assert (plain.activation, plain.gated) == ("gelu", False)


def test_rope_stands_in_an_object_or_beside_it() -> None:
    for keys in (
        {"rope_theta": 7.0},
        {"rope_parameters": {"rope_theta": 7.0}},
        {"rope_theta": 9.0, "rope_parameters": {"rope_theta": 7.0}},
        {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ):
        assert mapped("llama", **keys).spec.rope_theta == 7.0
    assert mapped("glm", head_dim=64).spec.rotary_dim == 32
    quarter = {"partial_rotary_factor": 0.25, "rope_theta": 5.0}
    assert mapped("glm", head_dim=64, rope_parameters=quarter).spec.rotary_dim == 16
    assert mapped("phi3").spec.rotary_dim is None
    assert mapped("gpt_neox", rotary_pct=1.0, rotary_emb_base=5).spec.rope_theta == 5.0
    assert mapped("minimax_m2", rotary_dim=64).spec.rotary_dim == 64


def test_gemma3_has_a_base_of_its_own_in_windows() -> None:
    spec = mapped("gemma3_text", rope_local_base_freq=123.0, rope_theta=456.0).spec
    assert (spec.rope_theta, spec.rope_theta_windowed) == (456.0, 123.0)
    everywhere = mapped("gemma3_text", layer_types=["full_attention"] * 26).spec
    assert (everywhere.window, everywhere.rope_theta_windowed) == (None, None)


def test_scales() -> None:
    spec = mapped(
        "granite",
        logits_scaling=8.0,
        residual_multiplier=0.22,
        embedding_multiplier=12.0,
        attention_multiplier=0.0078125,
    ).spec
    assert (spec.logit_scale, spec.residual_scale) == (0.125, 0.22)
    assert (spec.embedding_scale, spec.attention_scale) == (12.0, 0.0078125)
    spec = mapped("minicpm3").spec
    assert (spec.logit_scale, spec.residual_scale) == (0.1, 1.4 / 62**0.5)
    assert mapped("t5", d_model=256).spec.logit_scale == 0.0625  # 256^-1/2
    assert mapped("t5", scale_decoder_outputs=False).spec.logit_scale == 1.0
    assert mapped("gpt_neo").spec.attention_scale == 1.0
    assert mapped("gpt2", scale_attn_weights=False).spec.attention_scale == 1.0


def test_an_untied_t5_is_said_to_be_tied_in_transformers() -> None:
    found = mapped("t5", tie_word_embeddings=False)
    assert found.spec.tie_embeddings and found.spec.logit_scale == 1.0
    assert "checkpoints hold a head of their own" in found.notes[1]


@pytest.mark.parametrize(("eps", "inside"), [(1e-5, 1e-6), (1e-6, None)])
def test_the_norm_inside_lightning_attention(eps: float, inside: float | None) -> None:
    """MiniMax's code makes it without the config's rms_norm_eps: by its default, 1e-6."""
    spec = spec_from_config({"model_type": "minimax", "rms_norm_eps": eps}).spec
    assert (spec.norm_eps, spec.linear_norm_eps) == (eps, inside)


def test_windows() -> None:
    mistral = mapped("mistral", sliding_window=4096).spec
    assert (mistral.window, mistral.window_pattern) == (4096, "L")
    assert mapped("mistral", sliding_window=None).spec.window is None
    assert mapped("gemma3_text").spec.window_pattern == "LLLLLG"
    assert mapped("gemma3_text", sliding_window_pattern=3).spec.window_pattern == "LLG"
    upper = mapped("qwen2", num_hidden_layers=3, use_sliding_window=True, max_window_layers=2).spec
    assert (upper.window, upper.window_pattern) == (4096, "GGL")
    chunked = mapped("llama4_text").spec
    assert (chunked.window, chunked.window_kind, chunked.window_pattern) == (
        8192,
        "chunked",
        "LLLG",
    )
    assert mapped("modernbert").spec.window_pattern == "GLL"
    assert mapped("cohere2").spec.nope_every == 4


def test_layers_with_experts() -> None:
    spec = mapped("qwen3_moe", decoder_sparse_step=2).spec
    assert (spec.n_dense_layers, spec.moe_every, spec.d_ff) == (0, 2, 6144)
    spec = mapped("qwen3_moe", mlp_only_layers=[0, 1, 2]).spec
    assert (spec.n_dense_layers, spec.moe_every) == (3, 1)
    assert mapped("qwen3_moe").spec.d_ff is None
    spec = mapped("qwen3_moe", mlp_only_layers=list(range(24))).spec
    assert (spec.is_moe, spec.d_ff) == (False, 6144)
    spec = mapped("deepseek_v3", first_k_dense_replace=99).spec
    assert (spec.is_moe, spec.d_ff) == (False, 18432)
    spec = mapped("llama4_text", moe_layers=[1, 3], num_hidden_layers=4).spec
    assert (spec.n_dense_layers, spec.moe_every) == (0, 2)


def test_one_group_is_no_limit() -> None:
    assert mapped("glm4_moe", head_dim=128).spec.n_groups is None
    spec = mapped("deepseek_v3").spec
    assert (spec.n_groups, spec.top_groups, spec.group_score) == (8, 4, "top2_sum")
    two = mapped(
        "deepseek_v2",
        num_experts_per_tok=6,
        topk_method="group_limited_greedy",
        n_group=8,
        topk_group=3,
    ).spec
    assert (two.n_groups, two.top_groups, two.group_score) == (8, 3, "max")


# ---- the two searches ----


@given(st.text("LG", min_size=1, max_size=40))
def test_the_period_repeats_to_the_whole_and_is_the_shortest(letters: str) -> None:
    period = shortest_period(letters)
    n = len(letters)
    assert (period * n)[:n] == letters
    assert all((letters[:p] * n)[:n] != letters for p in range(1, len(period)))


@given(st.integers(0, 6), st.integers(1, 5), st.integers(1, 12))
def test_a_regular_layout_is_found(first: int, every: int, n_layers: int) -> None:
    stack = [i >= first and (i + 1) % every == 0 for i in range(n_layers)]
    keys: Any = None  # only an irregular layout asks for it
    layout = moe_layout(keys, "moe_layers", [stack])
    if not any(stack):
        assert layout is None
    else:
        assert layout is not None
        n_dense, step = layout["n_dense_layers"], layout["moe_every"]
        assert stack == [i >= n_dense and (i + 1) % step == 0 for i in range(n_layers)]
