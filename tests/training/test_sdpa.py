"""Attention by torch's sdpa: what is kept and multiplied, by formula and measured."""

from __future__ import annotations

import pytest
from helpers.miniatures import miniature
from helpers.random_specs import specs
from helpers.release import daily
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import backward, kept_masks, kept_model
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.summary.training_step import train_reference
from metacount.textbook.closed_form import closed_form
from metacount.textbook.training import TrainingCount, training_count
from metacount.training.result import Training
from metacount.training.setup import Setup

FIGURES = (
    "activation_bytes",
    "backward_matmul_flops_by_role",
    "recompute_matmul_flops_by_role",
    "matmul_flops_by_role",
)
# batch, tokens, dtype, checkpointing
RUNS = (
    (3, 11, "bf16", "none"),
    (1, 11, "fp32", "none"),
    (1, 11, "bf16", "full"),
    (3, 11, "fp32", "selective"),
    (1, 1, "bf16", "none"),
    (2, 5, "fp64", "none"),
)


class Uncovered(Exception):
    """A step whose kept bytes have no formula."""


def both(
    spec: ModelSpec, batch_size: int, seq_len: int, dtype: str, checkpointing: str
) -> tuple[TrainingCount, Training]:
    work = Workload(
        batch_size=batch_size,
        seq_len=seq_len,
        dtype=dtype,
        source_len=7 if spec.has_encoder else None,
        prefix_len=1 if spec.kind == "prefix-decoder" else 0,
    )
    counted = training_count(spec, work, attention="sdpa", checkpointing=checkpointing)
    if counted.activation_bytes is None:
        raise Uncovered(counted.uncovered["activation_bytes"])
    setup = Setup(optimizer="sgd", attention="sdpa", checkpointing=checkpointing)
    return counted, train_reference(build(spec, dtype=dtype), ("", ""), work, setup)


def assert_equal(counted: TrainingCount, found: Training) -> None:
    for name in FIGURES:
        assert getattr(counted, name) == getattr(found, name), name


# of masks and kernels what there is: none, windows, chunks, biases with a gradient and without, a
# prefix, values of another width than the keys, no attention
@daily(8)
@pytest.mark.parametrize(
    "name",
    [
        "llama-7b",
        "mistral-7b",
        "llama4-scout-text",
        "t5-base",
        "bloom-176b",
        "glm-130b",
        "deepseek-v3",
        "gopher-280b",
        "gemma3-27b-text",
        "mamba-2.8b",
    ],
)
def test_each_way_that_sdpa_is_run(name: str) -> None:
    assert_equal(*both(miniature(entry(name).spec()), 3, 11, "bf16", "none"))


def test_latent_attention_behind_a_prefix() -> None:
    """Values as wide as keys go to the kernel, which keeps the mask of the prefix."""
    spec = miniature(entry("deepseek-v2").spec()).replace(kind="prefix-decoder", v_head_dim=11)
    assert_equal(*both(spec, 3, 5, "bf16", "none"))


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs(), st.sampled_from(RUNS))
def test_any_model(spec: ModelSpec, run: tuple[int, int, str, str]) -> None:
    assume(spec.head is not None and spec.embedding is not None)
    try:
        figures = both(spec, *run)
    except Uncovered:
        assume(False)
    assert_equal(*figures)


def test_latent_attention_has_no_form_in_letters() -> None:
    work = Workload(seq_len=8)
    with pytest.raises(SpecError):
        closed_form(entry("deepseek-v3").spec(), work, "activation_bytes:sdpa")
    form = closed_form(entry("mistral-7b").spec(), work, "activation_bytes:sdpa")
    counted = training_count(entry("mistral-7b").spec(), work, attention="sdpa")
    assert form.total == counted.activation_bytes


def test_blocks_with_a_window_and_without_differ() -> None:
    counted = training_count(entry("gemma3-27b-text").spec(), Workload(), attention="sdpa")
    assert counted.activation_bytes_of_block is None
    assert "where some see a window" in counted.uncovered["activation_bytes_of_block"]
    mistral = training_count(entry("mistral-7b").spec(), Workload(), attention="sdpa")
    assert mistral.activation_bytes_of_block is not None
    eager = training_count(entry("mistral-7b").spec(), Workload())
    assert [*mistral.activation_bytes_of_block] == [*(eager.activation_bytes_of_block or ())]


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "model"),
    [
        (kept_model, "window_kept", lambda *_: [], "mistral-7b"),
        (kept_model, "masks_kept", lambda *_: [], "t5-base"),
        (kept_masks, "attention_way", lambda *_, **__: "sdpa", "deepseek-v3"),
        (backward, "score_flops", lambda *_: 0, "gpt2"),
    ],
)
def test_a_planted_error_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, wrong: object, model: str
) -> None:
    spec = miniature(entry(model).spec())
    assert_equal(*both(spec, 3, 5, "bf16", "none"))
    monkeypatch.setattr(owner, name, wrong)
    counted, found = both(spec, 3, 5, "bf16", "none")
    assert any(getattr(counted, each) != getattr(found, each) for each in FIGURES)
