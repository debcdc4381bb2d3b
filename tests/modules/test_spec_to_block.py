"""A spec's fields arrive in the modules of its blocks: the loops read them off the module."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.module_specs import ENCODER_DECODER, MLA, MOE, ROPE, small

from metacount.modules import (
    Attention,
    Block,
    FeedForward,
    GatedFeedForward,
    LatentAttention,
    LayerNorm,
    MixtureOfExperts,
    RMSNorm,
)
from metacount.modules.block import make_norm
from metacount.spec import CHOICES
from metacount.spec.ffn import Groups


def test_what_each_layer_is_made_of() -> None:
    dense_first = small(
        MOE, n_layers=5, n_dense_layers=2, shared_expert_gate=True, n_shared_experts=2
    )
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


def norm_of(**changes: Any) -> Any:
    """A norm over 7 values, of a small model with these changes."""
    return make_norm(small(**changes).last_stack.norms, 7)


def test_norms_are_those_of_the_spec() -> None:
    """The loops read a norm's kind off the module: here it is held to the spec."""
    rms = norm_of(norm="rmsnorm", norm_eps=0.3, norm_unit_offset=True)
    assert isinstance(rms, RMSNorm)
    assert (rms.eps, rms.unit_offset) == (0.3, True)
    assert {name: tuple(p.shape) for name, p in rms.named_parameters()} == {"weight": (7,)}
    assert not norm_of().unit_offset
    layer = norm_of(norm="layernorm", norm_eps=0.3, norm_bias=True)
    assert isinstance(layer, LayerNorm)
    assert layer.eps == 0.3
    assert [tuple(p.shape) for p in layer.parameters()] == [(7,), (7,)]
    assert [n for n, _ in norm_of(norm="layernorm").named_parameters()] == ["weight"]
    for norm in ("layernorm", "rmsnorm"):
        bare = norm_of(norm=norm, norm_affine=False)
        assert (type(bare).__name__.lower(), list(bare.parameters())) == (norm, [])


def test_attention_of_a_spec_has_all_its_options() -> None:
    options: dict[str, Any] = {
        "q_bias": True,
        "v_bias": True,
        "qk_norm": "full",
        "norm_eps": 0.3,
        "norm_unit_offset": True,
        "attention_scale": 0.7,
        "attention_softcap": 3.0,
        "attention_sinks": True,
        "rotary_dim": 4,
        "rope_theta": 50.0,
        "rope_style": "interleaved",
    }
    attention = Block(small(ROPE, options), 0).self_attn
    assert isinstance(attention, Attention)
    assert (attention.scale, attention.core.scale, attention.core.softcap) == (0.7, 0.7, 3.0)
    assert (attention.rotary_dim, attention.rope_theta) == (4, 50.0)
    assert attention.rope_style == "interleaved"
    assert isinstance(attention.q_norm, RMSNorm)
    assert (attention.q_norm.eps, attention.q_norm.unit_offset) == (0.3, True)
    assert {name: tuple(p.shape) for name, p in attention.named_parameters()} == {
        "q_proj.weight": (60, 13),
        "q_proj.bias": (60,),
        "k_proj.weight": (20, 13),
        "v_proj.weight": (20, 13),
        "v_proj.bias": (20,),
        "o_proj.weight": (13, 60),
        "q_norm.weight": (60,),
        "k_norm.weight": (20,),
        "core.sinks": (6,),
    }
    other = Block(small(ROPE, k_bias=True, o_bias=True, n_kv_heads=6), 0).self_attn
    assert isinstance(other, Attention)
    biases = {n: tuple(p.shape) for n, p in other.named_parameters() if n.endswith("bias")}
    assert biases == {"k_proj.bias": (60,), "o_proj.bias": (13,)}
    assert (other.scale, other.core.softcap, other.rotary_dim) == (10**-0.5, None, 10)
    assert (other.rope_theta, other.rope_style) == (10000.0, "half")


@pytest.mark.parametrize("qk_norm", CHOICES["qk_norm"])
def test_qk_norm_of_a_spec(qk_norm: str) -> None:
    blocks = [Block(small(ROPE, qk_norm=qk_norm, nope_every=3), i) for i in range(3)]
    # Llama 4 norms what it rotates; a norm with weights is in every layer
    last = "none" if qk_norm == "l2" else qk_norm
    assert [b.self_attn.qk_norm for b in blocks] == [qk_norm, qk_norm, last]
    made = {"none": None, "l2": None, "layernorm": LayerNorm}.get(qk_norm, RMSNorm)
    for block in blocks:
        for norm in (block.self_attn.q_norm, block.self_attn.k_norm):
            assert norm is None if made is None else isinstance(norm, made)


def test_cross_attention_of_a_spec() -> None:
    """The heads, biases and scale of self-attention, and none of what belongs to positions."""
    spec = small(
        ENCODER_DECODER,
        q_bias=True,
        o_bias=True,
        qk_norm="head",
        attention_sinks=True,
        attention_scale=0.7,
        attention_softcap=3.0,
        position="rope",
        head_dim=10,
        n_buckets=None,
        max_distance=None,
    )
    cross = Block(spec, 0, cross=True).cross_attn
    assert isinstance(cross, Attention)
    assert (cross.core.scale, cross.core.softcap, cross.core.sinks) == (0.7, 3.0, None)
    assert (cross.qk_norm, cross.rotary_dim, cross.relative) == ("none", None, None)
    assert {name: tuple(p.shape) for name, p in cross.named_parameters()} == {
        "q_proj.weight": (60, 13),
        "q_proj.bias": (60,),
        "k_proj.weight": (20, 13),
        "v_proj.weight": (20, 13),
        "o_proj.weight": (13, 60),
        "o_proj.bias": (13,),
    }


def test_latent_attention_of_a_spec_has_all_its_options() -> None:
    spec = small(
        MLA,
        mla_bias=True,
        norm_eps=0.3,
        attention_scale=0.7,
        attention_softcap=3.0,
        rope_theta=50.0,
        rope_style="half",
    )
    attention = Block(spec, 0).self_attn
    assert isinstance(attention, LatentAttention)
    assert (attention.core.scale, attention.core.softcap) == (0.7, 3.0)
    assert (attention.rope_theta, attention.rope_style) == (50.0, "half")
    assert attention.kv_a_layernorm.eps == attention.q_a_layernorm.eps == 0.3
    assert {name: tuple(p.shape) for name, p in attention.named_parameters()} == {
        "q_a_proj.weight": (19, 13),
        "q_a_proj.bias": (19,),
        "q_a_layernorm.weight": (19,),
        "q_b_proj.weight": (66, 19),
        "kv_a_proj_with_mqa.weight": (15, 13),
        "kv_a_proj_with_mqa.bias": (15,),
        "kv_a_layernorm.weight": (11,),
        "kv_b_proj.weight": (72, 11),
        "o_proj.weight": (13, 30),
        "o_proj.bias": (13,),
    }
    plain = Block(small(MLA), 0).self_attn
    assert isinstance(plain, LatentAttention)
    assert plain.core.scale == 11**-0.5  # 7 + 4


def test_feed_forward_of_a_spec() -> None:
    gated = Block(small(ffn_bias=True, swish_beta=1.5), 0).mlp
    assert isinstance(gated, GatedFeedForward)
    assert (gated.activation, gated.swish_beta) == ("silu", 1.5)
    assert [tuple(p.shape) for p in gated.parameters()] == [
        (17, 13),
        (17,),
        (17, 13),
        (17,),
        (13, 17),
        (13,),
    ]
    plain = Block(small(gated=False, activation="relu2"), 0).mlp
    assert isinstance(plain, FeedForward)
    assert (plain.activation, plain.swish_beta) == ("relu2", 1.0)
    assert [tuple(p.shape) for p in plain.parameters()] == [(17, 13), (13, 17)]


@pytest.mark.parametrize("attention", [ROPE, MLA], ids=["gqa", "mla"])
def test_windowed_layers_may_turn_at_their_own_speed(attention: dict[str, Any]) -> None:
    sizes = {"window": 5, "window_pattern": "LLG", "rope_theta": 1e6}
    spec = small(attention, sizes, rope_theta_windowed=1e4)
    assert [Block(spec, i).self_attn.rope_theta for i in range(3)] == [1e4, 1e4, 1e6]
    spec = small(attention, sizes)
    assert [Block(spec, i).self_attn.rope_theta for i in range(3)] == [1e6, 1e6, 1e6]


def test_moe_of_a_spec_has_all_its_options() -> None:
    spec = small(
        MOE,
        n_experts=10,
        router="sigmoid_renorm",
        router_bias=True,
        selection_bias=True,
        n_groups=5,
        top_groups=2,
        group_score="max",
        routed_scale=2.5,
        expert_bias=True,
        n_shared_experts=2,
        d_ff_shared=19,
        shared_expert_gate=True,
        ffn_bias=True,
        activation="silu",
        swish_beta=1.5,
    )
    layer = Block(spec, 0).mlp
    assert isinstance(layer, MixtureOfExperts)
    router = layer.gate
    assert (router.scoring, router.top_k, router.routed_scale) == ("sigmoid_renorm", 3, 2.5)
    assert router.groups == Groups(n_groups=5, top_groups=2, score="max")
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
