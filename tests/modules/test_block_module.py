"""A block's output from its own sublayers, put together by hand for every place of the norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from module_loops import assert_near, randomised
from module_specs import ENCODER_DECODER, MLA, MOE, ROPE, small
from torch import Tensor

from metacount.modules import (
    Attention,
    Block,
    GatedFeedForward,
    LatentAttention,
    LayerNorm,
    MixtureOfExperts,
    RMSNorm,
    Visibility,
)
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
        elif placement == "post_branch":
            x = x + scale * norms[i](sublayer(x))
        elif placement == "sandwich":
            before, after = norms[2 * i : 2 * i + 2]
            x = x + scale * after(sublayer(before(x)))
        else:
            raise AssertionError(placement)
    return x


NORMS = pytest.mark.parametrize(
    "norm",
    [
        {"norm": "rmsnorm"},
        {"norm": "layernorm", "norm_bias": True},
        {"norm": "rmsnorm", "norm_unit_offset": True, "norm_eps": 0.1},
        {"norm": "layernorm", "norm_affine": False},
    ],
    ids=["rms", "layer", "offset", "no weights"],
)


@NORMS
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placement(placement: str, scale: float, norm: dict[str, Any]) -> None:
    spec = small(norm, norm_placement=placement, residual_scale=scale)
    block = randomised(Block(spec, 0))
    x, y, sublayers = run(block)
    assert_near(y, by_hand(placement, block, x, sublayers, scale))


@NORMS
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("placement", [p for p in PLACEMENTS if not p.startswith("parallel")])
def test_placement_with_cross_attention(placement: str, scale: float, norm: dict[str, Any]) -> None:
    spec = small(ENCODER_DECODER, norm, norm_placement=placement, residual_scale=scale)
    block = randomised(Block(spec, 0, cross=True))
    x, y, sublayers = run(block, source=True)
    assert_near(y, by_hand(placement, block, x, sublayers, scale))


def test_placements_differ() -> None:
    outputs = {}
    for placement in PLACEMENTS:
        torch.manual_seed(5)
        outputs[placement] = run(randomised(Block(small(norm_placement=placement), 0)))[1]
    for i, a in enumerate(PLACEMENTS):
        for b in PLACEMENTS[:i]:
            assert (outputs[a] - outputs[b]).abs().max() > 1e-3, (a, b)


@pytest.mark.parametrize(
    ("kind", "n_layers", "alpha"),
    [
        ("decoder", 8, 2.0),  # (2·8)^(1/4)
        ("encoder", 8, 2.0),
        ("decoder", 40, 80**0.25),
    ],
)
def test_deep_norm_of_one_stack(kind: str, n_layers: int, alpha: float) -> None:
    spec = small(kind=kind, n_layers=n_layers, norm_placement="deep", has_head=kind == "decoder")
    assert abs(Block(spec, 0).alpha - alpha) < 1e-14


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


def test_norm_names_are_those_of_transformers() -> None:
    """A row of a tree is laid beside a checkpoint: LLaMA's, Gemma 2's and OLMo 2's names."""

    def names(placement: str) -> list[str]:
        return [name for name, _ in Block(small(norm_placement=placement), 0).named_children()]

    assert names("pre") == ["input_layernorm", "self_attn", "post_attention_layernorm", "mlp"]
    assert names("sandwich") == [
        "input_layernorm",
        "self_attn",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "mlp",
        "post_feedforward_layernorm",
    ]
    assert names("post_branch") == [
        "self_attn",
        "post_attention_layernorm",
        "mlp",
        "post_feedforward_layernorm",
    ]


def test_what_each_layer_is_made_of() -> None:
    dense_first = small(MOE, n_layers=5, n_dense_layers=2, shared_expert_gate=True,
                        n_shared_experts=2)  # fmt: skip
    kinds = [type(Block(dense_first, i).mlp) for i in range(5)]
    assert kinds == [GatedFeedForward] * 2 + [MixtureOfExperts] * 3
    every_third = small(MOE, n_layers=7, moe_every=3)
    kinds = [type(Block(every_third, i).mlp) for i in range(7)]
    assert [k is MixtureOfExperts for k in kinds] == [False, False, True] * 2 + [False]
    both = small(MOE, n_layers=7, moe_every=2, n_dense_layers=3)
    kinds = [type(Block(both, i).mlp) for i in range(7)]
    assert [k is MixtureOfExperts for k in kinds] == [False] * 3 + [True, False, True, False]
    block = Block(dense_first, 4)
    assert isinstance(block.mlp, MixtureOfExperts)
    shared = block.mlp.shared_experts
    assert shared is not None
    assert shared.up_proj.weight.shape == (22, 13)  # two shared experts of 11 as one FFN
    assert isinstance(Block(small(MLA), 0).self_attn, LatentAttention)
    assert isinstance(Block(small(), 0).self_attn, Attention)


def test_windows_and_rope_by_layer() -> None:
    spec = small(ROPE, n_layers=7, window=5, window_pattern="LLG", nope_every=2)
    blocks = [Block(spec, i) for i in range(7)]
    assert [b.window for b in blocks] == [5, 5, None, 5, 5, None, 5]
    rotated = [b.self_attn.rotary_dim for b in blocks]
    assert rotated == [10, None, 10, None, 10, None, 10]
    # blocks of one kind have one structure: three kinds of window and rotation occur
    kinds = [b.kind for b in blocks]
    assert [kinds.index(k) for k in kinds] == [0, 1, 2, 1, 0, 5, 0]


@pytest.mark.parametrize("attention", [ROPE, MLA], ids=["gqa", "mla"])
def test_windowed_layers_may_turn_at_their_own_speed(attention: dict[str, Any]) -> None:
    sizes = {"window": 5, "window_pattern": "LLG", "rope_theta": 1e6}
    spec = small(attention, sizes, rope_theta_windowed=1e4)
    assert [Block(spec, i).self_attn.rope_theta for i in range(3)] == [1e4, 1e4, 1e6]
    spec = small(attention, sizes)
    assert [Block(spec, i).self_attn.rope_theta for i in range(3)] == [1e6, 1e6, 1e6]


def test_the_first_norm_may_be_missing() -> None:
    """ModernBERT: the first block's attention reads the embedding as it is."""
    spec = small(first_norm=False)
    block: Any = randomised(Block(spec, 0))
    assert [name for name, _ in block.named_children()] == [
        "self_attn",
        "post_attention_layernorm",
        "mlp",
    ]
    x, y, (self_attn, mlp) = run(block)
    x = x + self_attn(x)
    assert_near(y, x + mlp(block.post_attention_layernorm(x)))
    assert hasattr(Block(spec, 1), "input_layernorm")


def test_moe_of_a_spec_has_all_its_options() -> None:
    spec = small(
        MOE, n_experts=10, router="sigmoid_renorm", router_bias=True, selection_bias=True,
        n_groups=5, top_groups=2, group_score="max", routed_scale=2.5, expert_bias=True,
        n_shared_experts=2, d_ff_shared=19, shared_expert_gate=True, ffn_bias=True,
        activation="silu", swish_beta=1.5,
    )  # fmt: skip
    layer = Block(spec, 0).mlp
    assert isinstance(layer, MixtureOfExperts)
    router = layer.gate
    assert (router.scoring, router.top_k, router.routed_scale) == ("sigmoid_renorm", 3, 2.5)
    assert (router.n_groups, router.top_groups, router.group_score) == (5, 2, "max")
    assert router.proj.bias is not None
    assert {name: tuple(b.shape) for name, b in layer.named_buffers()} == {
        "gate.e_score_correction_bias": (10,)
    }
    assert layer.experts.swish_beta == 1.5
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "gate.proj.weight": (10, 13),
        "gate.proj.bias": (10,),
        "experts.gate_up_proj": (10, 22, 13),
        "experts.gate_up_proj_bias": (10, 22),
        "experts.down_proj": (10, 13, 11),
        "experts.down_proj_bias": (10, 13),
        "shared_experts.gate_proj.weight": (38, 13),
        "shared_experts.gate_proj.bias": (38,),
        "shared_experts.up_proj.weight": (38, 13),
        "shared_experts.up_proj.bias": (38,),
        "shared_experts.down_proj.weight": (13, 38),
        "shared_experts.down_proj.bias": (13,),
        "shared_expert_gate.weight": (1, 13),
    }
