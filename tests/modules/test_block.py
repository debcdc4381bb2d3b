"""Places of the norms that no type of transformers has, put together by hand.

The others: `tests/huggingface/module/test_computes_the_same.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.small_specs import ENCODER_DECODER, small

from metacount.modules import Block, LayerNorm, RMSNorm, Visibility

DEEP = {"norm_placement": "deep", "norm": "layernorm", "norm_bias": True}
# α of Wang et al. 2022, arXiv:2203.00555, figure 2: three decoder layers, (2·3)^(1/4) alone,
# (3·3)^(1/4) beside an encoder; (3·27)^(1/4) = 3
PLACES: list[tuple[dict[str, Any], float]] = [
    (DEEP, 6**0.25),
    ({**DEEP, **ENCODER_DECODER}, 9**0.25),
    ({**DEEP, **ENCODER_DECODER, "n_encoder_layers": 5, "n_layers": 27}, 3.0),
    *(({**ENCODER_DECODER, "norm_placement": place}, 1.0) for place in ("sandwich", "post_branch")),
]


@pytest.mark.parametrize(("how", "alpha"), PLACES)
def test_placement(how: dict[str, Any], alpha: float) -> None:
    spec = small(how, residual_scale=0.3)
    block: Any = randomised(Block(spec, 0, cross=spec.has_encoder))
    x, memory = (torch.randn(2, n, 13, dtype=torch.float64) for n in (5, 8))
    sees = Visibility(n_queries=5, n_keys=5)
    across = Visibility(n_queries=5, n_keys=8, kind="bidirectional")
    source = {"source_BTD": memory, "source_visibility": across} if spec.has_encoder else {}
    found = block(x, sees, **source)
    sublayers = [lambda x: block.self_attn(x, sees), block.mlp]
    if spec.has_encoder:
        sublayers.insert(1, lambda x: block.cross_attn(x, across, source_BTD=memory))
    norms = [m for m in block.children() if isinstance(m, LayerNorm | RMSNorm)]
    assert len(norms) == len(sublayers) * (1 + (how["norm_placement"] == "sandwich"))
    for i, sublayer in enumerate(sublayers):
        if how["norm_placement"] == "deep":
            x = norms[i](alpha * x + 0.3 * sublayer(x))
        elif how["norm_placement"] == "sandwich":
            x = x + 0.3 * norms[2 * i + 1](sublayer(norms[2 * i](x)))
        else:
            x = x + 0.3 * norms[i](sublayer(x))
    assert_near(found, x)
    if spec.has_encoder and alpha == 3.0:
        assert abs(Block(spec, 0).alpha - 0.81 * (5**4 * 27) ** (1 / 16)) < 1e-14
