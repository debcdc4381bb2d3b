"""The legend: complete, without two meanings for a letter, and light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from metacount.errors import SpecError
from metacount.spec import FIELDS, LIMITS, Workload, legend

# Spellings that mean different things in different code: each must list all of ours.
AMBIGUOUS = {
    "hidden_dim": ("d_model", "d_ff"),  # Keras; Mistral's own code
    "num_layers": ("n_layers", "n_encoder_layers"),  # T5 counts its encoder
    "intermediate_size": ("d_ff", "d_ff_expert"),  # Mixtral, gpt-oss and Llama 4 mean an expert
    "ffn_hidden_size": ("d_ff", "d_ff_expert"),  # DBRX means an expert
}


def test_every_size_of_a_model_and_a_workload_is_in_the_legend() -> None:
    assert {term.name for term in legend.MODEL_TERMS} == set(LIMITS)
    workload = set(Workload.__annotations__) - {"dtype"} | {"kv_len"}
    assert {term.name for term in legend.WORKLOAD_TERMS} == workload


def test_the_order_is_of_sizes_each_once() -> None:
    assert set(legend.ORDER) <= set(LIMITS)
    assert [t.name for t in legend.MODEL_TERMS][: len(legend.ORDER)] == list(legend.ORDER)


def test_what_others_call_what_is_no_size() -> None:
    """Keys of transformers' configs, of Llama's, Megatron-LM's and nanoGPT's code."""
    called = {
        "tie_word_embeddings": "tie_embeddings",
        "attention_qkv_bias": "q_bias",
        "mlp_bias": "ffn_bias",
        "lm_head_bias": "head_bias",
        "hidden_act": "activation",
        "activation_function": "activation",
        "swiglu": "gated",
        "is_gated_act": "gated",
        "rms_norm_eps": "norm_eps",
        "layer_norm_epsilon": "norm_eps",
        "normalization": "norm",
        "position_embedding_type": "position",
        "add_pooling_layer": "pooler",
    }
    fields = {word: field for field, words in legend.SWITCHES.items() for word in words}
    assert {word: fields[word] for word in called} == called
    assert set(legend.SWITCHES) <= set(FIELDS) - set(LIMITS)
    assert len(fields) == sum(map(len, legend.SWITCHES.values()))


def test_letters_are_all_distinct() -> None:
    letters = [term.letter for term in legend.TERMS]
    assert len(set(letters)) == len(letters) == 73


def test_every_line_says_what_it_means() -> None:
    for term in legend.TERMS:
        assert term.meaning and term.unit, term.name


def test_no_foreign_spelling_is_one_of_our_names() -> None:
    names = {term.name for term in legend.TERMS}
    for term in legend.TERMS:
        assert not names & set(term.elsewhere), term.name
        assert len(set(term.elsewhere)) == len(term.elsewhere), term.name


def test_a_spelling_is_ours_unambiguously_or_lists_its_candidates() -> None:
    spellings = {s for term in legend.TERMS for s in term.elsewhere}
    several = {s: legend.ours(s) for s in spellings if len(legend.ours(s)) > 1}
    assert several == AMBIGUOUS


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("llama", {"hidden_size": "d_model", "num_hidden_layers": "n_layers",
                   "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads"}),
        ("gpt2", {"n_embd": "d_model", "n_layer": "n_layers", "n_head": "n_heads",
                  "n_inner": "d_ff", "n_positions": "n_positions", "n_ctx": "n_positions"}),
        ("t5", {"d_kv": "head_dim", "num_heads": "n_heads", "num_decoder_layers": "n_layers",
                "relative_attention_num_buckets": "n_buckets",
                "relative_attention_max_distance": "max_distance"}),
        ("bert", {"type_vocab_size": "n_token_types", "max_position_embeddings": "n_positions"}),
        ("opt", {"ffn_dim": "d_ff"}),
        ("falcon", {"num_kv_heads": "n_kv_heads", "n_head_kv": "n_kv_heads"}),
        ("mistral", {"sliding_window": "window"}),
        ("mixtral", {"num_local_experts": "n_experts", "num_experts_per_tok": "top_k"}),
        ("qwen2_moe", {"num_experts": "n_experts", "moe_intermediate_size": "d_ff_expert",
                       "shared_expert_intermediate_size": "d_ff_shared",
                       "decoder_sparse_step": "moe_every"}),
        ("deepseek_v3", {"n_routed_experts": "n_experts", "first_k_dense_replace": "n_dense_layers",
                         "n_group": "n_groups", "topk_group": "top_groups",
                         "kv_lora_rank": "kv_lora_rank"}),
        ("llama4", {"interleave_moe_layer_step": "moe_every", "intermediate_size_mlp": "d_ff",
                    "attention_chunk_size": "window", "no_rope_layer_interval": "nope_every"}),
        ("gguf", {"embedding_length": "d_model", "block_count": "n_layers",
                  "feed_forward_length": "d_ff", "expert_count": "n_experts"}),
        ("megatron", {"num_query_groups": "n_kv_heads", "kv_channels": "head_dim",
                      "moe_router_topk": "top_k", "padded_vocab_size": "vocab_size"}),
    ],
)  # fmt: skip
def test_the_keys_of_well_known_families(family: str, keys: dict[str, str]) -> None:
    assert {key: legend.ours(key) for key in keys} == {k: (v,) for k, v in keys.items()}


def test_an_unknown_name_says_what_it_is_called_here() -> None:
    with pytest.raises(SpecError, match=r"'num_experts'; here it is n_experts$"):
        legend.by_name("num_experts")
    with pytest.raises(SpecError, match="d_model"):
        legend.by_name("hidden_dim")
    with pytest.raises(SpecError, match=r"did you mean .*n_heads"):
        legend.by_name("n_haeds")
    with pytest.raises(SpecError, match="choose one of d_model, n_layers"):
        legend.by_name("")


def test_symbols_are_positive_integers_in_our_letters() -> None:
    import sympy  # type: ignore[import-untyped]

    found = legend.sympy_symbols(term.name for term in legend.TERMS)
    assert [str(s) for s in found.values()] == [term.letter for term in legend.TERMS]
    assert all(s.is_Symbol and s.is_integer and s.is_positive for s in found.values())
    assert found["n_experts"] == sympy.Symbol("E", integer=True, positive=True)
    with pytest.raises(SpecError):
        legend.sympy_symbols(["hidden_size"])


@pytest.mark.parametrize(
    "module", ["metacount.spec.legend", "metacount.catalog", "metacount.units"]
)
def test_the_import_is_light(module: str) -> None:
    heavy = "{'sympy', 'numpy', 'torch', 'transformers', 'importlib.resources'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_that_test_can_fail() -> None:
    code = "import sys, sympy; print(sorted({'sympy', 'torch'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['sympy']"
