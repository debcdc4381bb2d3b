"""A step of a small model with one thing in it that is another: by formula, and measured.

All is trained, or one thing alone, so that each kept tensor is needed by what is said.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from helpers.miniatures import TINY
from helpers.release import daily
from helpers.steps import Uncovered, all_but, compare, without_formula

from metacount.formulas.step import tensors_by_path
from metacount.spec import ModelSpec

Changes = dict[str, Any]
Run = tuple[str, str, str, int]  # attention, checkpointing, dtype, batch size


def runs(text: str, *, checkpointing: str = "none", batch_size: int = 2) -> tuple[Run, ...]:
    """Runs by their attention and dtype: "eager bf16, sdpa fp32"."""
    pairs = (one.split() for one in text.split(", "))
    return tuple((attention, checkpointing, dtype, batch_size) for attention, dtype in pairs)


class Family(NamedTuple):
    """Models, each one block of `TINY` with some changes, and what is trained of them how.

    All of a model is trained in each run. The tensors of each name that is `alone`, or of several
    side by side, are trained in one run after the other; so is `each` tensor with such a name.
    """

    models: list[Changes]
    runs: tuple[Run, ...]
    alone: tuple[str | tuple[str, ...], ...] = ()
    each: tuple[str, ...] = ()

    def cases(self) -> Iterator[tuple[Changes, tuple[str, ...], Run]]:
        for number, changes in enumerate(self.models):
            paths = [f".{path}." for path in tensors_by_path(spec_of(changes))]
            names = [(name,) if isinstance(name, str) else name for name in self.alone]
            trained = [some for some in names if all(any(n in p for p in paths) for n in some)]
            trained += [(p,) for p in paths if any(name in p for name in self.each)]
            turns = itertools.islice(itertools.cycle(self.runs), number, None)
            yield from ((changes, (), run) for run in self.runs)
            yield from ((changes, *one) for one in zip(trained, turns, strict=False))


def spec_of(changes: Changes) -> ModelSpec:
    return ModelSpec.from_dict({**TINY, "n_layers": 1, **changes})


LAYERNORM = {"norm": "layernorm", "norm_bias": True}
BIASES = {"q_bias": True, "k_bias": True, "v_bias": True, "o_bias": True}
BLOCKS: list[Changes] = [
    *(
        {"activation": activation, "gated": gated}
        for activation in ("relu", "gelu", "gelu_tanh", "silu", "relu2", "sigmoid")
        for gated in (False, True)
    ),
    {"activation": "silu", "swish_beta": 1.7},
    {"activation": "silu", "swish_beta": 1.7, "gated": False},
    {"activation": "identity"},
    {"activation": "clamped_swiglu"},
    {"activation": "xielu", "gated": False},
    LAYERNORM,
    {"norm_affine": False},
    {"norm_unit_offset": True},
    *({"qk_norm": kind} for kind in ("head", "full", "l2")),
    {"qk_norm": "layernorm", **LAYERNORM},
    {"qk_norm": "head", "norm_unit_offset": True},
    {"qk_norm": "full", "norm_unit_offset": True},
    {"attention_out_scale": 0.5, "gate_scale": 3.0, "ffn_scale": 2.0, "residual_weight": 0.7},
]

LATENTS = {"q_lora_rank": 9, "kv_lora_rank": 5, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2}
MLA: Changes = {
    "attention": "mla",
    **LATENTS,
    "v_head_dim": 3,
    "n_kv_heads": None,
    "head_dim": None,
}
T5 = {"position": "t5", "n_buckets": 4, "max_distance": 8}
ONE_HEAD = {"n_heads": 1, "n_kv_heads": 1}
LAW = {"weight": 0.1, "step": 4, "shift": 1}
GROWTH = {"query_growth": {**LAW, "nope_only": False}}
GROWTH_OF_SOME = {"query_growth": {**LAW, "nope_only": True}, "nope_every": 2, "n_layers": 2}
OTHER_HEADS = {
    **{"window": 3, "window_pattern": "LG", "n_layers": 3},
    **{"n_heads_windowed": 4, "n_kv_heads_windowed": 4, "head_dim_windowed": 6},
}
# what attention may be, beside TINY's six heads on two of keys and values
ATTENTIONS: list[Changes] = [
    {},
    {"n_kv_heads": 1},
    {"n_kv_heads": 6},
    ONE_HEAD,
    {"position": "none"},
    {"position": "alibi"},
    T5,
    {"position": "transformer_xl"},
    {"rotary_dim": 2},
    {"value_head_dim": 3},
    {"value_head_dim": 5, "n_kv_heads": 6},
    *({"head_gate": gate, **more} for gate in ("sigmoid", "softplus") for more in ({}, ONE_HEAD)),
    {**OTHER_HEADS, "value_head_dim": 7, "head_gate": "softplus"},
    {**OTHER_HEADS, "sinks_windowed": True, "rope_theta_windowed": 9.0, "rotary_dim_windowed": 2},
    {"attention_softcap": 30.0},
    {"attention_sinks": True},
    {"window": 3},
    {"window": 3, "window_kind": "chunked"},
    {"window": 3, "position": "alibi"},
    {"window": 3, **T5},
    {"window": 3, "window_pattern": "LG", "n_layers": 2},
    {"window": 3, "window_kind": "chunked", "window_pattern": "LG", "n_layers": 3},
    {"kind": "prefix-decoder"},
    *(
        {"output_gate": True, **changes}
        for changes in ({}, {"position": "none"}, {"qk_norm": "head"}, GROWTH)
    ),
    *(
        {"output_gate": True, **ONE_HEAD, **changes}
        for changes in ({}, {"position": "none"}, {"qk_norm": "head"}, GROWTH)
    ),
    GROWTH,
    {**GROWTH_OF_SOME, "output_gate": True, **ONE_HEAD},
    {"qk_norm": "head"},
    {"qk_norm": "full"},
    BIASES,
    MLA,
    {**MLA, "q_lora_rank": None},
    {**MLA, "v_head_dim": 1},
    {**MLA, "v_head_dim": 6},
    {**MLA, "v_head_dim": 8},
    {**MLA, "n_heads": 1},
    {**MLA, "attention_softcap": 30.0},
    {**MLA, "position": "none"},
]
MATRICES = ("q_", "k_proj", "kv_b_proj", "v_proj", "o_proj", "bias", "sinks")
# each alone, and with T5's bias, for whose gradient sdpa is written out
OF_KERNELS = (*MATRICES, *((name, "relative_bias") for name in MATRICES[:-2]))

EXPERTS = {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "d_ff": None}
SHARED = {"n_shared_experts": 2, "d_ff_shared": 11}
BIASED = {**SHARED, "expert_bias": True, "router_bias": True, "shared_expert_gate": True}
# what a mixture may have beside experts of SiLU with a softmax over them
MIXTURES: list[Changes] = [
    {},
    *(
        {"activation": activation, "gated": gated}
        for activation in ("relu", "gelu", "relu2", "sigmoid")
        for gated in (False, True)
    ),
    {"swish_beta": 1.7},
    {"activation": "identity"},
    {"activation": "clamped_swiglu"},
    *({"router": router} for router in ("softmax_renorm", "topk_softmax", "sigmoid")),
    {"router": "sigmoid_renorm", "selection_bias": True, "routed_scale": 2.5},
    {"router": "sigmoid", "selection_bias": True, "selection_bias_param": True},
    {"expert_bias": True},
    {"router_bias": True},
    {"router_scales_input": True},
    {"router": "sigmoid", "router_scales_input": True},
    {"n_experts": 6, "n_groups": 3, "top_groups": 2},
    {"n_experts": 6, "n_groups": 3, "top_groups": 2, "group_score": "max"},
    {"top_k": 1},
    SHARED,
    {**SHARED, "shared_expert_gate": True},
    {"n_zero_experts": 2},
]
MIXTURES = [{**EXPERTS, **changes} for changes in MIXTURES]
# of these each tensor is trained alone
IN_DETAIL: list[Changes] = [
    SHARED,
    BIASED,
    {**BIASED, "gated": False, "activation": "gelu"},
    {**BIASED, "activation": "relu"},
    {**BIASED, "swish_beta": 1.7},
    {**BIASED, "router": "sigmoid", "router_scales_input": True},
    {**SHARED, "router_scales_input": True},
    {**SHARED, "router": "softmax_renorm", "activation": "clamped_swiglu"},
    {"n_zero_experts": 2},
]
IN_DETAIL = [{**EXPERTS, **changes} for changes in IN_DETAIL]

LEARNED = {"position": "learned", "n_positions": 11}
TRANSFORM = {"head_transform": True, "head_transform_bias": True}
PROJECTED = {"kind": "encoder", "d_embedding": 7, **TRANSFORM}
# what stands before the first block and behind the last
ENDS: list[Changes] = [
    {"n_token_types": 3},
    LEARNED,
    {**LEARNED, "n_query_positions": 11},
    {"position": "sinusoidal"},
    {"embedding_norm": True},
    {"embedding_norm": True, **LAYERNORM},
    {"tie_embeddings": True},
    {"head_bias": True},
    {"logit_softcap": 30.0},
    {"final_norm": False},
    {"first_norm": False},
    {"embedding_scale": 2.0, "logit_scale": 0.5, "residual_scale": 1.5},
    PROJECTED,
    {**PROJECTED, "embedding_norm": True, "tie_embeddings": True},
    *(
        {**TRANSFORM, "activation": activation, **norm}
        for activation in ("relu", "gelu", "relu2")
        for norm in ({}, LAYERNORM)
    ),
    {**TRANSFORM, "swish_beta": 1.7},
]
OF_ENDS = ("embed_", "embed_types", "embed_positions", "embed_queries", "embed_proj")
OF_ENDS += ("embed_norm", "lm_head", "head_transform", "head_transform.norm", "q_proj")

ALL_BIASES = {**BIASES, **LAYERNORM, "ffn_bias": True, "n_layers": 2}
ENCODER = {"kind": "encoder-decoder", "n_encoder_layers": 2, "n_layers": 2}
DENSE_FIRST = {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "n_dense_layers": 1}
PLACEMENTS: list[Changes] = [
    {"norm_placement": "sandwich", "n_layers": 2},
    {"norm_placement": "post", "n_layers": 2},
    {"norm_placement": "parallel", "n_layers": 2},
    {"norm_placement": "parallel_two", "n_layers": 2},
    {"norm_placement": "parallel_two", "n_layers": 2, **LAYERNORM},
    {"norm_placement": "parallel_two", "n_layers": 2, "norm_affine": False},
]
# models whose blocks differ, through which a gradient goes to the embedding, or not
UNLIKE: list[Changes] = [
    {"n_layers": 3, "nope_every": 2},
    {"n_layers": 3, "first_norm": False},
    {"n_layers": 3, **DENSE_FIRST},
    {"n_layers": 3, "kind": "encoder-decoder", "n_encoder_layers": 3},
    {"n_layers": 3, "position": "alibi"},
]
UNLIKE_IN_SDPA: list[Changes] = [
    {"n_layers": 3, "window": 3, "window_pattern": "LG"},
    {"n_layers": 3, "window": 3, "window_kind": "chunked", "window_pattern": "LG", "nope_every": 2},
    {"n_layers": 3, **MLA},  # whose products are written out, in float32
]


NORMAL = runs("eager bf16, eager fp32")
CHECKPOINTED = (*NORMAL, *runs("eager bf16, eager fp32", checkpointing="full"))
SIX = (
    *runs("eager bf16, flash bf16, sdpa bf16", batch_size=3),
    *runs("eager fp32, flash bf16, sdpa fp32", batch_size=1),
)
OF_BLOCK = (
    "gate_proj.",
    "up_proj.",
    "down_proj.",
    "q_proj.",
    "k_proj.",
    "v_proj.",
    "norm.",
    "alpha_",
)
OF_ATTENTION = ("q_", "k_proj", "kv_", "v_proj", "o_proj", "norm", "embed", "position_bias")
OF_BRANCHES = ("self_attn.", "mlp.", ("norm", "k_proj", "v_proj", "o_proj"))
XL, SINKS, ALIBI = (
    {"position": "transformer_xl"},
    {"attention_sinks": True},
    {"position": "alibi"},
)
PREFIX, WINDOW = {"kind": "prefix-decoder"}, {"window": 3}
FAMILIES = {
    "block": Family(BLOCKS, NORMAL, OF_BLOCK),
    "attention": Family(ATTENTIONS, SIX, OF_ATTENTION),
    "flash": Family([{}, MLA], runs("flash bf16"), MATRICES),
    "eager": Family([{}, SINKS, XL], runs("eager fp32"), MATRICES),
    "grown queries": Family([GROWTH], runs("eager bf16"), MATRICES),
    "sdpa": Family([{}, T5, ALIBI, XL, WINDOW, PREFIX], runs("sdpa bf16"), OF_KERNELS),
    "mixture": Family(MIXTURES, NORMAL, ("experts", "mlp.gate", "norm")),
    "mixture, in detail": Family(IN_DETAIL, NORMAL, each=(".mlp.", "post_attention")),
    "ends": Family(ENDS, NORMAL, OF_ENDS),
    "placement": Family(PLACEMENTS, CHECKPOINTED, OF_BRANCHES, ("norm", "o_proj", "down_proj")),
    "two blocks": Family([{**DENSE_FIRST, "n_layers": 2}], CHECKPOINTED, each=(".",)),
    "biases": Family([ALL_BIASES], CHECKPOINTED, each=(".bias.",)),
    "encoder": Family([ENCODER], CHECKPOINTED, each=("cross", "encoder.norm.weight", ".1.mlp")),
}
# a gradient through frozen blocks, of which those are told apart that compute or keep others
for way in ("none", "full", "selective"):
    for attends, models in (("eager", UNLIKE), ("sdpa", UNLIKE_IN_SDPA)):
        run = runs(f"{attends} bf16", checkpointing=way)
        FAMILIES[f"unlike, {way} {attends}"] = Family(models, run, ("embed_tokens", "lm_head"))


@daily(20)
@pytest.mark.parametrize(
    ("changes", "trained", "run"),
    [
        pytest.param(*case, id=f"{name} {number}")
        for name, family in FAMILIES.items()
        for number, case in enumerate(family.cases())
    ],
)
def test_a_step(changes: Changes, trained: tuple[str, ...], run: Run) -> None:
    spec, (attention, checkpointing, dtype, batch_size) = spec_of(changes), run
    how = {
        "attention": attention,
        "checkpointing": checkpointing,
        "freeze": all_but(spec, *trained) if trained else (),
    }
    if without_formula(spec, attention):
        with pytest.raises(Uncovered, match="has no formula"):
            compare(spec, (batch_size, 5), dtype, **how)
        return
    compare(spec, (batch_size, 5), dtype, **how)
