"""Models and setups drawn at random: the formulas say of a step what the step is measured to be."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from helpers.random_models import changed, workloads
from helpers.release import one_day_in
from helpers.structures import with_logits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import metacount
from metacount import Setup, Workload
from metacount.errors import InputError, SpecError
from metacount.formulas.step import Part, chosen_tensors, tensors_by_path
from metacount.spec import ModelSpec
from metacount.textbook.training import count_step
from metacount.training.setup import Training

NAMES = ["embed_tokens", "lm_head", "q_proj", "k_proj", "o_proj", "down_proj", "up_proj"]
NAMES += ["input_layernorm", "norm", "self_attn", "mlp", "layers.0", "mixer", "experts", "gate"]


@cache
def models() -> tuple[ModelSpec, ...]:
    """A miniature of each structure of the catalog that has logits."""
    return tuple(with_logits().values())


def part_of(spec: ModelSpec, chance: random.Random) -> dict[str, Any]:
    """What is trained: all, adapters of some layers, one tensor to four, or all but some names."""
    kind, paths = chance.choice(("all", "adapters", "few", "most")), sorted(tensors_by_path(spec))
    if kind == "few":
        some = set(chance.sample(paths, chance.randint(1, min(4, len(paths)))))
        return {"freeze": tuple(path for path in paths if path not in some)}
    if kind == "most":
        return {"freeze": tuple(chance.sample(NAMES, chance.randint(1, 3)))}
    if kind == "all":
        return {}
    linear = chosen_tensors(spec, Part(rank=1, targets=("all-linear",))).stored
    names = ["all-linear", *{path.split(".")[-2] for path in linear if path.endswith("lora_a")}]
    targets = tuple(chance.sample(sorted(names), min(len(names), chance.randint(1, 4))))
    freeze = chance.choice(((), ("lora_a",), ("layers.0",)))
    return {"lora_rank": chance.randint(1, 4), "lora_targets": targets, "freeze": freeze}


def setup_of(spec: ModelSpec, dtype: str, chance: random.Random) -> Setup:
    optimizers = ("adamw", "sgd", "sgd-momentum", "adagrad", "adafactor", "muon", "adam8bit")
    how: dict[str, Any] = {
        "optimizer": chance.choice(optimizers),
        "attention": chance.choice(("eager", "sdpa", "flash")),
        "checkpointing": chance.choice(("none", "selective", "full")),
        "loss": chance.choice(("full", "full", "chunked")),
        "loss_chunks": chance.randint(1, 5),
        "foreach": chance.random() < 0.5,
    }
    if dtype in ("bf16", "fp16") and chance.random() < 0.5:
        how |= {"master_weights": True, "grad_dtype": chance.choice((None, "fp32"))}
    return Setup(**how, **part_of(spec, chance))


def differing(step: Training) -> dict[str, tuple[int, int]]:
    """The figures whose formula is another number than was measured. None is no number."""
    pairs = {name: (said, getattr(step, name)) for name, said in step.formula.items()}
    return {name: pair for name, pair in pairs.items() if pair[0] not in (None, pair[1])}


def compare(spec: ModelSpec, workload: Workload, setup: Setup) -> None:
    """Count and measure a step, if there is such a one: the figures and those by role are equal."""
    try:
        step = metacount.train(spec, workload, setup)
    except (SpecError, InputError):
        assume(False)
    assert not differing(step)
    counted = count_step(spec, workload, setup)
    for name, said in vars(counted).items():
        if name.endswith("_by_role") and said is not None:
            assert said == getattr(step, name), name


CHANCE = st.randoms(use_true_random=False)


@one_day_in(3)  # half a second an example
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), CHANCE)
def test_any_structure(data: st.DataObject, chance: random.Random) -> None:
    spec = data.draw(changed(models()))
    try:
        workload = data.draw(workloads(spec, "bf16", "fp16", "fp32"))
    except SpecError:
        assume(False)
    compare(spec, workload, setup_of(spec, workload.dtype, chance))
