"""Norms: weights of one, norms of a block, norms inside the attention."""

from __future__ import annotations

import pytest

from metacount.formulas.norm import latent_norm_params, norm_params, norms_per_block, qk_norm_params


def test_norm_by_hand() -> None:
    assert norm_params(13) == 13
    # weight 13 + bias 13
    assert norm_params(13, bias=True) == 26
    assert norm_params(13, affine=False) == 0
    assert norm_params(13, bias=True, affine=False) == 0


@pytest.mark.parametrize(
    ("placement", "self_only", "with_cross"),
    [
        ("pre", 2, 3),
        ("post", 2, 3),
        ("deep", 2, 3),
        ("post_branch", 2, 3),
        ("sandwich", 4, 6),
    ],
)
def test_norms_per_sublayer(placement: str, self_only: int, with_cross: int) -> None:
    assert norms_per_block(placement) == self_only
    assert norms_per_block(placement, cross=True) == with_cross


def test_norms_of_a_parallel_block() -> None:
    assert norms_per_block("parallel") == 1
    assert norms_per_block("parallel_two") == 2


def test_qk_norm_by_hand() -> None:
    # q [5] + k [5]
    assert qk_norm_params("head", 6, 2, 5) == 10
    # q [6·5] + k [2·5]
    assert qk_norm_params("full", 6, 2, 5) == 40
    # weight [5] and bias [5] on q, the same on k
    assert qk_norm_params("layernorm", 6, 2, 5) == 20
    assert qk_norm_params("l2", 6, 2, 5) == 0
    assert qk_norm_params("none", 6, 2, 5) == 0


def test_latent_norms_by_hand() -> None:
    assert latent_norm_params(None, 7) == 7
    # query latent 11 + key-value latent 7
    assert latent_norm_params(11, 7) == 18
