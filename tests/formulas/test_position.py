"""Tables and vectors of positions."""

from __future__ import annotations

from metacount.formulas.position import (
    learned_table_params,
    t5_bias_params,
    transformer_xl_params,
    transformer_xl_projection_flops,
    transformer_xl_score_flops,
)


def test_params_by_hand() -> None:
    assert learned_table_params(101, 13) == 1313
    assert t5_bias_params(32, 3) == 96
    # projection 13·(3·5) = 195, vectors u and v 2·(3·5) = 30
    assert transformer_xl_params(13, 3, 5) == 225


def test_flops_by_hand() -> None:
    # 7 positions × 13·15 = 1365 multiply-adds
    assert transformer_xl_projection_flops(7, 13, 3, 5) == 2730
    # 11 pairs × 3 heads × 5 = 165 multiply-adds
    assert transformer_xl_score_flops(11, 3, 5) == 330
