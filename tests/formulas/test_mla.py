"""MLA: two forms of one layer, with and without compressed queries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metacount.formulas.attention import attention_pair_flops, attention_params
from metacount.formulas.mla import (
    mla_kv_cache_values,
    mla_matmul_flops,
    mla_params,
    mla_weights,
)

# d=13, h=3, r_q=11, d_c=7, d_n=5, d_r=2, d_v=17
SIZES: dict[str, Any] = {
    "q_lora_rank": 11,
    "kv_lora_rank": 7,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 2,
    "v_head_dim": 17,
}
DIRECT = {**SIZES, "q_lora_rank": None}
SMALL = st.integers(1, 30)

# q_a 13·11 = 143, q_b 11·3·(5+2) = 231, kv_a 13·(7+2) = 117, kv_b 7·3·(5+17) = 462,
# o 3·17·13 = 663; q without compression 13·3·(5+2) = 273


def test_params_by_hand() -> None:
    # 143 + 231 + 117 + 462 + 663
    assert mla_params(13, 3, **SIZES) == 1616
    # 273 + 117 + 462 + 663
    assert mla_params(13, 3, **DIRECT) == 1515
    # q_a 11, kv_a 7 + 2, o 13
    assert mla_params(13, 3, **SIZES, bias=True) == 1649
    assert mla_params(13, 3, **DIRECT, bias=True) == 1537


def test_expanded_flops_by_hand() -> None:
    # 4 tokens × 1616, 10 pairs × 3 heads × (5 + 2 + 17) = 720: 7184 multiply-adds
    assert mla_matmul_flops(4, 10, 13, 3, **SIZES, absorbed=False) == 14368
    # 4 × 1515 + 720 = 6780
    assert mla_matmul_flops(4, 10, 13, 3, **DIRECT, absorbed=False) == 13560
    # kv_b over 19 cached tokens: 4 × (1616 - 462) + 19 × 462 + 720 = 14114
    assert mla_matmul_flops(4, 10, 13, 3, **SIZES, absorbed=False, n_kv_tokens=19) == 28228


def test_absorbed_flops_by_hand() -> None:
    # 4 × 1616, 10 pairs × 3 heads × (7 + 2 + 7) = 480: 6944 multiply-adds
    assert mla_matmul_flops(4, 10, 13, 3, **SIZES, absorbed=True) == 13888
    assert mla_matmul_flops(4, 10, 13, 3, **SIZES, absorbed=True, n_kv_tokens=19) == 13888
    # 4 × 1515 + 480 = 6540
    assert mla_matmul_flops(4, 10, 13, 3, **DIRECT, absorbed=True) == 13080


def test_cache_by_hand() -> None:
    assert mla_kv_cache_values(7, 2) == 9


@given(SMALL, SMALL, SMALL, SMALL, SMALL)
def test_without_rope_mla_is_mha_with_factored_keys_and_values(
    d: int, h: int, r: int, e: int, n: int
) -> None:
    sizes: dict[str, Any] = {
        "q_lora_rank": None,
        "kv_lora_rank": r,
        "qk_nope_head_dim": e,
        "qk_rope_head_dim": 0,
        "v_head_dim": e,
    }
    # k [h·e, d] and v [h·e, d] become one [r, d] and one [2·h·e, r]
    factored = attention_params(d, h, h, e) - 2 * d * h * e + r * d + 2 * h * e * r
    assert mla_params(d, h, **sizes) == factored
    pairs = mla_matmul_flops(0, n, d, h, **sizes, absorbed=False)
    assert pairs == attention_pair_flops(n, h, e)


@pytest.mark.parametrize(("sizes", "read"), [(DIRECT, 13), (SIZES, 11)])
def test_what_the_values_of_a_matrix_are_for(sizes: dict[str, Any], read: int) -> None:
    weights = mla_weights(13, 3, **sizes)
    splits = {weight.name.split(".")[1]: weight.split for weight in weights if weight.split}
    assert splits == {
        "q_proj" if sizes is DIRECT else "q_b_proj": (
            ("not rotated", read * 3 * 5),
            ("rotated", read * 3 * 2),
        ),
        "kv_a_proj_with_mqa": (("latent", 13 * 7), ("rotated key", 13 * 2)),
        "kv_b_proj": (("keys", 7 * 3 * 5), ("values", 7 * 3 * 17)),
    }
    for weight in weights:
        assert not weight.split or sum(size for _, size in weight.split) == weight.size
