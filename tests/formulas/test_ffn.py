"""Feed-forward blocks, and LLaMA's rule for their width."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metacount.formulas.ffn import (
    ffn_matmul_flops,
    ffn_params,
    gated_d_ff,
    glu_matmul_flops,
    glu_params,
    plain_matmul_flops,
    plain_params,
)


def test_params_by_hand() -> None:
    # up 17·13 + down 13·17 = 442; biases 17 + 13 = 30
    assert plain_params(13, 17) == 442
    assert plain_params(13, 17, bias=True) == 472
    # gate, up, down: 3·13·17 = 663; biases 17 + 17 + 13 = 47
    assert glu_params(13, 17) == 663
    assert glu_params(13, 17, bias=True) == 710


def test_ffn_params_chooses_the_form() -> None:
    assert ffn_params(13, 17, gated=False) == 442
    assert ffn_params(13, 17, gated=False, bias=True) == 472
    assert ffn_params(13, 17, gated=True) == 663
    assert ffn_params(13, 17, gated=True, bias=True) == 710


def test_flops_by_hand() -> None:
    # 3 tokens × 2 matrices × 13·17 = 1326 multiply-adds
    assert plain_matmul_flops(3, 13, 17) == 2652
    assert ffn_matmul_flops(3, 13, 17, gated=False) == 2652
    # 3 tokens × 3 matrices × 13·17 = 1989 multiply-adds
    assert glu_matmul_flops(3, 13, 17) == 3978
    assert ffn_matmul_flops(3, 13, 17, gated=True) == 3978


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99), st.booleans())
def test_flops_are_two_per_weight_and_token(n: int, d: int, m: int, gated: bool) -> None:
    assert ffn_matmul_flops(n, d, m, gated=gated) == 2 * n * ffn_params(d, m, gated=gated)


def test_gated_width_of_published_models() -> None:
    # LLaMA arXiv:2302.13971: 7B, 13B (params.json of the release: multiple_of 256)
    assert gated_d_ff(4096, multiple_of=256) == 11008
    assert gated_d_ff(5120, multiple_of=256) == 13824
    # Llama 2 70B and Llama 3 70B: ffn_dim_multiplier 1.3, multiple_of 4096
    assert gated_d_ff(8192, multiplier=Fraction(13, 10), multiple_of=4096) == 28672
    # Llama 3 8B: ffn_dim_multiplier 1.3, multiple_of 1024
    assert gated_d_ff(4096, multiplier=Fraction("1.3"), multiple_of=1024) == 14336


def test_gated_width_by_hand() -> None:
    # 2·4·13 / 3 = 34.67 -> 34; multiples of 1: 34; of 5: 35; of 17: already one
    assert gated_d_ff(13, multiple_of=1) == 34
    assert gated_d_ff(13, multiple_of=5) == 35
    assert gated_d_ff(13, multiple_of=17) == 34
    # cut before the multiplier: 34·3/2 = 51, not 34.67·3/2 = 52
    assert gated_d_ff(13, multiplier=Fraction(3, 2), multiple_of=1) == 51
    # cut after it: 34·7/5 = 47.6 -> 47
    assert gated_d_ff(13, multiplier=Fraction(7, 5), multiple_of=1) == 47


def test_gated_width_refuses_a_float() -> None:
    with pytest.raises(TypeError, match="multiplier"):
        gated_d_ff(8192, multiplier=1.3, multiple_of=4096)  # type: ignore[arg-type]
