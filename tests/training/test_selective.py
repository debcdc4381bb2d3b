"""Selective checkpointing: what blocks keep, by formula, is what a measured step keeps."""

from __future__ import annotations

import itertools

import pytest
from helpers.miniatures import miniature
from helpers.random_specs import specs
from helpers.release import one_in
from helpers.structures import first_of_each
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import kept_selected
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.spec.position import TransformerXL
from metacount.textbook.training import training_count
from metacount.training.run import train_reference
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


@pytest.mark.parametrize("name", one_in(13, first_of_each(logits=True)))
def test_each_structure_of_the_catalog(name: str) -> None:
    """Equal for one sequence and for three, in both kernels, or refused with the reason."""
    spec = miniature(entry(name).spec())
    last = spec.last_stack
    refused = (
        spec.recurrent != "none"
        or spec.n_index_heads is not None
        or last.shared is not None
        or last.altup is not None
        or isinstance(spec.positions, TransformerXL)
    )
    seen = 0
    source = 7 if spec.has_encoder else None
    for batch_size, attention in itertools.product((1, 3), ("eager", "flash")):
        run = Workload(batch_size=batch_size, seq_len=11, source_len=source)
        try:
            ours, measured = both(spec, run, attention)
        except SpecError as error:
            assert refused or (attention == "flash" and "fused attention" in str(error)), error
            continue
        assert ours == measured
        seen += 1
    assert refused or seen >= 2


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
    with pytest.raises(SpecError, match="no formula for this model's mixer"):
        both(miniature(entry("jamba-1.5-mini").spec()), Workload(seq_len=8), "eager")
