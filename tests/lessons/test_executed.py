"""What lessons execute: hand and run are compared, and a difference ends the page."""

from __future__ import annotations

import math
import re

import pytest
import torch
from helpers.release import daily

import metacount
from metacount.catalog import entry
from metacount.teaching import counts
from metacount.teaching.experiments import ffn, layers, moe
from metacount.teaching.experiments.modules import PLACEMENTS
from metacount.teaching.lessons import TOPICS, page_of


def test_the_two_expert_mixture_by_hand_and_by_autograd() -> None:
    # by hand: z = (1/2, 1), so α₁ = 1/(1 + √e)
    assert moe.by_hand()["alpha"][0] == pytest.approx(1 / (1 + math.sqrt(math.e)), abs=1e-12)
    assert set(moe.by_autograd()) == {*moe.by_hand()} - {"z", "f1", "f2", "dz"}


def test_a_wrong_step_by_hand_ends_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**moe.by_hand(), "drouter": (0.0, 0.0, 0.0, 0.0)}
    monkeypatch.setattr(moe, "by_hand", lambda: wrong)
    with pytest.raises(AssertionError, match="drouter: by hand"):
        page_of("moe")


def test_a_wrong_formula_by_hand_ends_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    ffn.activations.cache_clear()
    monkeypatch.setitem(ffn.HAND, "silu", (lambda x: x, lambda x: 1.0))
    with pytest.raises(AssertionError, match="silu: by hand"):
        ffn.activations()
    monkeypatch.undo()
    assert len(ffn.activations()) == len(ffn.POINTS)


def test_only_chosen_experts_get_a_gradient() -> None:
    rows = moe.who_learns()
    assert [row[2] != "0" for row in rows].count(True) == 1  # k = 1
    assert [row[4] != "0" for row in rows].count(True) == 2  # k = 2
    assert all(row[6] != "0" for row in rows)  # all
    # the softmax over all gives every row of the router a gradient
    assert all(row[3] not in ("0", "≈0") for row in rows)
    assert [row[5] in ("0", "≈0") for row in rows].count(True) == 2


def test_a_changed_token_changes_its_own_output_alone() -> None:
    assert ffn.changes("ffn", 2, 5) == [2]
    assert ffn.changes("causal", 2, 5) == [2, 3, 4, 5]
    assert ffn.changes("bidirectional", 2, 5) == [1, 2, 3, 4, 5]


def test_weights_of_the_attention_add_up_and_the_mask_is_exact() -> None:
    weights = layers.followed()["weights"]
    for i, row in enumerate(weights):
        assert sum(row) == pytest.approx(1, abs=1e-12)
        assert row[i + 1 :] == [0.0] * (len(row) - i - 1)


def test_scores_of_rotated_vectors_depend_on_the_distance() -> None:
    page = page_of("position")
    scores = [row for block in page.blocks for row in block.rows if block.heads[:1] == ("i",)]
    assert len({row[3] for row in scores if row[2] == "3"}) == 1
    assert len({row[3] for row in scores}) == 3


def test_a_wrong_placement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    layers.checked.cache_clear()
    monkeypatch.setitem(PLACEMENTS, "pre", PLACEMENTS["post"])
    with pytest.raises(AssertionError, match="pre: by hand"):
        layers.checked("pre")


@daily(5)
@pytest.mark.parametrize("id", ["gpt2", "llama-7b", "gpt-oss-20b", "bloom-176b", "gemma2-9b"])
def test_the_steps_are_a_run(id: str) -> None:
    page = page_of("gpt", id)
    table = next(block.rows for block in page.blocks if block.kind == "table")
    spec = entry(id).spec()
    shapes = {row[0]: row[2] for row in table}
    run = metacount.count(id).workload
    scores = next(shape for name, shape in shapes.items() if name.startswith("scores = q·kᵀ"))
    assert scores == f"1×{spec.n_heads}×{run.seq_len}×{run.seq_len}"
    assert shapes["logits = x·W_headᵀ"] == f"1×{run.seq_len}×{spec.vocab_size}"
    # in order, without the words that would need a translation
    named = [row[0] for row in table]
    added = "x = x + norm(attn)" if id == "gemma2-9b" else "x = x + attn"
    first, second = (
        next(i for i, n in enumerate(named) if n.startswith(start))
        for start in ("scores = q·kᵀ", "out = weights·v")
    )
    assert first < second < named.index(added)
    assert [name for name in named if re.search("[a-z]{3,} [a-z]{2,}", name)] == []


def test_matrices_that_formulas_do_not_count_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counts.GROUPED, "o_proj", ("d", "d*h"))
    with pytest.raises(AssertionError, match="are not the"):
        counts.matrices(entry("llama-7b").spec())


def test_lessons_leave_the_random_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And never draw from it: it may be another thread's, even with a copy put back."""
    before = torch.random.get_rng_state()
    for name in ("manual_seed", "set_rng_state", "seed"):
        monkeypatch.setattr(torch.random, name, None)
        monkeypatch.setattr(torch, name, None)
    for topic in TOPICS:
        page_of(topic)
        assert torch.equal(before, torch.random.get_rng_state()), topic
