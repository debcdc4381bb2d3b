"""What a rank holds and sends, by hand: each literal with its arithmetic above it."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from helpers import one_line
from helpers.miniatures import miniature

import metacount
from metacount import SpecError, Workload
from metacount.catalog import entry
from metacount.formulas import kept_sharding, sharding, traffic
from metacount.formulas.block import block_weights
from metacount.formulas.forward import Pass
from metacount.formulas.kept import bytes_of
from metacount.formulas.sharding import Cut, Rank
from metacount.formulas.traffic import Move
from metacount.spec import ModelSpec

HEADS = {"n_heads": 6, "n_kv_heads": 2, "head_dim": 5}
COMMON = {
    "kind": "decoder",
    "d_model": 13,
    "n_layers": 3,
    "vocab_size": 101,
    "activation": "silu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "none",
}
DENSE = ModelSpec(**COMMON, **HEADS, d_ff=17)
MOE = ModelSpec(**COMMON, **HEADS, n_experts=8, top_k=3, d_ff_expert=7, n_shared_experts=1)


def test_pieces_are_those_of_a_list_cut_in_equal_lengths() -> None:
    for size in range(1, 25):
        for degree in range(1, 9):
            each = -(-size // degree)
            cut = [len(range(size)[i * each : (i + 1) * each]) for i in range(degree)]
            assert [sharding.piece(size, degree, i) for i in range(degree)] == cut


def test_a_dense_block_by_hand() -> None:
    cuts = sharding.cuts_of(block_weights(DENSE))
    first, last = (Rank(tp=2, shard=4, tp_index=i, shard_index=3 * i) for i in (0, 1))
    # whole: two norms; half: q and o 15·13, k and v 5·13; of 17 hidden the first has 9, three times
    assert sum(sharding.cut_values(cut, first) for cut in cuts) == 26 + 2 * 195 + 2 * 65 + 3 * 117
    # the last has 8
    assert sum(sharding.cut_values(cut, last) for cut in cuts) == 26 + 2 * 195 + 2 * 65 + 3 * 104
    # rows of 13 in four: 4, 4, 4, 1; 15: 4, 4, 4, 3; 5: 2, 2, 1, 0; 9: 3, 3, 3, 0
    shards = [(cut.role, sharding.shard_values(cut, first)) for cut in cuts]
    assert sorted(shards) == sorted(
        [("norm", 4)] * 2
        + [("attention", n) for n in (4 * 13, 2 * 13, 2 * 13, 4 * 15)]
        + [("ffn", n) for n in (3 * 13, 3 * 13, 4 * 9)]
    )
    # the last rank has the rest of each: 1; 15: 3, 5: none, 13: 1; 8 in four: 2
    shards = [(cut.role, sharding.shard_values(cut, last)) for cut in cuts]
    assert sorted(shards) == sorted(
        [("norm", 1)] * 2
        + [("attention", n) for n in (3 * 13, 0, 0, 1 * 15)]
        + [("ffn", n) for n in (2 * 13, 2 * 13, 1 * 8)]
    )
    # gathered: 13 rows become 16, 15 too, 5 become 8, 9 become 12
    gathered = sum(sharding.gathered_values(cut, first) for cut in cuts)
    assert gathered == 2 * 16 + 16 * 13 + 2 * 8 * 13 + 16 * 15 + 2 * 12 * 13 + 16 * 9


def test_experts_by_hand() -> None:
    cuts = [cut for cut in sharding.cuts_of(block_weights(MOE, ffn="E")) if cut.top_k is not None]
    assert [cut.shape for cut in cuts] == [(8, 14, 13), (8, 13, 7)]
    spread = Rank(tp=2, ep=4, shard=6, copies=3)
    # two whole experts of eight, of which a token uses both at most
    assert [sharding.cut_shape(cut, spread) for cut in cuts] == [(2, 14, 13), (2, 13, 7)]
    assert [sharding.active_values(cut, spread) for cut in cuts] == [2 * 14 * 13, 2 * 13 * 7]
    # fewer experts than copies, but 3 divides neither 14 nor 13: the first copies have one each
    assert [sharding.shard_values(cut, spread) for cut in cuts] == [14 * 13, 13 * 7]
    third = Rank(tp=2, ep=4, shard=6, copies=3, copy_index=2)
    assert [sharding.shard_values(cut, third) for cut in cuts] == [0, 0]
    # seven copies divide 14, and each has two of its rows
    seven = Rank(ep=4, copies=7, copy_index=6)
    assert sharding.shard_values(cuts[0], seven) == 2 * 2 * 13
    # without ep they are cut inside: gate and up 4 of 7 each, and 4 of 7 columns; 3 of 8 are used
    cut_inside = Rank(tp=2)
    assert [sharding.cut_shape(cut, cut_inside) for cut in cuts] == [(8, 8, 13), (8, 13, 4)]
    assert [sharding.active_values(cut, cut_inside) for cut in cuts] == [3 * 8 * 13, 3 * 13 * 4]


def test_what_a_moe_block_moves_by_hand() -> None:
    rank = Rank(tp=2, ep=4, shard=6, copies=3, tp_index=1)
    moved = traffic.block_moves(MOE, rank, n_tokens=11, ffn="E", train=True)
    seen = [(move.phase, move.kind, move.group, move.values) for move in moved]
    # 11 tokens in two: 6 and 5; each of the 5 goes to three experts
    assert sorted(seen) == sorted(
        [
            ("forward", "all-reduce", "tp", 11 * 13),  # attention
            ("forward", "all-reduce", "tp", 11 * 13),  # the shared expert
            ("forward", "all-to-all", "ep", 8),  # how many rows each expert gets
            ("forward", "all-to-all", "ep", 5 * 3 * 13),
            ("forward", "all-to-all", "ep", 5 * 3 * 13),
            ("forward", "all-gather", "tp", 12 * 13),
            ("backward", "all-reduce", "tp", 11 * 13),
            ("backward", "all-reduce", "tp", 11 * 13),
            ("backward", "all-to-all", "ep", 5 * 3 * 13),
            ("backward", "all-to-all", "ep", 5 * 3 * 13),
            ("backward", "all-gather", "tp", 12 * 13),
            ("backward", "all-gather", "tp", 12 * 3),
        ]
    )


def test_zero_moves_by_hand() -> None:
    cuts = [Cut(role="norm", shape=(13,)), Cut(role="moe", shape=(8, 14, 13), top_k=3)]
    rank = Rank(ep=4, shard=4, copies=2)
    dense, expert = 16, 2 * 14 * 13
    by_zero = {
        zero: [
            (m.phase, m.kind, m.group, m.values)
            for m in traffic.spread_moves(cuts, rank, zero=zero)
        ]
        for zero in range(4)
    }
    once = [
        ("forward", "all-gather", "dp", dense),
        ("backward", "reduce-scatter", "dp", dense),
        ("forward", "all-gather", "copies", expert),
        ("backward", "reduce-scatter", "copies", expert),
    ]
    again = [("backward", "all-gather", "dp", dense), ("backward", "all-gather", "copies", expert)]
    assert sorted(by_zero[1]) == sorted(by_zero[2]) == sorted(once)
    assert sorted(by_zero[3]) == sorted([*once, *again])
    # nothing is padded where nothing is spread
    assert by_zero[0] == [
        ("backward", "all-reduce", "dp", 13),
        ("backward", "all-reduce", "copies", expert),
    ]
    assert traffic.spread_moves(cuts, Rank(ep=4), zero=3) == []


def test_the_head_and_the_table_by_hand() -> None:
    rank = Rank(tp=4)
    # 101 words in four: 26 each
    moved = traffic.head_moves(13, 101, rank, n_tokens=7, train=True)
    assert [(m.kind, m.values) for m in moved] == [("all-gather", 7 * 104), ("all-reduce", 7 * 13)]
    assert [m.values for m in traffic.embedding_moves(13, rank, n_tokens=7)] == [7 * 13]
    first, last = sharding.end_cuts(DENSE)
    assert [(cut.shape, cut.axis) for cut in first] == [((101, 13), 0)]
    assert sorted(cut.shape for cut in last) == [(13,), (101, 13)]


def small(name: str, **changed: Any) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changed)


def seen(moves: list[Move]) -> list[tuple[str, str, str, Any, str]]:
    return [(move.phase, move.kind, move.group, move.values, move.kept) for move in moves]


def test_a_rank_alone() -> None:
    assert vars(Rank()) == {
        **{"tp": 1, "ep": 1, "cp": 1, "shard": 1, "copies": 1},
        **{"tp_index": 0, "shard_index": 0, "copy_index": 0},
    }
    for train in (True, False):
        how = {"n_tokens": 7, "train": train}
        assert traffic.attention_moves(DENSE, Rank(), **how) == []
        assert traffic.feed_forward_moves(13, Rank(), **how) == []
        assert traffic.head_moves(13, 101, Rank(), **how) == []
        assert traffic.block_moves(MOE, Rank(), ffn="E", **how) == []
    assert traffic.embedding_moves(13, Rank(), n_tokens=7) == []


def test_few_experts_are_cut_inside() -> None:
    """By the second axis where there are fewer than copies, of numbers alone."""
    n, m, copies = sympy.symbols("E m c", integer=True, positive=True)
    six = Cut(role="moe", shape=(6, 16, 13), top_k=3)
    # four copies of six experts have 2, 2, 2 and none, though 4 divides 16; eight have 2 rows each
    assert sharding.shard_values(six, Rank(ep=1 + 1, copies=2)) == 2 * 16 * 13
    assert sharding.shard_values(six, Rank(ep=2, copies=2, copy_index=1)) == 1 * 16 * 13
    assert sharding.shard_values(six, Rank(ep=2, copies=8)) == 3 * 2 * 13
    found = sharding.shard_values(Cut(role="moe", shape=(n, m, 13), top_k=3), Rank(ep=2, copies=3))
    assert found.subs({n: 12, m: 5}) == 2 * 5 * 13
    found = sharding.shard_values(six, Rank(ep=2, copies=copies))
    assert found.subs(copies, 3) == 1 * 16 * 13
    for shape in ((6, m, 13), (n, 16, 13)):
        found = sharding.shard_values(Cut(role="moe", shape=shape, top_k=3), Rank(ep=2, copies=8))
        assert found.subs({n: 6, m: 16}) == 1 * 16 * 13


def test_what_stands_before_and_behind_the_blocks() -> None:
    head = dict.fromkeys(("has_head", "head_bias", "head_transform", "head_transform_bias"), True)
    spec = entry("bert-base").spec().replace(**head)
    first, last = sharding.end_cuts(spec)
    d, words = 768, 30522
    # words, kinds of tokens, positions, and their norm
    assert first[0].shape == (words, d)
    assert sorted(cut.shape for cut in first[1:]) == [(2, d), (512, d), (d,), (d,)]
    # the layer before the head, its bias and norm, the head and its; the pooler and its bias
    shapes = [*4 * [(d,)], *2 * [(d, d)], (words,), (words, d)]
    assert sorted(cut.shape for cut in last) == shapes


WIDTHS = [  # kept, of bytes that are computed with: as they are, and where what is gathered is cast
    ("", 2, 2, 2),
    ("", 8, 8, 8),
    ("counts", 2, 8, 8),
    ("sums", 2, 4, 4),
    ("router", 2, 4, 4),
    ("router", 8, 8, 8),
    ("choice", 2, 4, 2),
    ("choice", 8, 8, 8),
]


@pytest.mark.parametrize(("kept", "computed", "plain", "cast"), WIDTHS)
def test_bytes_of_a_value_that_is_sent(kept: str, computed: int, plain: int, cast: int) -> None:
    move = Move(phase="forward", kind="all-gather", group="tp", values=1, kept=kept)
    assert (move.width(computed, cast=False), move.width(computed, cast=True)) == (plain, cast)
    assert Move(phase="forward", kind="all-gather", group="tp", values=1).kept == ""


@pytest.mark.parametrize(("kind", "weights"), [("none", 0), ("head", 1), ("layernorm", 2)])
def test_weights_of_norms_on_queries_and_keys_are_summed(kind: str, weights: int) -> None:
    norm = {"norm": "layernorm"} if kind == "layernorm" else {}
    spec = DENSE.replace(qk_norm=kind, **norm)
    moved = traffic.attention_moves(spec, Rank(tp=2), n_tokens=11, train=True)
    summed = ("backward", "all-reduce", "tp", 5, "")  # a head's width, for queries and for keys
    assert seen(moved) == [
        ("forward", "all-reduce", "tp", 11 * 13, ""),
        *(2 * weights * [summed]),
        ("backward", "all-reduce", "tp", 11 * 13, ""),
    ]


@pytest.mark.parametrize(("rank", "query"), [(23, 23), (None, 13)])
def test_what_the_heads_of_latent_attention_read_is_summed(rank: int | None, query: int) -> None:
    spec = small("deepseek-v2", q_lora_rank=rank)
    widths = (spec.d_model, query, spec.kv_lora_rank, spec.qk_rope_head_dim)
    moved = traffic.attention_moves(spec, Rank(tp=5), n_tokens=11, train=True)
    assert [move.values for move in moved] == [11 * width for width in widths]
    assert [move.phase for move in moved] == ["forward"] + 3 * ["backward"]


def test_experts_that_are_cut_by_hand() -> None:
    def moved(train: bool, shared: int = 0) -> list[tuple[str, str, str, Any, str]]:
        part = MOE.replace(n_shared_experts=shared).last_stack.mixture
        assert part is not None
        return seen(traffic.mixture_moves(part, 13, Rank(tp=2), n_tokens=11, train=train))

    there, back = ((phase, "all-reduce", "tp", 11 * 13, "") for phase in ("forward", "backward"))
    assert moved(train=False) == [there]
    assert moved(train=False, shared=1) == [there, there]
    weights = ("backward", "all-reduce", "tp", 11 * 3, "router")
    assert moved(train=True) == [there, back, weights]
    assert moved(train=True, shared=1) == [there, back, weights, there, back]


def test_experts_that_are_whole_by_hand() -> None:
    part = MOE.replace(n_shared_experts=0).last_stack.mixture
    assert part is not None
    counts = ("forward", "all-to-all", "ep", 8, "counts")
    sent = ("forward", "all-to-all", "ep", 11 * 3 * 13, "")
    alone = traffic.mixture_moves(part, 13, Rank(ep=4), n_tokens=11, train=False)
    assert seen(alone) == [counts, sent, sent]
    again = ("backward", *sent[1:])
    alone = traffic.mixture_moves(part, 13, Rank(ep=4), n_tokens=11, train=True)
    assert seen(alone) == [counts, sent, sent, again, again]


GATED = MOE.replace(shared_expert_gate=True, d_ff=17, n_dense_layers=1)
SUM = ("backward", "all-reduce", "tp", 11 * 13, "")
GATHERED = ("backward", "all-gather", "cp", 2 * 11 * 2 * 2 * 5, "")
AGAIN: list[tuple[ModelSpec, Rank, dict[str, Any], list[Any]]] = [
    # attention's sum, of two; the last one is not needed again
    (DENSE, Rank(tp=2), {}, [SUM]),
    # the norm behind it needs it
    (DENSE.replace(norm_placement="sandwich"), Rank(tp=2), {}, [SUM, SUM]),
    (DENSE, Rank(cp=2), {}, [GATHERED]),
    (DENSE, Rank(cp=2), {"products": True}, []),
    (DENSE, Rank(tp=2, cp=2), {}, [(*GATHERED[:3], GATHERED[3] // 2, ""), SUM]),
    (DENSE, Rank(tp=2), {"products": True}, [SUM]),
    # of attention alone, none; of a feed-forward alone, none
    (DENSE, Rank(tp=2), {"ffn": "N"}, []),
    (DENSE, Rank(tp=2), {"mixer": "N"}, []),
    # experts and a shared one: three sums, of which the last is needed by a gate alone
    (MOE, Rank(tp=2), {"ffn": "E"}, [SUM, SUM]),
    (GATED, Rank(tp=2), {"ffn": "E"}, [SUM, SUM, SUM]),
    (GATED, Rank(tp=2), {"ffn": "F"}, [SUM]),
]


@pytest.mark.parametrize(("spec", "rank", "how", "expected"), AGAIN)
def test_what_a_second_forward_sends(
    spec: ModelSpec, rank: Rank, how: dict[str, Any], expected: list[Any]
) -> None:
    assert seen(traffic.recomputed_moves(spec, rank, n_tokens=11, **how)) == expected


RUN = Pass(batch_size=1, seq_len=11)
TWICE = Pass(batch_size=2, seq_len=11)


def test_two_sequences_keep_twice_as_much() -> None:
    of_experts = {"rotated": False, "mixer": "N", "ffn": "E"}
    for rank in (Rank(), Rank(ep=2), Rank(ep=4, tp=1)):
        one, two = (
            bytes_of(kept_sharding.block_kept(MOE, run, rank, **of_experts)) for run in (RUN, TWICE)
        )
        assert two == 2 * one > 0
    ends = [kept_sharding.last_kept(DENSE, run) for run in (RUN, TWICE)]
    norms = [[term for term in terms if "norm" in term.name] for terms in ends]
    assert bytes_of(norms[1]) == 2 * bytes_of(norms[0]) > 0
    assert {term.name.partition(": ")[0] for term in norms[0]} == {"last norm"}
    one, two = (kept_sharding.cached_bytes(DENSE, run, Rank()) for run in (RUN, TWICE))
    assert two == 2 * one > 0


def test_a_first_block_without_its_norm_keeps_less() -> None:
    """As much less as a model that is measured with the norm and without it."""
    spec = DENSE.replace(n_layers=1, first_norm=False)
    run = Workload(seq_len=11)
    measured = [
        metacount.train(spec.replace(first_norm=first), run).activation_bytes
        for first in (True, False)
    ]
    how = {"rotated": False}
    kept = [
        kept_sharding.block_kept(spec, RUN, Rank(), first_norm=first, **how)
        for first in (True, False)
    ]
    assert bytes_of(kept[0]) - bytes_of(kept[1]) == measured[0] - measured[1] > 0
    names = [{term.name for term in terms} for terms in kept]
    assert names[0] == names[1]


def test_what_a_rank_keeps_between_tokens_by_hand() -> None:
    # keys and values of two heads of 5, of which a rank has one; 11 positions in 2 bytes; of a
    # window of 4 the next token needs 3
    assert kept_sharding.cached_bytes(DENSE, RUN, Rank(tp=2)) == 2 * 5 * 11 * 2
    assert kept_sharding.cached_bytes(DENSE, RUN, Rank(tp=2), window=4) == 2 * 5 * 3 * 2
    assert kept_sharding.cached_bytes(DENSE, RUN, Rank(tp=2), mixer="N") == 0
    # every rank keeps all latents, and an index's keys
    latent = small("deepseek-v2")
    per = latent.kv_lora_rank + latent.qk_rope_head_dim
    assert kept_sharding.cached_bytes(latent, RUN, Rank(tp=5)) == per * 11 * 2
    indexed = small("minimax-m3-text")
    heads = 2 * indexed.n_kv_heads * indexed.head_dim
    plain, more = (
        kept_sharding.cached_bytes(indexed, RUN, Rank(), indexed=there) for there in (False, True)
    )
    assert (plain, more) == (heads * 11 * 2, (heads + indexed.index_head_dim) * 11 * 2)
    assert kept_sharding.cached_bytes(indexed, RUN, Rank()) == plain


def test_what_a_rank_keeps_has_no_formula_for() -> None:
    rule = "checkpointing has no formula of what a rank keeps: got 'selective'; choose none or full"
    with pytest.raises(SpecError) as refused:
        kept_sharding.check_rank_covered(
            DENSE, Pass(batch_size=1, seq_len=8, checkpointing="selective")
        )
    assert rule in one_line(refused.value)
    with pytest.raises(SpecError, match="attention"):
        kept_sharding.check_rank_covered(DENSE, Pass(batch_size=1, seq_len=8, attention="sdpa"))
    capped = DENSE.replace(attention_softcap=30.0)
    kept_sharding.check_rank_covered(capped, Pass(batch_size=1, seq_len=8))
    with pytest.raises(SpecError, match="attention_softcap"):
        kept_sharding.check_rank_covered(capped, Pass(batch_size=1, seq_len=8, attention="flash"))
