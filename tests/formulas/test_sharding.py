"""What a rank holds and sends, by hand; beside the engine and real ranks: `tests/sharding`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sympy
from helpers.miniatures import TINY, miniature

from metacount.catalog import entry
from metacount.formulas.ranks import (
    Cut,
    shard_values,
)
from metacount.formulas.tape import Rank
from metacount.sharding.by_formula import counted_kinds, without_formula
from metacount.sharding.mesh import Mesh
from metacount.sharding.plan import default_plan
from metacount.sharding.result import Job, Kind
from metacount.spec import ModelSpec

DENSE = ModelSpec.from_dict({**TINY, "head_dim": 5, "position": "none"})
MOE = DENSE.replace(d_ff=None, n_experts=8, top_k=3, d_ff_expert=7, n_shared_experts=1)
N = 11  # tokens of a rank


def small(name: str, **changed: Any) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changed)


# --- what a rank holds ----------------------------------------------------------------------------


def test_few_experts_are_cut_inside() -> None:
    """By the second axis where there are fewer than copies, of numbers alone."""
    n, m, c = sympy.symbols("E m c", integer=True, positive=True)
    for shape, copies, index, expected in (
        # of three experts two copies have 2 and 1; eight copies have 2 of 16 rows each
        ((6, 16, 13), 2, 0, 2 * 16 * 13),
        ((6, 16, 13), 2, 1, 1 * 16 * 13),
        ((6, 16, 13), 8, 0, 3 * 2 * 13),
        ((12, m, 13), 3, 0, 2 * 5 * 13),
        ((6, 16, 13), c, 0, 1 * 16 * 13),
        ((6, m, 13), 8, 0, 1 * 16 * 13),
        ((n, 16, 13), 8, 0, 1 * 16 * 13),
    ):
        cut = Cut(role="moe", shape=shape, top_k=3)
        found = shard_values(cut, Rank(ep=2, copies=copies, copy_index=index))
        at = {n: 6, m: 5 if copies == 3 else 16, c: 3}
        assert sympy.sympify(found).subs(at) == expected


# --- a mesh ---------------------------------------------------------------------------------------


def job(mesh: Mesh, **changed: Any) -> Job:
    options: dict[str, Any] = {"train": True, "zero": 0, "optimizer": "sgd", "micro_batches": 1}
    options |= {"dtype": "bf16", "batch_size": 1, "seq_len": mesh.cp * N, "attention": "flash"}
    return Job(mesh=mesh, **{**options, **changed})


def first_kind(spec: ModelSpec, asked: Job) -> Kind:
    return counted_kinds(spec, asked, default_plan(spec))[0]


SUM = ("backward", "all-reduce", "tp", 2 * N * 13)
GATHERED = ("backward", "all-gather", "cp", 2 * 2 * N * 2 * 2 * 5)
HALF = ("backward", "all-gather", "cp", 2 * 2 * N * 2 * 5)
ONE = DENSE.replace(n_layers=1)
ROUTED = MOE.replace(n_layers=1)
GATED = MOE.replace(shared_expert_gate=True, d_ff=17, n_dense_layers=1, n_layers=2)


@pytest.mark.parametrize(
    ("spec", "mesh", "checkpointing", "expected"),
    [
        # attention's sum, of two; the last one is not needed again
        (ONE, Mesh(tp=2), "full", [SUM]),
        # the norm behind it needs it
        (ONE.replace(norm_placement="sandwich"), Mesh(tp=2), "full", [SUM, SUM]),
        (ONE, Mesh(cp=2), "full", [GATHERED]),
        (ONE, Mesh(cp=2), "selective", []),
        (ONE, Mesh(tp=2, cp=2), "full", [HALF, SUM]),
        (ONE, Mesh(tp=2), "selective", [SUM]),
        # of a second block that is attention alone, or a feed-forward alone, none
        (ONE.replace(n_layers=2, ffn_pattern="FN"), Mesh(tp=2), "full", [SUM]),
        (ONE.replace(n_layers=2, mixer_pattern="AN"), Mesh(tp=2), "full", [SUM]),
        # experts and a shared one: three sums, of which the last is needed by a gate alone; before
        # it a dense block
        (ROUTED, Mesh(tp=2), "full", [SUM, SUM]),
        (GATED, Mesh(tp=2), "full", [SUM, SUM, SUM, SUM]),
    ],
)
def test_what_a_second_forward_sends(
    spec: ModelSpec, mesh: Mesh, checkpointing: str, expected: list[Any]
) -> None:
    """What is sent beyond a step without checkpoints."""
    found = []
    for how in ("none", checkpointing):
        kind = first_kind(spec, job(mesh, checkpointing=how))
        found.append(
            Counter({(c.phase, c.kind, c.group, c.n_bytes): c.times for c in kind.collectives})
        )
    found[1].subtract(found[0])
    assert {key: times for key, times in found[1].items() if times} == Counter(expected)


@pytest.mark.parametrize(
    ("spec", "tp", "values"),
    [
        # three layers: keys and values of two heads of 5, of which a rank has one; of a window of 4
        # the next token needs 3; a block without attention keeps nothing
        (DENSE, 2, 3 * 2 * 5 * N),
        (DENSE.replace(window=4), 2, 3 * 2 * 5 * 3),
        (DENSE.replace(mixer_pattern="AN"), 2, 2 * 2 * 5 * N),
        # every rank keeps all latents, of 5 layers
        (small("deepseek-v2"), 2, 5 * (19 + 4) * N),
        # two heads of 10 of 5 layers; one of them has an index, with keys of 8
        (small("minimax-m3-text"), 1, (5 * 2 * 2 * 10 + 8) * N),
    ],
)
def test_what_a_rank_keeps_between_tokens_by_hand(spec: ModelSpec, tp: int, values: int) -> None:
    for sequences in (1, 2):
        served = first_kind(spec, job(Mesh(tp=tp), train=False, batch_size=sequences))
        assert served.kv_cache_bytes == 2 * sequences * values


@pytest.mark.parametrize(
    ("changed", "how", "said"),
    [
        ({}, {}, None),
        ({}, {"checkpointing": "selective"}, "checkpointing"),
        ({}, {"attention": "sdpa"}, "attention"),
        ({"attention_softcap": 30.0}, {"attention": "eager"}, None),
        ({"attention_softcap": 30.0}, {}, "attention_softcap"),
        ({"has_head": False}, {}, "loss"),
    ],
)
def test_what_a_rank_keeps_has_no_formula_for(
    changed: dict[str, Any], how: dict[str, Any], said: str | None
) -> None:
    found = without_formula(DENSE.replace(**changed), job(Mesh(tp=2), **how))
    assert (said or "") in found and bool(found) == bool(said)
