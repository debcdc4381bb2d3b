"""Reading a formula: what is arithmetic is read exactly, all else is refused quickly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import sympy
from helpers import one_line
from helpers.release import daily, one_day_in, one_in

import metacount
from metacount import Workload, entry, find_model
from metacount.algebra.exact import in_letters, is_whole, is_zero, plain, value_at
from metacount.algebra.text import read as tree_of
from metacount.check.names import ConfigKeys, Vocabulary, structure_of
from metacount.errors import InputError
from metacount.huggingface.config.to_spec import mapped_types
from metacount.resolve import Model, find_any
from metacount.textbook.count import fitted

D, N, S = (sympy.Symbol(name, integer=True, positive=True) for name in "dNS")
LETTERS = {"d": D, "N": N, "S": S}


def parsed(text: str) -> Any:
    expr, _ = in_letters(tree_of(text).tree, LETTERS)
    return expr


def read(text: str, **numbers: int) -> Fraction:
    return value_at(parsed(text), {LETTERS[name]: n for name, n in numbers.items()})


# Texts at d = 7, N = 5, S = 3, by their value: a sign is of the power, as in Python; // is floored,
# not cut; a decimal is exact, no binary float comes near.
ARITHMETIC: dict[int | Fraction, list[str]] = {
    14: ["2 + 3*4"],
    -49: ["-d**2"],
    512: ["2**3**2"],
    3: ["d//2", "Mod(d, 4)"],
    -4: ["-d//2"],
    1: ["d%3", "d - N - 1"],
    2: ["-d%3"],
    7: ["floor(d/2) + ceil(d/2)", "max(d, N)", "(((d)))"],
    5: ["min(d, N, 6)"],
    8: ["round_up(d, 4)"],
    16: ["ceiling(d/2) + Min(d, N) + Max(d, N)"],
    34: ["N×d − 1"],
    49: ["d^2", "d²"],
    3535: ["N·d·(3 + 2·d²)"],
    7000: ["1e3*d", "1_000*d"],
    7001: ["d+" * 1000 + "1"],
    Fraction(7, 2): ["d/2"],
    Fraction(35, 2): ["2.5*d"],
    Fraction(7, 10): ["0.1*d"],
    Fraction(56, 3): ["8/3*d"],
    Fraction(1, 5): ["d / N / 7"],
    Fraction(1, 7): ["d**-1"],
}


@pytest.mark.parametrize("value", ARITHMETIC)
def test_arithmetic_is_exact(value: int | Fraction) -> None:
    for text in ARITHMETIC[value]:
        assert read(text, d=7, N=5, S=3) == value, text


# What is no formula, by what is said of it.
REFUSED = {
    "is empty": ["", "  "],
    "ends too early": ["d +"],
    "not closed": ["(d"],
    "out of place": ["()", "d)", "*d", "d,"],
    "indexing at column 2": ["d[0]"],
    "'if' at column 3": ["d if N else S"],
    "'lambda' at column 1": ["lambda"],
    "a text at column 12": ["__import__('os')"],
    "a call of 'eval'": ["eval(d)"],
    "a sign is missing before": ["2d", "d N"],
    "takes": ["min(d)", "floor(d, 2)"],
    "divides by zero": ["1/0", "d/(N - N)", "d//0", "d%0", "0**-1"],
    "power": ["d**17", "(d + N)**-1"],
    "exponent": ["d**N", "d**2.5"],
    "'ｄ' at column 1": ["ｄ"],
    r"'\\x00' at column 2": ["d\0"],
    r"'\\x1b' at column 2": ["d\x1b[31m"],
    "an attribute|an assignment": ["d.real", "d = 3"],
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_no_formula_is_named(said: str) -> None:
    for text in REFUSED[said]:
        with pytest.raises(InputError, match=said) as error:
            parsed(text)
        assert one_line(error.value).isprintable()


HOSTILE = [
    *("9**9**9**9", "2**100000*d", "1e999", "1e-999", "1" * 9000, "d" * 1_000_000),
    *("(" * n + "1" + ")" * n for n in (3000, 10_000)),
    *("-" * 9000 + "1", "-" * 2000 + "1", "d*" * 1000 + "d", "1+" * 4000 + "1"),
    *("((((d + N)**4 + S)**4 + 1)**4 + N)**4", "(d + N + S + 1)**16", "((d + 1)**16)**16"),
    *("d" + "//2" * 1000, "floor(" * 30 + "d" + ")" * 30, "min(d, " * 10 + "1" + ")" * 10),
    *("+".join(f"1/(d + {i})" for i in range(40)), "*".join(["9999999999"] * 100)),
    *("d" + "**2" * 500, "d" + "²" * 500),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(InputError):
        parsed(text)


def test_floors_that_change_nothing() -> None:
    assert plain(sympy.floor(S * (S - 1) / 2) - (S**2 - S) / 2) == 0
    assert is_whole(S * (S + 1) * (S + 2) / 6)
    assert not is_whole(S * (S + 1) / 3)
    # ⌊N/2⌋ + ⌊(N + 1)/2⌋ = N, by the remainders of N; ⌊N/2⌋ is N/2 for even N only
    assert is_zero(sympy.floor(N / 2) + sympy.floor((N + 1) / 2) - N) is True
    assert is_zero(sympy.floor(N / 2) - N / 2) is None
    assert is_zero(sympy.Min(N, S) - sympy.Min(S, N)) is True
    assert is_zero(N - S) is False


def test_what_is_zero_is_zero_at_sizes() -> None:
    """Sums of floors of N + a over k: what is said of all sizes, at the first 60.

    floor(N/k) + floor((N + 1)/k) + ... + floor((N + k - 1)/k) - N is 0.
    """
    for k in (2, 3, 5):
        floors = [sympy.floor((N + a) / k) for a in range(k)]
        assert is_zero(sympy.Add(*floors, -N)) is True
        for expr in (sympy.Add(*floors, 1 - N), floors[0] - floors[1], 2 * floors[0] - N):
            values = {value_at(expr, {N: n}) for n in range(1, 61)}
            assert values != {0} and is_zero(expr) in (False, None)


@pytest.mark.parametrize(
    ("text", "model", "quantity", "first"),
    [
        ("12*L*d^2", "gpt2", "params", "embedding left out"),
        # N the parameters, D the tokens: forward and backward, 2 FLOPs a multiply-add
        ("6*N*D", "llama3-8b", "matmul_flops", "a factor of 3: a forward and a backward, not"),
        ("6*P*D", "gpt2", "matmul_flops", "a factor of 3: a forward and a backward, not"),
        ("2*L*T*h_kv*h_d", "llama3-8b", "kv_cache_bytes", "values, not bytes"),
    ],
)
def test_the_letters_of_papers_on_scaling(text: str, model: str, quantity: str, first: str) -> None:
    result = metacount.check(text, model, quantity=quantity)
    assert result.terms[0].words.startswith(first)
    assert any(" is taken as " in note for note in result.notes)
    with pytest.raises(InputError, match="d_model, or batch_size"):  # a letter of two meanings
        metacount.check("12*L*D**2", "gpt2")


RUNS = {
    ("6*N*D", "llama-7b"): "train_matmul_flops",
    ("2*N*D", "llama-7b"): "causal_matmul_flops",
    ("2*n_layers*n_kv_heads*head_dim*2*seq_len", "llama-7b"): "kv_cache_bytes",
    ("6*N*D", "mamba-2.8b"): "train_matmul_flops",  # whose cache of keys is 0
    ("2*N*D", "bert-base"): "matmul_flops",  # which no loss trains
    ("S - S", "gpt2"): "params",  # which is near to nothing
    ("12*L*d^2 + 0*B*S*V", "gpt2"): "params",  # whose value no run changes
}


@pytest.mark.parametrize(("text", "model"), RUNS)
def test_a_text_of_a_run_is_taken_as_what_it_comes_nearest_to(text: str, model: str) -> None:
    judgement = metacount.check(text, model)
    assert judgement.quantity == RUNS[text, model]
    said = [note for note in judgement.notes if "comes nearest" in note]
    assert len(said) == (judgement.quantity != "params")
    assert metacount.check(text, model, quantity="params").quantity == "params"


def test_six_n_d_is_explained_part_by_part() -> None:
    spec, tokens = metacount.find_model("deepseek-v3").spec, 2048
    found = metacount.check("6*N*D", "deepseek-v3")
    d, moe = spec.d_model, spec.n_layers - spec.n_dense_layers
    width = spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim
    idle = 3 * d * spec.d_ff_expert * (spec.n_experts - spec.top_k) * moe
    norms = spec.n_layers * (2 * d + spec.q_lora_rank + spec.kv_lora_rank) + d
    assert [(term.value, term.known) for term in found.terms] == [
        (6 * tokens * idle, True),
        (-6 * spec.n_layers * tokens**2 * spec.n_heads * width, True),
        (6 * tokens * spec.vocab_size * d, True),
        (6 * tokens * norms, True),
    ]
    assert sum(term.value for term in found.terms) == found.theirs_value - found.ours_value


# ---- names of switches and of a config's own keys


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


# Of published sizes no config is at hand: the classes that read these sizes say what a key is, in a
# note; nothing is asked of a class where one size alone is meant.
MEANT = [
    ("2*num_hidden_layers*intermediate_size*hidden_size", "type:deepseek_v3", "2*N*d*m", ""),
    # where every layer has experts, the same key is an expert's width
    ("2*num_hidden_layers*intermediate_size*hidden_size", "type:gpt_oss", "2*N*d*m_e", ""),
    # a number that others call otherwise is one of ours
    ("num_nextn_predict_layers*hidden_size", "type:deepseek_v3", "N_p*d", ""),
    # a table with two more rows than positions
    ("(max_position_embeddings + 2)*hidden_size", "type:opt", "P*d", ""),
    ("intermediate_size", "deepseek-v3", "m", "deepseek_v3"),
    ("intermediate_size", "glm-4.5", "m", "glm4_moe"),
    ("num_heads", "mamba2-1.3b", "h_s", "mamba2"),
    ("chunk_size", "mamba2-1.3b", "c_s", ""),
    ("attention_window_size", "recurrentgemma-2b", "w", ""),
    ("intermediate_size", "mixtral-8x7b", "m_e", ""),
    # a letter of Megatron's papers that is a size of the model means that size
    ("h*s", "gshard-600b", "h*s", ""),
    ("a*h", "gemma-3n-e2b-text", "a*h", ""),
]


@pytest.mark.parametrize(("text", "model", "letters", "model_type"), MEANT)
def test_a_key_means_what_its_type_does_with_it(
    text: str, model: str, letters: str, model_type: str
) -> None:
    found = metacount.check(text, model, quantity="params")
    assert str(found.theirs) == letters
    if ":" not in model:
        assert [note.rpartition(" ")[2] for note in found.notes] == [t for t in [model_type] if t]


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
