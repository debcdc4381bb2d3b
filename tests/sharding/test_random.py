"""Models, meshes and jobs drawn at random: the formula says of each what the engine measures."""

from __future__ import annotations

from functools import cache
from typing import Any

from helpers.random_models import changed
from helpers.release import ONLY
from helpers.sharding_specs import SPECS, as_told
from helpers.structures import with_logits
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import metacount
from metacount.errors import InputError, SpecError
from metacount.spec import ModelSpec

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
