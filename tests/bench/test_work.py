"""FLOPs, bytes and intensity of one forward, by hand at small primes."""

from __future__ import annotations

import pytest

from metacount.bench.work import (
    Positions,
    Work,
    attention_work,
    ffn_work,
    mla_work,
    moe_work,
    norm_work,
)


def test_plain_ffn_by_hand() -> None:
    work = ffn_work(3, 13, 52, gated=False, value_bytes=2)
    # 2 FLOPs · 3 tokens · 13 · 52 · 2 matrices
    assert work.matmul_flops == work.needed_flops == 8112
    # 2 · 13 · 52 weights, 3 · 13 values in and as many out, 2 bytes each
    assert (work.weight_bytes, work.input_bytes, work.output_bytes) == (2704, 78, 78)
    assert work.moved_bytes == 2860
    assert work.intensity == 8112 / 2860


def test_gated_ffn_by_hand() -> None:
    work = ffn_work(3, 13, 17, gated=True, value_bytes=4)
    # 2 · 3 · 13 · 17 · 3 matrices; (3·13·17 + 2·3·13) values of 4 bytes
    assert (work.matmul_flops, work.moved_bytes) == (3978, 4 * (663 + 78))


def test_positions_by_hand() -> None:
    # two sequences of 1 + 2 + 3 + 4 + 5 pairs, of 25 in all
    prefill = Positions(batch_size=2, seq_len=5, kv_len=5)
    assert (prefill.n_tokens, prefill.all_pairs, prefill.kept_pairs) == (10, 50, 30)
    decode = Positions(batch_size=3, seq_len=1, kv_len=7)
    assert (decode.n_tokens, decode.all_pairs, decode.kept_pairs) == (3, 21, 21)
    # a chunk of 3 after a past of 4: 5 + 6 + 7
    assert Positions(batch_size=1, seq_len=3, kv_len=7).kept_pairs == 18


def test_attention_prefill_by_hand() -> None:
    at = Positions(batch_size=2, seq_len=5, kv_len=5)
    work = attention_work(at, 13, 6, 2, 4, value_bytes=2)
    # q and o: 2 · 2 · 10 · 13 · 24 = 12480; k and v: 2 · 2 · 10 · 13 · 8 = 4160
    # a pair costs 4 · 6 · 4 = 96: 50 of them 4800, the 30 that the mask keeps 2880
    assert work.matmul_flops == 12480 + 4160 + 4800
    assert work.needed_flops == 12480 + 4160 + 2880
    # weights 2 · 13 · 4 · (6 + 2) = 832; x and y 130 each; 10 positions · 2 · 2 · 4 values kept
    assert work.weight_bytes == 2 * 832
    assert work.cache_bytes == 2 * 160
    assert work.moved_bytes == 2 * (832 + 130 + 130 + 160)


def test_attention_decode_by_hand() -> None:
    work = attention_work(Positions(batch_size=3, seq_len=1, kv_len=7), 13, 6, 1, 4, value_bytes=2)
    # q and o 2 · 2 · 3 · 13 · 24 = 3744, k and v 2 · 2 · 3 · 13 · 4 = 624, 21 pairs · 96 = 2016
    assert work.matmul_flops == work.needed_flops == 3744 + 624 + 2016
    # one key and one value head: 3 · 7 positions · 2 · 4 values, the last of each written
    assert work.cache_bytes == 2 * 168


LATENT = {
    "q_lora_rank": 11,
    "kv_lora_rank": 7,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
}


def test_mla_decode_by_hand() -> None:
    at = Positions(batch_size=3, seq_len=1, kv_len=7)
    expanded = mla_work(at, 13, 3, **LATENT, absorbed=False, value_bytes=2)  # type: ignore[arg-type]
    absorbed = mla_work(at, 13, 3, **LATENT, absorbed=True, value_bytes=2)  # type: ignore[arg-type]
    # q_a 13·11 + q_b 11·21 = 374, kv_a 13·9 = 117, o 9·13 = 117: 608 for each of 3 tokens
    # kv_b 7·24 = 168: for 21 cached tokens expanded, for 3 absorbed
    # a pair: 3 heads · (7 + 3) = 30 expanded, 3 · (9 + 7) = 48 absorbed; 21 pairs
    assert expanded.matmul_flops == 2 * (3 * 608 + 21 * 168 + 21 * 30)
    assert absorbed.matmul_flops == 2 * (3 * 608 + 3 * 168 + 21 * 48)
    # 608 + 168 weights and the two norms, 11 + 7; x and y 39 each; 21 positions of 7 + 2
    assert expanded.moved_bytes == absorbed.moved_bytes == 2 * (776 + 18 + 78 + 189)


def test_moe_by_hand() -> None:
    work = moe_work(11, 13, 7, 5, 2, experts_used=4, value_bytes=4)
    # router 2·11·13·5 = 1430; 22 rows · 2 · 3 · 13 · 7 = 12012
    assert work.matmul_flops == work.needed_flops == 1430 + 12012
    # 4 experts of 273 and the router's 65; 143 values in and out; 22 choices of 8 bytes
    assert work.weight_bytes == 4 * (4 * 273 + 65)
    assert work.input_bytes == 4 * 143 + 176
    assert work.output_bytes == 572
    # five experts padded to 6 rows: 30 rows, 8 more than needed
    padded = moe_work(11, 13, 7, 5, 2, experts_used=4, rows=30, value_bytes=4)
    assert padded.matmul_flops == 1430 + 30 * 546
    assert (padded.needed_flops, padded.moved_bytes) == (work.needed_flops, work.moved_bytes)


@pytest.mark.parametrize(("bias", "weights"), [(False, 13), (True, 26)])
def test_norm_by_hand(bias: bool, weights: int) -> None:
    work = norm_work(3, 13, bias=bias, value_bytes=2)
    assert (work.matmul_flops, work.intensity) == (0, 0.0)
    assert work.moved_bytes == 2 * (weights + 78)


def test_moved_bytes_are_the_sum() -> None:
    work = Work(
        matmul_flops=1,
        needed_flops=46,
        weight_bytes=2,
        input_bytes=3,
        output_bytes=7,
        cache_bytes=11,
    )
    assert (work.moved_bytes, work.intensity) == (23, 2.0)
