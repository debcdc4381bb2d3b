"""Where a formula turns, it is tried: on both sides of its numbers, and at published sizes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from helpers.release import daily, one_in

import metacount
from metacount import Workload, find_model
from metacount.check.sizes import free_sizes, places, random_cases, sizes_of
from metacount.spec import ModelSpec
from metacount.textbook.count import fitted

LLAMA = "2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)"
CACHE = "2*c*B*h_kv*h_d*N*"
T5 = "V*d + 2*b*h + 2*d*h_d*(2*N + N_e)*(h + h_kv) + 2*d*m*(N + N_e) + d*(3*N + 2*N_e + 2)"

WRONG = [
    # text, model, quantity, what turns it
    (CACHE + "min(S, 4096)", "llama-7b", "kv_cache_bytes", "seq_len ≤ 4096"),
    (f"{LLAMA} + max(0, d - 5000)", "llama-7b", "params", "0 ≥ d_model - 5000"),
    (LLAMA.replace("3*d", "3*min(d, 8192)"), "llama-7b", "params", "d_model ≤ 8192"),
    (f"{LLAMA} + max(0, 2*d - 10001)", "llama-7b", "params", "0 ≥ 2·d_model - 10001"),
    (f"{LLAMA} + max(0, d*m - 10**12)", "llama-7b", "params", "0 ≥ d_model·d_ff - 1000000000000"),
    (
        f"{LLAMA} + max(0, V - 3*d - 400000)",
        "llama-7b",
        "params",
        "0 ≥ vocab_size - 3·d_model - 400000",
    ),
    (f"{LLAMA} + d//100000", "llama-7b", "params", "d_model < 100000"),
    (f"{LLAMA} + ceil(m/70001) - 1", "llama-7b", "params", "d_ff ≤ 70001"),
    (f"{LLAMA} + floor(S/10**7)", "llama-7b", "params", "seq_len < 10000000"),
    (f"{LLAMA} + min(0, 100 - B)", "llama-7b", "params", "0 ≤ 100 - batch_size"),
    (f"{LLAMA} + max(0, d - 60000)*max(0, N - 1000)", "llama-7b", "params", "0 ≥ n_layers - 1000"),
    (
        CACHE + "max(S, min(B - 7000, S + 1))",
        "llama-7b",
        "kv_cache_bytes",
        "seq_len ≥ min(batch_size - 7000, seq_len + 1)",
    ),
    (CACHE + "min(S, 4095)", "mistral-7b", "kv_cache_bytes", "window = 4096"),
    (T5.replace("b*", "(b//4*4)*"), "t5-small", "params", "n_buckets/4 is whole"),
    (T5.replace("b*", "min(b, 40)*"), "t5-small", "params", "n_buckets ≤ 40"),
    (f"{T5} + max(0, S_e - 100000)", "t5-small", "params", "0 ≥ source_len - 100000"),
    (CACHE + "min(T, 4096)", "llama-7b", "kv_cache_bytes", "seq_len ≤ 4096"),
]


@daily(4)
@pytest.mark.parametrize(("text", "model", "quantity", "where"), one_in(5, WRONG))
def test_it_is_refuted_where_it_turns(text: str, model: str, quantity: str, where: str) -> None:
    result = metacount.check(text, model, quantity=quantity, timeout=60)
    assert (result.verdict, result.condition) == ("equal_here", where)
    found = result.counterexample
    assert found is not None and found.theirs != found.ours


def test_without_the_turn_they_are_equal() -> None:
    assert metacount.check(LLAMA, "llama-7b").verdict == "equal"
    assert metacount.check(T5, "t5-small").verdict == "equal"
    assert metacount.check(f"{CACHE}S", "llama-7b", quantity="kv_cache_bytes").verdict == "equal"


def test_rules_that_decide_are_said() -> None:
    text = "B*S*c*N*2*(h//(h//h_kv))*h_d"
    result = metacount.check(text, "llama3-8b", quantity="kv_cache_bytes")
    assert result.verdict == "equal"
    assert result.condition == "n_heads is a multiple of n_kv_heads"
    result = metacount.check(LLAMA.replace("h_d", "(h_d//2*2)"), "llama-7b")
    assert (result.verdict, result.condition) == ("equal", "head_dim is a multiple of 2")


def test_a_division_by_what_may_be_zero_is_not_equal_for_all_sizes() -> None:
    result = metacount.check(f"{LLAMA} + 1/(d - N) - 1/(d - N)", "llama-7b")
    assert (result.verdict, result.tried < result.planned) == ("equal_where_tried", True)
    assert any("which may be 0" in note for note in result.notes)
    # a sum of sizes is never 0
    assert metacount.check(f"{LLAMA} + 1/(d + N) - 1/(d + N)", "llama-7b").verdict == "equal"


MODELS = ("gpt2", "t5-small", "deepseek-v3", "gemma3-27b-text", "pangu-alpha-207b")


@daily(5)
@pytest.mark.parametrize("model", one_in(2, MODELS))
def test_places_are_valid_and_reach_real_magnitudes(model: str) -> None:
    spec = find_model(model).spec
    case = spec, fitted(spec, Workload())
    found = places(case, [Fraction(5000)])
    assert len(found) > 500
    names = set(free_sizes(spec))
    for other, _ in found:
        if other.n_buckets is not None and other.n_buckets % 4:
            continue  # T5 may have any number of buckets; our specs only multiples of 4
        ModelSpec.from_dict(other.to_dict())
        assert set(free_sizes(other)) == names
    largest = {name: max(sizes_of(other)[name] for other in found) for name in sizes_of(case)}
    assert largest["d_model"] > 20_000 and largest["n_layers"] > 100
    assert largest["seq_len"] >= 2**20 and largest["batch_size"] > 100
    # both sides of the number, of every size that can have it
    for name in ("d_model", "seq_len", "batch_size"):
        assert {4999, 5000, 5001} <= {sizes_of(other)[name] for other in found}


def test_every_published_model_with_these_sizes_is_tried() -> None:
    spec = find_model("llama-7b").spec
    tried = [sizes_of(other) for other in places((spec, Workload()), [], run=False)]
    for name in ("llama-65b", "llama2-70b", "llama3.1-405b", "deepseek-67b"):
        sizes = sizes_of((find_model(name).spec, Workload()))
        assert any(other.items() >= {**sizes, "seq_len": 2048}.items() for other in tried), name


def test_random_models_have_heads_shared_in_every_way() -> None:
    spec = find_model("llama3-8b").spec
    tried = [other for other, _ in random_cases(spec, Workload(), 200)]
    assert len(tried) == 200
    assert {other.n_heads // other.n_kv_heads for other in tried} == {1, 2, 3, 5}
    assert all(20 <= other.vocab_size <= 200 for other in tried)
    assert {other.d_model == other.n_heads * other.head_dim for other in tried} == {True, False}
