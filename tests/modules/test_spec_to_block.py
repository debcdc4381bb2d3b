"""A spec's fields arrive in the modules of its blocks: the loops read them off the module.

Which tensors there are, by path and shape: `tests/formulas/test_modules.py`.
"""

from __future__ import annotations

from operator import attrgetter
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
from metacount.spec import CHOICES
from metacount.spec.ffn import Groups

LLG = {"window": 5, "window_pattern": "LLG", "rope_theta": 1e6}
SINCE_TWO = {"n_layers": 5, "n_dense_layers": 2}
# fields of a spec, something of a block, and what it is in each layer
BY_LAYER: list[tuple[dict[str, Any], str, list[Any]]] = [
    ({**MOE, **SINCE_TWO, "d_ff": 17}, "mlp", [GatedFeedForward] * 2 + [MixtureOfExperts] * 3),
    (
        {**MOE, "n_layers": 7, "moe_every": 3},
        "mlp",
        [*([GatedFeedForward] * 2 + [MixtureOfExperts]) * 2, GatedFeedForward],
    ),
    (
        {**MOE, "n_layers": 7, "moe_every": 2, "n_dense_layers": 3},
        "mlp",
        [GatedFeedForward] * 3 + [MixtureOfExperts, GatedFeedForward] * 2,
    ),
    ({**ROPE, **LLG, "n_layers": 7}, "window", [5, 5, None, 5, 5, None, 5]),
    ({**ROPE, "n_layers": 5, "nope_every": 2}, "self_attn.rotary_dim", [10, None, 10, None, 10]),
    *(
        ({**kind, **LLG, **fields}, "self_attn.rope_theta", expected)
        for kind in (ROPE, MLA)
        for fields, expected in (({"rope_theta_windowed": 1e4}, [1e4, 1e4, 1e6]), ({}, [1e6] * 3))
    ),
    # Llama 4 norms what it rotates; a norm with weights is in every layer
    *(
        ({**ROPE, "qk_norm": kind, "nope_every": 3}, "self_attn.qk_norm", [kind, kind, last])
        for kind in CHOICES["qk_norm"]
        for last in ("none" if kind == "l2" else kind,)
    ),
]


@pytest.mark.parametrize(
    ("fields", "path", "expected"), BY_LAYER, ids=[path for _, path, _ in BY_LAYER]
)
def test_what_each_layer_is_made_of(fields: dict[str, Any], path: str, expected: list[Any]) -> None:
    spec = small(fields)
    found = [attrgetter(path)(Block(spec, index)) for index in range(spec.n_layers)]
    assert [type(each) if path == "mlp" else each for each in found] == expected


def test_blocks_of_one_kind_have_one_structure() -> None:
    """Three kinds of window and rotation occur."""
    spec = small(ROPE, LLG, n_layers=7, nope_every=2)
    kinds = [Block(spec, i).kind for i in range(7)]
    assert [kinds.index(k) for k in kinds] == [0, 1, 2, 1, 0, 5, 0]


SCORES = {"attention_scale": 0.7, "attention_softcap": 3.0}
TURNED = {"rotary_dim": 4, "rope_theta": 50.0, "rope_style": "interleaved"}
EPS = {"norm_eps": 0.3}
CROSS = {**ENCODER_DECODER, "position": "rope", "head_dim": 10, "n_buckets": None}
CROSS |= {"max_distance": None, "qk_norm": "head", "attention_sinks": True}
ROUTED = {
    **{"n_experts": 10, "router": "sigmoid_renorm", "router_bias": True, "selection_bias": True},
    **{"n_groups": 5, "top_groups": 2, "group_score": "max", "routed_scale": 2.5},
    **{"n_shared_experts": 2, "d_ff_shared": 19, "shared_expert_gate": True, "swish_beta": 1.5},
}
# of the first block of a spec: its fields, a module in it, its class, and values in it
VALUES: list[tuple[dict[str, Any], str, type, dict[str, Any]]] = [
    (
        {**ROPE, **SCORES, **TURNED, "attention_sinks": True},
        "self_attn",
        Attention,
        {"scale": 0.7, "core.scale": 0.7, "core.softcap": 3.0, "core.sinks.shape": (6,)} | TURNED,
    ),
    (
        ROPE,
        "self_attn",
        Attention,
        {"scale": 10**-0.5, "core.softcap": None, "core.sinks": None}
        | {"rotary_dim": 10, "rope_theta": 10000.0, "rope_style": "half"},
    ),
    ({}, "self_attn", Attention, {"rotary_dim": None, "relative": None}),
    # the scale of self-attention, and none of what belongs to positions
    (
        {**CROSS, **SCORES},
        "cross_attn",
        Attention,
        {"core.scale": 0.7, "core.softcap": 3.0, "core.sinks": None}
        | {"qk_norm": "none", "rotary_dim": None, "relative": None},
    ),
    (
        {**MLA, **SCORES, **EPS, "rope_theta": 50.0, "rope_style": "half"},
        "self_attn",
        LatentAttention,
        {"core.scale": 0.7, "core.softcap": 3.0, "rope_theta": 50.0, "rope_style": "half"}
        | {"kv_a_layernorm.eps": 0.3, "q_a_layernorm.eps": 0.3},
    ),
    (MLA, "self_attn", LatentAttention, {"core.scale": 11**-0.5}),  # 7 + 4
    (
        {"norm_unit_offset": True, **EPS},
        "input_layernorm",
        RMSNorm,
        {"eps": 0.3, "unit_offset": True},
    ),
    ({}, "input_layernorm", RMSNorm, {"unit_offset": False}),
    ({"norm": "layernorm", "norm_bias": True, **EPS}, "input_layernorm", LayerNorm, {"eps": 0.3}),
    *(
        ({**ROPE, "qk_norm": kind, **EPS, "norm_unit_offset": True}, f"self_attn.{name}", made, {})
        for kind, made in (("layernorm", LayerNorm), ("head", RMSNorm), ("full", RMSNorm))
        for name in ("q_norm", "k_norm")
    ),
    (
        {**ROPE, "qk_norm": "full", **EPS, "norm_unit_offset": True},
        "self_attn.q_norm",
        RMSNorm,
        {"eps": 0.3, "unit_offset": True},
    ),
    (
        {"swish_beta": 1.5, "gate_scale": 10.0, "ffn_scale": 0.1},
        "mlp",
        GatedFeedForward,
        {"activation": "silu", "swish_beta": 1.5, "gate_scale": 10.0, "scale": 0.1},
    ),
    ({"attention_out_scale": 0.1}, "self_attn", Attention, {"out_scale": 0.1}),
    (
        {"gated": False, "activation": "relu2"},
        "mlp",
        FeedForward,
        {"activation": "relu2", "swish_beta": 1.0},
    ),
    (
        {**MOE, **ROUTED},
        "mlp",
        MixtureOfExperts,
        {"gate.scoring": "sigmoid_renorm", "gate.top_k": 3, "gate.routed_scale": 2.5}
        | {"gate.groups": Groups(n_groups=5, top_groups=2, score="max")}
        | {"gate.proj.bias.shape": (10,), "gate.e_score_correction_bias.shape": (10,)}
        | {"experts.swish_beta": 1.5, "shared_experts.up_proj.out_features": 2 * 19},
    ),
]


@pytest.mark.parametrize(
    ("fields", "path", "kind", "values"), VALUES, ids=[path for _, path, *_ in VALUES]
)
def test_a_module_has_what_the_spec_says(
    fields: dict[str, Any], path: str, kind: type, values: dict[str, Any]
) -> None:
    module = attrgetter(path)(Block(small(fields), 0, cross=path == "cross_attn"))
    assert type(module) is kind
    assert {name: attrgetter(name)(module) for name in values} == values
