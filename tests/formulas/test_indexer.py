"""The lightning indexer by hand, and as symbols."""

from __future__ import annotations

import pytest
import sympy

from metacount.catalog import entry
from metacount.formulas.indexer import (
    block_index_flops,
    block_indexer_weights,
    index_flops,
    indexer_cache_values,
    indexer_products,
    indexer_weights,
    selected_block_pairs,
    selected_block_positions,
    selected_pairs,
    selected_positions,
)
from metacount.formulas.model import (
    causal_matmul_flops_by_role,
    decode_matmul_flops,
    kv_cache_bytes,
    kv_cache_bytes_per_token,
)
from metacount.formulas.selection import attention_by_selection
from metacount.formulas.terms import PAIRS, TOKENS, flops_of, params_of
from metacount.spec import ModelSpec

# d=13, r_q=11, h_i=3, d_i=6
SIZES = {"q_lora_rank": 11, "n_index_heads": 3, "index_head_dim": 6}


def test_params_by_hand() -> None:
    # q 18·11 = 198, k 6·13 = 78, weights 3·13 = 39, norm 12
    assert params_of(indexer_weights(13, **SIZES)) == 198 + 78 + 39 + 12


def test_flops_by_hand() -> None:
    # 4 tokens × 315, 10 pairs × (18 + 3)
    assert index_flops(4, 10, 13, **SIZES) == 2 * (4 * 315 + 10 * 21)
    assert indexer_cache_values(6) == 6


def test_terms_add_up_to_the_flops() -> None:
    terms = (*indexer_weights(13, **SIZES), *indexer_products(3, 6))
    assert flops_of(terms, {TOKENS: 4, PAIRS: 10}) == index_flops(4, 10, 13, **SIZES)


@pytest.mark.parametrize("seq_len", [1, 4, 5, 6, 20])
def test_selected_pairs_are_counted_one_by_one(seq_len: int) -> None:
    assert selected_pairs(seq_len, 5) == sum(min(t, 5) for t in range(1, seq_len + 1))
    assert selected_positions(seq_len, 5) == min(seq_len, 5)


def test_the_index_grows_with_the_square_and_the_selection_does_not() -> None:
    s = sympy.Symbol("S", positive=True, integer=True)
    own = sympy.Poly(index_flops(s, s * s, 13, **SIZES), s)
    assert own.degree() == 2
    assert own.coeff_monomial(s**2) == 2 * 21
    assert selected_pairs(4000, 5) - selected_pairs(3999, 5) == 5


def test_dense_attention_and_its_index_are_what_transformers_runs() -> None:
    spec = entry("deepseek-v3.2").spec().replace(n_layers=4)
    plain = spec.replace(index_top_k=None, n_index_heads=None, index_head_dim=None)
    sizes = {"batch_size": 2, "seq_len": 4096}
    found = attention_by_selection(spec, **sizes)
    both = [causal_matmul_flops_by_role(one, **sizes)["attention"] for one in (spec, plain)]
    assert both[0] - both[1] == found["index_flops"]
    # 4 layers x 2 FLOPs x 128 heads x (128 + 64 + 128) x 2 x 4096·4097/2 pairs; chosen: 2048 fewer
    assert found["dense_attention_flops"] == 4 * 2 * 128 * 320 * 2 * (4096 * 4097 // 2)
    chosen = 2048 * 2049 // 2 + 2048 * 2048
    assert found["selected_attention_flops"] == 4 * 2 * 128 * 320 * 2 * chosen
    assert attention_by_selection(plain, **sizes) == {}


def test_a_decoded_token_reads_what_was_chosen() -> None:
    spec = entry("deepseek-v3.2").spec().replace(n_layers=4)
    plain = spec.replace(index_top_k=None, n_index_heads=None, index_head_dim=None)
    found = attention_by_selection(spec, batch_size=3, seq_len=5000, decode=True)
    per_pair = 4 * 2 * 128 * (512 + 64 + 512)
    assert found["dense_attention_flops"] == 3 * 5000 * per_pair
    assert found["selected_attention_flops"] == 3 * 2048 * per_pair
    both = [decode_matmul_flops(one, batch_size=3, kv_len=5000) for one in (spec, plain)]
    assert both[0] - both[1] == found["index_flops"]


# ---- blocks: d=13, h_i=3, d_i=6 ----

BLOCKS = {"n_index_heads": 3, "index_head_dim": 6}


def test_a_block_indexer_by_hand() -> None:
    # q 18·13 = 234, k 6·13 = 78, two norms of 6
    assert params_of(block_indexer_weights(13, **BLOCKS)) == 234 + 78 + 12
    # 4 tokens × 312, 10 pairs × 18
    assert block_index_flops(4, 10, 13, **BLOCKS) == 2 * (4 * 312 + 10 * 18)


def read(t: int, size: int, top: int) -> int:
    """Positions that token t, from 0, reads: those of its block up to it, and whole ones before."""
    blocks = [range(at, min(at + size, t + 1)) for at in range(0, t + 1, size)]
    return sum(len(block) for block in [*blocks[:-1][: top - 1], blocks[-1]])


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("top", [1, 2, 5])
def test_selected_blocks_are_counted_one_by_one(size: int, top: int) -> None:
    """Below a block, a whole one, k blocks, one more position, and beyond."""
    for seq_len in {1, size, size + 1, size * top, size * top + 1, 5 * size * top + 2}:
        each = [read(t, size, top) for t in range(seq_len)]
        assert selected_block_pairs(seq_len, size, top) == sum(each)
        assert selected_block_positions(seq_len, size, top) == each[-1]


def test_blocks_of_one_position_are_positions() -> None:
    for seq_len in (1, 6, 7, 30):
        assert selected_block_pairs(seq_len, 1, 6) == selected_pairs(seq_len, 6)
        assert selected_block_positions(seq_len, 1, 6) == selected_positions(seq_len, 6)


def test_blocks_in_some_layers() -> None:
    """What the other layers read is dense, selected or not; the index is that of the last."""
    spec = entry("minimax-m3-text").spec().replace(n_layers=4)  # three without, one with
    plain = without_index(spec)
    sizes = {"batch_size": 2, "seq_len": 5000}
    found = attention_by_selection(spec, **sizes)
    both = [causal_matmul_flops_by_role(one, **sizes)["attention"] for one in (spec, plain)]
    assert both[0] - both[1] == found["index_flops"]
    # 2 FLOPs x 64 heads x (128 + 128) x 2 sequences
    per_pair, dense = 2 * 64 * 256 * 2, 5000 * 5001 // 2
    chosen = sum(read(t, 128, 16) for t in range(5000))
    assert found["dense_attention_flops"] == 4 * dense * per_pair
    assert found["selected_attention_flops"] == (3 * dense + chosen) * per_pair
    last = attention_by_selection(spec, **sizes, decode=True)
    # 4999 = 39·128 + 7: the last token is the eighth of its block, 15 whole ones before
    assert last["selected_attention_flops"] == (3 * 5000 + 15 * 128 + 8) * per_pair
    decoded = [decode_matmul_flops(one, batch_size=2, kv_len=5000) for one in (spec, plain)]
    assert decoded[0] - decoded[1] == last["index_flops"]


def test_the_cache_keeps_keys_of_the_index_too() -> None:
    spec = entry("minimax-m3-text").spec()
    plain = without_index(spec)
    sizes = {"batch_size": 3, "seq_len": 100, "bytes_per_value": 2}
    # 57 layers of 60 have one, of 128 values
    assert kv_cache_bytes(spec, **sizes) - kv_cache_bytes(plain, **sizes) == 3 * 100 * 2 * 57 * 128
    assert kv_cache_bytes_per_token(spec, bytes_per_value=1) == 60 * 2 * 4 * 128 + 57 * 128


def without_index(spec: ModelSpec) -> ModelSpec:
    return spec.replace(
        index_block_len=None,
        index_top_blocks=None,
        index_local_blocks=None,
        index_pattern="I",
        n_index_heads=None,
        index_head_dim=None,
    )
