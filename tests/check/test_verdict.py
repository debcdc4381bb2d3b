"""The four verdicts, names in many spellings, conditions and counterexamples."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import pytest
import sympy
from helpers.command_line import Ask
from helpers.miniatures import miniature
from helpers.release import daily, one_day_in

import metacount
from metacount import InputError, Workload, entry, find_model
from metacount.check.comparison import Truth
from metacount.check.parts import Letters, parts_of
from metacount.check.verdict import MIXERS, structure
from metacount.spec import ModelSpec
from metacount.spec.model import CHOICES
from metacount.textbook.closed_form import closed_form

LLAMA = (
    "2*vocab_size*d_model + d_model + n_layers*(2*d_model*head_dim*(n_heads + n_kv_heads)"
    " + 3*d_model*d_ff + 2*d_model)"
)


def test_equal_for_all_sizes() -> None:
    result = metacount.check(LLAMA, "llama-7b")
    assert (result.verdict, result.holds, result.difference) == ("equal", True, 0)
    assert result.theirs_value == result.ours_value == 6_738_415_616
    assert result.structure == (
        "decoder with multi-head or grouped attention, gated FFN, RMSNorm, untied head"
    )
    names = ("d_model", "n_layers", "vocab_size", "n_heads", "n_kv_heads", "head_dim", "d_ff")
    assert result.free == names
    assert result.terms == () and result.counterexample is None and result.condition is None


@pytest.mark.parametrize(
    "text",
    [
        "2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)",
        "2·V·d + d + N·(2·d·h_d·(h + h_kv) + 3·d·m + 2·d)",
        "2*vocab_size*hidden_size + hidden_size + num_hidden_layers*(2*hidden_size*head_dim*"
        "(num_attention_heads + num_key_value_heads) + 3*hidden_size*intermediate_size"
        " + 2*hidden_size)",
        "2*n_vocab*dim + dim + n_layer*(2*dim*d_head*(n_head + n_head_kv) + 3*dim*hidden_dim"
        " + 2*dim)",
    ],
)
def test_every_spelling_means_the_same(text: str) -> None:
    assert metacount.check(text, "llama3-8b").verdict == "equal"


def test_equal_here_with_its_condition_and_a_small_counterexample() -> None:
    # 4·d² for q, k, v and o holds where h·h_d = d and h_kv = h
    text = "2*V*d + d + N*(4*d**2 + 3*d*m + 2*d)"
    result = metacount.check(text, "llama-7b")
    assert (result.verdict, result.holds) == ("equal_here", False)
    assert result.condition == "n_heads·head_dim = d_model and n_heads = n_kv_heads"
    counter = result.counterexample
    assert counter is not None
    # RoPE wants an even head_dim; all else as small as it goes
    sizes = ["d_model", "n_layers", "vocab_size", "n_heads", "n_kv_heads", "d_ff"]
    assert counter.sizes == {**dict.fromkeys(sizes, 1), "head_dim": 2}
    # theirs 2 + 1 + (4 + 3 + 2) = 12, ours 2 + 1 + (2·2·(1 + 1) + 3 + 2) = 16
    assert (counter.theirs, counter.ours) == (12, 16)
    other = find_model("llama-7b").spec.replace(**counter.sizes)
    assert metacount.count(other, Workload()).params == 16


def test_equal_wherever_it_could_be_tried() -> None:
    # min(a, b) = a + b - max(a, b), which letters do not show
    text = "2*c*B*h_kv*h_d*N*(S + (w - 1) - max(S, w - 1))"
    result = metacount.check(text, "mistral-7b", quantity="kv_cache_bytes")
    assert (result.verdict, result.holds) == ("equal_where_tried", True)
    assert result.tried == result.planned > 500


def test_a_kind_of_layer_that_no_layer_is_of_yet() -> None:
    """Its number is 0, and is not divided by."""
    spec = miniature(entry("granite-4.0-h-small").spec())
    assert "A" not in spec.mixer_pattern[: spec.n_layers]
    form = closed_form(spec, Workload(), "active_params")
    assert metacount.check(sum(form.parts.values()), spec, quantity="active_params").holds
    wrong = metacount.check(sum(form.parts.values()) - 1, spec, quantity="active_params")
    assert (wrong.verdict, wrong.difference) == ("wrong", -1)


@one_day_in(4)
def test_a_number_and_an_expression_of_sympy() -> None:
    exact = metacount.check("6738415616", "llama-7b")
    assert exact.verdict == "equal_here"
    assert metacount.check(6738415616, "llama-7b").verdict == "equal_here"
    d, n, v, m, h, k, w = sympy.symbols(
        "d_model n_layers vocab_size d_ff n_heads n_kv_heads head_dim"
    )
    expr = 2 * v * d + d + n * (2 * d * w * (h + k) + 3 * d * m + 2 * d)
    assert metacount.check(expr, "llama-7b").verdict == "equal"
    assert metacount.check(Fraction(1, 3), "llama-7b").verdict == "wrong"


def test_a_spec_or_a_model_will_do() -> None:
    spec = entry("llama-7b").spec()
    assert metacount.check(LLAMA, spec).model == "the model"
    assert metacount.check(LLAMA, find_model("llama-7b", ["d_ff=17"])).verdict == "equal"


@pytest.mark.parametrize(
    ("text", "model", "said"),
    [
        ("n_layer_s*d", "llama-7b", "'n_layer_s'"),
        ("n_experts*d", "llama-7b", "n_experts"),
        ("d_ff*d", "mixtral-8x7b", "d_ff"),
        ("head_dim", "deepseek-v3", "head_dim"),
        ("intermediate_size", "jamba-1.5-mini", "d_ff"),
        ("n_windowed_layers", "llama-7b", "llama-7b"),
        ("d", "llama4-scout", ""),
        ("d", "no-such-model", ""),
    ],
)
def test_what_cannot_be_judged_is_an_input_error(text: str, model: str, said: str) -> None:
    with pytest.raises((InputError, metacount.SpecError), match=said or None):
        metacount.check(text, model)


def test_an_unknown_quantity_and_a_wrong_kind_of_formula() -> None:
    with pytest.raises(InputError, match="'flops'"):
        metacount.check("d", "llama-7b", quantity="flops")
    with pytest.raises(InputError):
        metacount.check(None, "llama-7b")


@pytest.mark.parametrize(
    ("text", "model", "value"),
    [
        # moe_intermediate_size is d_ff_expert, so intermediate_size is d_ff: 61·(2048 - 18432)
        ("n_layers*(moe_intermediate_size - intermediate_size)", "deepseek-v3", -999_424),
        # hidden_dim is the FFN's beside dim
        ("dim*hidden_dim", "llama-7b", 4096 * 11008),
        # structure stands as a number: no shared experts, no dense layers, every layer MoE
        ("n_shared_experts + n_dense_layers + moe_every", "mixtral-8x7b", 1),
        # the shared expert of DeepSeek-V3 is as wide as a routed one
        ("d_ff_shared", "deepseek-v3", 2048),
    ],
)
def test_a_spelling_takes_what_the_others_leave(text: str, model: str, value: int) -> None:
    assert metacount.check(text, model).theirs_value == value


QUANTITIES = ("params", "active_params", "matmul_flops", "causal_matmul_flops")
QUANTITIES += ("decode_matmul_flops", "kv_cache_bytes")
KINDS = (
    *("llama3-8b", "gpt2", "deepseek-v3", "gemma3-27b-text", "t5-small", "switch-base-8"),
    *("gopher-280b", "bert-base", "pangu-alpha-207b", "gpt-oss-20b", "llama4-scout-text"),
    *("olmo2-7b", "deepseek-moe-16b", "glm-130b", "zamba2-1.2b", "zamba2-7b"),
)


def assert_parts_sum(spec: ModelSpec) -> None:
    prefix = 16 if spec.kind == "prefix-decoder" else 0
    workload = Workload(
        batch_size=3, seq_len=100, prefix_len=prefix, source_len=70 if spec.has_encoder else None
    )
    letters = Letters(spec, workload)
    for quantity in QUANTITIES:
        if spec.kind == "encoder" and quantity == "decode_matmul_flops":
            continue
        truth = Truth(spec, workload, quantity)
        total = sympy.Add(*(part.total for part in parts_of(letters, quantity)))
        assert sympy.expand(total - truth.expr) == 0, quantity


# what no model of the catalog has, or not together
BIASES = dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias"), True)
ALL_BIASES = {"ffn_bias": True, "expert_bias": True}
SHARED = {"n_shared_experts": 2, "d_ff_shared": 999, "shared_expert_gate": True}
NORM = {"norm": "layernorm", "norm_bias": True}
VARIANTS = [
    ("deepseek-v3", {"mla_bias": True}),
    ("deepseek-v3", {"mla_bias": True, "q_lora_rank": None}),
    ("deepseek-v3", {**ALL_BIASES, "router_bias": True}),
    ("mixtral-8x7b", {**SHARED, "ffn_bias": True}),
    ("mixtral-8x7b", {**ALL_BIASES, "n_dense_layers": 3, "d_ff": 1111}),
    ("llama-7b", {**BIASES, "attention_sinks": True, "head_bias": True, "ffn_bias": True}),
    ("llama-7b", {**NORM, "embedding_norm": True, "first_norm": False, "qk_norm": "head"}),
    ("llama-7b", {"norm_affine": False, "embedding_norm": True, "qk_norm": "full"}),
    ("t5-small", {**BIASES, **NORM, "ffn_bias": True}),
    ("gpt2", {"gated": True, "tie_embeddings": False, "final_norm": False}),
]


@daily(19)
@pytest.mark.parametrize(("model", "changes"), [*((kind, {}) for kind in KINDS), *VARIANTS])
def test_the_parts_of_a_model_sum_to_its_count(model: str, changes: dict[str, object]) -> None:
    assert_parts_sum(entry(model).spec().replace(**changes))


def test_every_mixer_has_words() -> None:
    assert {"none", *MIXERS} == set(CHOICES["recurrent"])


STATES = {
    "mamba2-130m": "Mamba-2, no FFN, RMSNorm, tied head",
    "jamba-1.5-mini": "Mamba in the layers R of RRRRARRR, multi-head or grouped attention, "
    "gated experts in the layers E of FE, RMSNorm, untied head",
    "falcon-h1-7b": "Mamba-2 beside attention in every layer, multi-head or grouped attention, "
    "gated FFN, RMSNorm, untied head",
    "minimax-m3-text": "multi-head or grouped attention that attends to the blocks an indexer "
    "selects in the layers I of GGGIIIIIIIIIIIII..., QK-norm, gated experts and shared experts "
    "after dense layers, RMSNorm, untied head",
    "longcat-flash": "MLA, gated FFN and beside it gated experts and zero experts in the layers B "
    "of BF, RMSNorm, untied head",
    "zamba2-1.2b": "Mamba-2, behind shared blocks in the layers S of RRRRRS, multi-head or grouped "
    "attention, gated FFN, adapters of each use on q, k, v and the FFN, RMSNorm, tied head",
    "deepseek-v3.2": "MLA that attends to the pairs an indexer selects, gated experts and shared "
    "experts after dense layers, RMSNorm, untied head",
}


@pytest.mark.parametrize("model", STATES)
def test_states_and_patterns_are_said(model: str) -> None:
    assert structure(find_model(model).spec) == f"decoder with {STATES[model]}"


# ---- the command: exit codes, text and JSON


SHORT = "2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)"
ROUTED = SHORT.replace("3*d*m", "d*k + 3*k*d*m_e")
# A formula, a model and options; the exit code and what is printed, its start first.
PRINTED = {
    f"'{SHORT}' llama-7b": (
        *(0, "equal for all sizes (d_model, n_layers, vocab_size, n_heads, n_kv_heads, head_dim, "),
        "= 6,738,415,616",
    ),
    f"'{ROUTED}' mixtral-8x7b --quantity active_params": (
        *(1, "wrong: short by 786,432 (-0.0061 %) "),
        "short by n_layers·d_model·(n_experts - top_k) = 786,432: the router is counted for the "
        "active experts only",
    ),
    f"'{SHORT.replace('2*d*h_d*(h + h_kv)', '4*d^2')}' llama-7b": (
        *(1, "equal at these sizes, but not in general "),
        "n_heads·head_dim = d_model and n_heads = n_kv_heads",
        *("the formula gives 12", "^ is read as a power"),
    ),
}


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("line", PRINTED)
def test_what_is_printed(ask: Ask, line: str, width: int) -> None:
    expected, start, *said = PRINTED[line]
    code, out, err = ask.all(f"check {line}", width=width)
    text = "".join(out.split())  # a narrow screen breaks a line between the letters of a product
    assert (code, err) == (expected, "") and text.startswith(str(start).replace(" ", ""))
    assert [words for words in said if str(words).replace(" ", "") not in text] == []
    assert [row for row in out.splitlines() if len(row) > width] == []


def test_json_says_the_same(ask: Ask) -> None:
    code, out, _ = ask.all(f"check '{SHORT.replace('3*d*m', '2*d*m')}' llama-7b --json")
    data = json.loads(out)
    assert (code, data["verdict"], data["holds"]) == (1, "wrong", False)
    assert (data["model"], data["quantity"]) == ("llama-7b", "params")
    assert data["ours_value"] == 6_738_415_616
    gap = -32 * 4096 * 11008
    words = "one of FFN gate_proj, up_proj and down_proj left out"
    assert data["difference_value"] == gap
    assert data["terms"] == [{"expr": "-N*d*m", "value": gap, "words": words, "known": True}]


NO_FORMULA = """
L[0] llama-7b                      indexing at column 2
d*frobs llama-7b                   'frobs' is no size
d llama-7b --quantity flops        --quantity 'flops' is unknown; did you mean
mine.py llama-7b                   which function? give FILE.py:FUNCTION
none.py:f llama-7b                 no such file
1/(d-4096) llama-7b                divides by zero at the sizes of the model
(d-4096)**-1 llama-7b              divides by zero at the sizes of the model
d llama-7b --timeout 0             must be seconds, more than 0
d llama-7b --timeout nan           must be seconds, more than 0
d llama4-maverick                  has no spec, so there is no formula
d no-such-model                    is not in the catalog
d type:zamba                       has no spec, so there is no formula
"""


@pytest.mark.parametrize("row", NO_FORMULA.strip().splitlines())
def test_no_formula_is_exit_2(ask: Ask, row: str) -> None:
    line, said = re.split(" {2,}", row)
    assert said in ask.refused(f"check {line}")
