"""What a rank holds and sends, by hand: each literal with its arithmetic above it."""

from __future__ import annotations

from metacount.formulas import sharding, traffic
from metacount.formulas.block import block_weights
from metacount.formulas.sharding import Cut, Rank
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
