"""Selective checkpointing: what blocks keep, by formula, is what a measured step keeps."""

from __future__ import annotations

import pytest
from helpers.miniatures import miniature
from helpers.random_specs import specs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import kept_selected
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.summary.training_step import train_reference
from metacount.textbook.training import training_count
from metacount.training.setup import Setup


def both(spec: ModelSpec, run: Workload, attention: str) -> tuple[int, int]:
    """Bytes kept: by the formula, and measured; nothing is multiplied a second time."""
    setup = Setup(optimizer="sgd", attention=attention, checkpointing="selective")
    counted = training_count(spec, run, attention=attention, checkpointing="selective")
    if counted.activation_bytes is None:
        raise SpecError("activation_bytes", "has no formula", "selective", str(counted.uncovered))
    found = train_reference(build(spec, dtype=run.dtype), ("", ""), run, setup)
    assert counted.recompute_matmul_flops == found.recompute_matmul_flops == 0
    return counted.activation_bytes, found.activation_bytes


# sinks, experts of several kinds, a gate, parallel branches, ALiBi, an encoder, a cap on the scores
MODELS = ("gpt-oss-20b", "qwen1.5-72b", "glm-4.5", "pythia-12b", "bloom-176b", "t5-base")


@pytest.mark.parametrize("name", [*MODELS, "gemma2-9b", "switch-base-8"])
def test_formula_is_what_is_measured(name: str) -> None:
    spec = miniature(entry(name).spec())
    spec = spec if spec.n_dense_layers else spec.replace(n_layers=2)
    source = 7 if spec.has_encoder else None
    ours, measured = both(spec, Workload(batch_size=3, seq_len=11, source_len=source), "eager")
    assert ours == measured


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs(), st.sampled_from([1, 3]), st.sampled_from([1, 5]), st.booleans())
def test_formula_is_what_is_measured_of_any_model(
    spec: ModelSpec, batch_size: int, seq_len: int, flash: bool
) -> None:
    run = Workload(batch_size=batch_size, seq_len=seq_len)
    try:
        ours, measured = both(spec, run, "flash" if flash else "eager")
    except SpecError:
        assume(False)
    assert ours == measured


def test_a_planted_error_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, run = miniature(entry("mixtral-8x7b").spec()), Workload(batch_size=3, seq_len=11)
    ours, measured = both(spec, run, "flash")
    assert ours == measured
    monkeypatch.setattr(kept_selected, "core_kept", lambda *_, **__: [])
    assert both(spec, run, "flash")[0] != measured


def test_a_mixer_with_a_state_is_refused() -> None:
    with pytest.raises(SpecError):
        both(miniature(entry("jamba-1.5-mini").spec()), Workload(seq_len=8), "eager")
