"""Reality: eight processes shard small models for real with gloo, and the fake world said so.

One job of eight processes runs all cases; those of fewer ranks leave the others out.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from helpers.processes import in_a_group
from helpers.sharding_specs import HYBRIDS, SPECS

from metacount.sharding.by_engine import Measuring
from metacount.sharding.by_formula import counted_kinds
from metacount.sharding.engine.world import fake_world
from metacount.sharding.mesh import parse_mesh
from metacount.sharding.plan import default_plan
from metacount.sharding.reference.run import place
from metacount.sharding.result import Job, Kind

PROCESSES = 8
SEQ = 9
SECONDS = 300
CLOSE = 1e-13  # of losses and gradients in float64; counts are equal


def case(spec: str, mesh: str, zero: int = 3, micro: int = 1) -> dict[str, Any]:
    made = parse_mesh(mesh)
    return {
        "spec": spec,
        "mesh": mesh,
        "zero": zero,
        "seq": SEQ,
        "micro": micro,
        "batch": made.dp * micro,
    }


CASES = [
    case("deepseek", "tp=2"),
    case("sinks", "tp=2", 2),
    case("gpt2", "dp=2", 1, 2),
    case("qwen3", "dp=2,tp=2", 0, 2),
    case("llama", "tp=2,pp=2", 3, 2),
    # with several micro-batches in a pipeline, FSDP2's prefetching gathers a part once more
    case("mixtral", "dp=2,tp=2,pp=2,ep=2", 3, 1),
    case("deepseek", "dp=4,tp=2,ep=4"),
    case("falcon-h1", "dp=3", 2, 2),
    case("qwen3-next", "dp=2,ep=2", 1),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What each process found of each case."""
    file = tmp_path_factory.mktemp("real") / "found"
    paths = [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        str(ROOT / "tests" / "helpers" / "real_ranks.py"),
        str(PROCESSES),
        str(file),
        json.dumps(CASES),
    ]
    code, said = in_a_group(command, SECONDS, env=environment)
    assert code == 0, said[-3000:]
    return [json.loads(Path(f"{file}-{rank}").read_text()) for rank in range(PROCESSES)]


def job_of(it: dict[str, Any]) -> Job:
    return Job(
        mesh=parse_mesh(it["mesh"]),
        train=True,
        zero=it["zero"],
        optimizer="adamw",
        batch_size=it["batch"],
        seq_len=it["seq"],
        micro_batches=it["micro"],
        dtype="fp64",
    )


@pytest.mark.parametrize("number", range(len(CASES)))
def test_loss_and_gradients_are_those_of_the_whole_model(real: Any, number: int) -> None:
    ranks = [found[number] for found in real if found[number]]
    assert len(ranks) == parse_mesh(CASES[number]["mesh"]).world
    losses = [each["loss"] for each in ranks if each["loss"] is not None]
    assert losses
    for each in ranks:
        assert each["worst"] < CLOSE < each["largest"]
    assert all(abs(loss - ranks[0]["expected"]) < CLOSE for loss in losses)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_real_rank_holds_and_sends_what_the_formula_says(real: Any, number: int) -> None:
    it, job = CASES[number], job_of(CASES[number])
    spec = (SPECS | HYBRIDS)[it["spec"]]
    kinds = counted_kinds(spec, job, default_plan(spec))
    for rank in range(job.mesh.world):
        found = real[rank][number]
        kind = next(kind for kind in kinds if kind.holds(rank))
        assert sum(shard for *_, shard in found["held"]) == kind.params
        assert found["gradients"] == sum(shard for *_, shard in found["held"])
        assert found["optimizer_bytes"] == kind.optimizer_bytes
        assert sent(found["seen"], job, spec.d_model) == expected(kind)


def test_a_real_rank_keeps_for_its_backward_what_the_formula_says(real: Any) -> None:
    """To the byte, in float64, without what the loss keeps, which is another one there."""
    compared = 0
    for number, it in enumerate(CASES):
        job, spec = job_of(it), (SPECS | HYBRIDS)[it["spec"]]
        if job.mesh.pp > 1 or job.mesh.ep > 1:  # a stage runs in parts; rows go where they are sent
            continue
        kinds = counted_kinds(spec, job, default_plan(spec))
        tokens = job.rows * job.length
        loss = 8 * tokens * spec.vocab_size + 8 * tokens + 8
        for rank in range(job.mesh.world):
            kind = next(kind for kind in kinds if kind.holds(rank))
            assert kind.activation_bytes is not None
            assert set(real[rank][number]["kept"]) == {kind.activation_bytes - loss}
            compared += 1
    assert compared == 2 + 2 + 2 + 4 + 3


def sent(seen: list[Any], job: Job, d_model: int) -> Counter[Any]:
    """What really ran. Rows go where the router sends them: of these, only how often is compared;
    and stages first ask each other whether they are there, in tensors of other sizes."""
    hidden = job.rows * job.length * d_model * 8
    found: Counter[Any] = Counter()
    for kind, group, n_bytes, times in seen:
        if group == "pp" and n_bytes != hidden:
            continue
        if one_of(job, group):
            continue
        found[kind, group, None if kind == "all-to-all" else n_bytes] += times
    return found


def one_of(job: Job, group: str) -> bool:
    """Whether it is a group of one rank, which sends nothing."""
    sizes = {
        "tp": job.mesh.tp,
        "dp": job.mesh.shard,
        "ep": job.mesh.ep,
        "copies": job.mesh.expert_shard,
    }
    return sizes.get(group) == 1


def expected(kind: Kind) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for each in kind.collectives:
        n_bytes = None if each.kind == "all-to-all" else each.n_bytes
        found[each.kind, each.group, n_bytes] += each.times
    return found


def test_local_shapes_are_those_of_the_fake_world(real: Any) -> None:
    for number in (3, 6):
        it, job = CASES[number], job_of(CASES[number])
        spec = (SPECS | HYBRIDS)[it["spec"]]
        measuring = Measuring(spec, job, default_plan(spec))
        for rank in (0, job.mesh.world - 1):
            with fake_world(job.mesh, rank, job.zero) as world:
                model = measuring.whole.piece(range(spec.n_layers), first=True, last=True)
                held = place(model, measuring.styles, world, job)
            assert [[each.name, list(each.whole), list(each.cut), each.shard] for each in held] == (
                real[rank][number]["held"]
            )
