"""A block's output from its own sublayers, put together by hand for every place of the norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.module_specs import ENCODER_DECODER, small
from helpers.release import daily
from torch import Tensor

from metacount.modules import Block, LayerNorm, RMSNorm, Visibility
from metacount.spec import CHOICES

PLACEMENTS = CHOICES["norm_placement"]
S, T = 5, 8

Sublayer = Callable[[Tensor], Tensor]


def run(block: Block, *, source: bool = False) -> tuple[Tensor, Tensor, list[Sublayer]]:
    """Input, output, and the sublayers as functions of one tensor."""
    x = torch.randn(2, S, 13, dtype=torch.float64)
    memory = torch.randn(2, T, 13, dtype=torch.float64)
    sees = Visibility(n_queries=S, n_keys=S)
    across = Visibility(n_queries=S, n_keys=T, kind="bidirectional")
    functions: list[Sublayer] = [lambda x: block.self_attn(x, sees)]
    if source:
        y = block(x, sees, source_BTD=memory, source_visibility=across)
        functions.append(lambda x: block.cross_attn(x, across, source_BTD=memory))
    else:
        y = block(x, sees)
    return x, y, [*functions, block.mlp]


def by_hand(placement: str, block: Any, x: Tensor, f: list[Sublayer], scale: float) -> Tensor:
    """The literal formula of each placement. Norms of a sublayer in order of creation."""
    norms = [m for m in block.children() if isinstance(m, LayerNorm | RMSNorm)]
    if placement == "parallel":
        (norm,) = norms
        return x + scale * (f[0](norm(x)) + f[1](norm(x)))
    if placement == "parallel_two":
        first, second = norms
        return x + scale * (f[0](first(x)) + f[1](second(x)))
    per_sublayer = 2 if placement == "sandwich" else 1
    assert len(norms) == per_sublayer * len(f)
    # three decoder layers: (2·3)^(1/4) alone, (3·3)^(1/4) beside an encoder
    alpha = 1.0 if placement != "deep" else 6**0.25 if len(f) == 2 else 9**0.25
    for i, sublayer in enumerate(f):
        if placement == "pre":
            x = x + scale * sublayer(norms[i](x))
        elif placement in ("post", "deep"):
            x = norms[i](alpha * x + scale * sublayer(x))
        elif placement == "stream":
            x = norms[i](x)
            x = x + scale * sublayer(x)
        elif placement in ("post_branch", "hybrid"):  # hybrid, of a layer with attention
            x = x + scale * norms[i](sublayer(x))
        elif placement == "sandwich":
            before, after = norms[2 * i : 2 * i + 2]
            x = x + scale * after(sublayer(before(x)))
        else:
            raise AssertionError(placement)
    return x


NORMS = [{"norm": "layernorm", "norm_bias": True}, {"norm_unit_offset": True, "norm_eps": 0.1}]


@daily(6)
@pytest.mark.parametrize("norm", NORMS, ids=["layer", "offset"])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placement(placement: str, cross: bool, scale: float, norm: dict[str, Any]) -> None:
    if cross and placement.startswith("parallel"):
        return  # no such decoder
    how = ENCODER_DECODER if cross else {}
    spec = small(how, norm, norm_placement=placement, residual_scale=scale)
    block = randomised(Block(spec, 0, cross=cross))
    x, y, sublayers = run(block, source=cross)
    assert_near(y, by_hand(placement, block, x, sublayers, scale))


def test_deep_norm_of_an_encoder_decoder() -> None:
    """Wang et al. 2022, arXiv:2203.00555, figure 2: N encoder and M decoder layers."""
    spec = small(
        ENCODER_DECODER, n_encoder_layers=5, n_layers=27, norm_placement="deep", d_model=13
    )
    # decoder: (3·27)^(1/4) = 3; encoder: 0.81·(5^4·27)^(1/16)
    assert abs(Block(spec, 0, cross=True).alpha - 3.0) < 1e-14
    assert abs(Block(spec, 0).alpha - 0.81 * (5**4 * 27) ** (1 / 16)) < 1e-14
    block = randomised(Block(spec, 0, cross=True))
    x, y, (self_attn, cross_attn, mlp) = run(block, source=True)
    x = block.self_attention_layernorm(3 * x + self_attn(x))
    x = block.cross_attention_layernorm(3 * x + cross_attn(x))
    assert_near(y, block.feedforward_layernorm(3 * x + mlp(x)))
