"""Models and setups drawn at random: the formulas say of a step what the step is measured to be."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from helpers.miniatures import TINY
from helpers.random_models import changed, workloads
from helpers.release import ONLY
from helpers.structures import with_logits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import metacount
from metacount import Setup, Workload
from metacount.errors import InputError, SpecError
from metacount.formulas import step as formulas
from metacount.spec import ModelSpec
from metacount.training.result import Training

NAMES = ["embed_tokens", "lm_head", "q_proj", "k_proj", "o_proj", "down_proj", "up_proj"]
NAMES += ["input_layernorm", "norm", "self_attn", "mlp", "layers.0", "mixer", "experts", "gate"]
ADAPTED = ["all-linear", "q_proj", "o_proj", "down_proj", "up_proj"]


@cache
def models() -> tuple[ModelSpec, ...]:
    """A miniature of each structure of the catalog that has logits."""
    return tuple(with_logits().values())


@st.composite
def setups(draw: st.DrawFn, dtype: str) -> Setup:
    optimizers = ["adamw", "sgd", "sgd-momentum", "adafactor", "muon", "adam8bit"]
    how: dict[str, Any] = {
        "optimizer": draw(st.sampled_from(optimizers)),
        "attention": draw(st.sampled_from(["eager", "sdpa", "flash"])),
        "checkpointing": draw(st.sampled_from(["none", "selective", "full"])),
        "loss": draw(st.sampled_from(["full", "chunked"])),
        "loss_chunks": draw(st.integers(1, 5)),
        "foreach": draw(st.booleans()),
    }
    if dtype != "fp32" and draw(st.booleans()):
        how |= {"master_weights": True, "grad_dtype": draw(st.sampled_from([None, "fp32"]))}
    trained = draw(st.sampled_from(["all", "all", "adapters", "part"]))
    if trained == "adapters":
        how["lora_rank"] = draw(st.integers(1, 4))
        how["lora_targets"] = (draw(st.sampled_from(ADAPTED)),)
    elif trained == "part":
        how["freeze"] = tuple(
            draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        )
    return Setup(**how)


def differing(step: Training) -> dict[str, tuple[int, int]]:
    """The figures whose formula is another number than was measured. None is no number."""
    both = {name: (said, getattr(step, name)) for name, said in step.formula.items()}
    return {
        name: (said, seen)
        for name, (said, seen) in both.items()
        if said is not None and said != seen
    }


@ONLY  # half a second an example
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_step_of_any_model(data: st.DataObject) -> None:
    spec = data.draw(changed(models()))
    try:
        workload = data.draw(workloads(spec, "bf16", "fp16", "fp32"))
        step = metacount.train(spec, workload, data.draw(setups(workload.dtype)))
    except (SpecError, InputError):
        assume(False)
    assert not differing(step)


def test_a_planted_error_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ModelSpec(**TINY), Workload(batch_size=1, seq_len=5), Setup()
    assert not differing(metacount.train(*run))
    good = formulas.activation_bytes_by_role
    wrong = lambda *model: {**good(*model), "norm": 0}  # noqa: E731
    monkeypatch.setattr(formulas, "activation_bytes_by_role", wrong)
    assert set(differing(metacount.train(*run))) == {"activation_bytes"}
