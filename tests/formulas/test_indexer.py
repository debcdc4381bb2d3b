"""The lightning indexer by hand, and as symbols."""

from __future__ import annotations

import pytest
import sympy

from metacount.catalog import entry
from metacount.formulas.indexer import (
    index_flops,
    indexer_cache_values,
    indexer_products,
    indexer_weights,
    selected_pairs,
    selected_positions,
)
from metacount.formulas.model import causal_matmul_flops_by_role, decode_matmul_flops
from metacount.formulas.selection import attention_by_selection
from metacount.formulas.terms import PAIRS, TOKENS, flops_of, params_of

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
