"""The legend: complete, without two meanings for a letter, and light."""

from __future__ import annotations

import pytest

from metacount.errors import SpecError
from metacount.spec import LIMITS, Workload, legend

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


def test_letters_are_all_distinct() -> None:
    letters = [term.letter for term in legend.TERMS]
    assert len(set(letters)) == len(letters) == 85


def test_no_foreign_spelling_is_one_of_our_names() -> None:
    names = {term.name for term in legend.TERMS}
    for term in legend.TERMS:
        assert not names & set(term.elsewhere), term.name
        assert len(set(term.elsewhere)) == len(term.elsewhere), term.name


def test_a_spelling_is_ours_unambiguously_or_lists_its_candidates() -> None:
    spellings = {s for term in legend.TERMS for s in term.elsewhere}
    several = {s: legend.ours(s) for s in spellings if len(legend.ours(s)) > 1}
    assert several == AMBIGUOUS


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
