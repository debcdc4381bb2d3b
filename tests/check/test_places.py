"""Where a formula turns, it is tried: on both sides of its numbers, and at published sizes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import sympy
from helpers.release import daily, one_in

import metacount
from metacount import Workload, check, find_model
from metacount.algebra.text import in_letters
from metacount.check.sizes import free_sizes, places, random_cases, sizes_of
from metacount.cli.formula import textbook
from metacount.spec import ModelSpec
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import fitted

LLAMA = "2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)"
CACHE = "2*c*B*h_kv*h_d*N*"
T5 = "V*d + 2*b*h + 2*d*h_d*(2*N + N_e)*(h + h_kv) + 2*d*m*(N + N_e) + d*(3*N + 2*N_e + 2)"

QWEN3 = (
    "n_layers*(2*d_model + 3*d_model*d_ff + 2*n_heads*head_dim*d_model"
    " + 2*n_kv_heads*head_dim*d_model + 2*head_dim) + d_model*(2*vocab_size+1)"
)
GPT2 = "V*d + N*(4*d*h*h_d + 8*d**2 + 13*d) + P*d + 2*d"
GEMMA = "2*c*B*h_kv*h_d*((N - N//6)*(w - 1) + N//6*S)"
# Formulas that are right at the model's sizes, by what must hold: what turns them.
WRONG = {
    (f"{LLAMA} + max(0, d - 5000)", "llama-7b"): "0 ≥ d_model - 5000",
    (LLAMA.replace("3*d", "3*min(d, 8192)"), "llama-7b"): "d_model ≤ 8192",
    (f"{LLAMA} + max(0, 2*d - 10001)", "llama-7b"): "0 ≥ 2·d_model - 10001",
    (f"{LLAMA} + max(0, d*m - 10**12)", "llama-7b"): "0 ≥ d_model·d_ff - 1000000000000",
    (f"{LLAMA} + max(0, V - 3*d - 400000)", "llama-7b"): "0 ≥ vocab_size - 3·d_model - 400000",
    (f"{LLAMA} + d//100000", "llama-7b"): "d_model < 100000",
    (f"{LLAMA} + ceil(m/70001) - 1", "llama-7b"): "d_ff ≤ 70001",
    (f"{LLAMA} + floor(S/10**7)", "llama-7b"): "seq_len < 10000000",
    (f"{LLAMA} + min(0, 100 - B)", "llama-7b"): "0 ≤ 100 - batch_size",
    (f"{LLAMA} + max(0, d - 60000)*max(0, N - 1000)", "llama-7b"): "0 ≥ n_layers - 1000",
    (T5.replace("b*", "(b//4*4)*"), "t5-small"): "n_buckets/4 is whole",
    (T5.replace("b*", "min(b, 40)*"), "t5-small"): "n_buckets ≤ 40",
    (f"{T5} + max(0, S_e - 100000)", "t5-small"): "0 ≥ source_len - 100000",
    (CACHE + "min(S, 4096)", "llama-7b"): "seq_len ≤ 4096",
    (CACHE + "min(T, 4096)", "llama-7b"): "seq_len ≤ 4096",
    (CACHE + "max(S, min(B - 7000, S + 1))", "llama-7b"): "seq_len ≥ min(batch_size - 7000, "
    "seq_len + 1)",
    (CACHE + "min(S, 4095)", "mistral-7b"): "window = 4096",
    (GPT2, "gpt2"): "d_ff = 4·d_model and n_heads = n_kv_heads and n_heads·head_dim = d_model",
    ("2*N*h_kv*h_d*S*2", "llama3-8b"): "batch_size = 1 and bytes_per_value = 2",
    ("2*N*h_kv*128*S*B*c", "llama3-8b"): "head_dim = 128",
    (GEMMA, "gemma3-27b-text"): "window - 1 ≤ seq_len",
}
# Formulas that are right everywhere, by the rule of sizes that decides.
EQUAL = {
    (LLAMA, "llama-7b"): None,
    (f"{LLAMA} + 1/(d + N) - 1/(d + N)", "llama-7b"): None,  # a sum of sizes is never 0
    (LLAMA.replace("h_d", "(h_d//2*2)"), "llama-7b"): "head_dim is a multiple of 2",
    (T5, "t5-small"): None,
    (QWEN3, "qwen3-32b"): None,  # as somebody published it
    (f"{CACHE}S", "llama-7b"): None,
    ("B*S*c*N*2*(h//(h//h_kv))*h_d", "llama3-8b"): "n_heads is a multiple of n_kv_heads",
    ("B*S*c*N*(d_c + d_r//2*2)", "deepseek-v3"): "qk_rope_head_dim is a multiple of 2",
    # the windowed layers are all but every sixth
    (GEMMA.replace("(w - 1)", "min(S, w - 1)"), "gemma3-27b-text"): None,
    (
        "2*c*B*h_kv*h_d*(n_windowed_layers*min(S, w - 1) + (N - n_windowed_layers)*S)",
        "gemma3-27b-text",
    ): None,
}


def judged(text: str, model: str) -> metacount.Judgement:
    quantity = "kv_cache_bytes" if "c*" in text or "S*2" in text else "params"
    return metacount.check(text, model, quantity=quantity, timeout=60)


@daily(8)
@pytest.mark.parametrize(("text", "model"), one_in(3, [*WRONG, *EQUAL]))
def test_it_is_refuted_where_it_turns_and_else_equal(text: str, model: str) -> None:
    result, where = judged(text, model), {**WRONG, **EQUAL}[text, model]
    parts = [sorted(words.split(" and ")) for words in (result.condition or "", where or "")]
    assert parts[0] == parts[1]
    assert result.verdict == ("equal_here" if (text, model) in WRONG else "equal")
    counter = result.counterexample
    assert counter is None if (text, model) in EQUAL else counter.theirs != counter.ours


def test_a_division_by_what_may_be_zero_is_not_equal_for_all_sizes() -> None:
    result = metacount.check(f"{LLAMA} + 1/(d - N) - 1/(d - N)", "llama-7b")
    assert (result.verdict, result.tried < result.planned) == ("equal_where_tried", True)
    assert any("which may be 0" in note for note in result.notes)


def test_where_it_is_tried_are_valid_models_of_real_magnitudes() -> None:
    spec = find_model("llama-7b").spec
    tried = places((spec, Workload()), [Fraction(5000)])
    for other, _ in tried:
        assert {*free_sizes(ModelSpec.from_dict(other.to_dict()))} == {*free_sizes(spec)}
    sizes = [sizes_of(case) for case in tried]
    most = {name: max(each[name] for each in sizes) for name in ("d_model", "n_layers", "seq_len")}
    assert most["d_model"] > 20_000 and most["n_layers"] > 100 and most["seq_len"] >= 2**20
    # both sides of the number, of every size that can have it; and the sizes of published models
    for name in ("d_model", "seq_len", "batch_size"):
        assert {4999, 5000, 5001} <= {each[name] for each in sizes}
    for name in ("llama-65b", "llama2-70b", "llama3.1-405b", "deepseek-67b"):
        own = {
            k: n for k, n in sizes_of((find_model(name).spec, Workload())).items() if k[0] != "b"
        }
        assert any(each.items() >= own.items() for each in sizes), name
    drawn = [other for other, _ in random_cases(find_model("llama3-8b").spec, Workload(), 200)]
    assert {other.n_heads // other.n_kv_heads for other in drawn} == {1, 2, 3, 5}
    assert {other.d_model == other.n_heads * other.head_dim for other in drawn} == {True, False}


# ---- a formula with any one term changed is refuted


KINDS = [
    *(("llama-7b", "params"), ("gpt2", "params"), ("mixtral-8x7b", "active_params")),
    *(("deepseek-v3", "params"), ("qwen3-32b", "matmul_flops"), ("t5-small", "params")),
    *(("deepseek-v2", "kv_cache_bytes"), ("gemma3-27b-text", "kv_cache_bytes")),
    ("mistral-7b", "causal_matmul_flops"),
]
STEP = 3  # every third change: a judgement takes a few hundredths of a second


def whole(model: str, quantity: str) -> Any:
    """The total of `metacount formula`."""
    spec = find_model(model).spec
    form = closed_form(spec, fitted(spec, Workload()), quantity)
    return sympy.Add(*form.parts.values())


def mutants(expr: Any) -> Iterator[Any]:
    """`expr` with one term left out, one number or one letter changed, at any depth."""
    if expr.is_Integer:
        yield from (expr + 1, expr - 1)
    if expr.is_Symbol:
        yield from (expr + 1, 2 * expr, sympy.Integer(1))
    for i, arg in enumerate(expr.args):
        before, after = expr.args[:i], expr.args[i + 1 :]
        if (expr.is_Add or expr.is_Mul) and len(expr.args) > 1:
            yield expr.func(*before, *after)
        if expr.is_Pow and i == 1:
            yield expr.func(expr.args[0], arg + 1)
            continue
        if isinstance(expr, sympy.floor):
            continue  # a change inside may round to the same
        for changed in mutants(arg):
            yield expr.func(*before, changed, *after)


@daily(2)
@pytest.mark.parametrize(("model", "quantity"), one_in(6, KINDS, first=1))
def test_unchanged_it_is_equal_and_any_change_is_refuted(model: str, quantity: str) -> None:
    expr = whole(model, quantity)
    assert check(in_letters(expr), model, quantity=quantity).verdict == "equal"
    # a change may be none: 1 for the exponent of 1, a letter in a product with another
    changed = {in_letters(m): m for m in mutants(expr) if sympy.expand(m - expr) != 0}
    assert len(changed) > 15
    tried = sorted(changed)[::STEP]
    assert [text for text in tried if check(text, model, quantity=quantity).holds] == []


@daily(2)
@pytest.mark.parametrize(("model", "quantity"), one_in(6, KINDS))
def test_the_printed_python_is_equal(model: str, quantity: str) -> None:
    found = find_model(model)
    form = closed_form(found.spec, fitted(found.spec, Workload()), quantity)
    space: dict[str, Any] = {}
    exec(textbook(found, form).function(), space)  # our own text
    assert check(space[quantity], model, quantity=quantity, timeout=60).verdict == "equal"
