"""Processes shard small models for real with gloo: what they hold, send and compute.

One job runs all cases that are asked for; those of fewer ranks leave the other processes out.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from helpers import ROOT
from helpers.processes import in_a_group
from helpers.real_ranks import job_of
from helpers.sharding_specs import ALL

from metacount.sharding.by_engine import Measuring
from metacount.sharding.by_formula import counted_kinds
from metacount.sharding.mesh import parse_mesh
from metacount.sharding.plan import default_plan
from metacount.sharding.result import Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Found: TypeAlias = Callable[[int], list[dict[str, Any]]]

SECONDS = 300
CLOSE = 1e-13  # of losses and gradients in float64; counts are equal


USUAL = {"dtype": "fp64", "optimizer": "adamw", "attention": "eager", "seq": 9, "master": False}
USUAL |= {"checkpointing": "none", "schedule": "1f1b", "sequence": False, "cut_logits": False}
USUAL |= {"zero": 3, "micro": 1, "peak": False}
SHORT: dict[str, dict[str, Any]] = {
    # context parallelism: in float64 for values, in 16 bits, which its kernel takes, for sizes
    "ring": {"attention": "flash", "seq": 16},
    "peak": {"peak": True, "dtype": "bf16"},  # a step of which the most that is alive is asked
    "full": {"checkpointing": "full"},
    "flash": {"attention": "flash"},
}
# A model, its mesh and what is asked for; `;` or a line's end between two.
OFTEN = """
deepseek tp=2; qwen3 dp=2,tp=2 zero=0 micro=2; mixtral tp=2,pp=2,ep=2; falcon-h1 dp=3 zero=2 micro=2
longcat dp=2,pp=2,ep=2; qwen3 dp=2,tp=2 zero=2 micro=2 sequence cut_logits seq=10
llama cp=2 ring; llama cp=2 ring dtype=bf16
qwen3 dp=2 peak master seq=64; falcon-h1 dp=2 peak optimizer=sgd-momentum
# torch's DistributedDataParallel, and gradients of micro-batches added up
gpt2 dp=2 peak zero=0 micro=2 optimizer=sgd; qwen3 dp=2 peak micro=3 seq=10
# experts of which each is chosen as often as another
mixtral dp=2,ep=2 peak seq=16
# stages, rings, the other stages of ZeRO, and logits in parts
qwen3 dp=2,pp=2 peak micro=3 seq=16; deepseek cp=2,tp=2 peak seq=32 flash
llama dp=2,tp=2 peak zero=1 micro=2 seq=16 cut_logits
"""
SELDOM = """
sinks tp=2 zero=2; sandwich tp=2 micro=2 sequence seq=12; llama tp=2,pp=2 micro=2 sequence seq=10
modernbert dp=2,tp=2 zero=0 sequence seq=10; mixtral tp=2,ep=2 micro=2 cut_logits
gpt2 dp=2 zero=1 micro=2; llama tp=2,pp=2 micro=2; deepseek dp=4,tp=2,ep=4
# with several micro-batches in a pipeline, FSDP2's prefetching gathers a part once more
mixtral dp=2,tp=2,pp=2,ep=2; qwen3-next dp=2,ep=2 zero=1; falcon-h1 tp=2 zero=2 micro=2
qwen3-next dp=2,tp=2,ep=2 zero=1; electra dp=2,tp=2 zero=2; zamba2 dp=2 micro=2
deepseek dp=2,cp=2 ring zero=2; qwen3 dp=2,cp=2 ring zero=1 dtype=bf16
deepseek cp=2,tp=2 ring dtype=bf16
llama dp=2,tp=2 peak sequence seq=10; mixtral dp=2 peak
llama tp=2 peak dtype=fp32 seq=61 optimizer=sgd; gpt2 dp=4 peak; deepseek dp=2,tp=2 peak seq=32
sandwich dp=2,tp=2 peak seq=64 full; sinks tp=2 peak seq=33; bert dp=2,tp=2 peak dtype=fp32
jamba dp=4 peak full; mamba2 dp=2 peak zero=2; zamba2 dp=2 peak; gate dp=4 peak zero=2 optimizer=sgd
modernbert dp=2,tp=2 peak seq=100; llama dp=4 peak master seq=256; mixtral dp=4 peak zero=0 seq=16
deepseek dp=4,ep=2 peak micro=2 seq=16; mixtral dp=2,tp=2,ep=4 peak seq=16; llama dp=1 peak micro=2
llama dp=2,tp=2 peak zero=2 micro=2 sequence seq=12; llama pp=2 peak micro=2 seq=16
gpt2 dp=2,pp=2 peak zero=2 micro=2 seq=16 schedule=gpipe
llama tp=2,pp=2 peak micro=2 seq=16 sequence cut_logits full; mixtral pp=3 peak micro=4 seq=16
llama dp=2,cp=2 peak zero=2 seq=32 flash; llama dp=2 peak zero=1 seq=16
qwen3 dp=2,tp=2 peak zero=0 seq=16; qwen3 dp=2,tp=2 peak sequence cut_logits seq=32
# the last, for it may have to be left out: of a tensor, one rank's share is kept in 8 bits
wide dp=2 optimizer=adam8bit dtype=fp32
"""


def cases_of(text: str) -> list[dict[str, Any]]:
    found = []
    for row in (row for line in text.splitlines() if line[:1] != "#" for row in line.split(";")):
        asked: dict[str, Any] = dict(USUAL)
        for word in row.split()[2:]:
            name, _, value = word.partition("=")
            asked |= SHORT.get(name) or {name: int(value) if value.isdecimal() else value or True}
        for spec, mesh in [row.split()[:2]] if row.strip() else []:
            batch = parse_mesh(mesh).dp * asked["micro"]
            found.append({**asked, "spec": spec, "mesh": mesh, "batch": batch})
    return found


CASES = [*cases_of(OFTEN), *cases_of(SELDOM)]
FIRST = len(cases_of(OFTEN))  # of those that only `make release` runs
needs_torchao = pytest.mark.skipif(
    find_spec("torchao") is None,
    reason="torchao is not installed: pip install 'metacount[adam8bit]'",
)


def numbers(wanted: Callable[[dict[str, Any]], bool]) -> list[Any]:
    """The cases that a test is of, each with what has to be there for it."""
    found: list[Any] = []
    for i, it in enumerate(CASES):
        marks = [pytest.mark.release] if i >= FIRST else []
        marks += [needs_torchao] if it["optimizer"] == "adam8bit" else []
        found += [pytest.param(i, marks=marks)] if wanted(it) else []
    return found


def run_for_real(file: Path, cases: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What each process found of each case; what was found before is only read."""
    processes = max(parse_mesh(case["mesh"]).world for case in cases)
    found = [Path(f"{file}-{rank}") for rank in range(processes)]
    if all(each.exists() for each in found):
        return [json.loads(each.read_text()) for each in found]
    paths = [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [
        *(sys.executable, "-W", "ignore"),  # torch warns of itself; what is wrong shows in figures
        str(ROOT / "tests" / "helpers" / "real_ranks.py"),
        str(processes),
        str(file),
        json.dumps(cases),
    ]
    code, said = in_a_group(command, SECONDS, env=environment)
    assert code == 0, said[-3000:]
    return [json.loads(each.read_text()) for each in found]


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the processes found of a case, by its number: one job runs those that are asked for."""
    tests = [item for item in request.session.items if item.path == request.path]
    asked = sorted({item.callspec.params["number"] for item in tests})  # type: ignore[attr-defined]
    cases, folder = [CASES[i] for i in asked], tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the first of several workers runs them for all
        folder = folder.parent
    with FileLock(folder / "real.lock"):
        ranks = run_for_real(folder / "real", cases)
    return lambda number: [each[asked.index(number)] for each in ranks]


@pytest.mark.parametrize("number", numbers(lambda it: it["dtype"] == "fp64" and not it["peak"]))
def test_loss_and_gradients_are_those_of_the_whole_model(real: Found, number: int) -> None:
    ranks = [found for found in real(number) if found]
    assert len(ranks) == parse_mesh(CASES[number]["mesh"]).world
    losses = [each["loss"] for each in ranks if each["loss"] is not None]
    assert losses
    for each in ranks:
        assert each["worst"] < CLOSE < each["largest"]
    assert all(abs(loss - ranks[0]["expected"]) < CLOSE for loss in losses)


@pytest.mark.parametrize(
    "number",
    numbers(lambda it: not it["peak"] and (it["dtype"] != "fp64" or it["attention"] == "eager")),
)
def test_a_real_rank_holds_keeps_and_sends_what_the_formula_says(real: Found, number: int) -> None:
    """To the byte; of what is kept in float64, without what the loss keeps, which differs there."""
    it, job = CASES[number], job_of(CASES[number])
    spec, mesh = ALL[it["spec"]], job.mesh
    kinds = counted_kinds(spec, job, default_plan(spec))
    tokens, piece = job.rows * job.length, spec.vocab_size
    if job.loss_parallel:
        piece = -(-spec.vocab_size // mesh.tp)
    for rank, found in enumerate(real(number)[: mesh.world]):
        kind = next(kind for kind in kinds if kind.holds(rank))
        assert sum(shard for *_, shard in found["held"]) == kind.params == found["gradients"]
        assert found["optimizer_bytes"] == kind.optimizer_bytes
        assert sent(found["seen"], job, spec.d_model) == expected(kind)
        # a rank runs a whole step by itself: no stage in parts, no rows of other ranks
        if mesh.pp == mesh.ep == mesh.cp == 1 and it["dtype"] == "fp64":
            assert kind.activation_bytes is not None
            own = min(piece, spec.vocab_size - piece * (rank % mesh.tp * job.loss_parallel))
            loss = 8 * tokens * own + 8 * tokens + 8
            assert set(found["kept"]) == {kind.activation_bytes - loss}


def sent(seen: list[Any], job: Any, d_model: int) -> Counter[Any]:
    """What really ran, but for groups of one rank. Rows go where the router sends them: of these,
    only how often is compared; and stages first ask each other whether they are there, in tensors
    of other sizes.
    """
    mesh, hidden = job.mesh, job.tokens_between * d_model * 8
    sizes = {"tp": mesh.tp, "dp": mesh.shard, "ep": mesh.ep, "cp": mesh.cp}
    sizes["copies"] = mesh.expert_shard
    found: Counter[Any] = Counter()
    for kind, group, n_bytes, times in seen:
        if sizes.get(group) != 1 and (group != "pp" or n_bytes == hidden):
            found[kind, group, None if kind == "all-to-all" else n_bytes] += times
    return found


def expected(kind: Kind) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for each in kind.collectives:
        n_bytes = None if each.kind == "all-to-all" else each.n_bytes
        found[each.kind, each.group, n_bytes] += each.times
    return found


@pytest.mark.parametrize("number", numbers(lambda it: it["peak"]))
def test_the_peak_of_a_real_step_is_what_was_predicted(real: Found, number: int) -> None:
    """To the byte on each rank, by a run on a fake world; by formula, where that gives one."""
    it, job = CASES[number], job_of(CASES[number])
    spec = ALL[it["spec"]]
    plan = default_plan(spec)
    kinds, measuring = counted_kinds(spec, job, plan), Measuring(spec, job, plan)
    for rank in range(job.mesh.world):
        peak = real(number)[rank]["peak"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice is for those who train
            predicted = measuring.peak(rank)
        assert predicted is not None and sum(predicted.values()) == peak
        (kind,) = (kind for kind in kinds if kind.holds(rank))
        assert kind.peak_bytes in (None, peak)
        assert peak <= kind.most_bytes
