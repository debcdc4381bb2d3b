"""On one device, the total by formula is the peak of a measured step, or a bound above it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from helpers.command_line import run, run_json
from helpers.random_models import changed
from helpers.release import ONLY, daily, one_day_in
from helpers.sharding_specs import SPECS, as_told
from helpers.structures import with_logits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import metacount
from metacount.catalog import entries
from metacount.errors import InputError, SpecError
from metacount.sharding.mesh import Mesh
from metacount.sharding.shard import Asked, job_of
from metacount.spec import ModelSpec, Workload
from metacount.spec.position import Alibi
from metacount.training.setup import Setup

WAYS: tuple[dict[str, str], ...] = ({}, {"checkpointing": "full", "optimizer": "sgd-momentum"})


def trains(spec: ModelSpec) -> bool:
    """Whether a step of a model is run on a mesh; of others a line says why not."""
    try:
        return bool(job_of(spec, Mesh(), Asked(), train=True))
    except (InputError, SpecError):
        return False


STRUCTURES = {name: spec for name, spec in with_logits().items() if trains(spec)}


def compared(model: Any, seq_len: int, way: dict[str, str]) -> tuple[int | None, int, int]:
    """The peak by formula, the bound by formula, and the peak that is measured, less buffers."""
    found = metacount.shard(model, "dp=1", train=True, formula=True, seq_len=seq_len, **way)
    (kind,) = found.kinds
    run_ = Workload(batch_size=1, seq_len=seq_len, dtype="bf16")
    measured = metacount.train(model, run_, setup=Setup(foreach=True, **way))
    less_buffers = measured.peak_bytes - measured.peak_parts["buffers"]
    return kind.peak_bytes, kind.most_bytes, less_buffers


@daily(16)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()) or "plain")
@pytest.mark.parametrize("name", STRUCTURES)
def test_on_one_device_train_and_shard_have_one_peak(name: str, way: dict[str, str]) -> None:
    """By a run, and by formula where that gives one; at most what the formula says at most."""
    if way and isinstance(STRUCTURES[name].positions, Alibi):
        way = {"optimizer": "sgd"}  # its blocks are not run again on a mesh
    for seq_len in (2, 31):
        peak, most, measured = compared(STRUCTURES[name], seq_len, way)
        assert peak in (None, measured)
        assert measured <= most
    ran = metacount.shard(STRUCTURES[name], "dp=1", train=True, seq_len=31, **way)
    assert ran.largest.peak_bytes == measured


@one_day_in(3)
def test_on_one_device_fit_shard_and_train_count_the_same_of_every_model_of_the_catalog() -> None:
    compared = 0
    for each in entries():
        if each.sizes is None or not trains(each.spec()):
            continue
        found = metacount.shard(each.id, "dp=1", train=True, formula=True, seq_len=64)
        (fitting,), _ = metacount.fit(each.id, "h200", train=True, devices=1, seq_len=64)
        held = fitting.largest or fitting.closest
        assert held is not None and held.total_bytes == found.largest.total_bytes
        assert fitting.largest in (None, found.largest)
        run_ = Workload(batch_size=1, seq_len=64, dtype="bf16")
        step = metacount.count_training(each.id, run_, Setup())
        for name in ("param_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes"):
            assert getattr(found.largest, name) == getattr(step, name), (each.id, name)
        compared += 1
    assert compared > len(STRUCTURES)


@pytest.mark.parametrize(
    ("name", "seq_len", "way"),
    [
        ("qwen3-0.6b", 512, {}),  # in the step
        ("qwen3-0.6b", 128, {"optimizer": "sgd"}),  # where gradients of the tied table are summed
        ("qwen3-0.6b", 4096, {"attention": "flash"}),  # in the loss
        ("llama3-8b", 64, {"optimizer": "sgd"}),  # in the backward of the embedding
    ],
)
def test_each_moment_is_the_peak_of_some_step(name: str, seq_len: int, way: dict[str, str]) -> None:
    peak, most, measured = compared(name, seq_len, way)
    assert peak == most == measured


def test_the_peak_is_said_where_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("fit", "qwen3-0.6b", "--train", "--gpu", "h100", "--seq", "512")
    (found,) = run_json(capsys, *asked)["answers"]
    assert found["peak_bytes"] == found["total_bytes"] == found["most_bytes"]
    said = f"peak {found['peak_bytes']:,} bytes, as `metacount train --foreach` measures"
    assert said in " ".join(run(capsys, *asked).split())
    several = run_json(capsys, *asked, "--devices", "2")["answers"][0]
    assert several["peak_bytes"] is None
    bound = ("shard", "qwen3-0.6b", "--mesh", "dp=1", "--train", "--formula", "--seq", "4096")
    (kind,) = run_json(capsys, *bound)["kinds"]
    assert (kind["peak_bytes"], kind["most_bytes"] > kind["total_bytes"]) == (None, True)
    assert "at most: what comes and goes" in " ".join(run(capsys, *bound).split())


# ---- models, meshes and jobs drawn at random


# not compared where the formula says that it does not count what a backward keeps
NO_FORMULA = {"activation_bytes", "recomputed_bytes", "total_bytes", "most_bytes", "parts"}


@cache
def models() -> tuple[ModelSpec, ...]:
    """The small models of this folder, and the catalog's structures without an encoder."""
    catalog = (spec for spec in with_logits().values() if not spec.has_encoder)
    return (*SPECS.values(), *catalog)


@st.composite
def meshes(draw: st.DrawFn, spec: ModelSpec) -> dict[str, int]:
    degrees = {"dp": draw(st.integers(1, 4)), "pp": draw(st.integers(1, 3))}
    degrees["tp"] = draw(st.sampled_from([1, 1, 2, 3]))
    degrees["cp"] = draw(st.sampled_from([1, 1, 2, 3])) if spec.recurrent == "none" else 1
    ranks = degrees["dp"] * degrees["tp"] * degrees["cp"]
    if spec.is_moe:
        assert spec.n_experts is not None
        known = [n for n in (1, 2, 4) if ranks % n == spec.n_experts % n == 0]
        degrees["ep"] = draw(st.sampled_from(known))
    return degrees


@st.composite
def jobs(draw: st.DrawFn, degrees: dict[str, int]) -> dict[str, Any]:
    cp, micro = degrees["cp"], draw(st.integers(1, 3))
    how: dict[str, Any] = {"micro_batches": micro, "batch_size": micro * degrees["dp"]}
    how["dtype"] = draw(st.sampled_from(["fp32", "bf16"]))
    how["seq_len"] = draw(st.integers(1, 12))
    if cp > 1 or draw(st.integers(0, 4)):
        how |= {"train": True, "zero": draw(st.integers(0, 3))}
        how["optimizer"] = draw(st.sampled_from(["adamw", "adagrad", "sgd-momentum", "adam8bit"]))
        how["checkpointing"] = draw(st.sampled_from(["none", "full"]))
        how["schedule"] = draw(st.sampled_from(["1f1b", "gpipe"]))
        how["loss_parallel"] = draw(st.booleans())
        how["sequence_parallel"] = draw(st.booleans())
        if how["dtype"] == "bf16":
            how["attention"] = draw(st.sampled_from(["eager", "flash"]))
            how["mixed_precision"] = draw(st.booleans())
    if cp > 1:  # torch cuts a sequence into 2·cp pieces
        how |= {"dtype": "bf16", "attention": "flash", "seq_len": 12 * cp}
    return how


def told(spec: ModelSpec, mesh: str, **how: Any) -> tuple[list[Any], list[Any]]:
    """What formula and engine say of each kind of ranks."""
    counted, measured = (
        as_told(list(metacount.shard(spec, mesh, formula=formula, **how).kinds))
        for formula in (True, False)
    )
    for ours, theirs in zip(counted, measured, strict=True):
        for name in NO_FORMULA if ours["activation_bytes"] is None else ():
            del ours[name], theirs[name]
    return counted, measured


@ONLY  # two seconds an example
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_model_on_any_mesh(data: st.DataObject) -> None:
    spec = data.draw(changed(models(), tries=5))
    degrees = data.draw(meshes(spec))
    how = data.draw(jobs(degrees))
    mesh = ",".join(f"{name}={n}" for name, n in degrees.items())
    try:
        counted, measured = told(spec, mesh, **how)
    except (SpecError, InputError):
        assume(False)
    assert counted == measured
