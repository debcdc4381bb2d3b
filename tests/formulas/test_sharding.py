"""What a rank holds and sends, by hand: each literal with its arithmetic above it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import sympy
from helpers.miniatures import TINY, miniature

from metacount.catalog import entry
from metacount.formulas import ends
from metacount.formulas.block import Given, Layer, run_block
from metacount.formulas.pieces import Sizes, run_of
from metacount.formulas.ranks import (
    Cut,
    active_values,
    cut_shape,
    cuts_of,
    gathered_values,
    rank_spec,
    shard_values,
    spread_moves,
)
from metacount.formulas.sublayers import block_tape
from metacount.formulas.tape import TOKENS, Rank, Tape, product
from metacount.sharding.by_formula import counted_kinds, without_formula
from metacount.sharding.mesh import Mesh
from metacount.sharding.plan import default_plan
from metacount.sharding.result import Job, Kind
from metacount.spec import ModelSpec

DENSE = ModelSpec.from_dict({**TINY, "head_dim": 5, "position": "none"})
MOE = DENSE.replace(d_ff=None, n_experts=8, top_k=3, d_ff_expert=7, n_shared_experts=1)
MOE_BLOCK, EXPERTS = Layer(ffn="E"), Layer(mixer="N", ffn="E")
ATTENTION = Layer(ffn="N")
N = 11  # tokens of a rank

Sent = tuple[str, str, str, int, str]  # phase, what it does, among whom, values, of which type


def small(name: str, **changed: Any) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changed)


# --- what a rank holds ----------------------------------------------------------------------------


# whole: two norms; half: q and o 15·13, k and v 5·13; of 17 hidden the first of two ranks has 9,
# three times, and the last 8. Of four copies the first and the last: rows of 13 in four: 4, 4, 4,
# 1; 15: 4, 4, 4, 3; 5: 2, 2, 1, 0; 9: 3, 3, 3, 0; 8: 2, 2, 2, 2
@pytest.mark.parametrize(
    ("index", "hidden", "norm", "attention", "ffn"),
    [
        (0, 9, [4, 4], [4 * 13, 2 * 13, 2 * 13, 4 * 15], [3 * 13, 3 * 13, 4 * 9]),
        (1, 8, [1, 1], [3 * 13, 0, 0, 1 * 15], [2 * 13, 2 * 13, 1 * 8]),
    ],
)
def test_a_dense_block_by_hand(
    index: int, hidden: int, norm: list[int], attention: list[int], ffn: list[int]
) -> None:
    cuts = cuts_of(block_tape(DENSE, Layer()).weights)
    rank = Rank(tp=2, shard=4, tp_index=index, shard_index=3 * index)
    held = sum(product(cut_shape(cut, rank)) for cut in cuts)
    assert held == 2 * 13 + 2 * 195 + 2 * 65 + 3 * 13 * hidden
    shards: dict[str, list[int]] = {}
    for cut in cuts:
        shards.setdefault(cut.role, []).append(shard_values(cut, rank))
    assert {role: sorted(each) for role, each in shards.items()} == {
        "norm": sorted(norm),
        "attention": sorted(attention),
        "ffn": sorted(ffn),
    }
    # gathered: 13 rows become 16, 15 too, 5 become 8, 9 become 12 and 8 stay
    gathered = 2 * 16 + 16 * 13 + 2 * 8 * 13 + 16 * 15 + 2 * (12, 8)[index] * 13 + 16 * hidden
    assert sum(gathered_values(cut, rank) for cut in cuts) == gathered


def test_experts_by_hand() -> None:
    cuts = [cut for cut in cuts_of(block_tape(MOE, MOE_BLOCK).weights) if cut.top_k is not None]
    assert [cut.shape for cut in cuts] == [(8, 14, 13), (8, 13, 7)]
    # two whole experts of eight, of which a token uses both at most; without ep they are cut
    # inside: gate and up 4 of 7 each, and 4 of 7 columns; 3 of 8 are used
    for rank, shapes, used in (
        (Rank(tp=2, ep=4, shard=6, copies=3), [(2, 14, 13), (2, 13, 7)], 2),
        (Rank(tp=2), [(8, 8, 13), (8, 13, 4)], 3),
    ):
        assert [cut_shape(cut, rank) for cut in cuts] == shapes
        active = [active_values(cut, rank) for cut in cuts]
        assert active == [used * rows * columns for _, rows, columns in shapes]
    # fewer experts than copies, but 3 divides neither 14 nor 13: the first copies have one each
    for index, shards in ((0, [14 * 13, 13 * 7]), (2, [0, 0])):
        rank = Rank(tp=2, ep=4, shard=6, copies=3, copy_index=index)
        assert [shard_values(cut, rank) for cut in cuts] == shards
    # seven copies divide 14, and each has two of its rows
    assert shard_values(cuts[0], Rank(ep=4, copies=7, copy_index=6)) == 2 * 2 * 13


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


# --- what ranks send each other -------------------------------------------------------------------


def sent(spec: ModelSpec, layer: Layer, rank: Rank) -> list[Sent]:
    """The collectives of a block on a rank, in its forward and its backward."""
    mine = rank_spec(spec, rank)
    tape = Tape(run_of(mine, Sizes(batch_size=1, seq_len=N, rank=rank)))
    run_block(tape, mine, layer, tape.tensor(spec.d_model, TOKENS, grad=True), Given())
    return seen(move for op in tape.ops for move in op.moves)


def seen(moves: Any) -> list[Sent]:
    return sorted((m.phase, m.kind, m.group, m.values, m.kept) for m in moves)


def summed(phase: str, values: int, kept: str = "") -> Sent:
    return phase, "all-reduce", "tp", values, kept


THERE, BACK = summed("forward", N * 13), summed("backward", N * 13)
COUNTS = ("forward", "all-to-all", "ep", 8, "counts")  # how many rows each expert gets
ROUTER = summed("backward", N * 3, "router")
QKV = summed("backward", 5)  # a head's width: the weight of a norm that all heads share


def exchanged(rows: int) -> list[Sent]:
    """Rows that go to experts and come back, in the forward and in the backward."""
    return [
        (phase, "all-to-all", "ep", rows * 13, "")
        for phase in ("forward", "backward")
        for _ in range(2)
    ]


def latent(query: int) -> list[Sent]:
    """Gradients of what heads of latent attention read: queries, latent, rotated key."""
    return [summed("backward", N * width) for width in (query, 19, 4)]


@pytest.mark.parametrize(
    ("spec", "layer", "rank", "expected"),
    [
        (DENSE, Layer(), Rank(), []),
        (MOE, MOE_BLOCK, Rank(), []),
        (DENSE, Layer(), Rank(tp=2), 2 * [THERE, BACK]),
        # attention alone: the weights of its norms on queries and keys too
        (DENSE, ATTENTION, Rank(tp=2), [THERE, BACK]),
        (DENSE.replace(qk_norm="head"), ATTENTION, Rank(tp=2), [THERE, BACK, *2 * [QKV]]),
        (
            DENSE.replace(qk_norm="layernorm", norm="layernorm"),
            ATTENTION,
            Rank(tp=2),
            [THERE, BACK, *4 * [QKV]],
        ),
        (small("deepseek-v2", q_lora_rank=23), ATTENTION, Rank(tp=2), [THERE, *latent(23)]),
        (small("deepseek-v2", q_lora_rank=None), ATTENTION, Rank(tp=2), [THERE, *latent(13)]),
        # experts that are cut, without and with shared ones
        (MOE.replace(n_shared_experts=0), EXPERTS, Rank(tp=2), [THERE, BACK, ROUTER]),
        (MOE, EXPERTS, Rank(tp=2), 2 * [THERE, BACK] + [ROUTER]),
        # experts that are whole: three rows of each token go and come back
        (MOE, EXPERTS, Rank(ep=4), [COUNTS, *exchanged(N * 3)]),
        # both: 11 tokens in two are 6 and 5, filled up to 12; attention and the shared expert sum
        (
            MOE,
            MOE_BLOCK,
            Rank(tp=2, ep=4, shard=6, copies=3, tp_index=1),
            [
                *2 * [THERE, BACK],
                COUNTS,
                *exchanged(5 * 3),
                ("forward", "all-gather", "tp", 12 * 13, ""),
                ("backward", "all-gather", "tp", 12 * 13, ""),
                ("backward", "all-gather", "tp", 12 * 3, "choice"),
            ],
        ),
    ],
)
def test_what_a_block_sends_by_hand(
    spec: ModelSpec, layer: Layer, rank: Rank, expected: list[Sent]
) -> None:
    assert sent(spec, layer, rank) == sorted(expected)


def test_the_head_and_the_table_by_hand() -> None:
    for rank, before, behind in (
        (Rank(), [], []),
        # 101 words in four: 26 each
        (Rank(tp=4), [THERE], [BACK, ("forward", "all-gather", "tp", N * 104, "")]),
    ):
        tapes = [Tape(run_of(DENSE, Sizes(batch_size=1, seq_len=N, rank=rank))) for _ in range(2)]
        ends.embed(tapes[0], DENSE, DENSE.last_stack, TOKENS)
        ends.unembed(tapes[1], DENSE, tapes[1].tensor(13, TOKENS, grad=True))
        found = [seen(move for op in tape.ops for move in op.moves) for tape in tapes]
        assert found == [before, behind]


def test_zero_moves_by_hand() -> None:
    cuts = [Cut(role="norm", shape=(13,)), Cut(role="moe", shape=(8, 14, 13), top_k=3)]
    rank = Rank(ep=4, shard=4, copies=2)
    # 13 rows become 16; nothing is padded where nothing is spread
    plain, once, again = (
        [
            (phase, kind, group, n, "")
            for group, n in (("dp", dense), ("copies", 2 * 14 * 13))
            for phase, kind in kinds
        ]
        for dense, kinds in (
            (13, [("backward", "all-reduce")]),
            (16, [("forward", "all-gather"), ("backward", "reduce-scatter")]),
            (16, [("backward", "all-gather")]),
        )
    )
    for zero, moves in enumerate((plain, once, once, once + again)):
        assert seen(spread_moves(cuts, rank, zero=zero)) == sorted(moves)
    assert spread_moves(cuts, Rank(ep=4), zero=3) == []


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
