"""A step of one block with one thing in it that is another: by formula, and measured.

All of the block is trained, or one thing alone, so that each kept tensor is needed by what is said.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from helpers.miniatures import TINY, miniature
from helpers.release import daily
from helpers.steps import Uncovered, assert_equal, both, workload

from metacount import Setup, Workload
from metacount.catalog import entry
from metacount.formulas.named import tensors_by_path
from metacount.spec import ModelSpec

ONE = {**TINY, "n_layers": 1}
LAYERNORM = {"norm": "layernorm", "norm_bias": True}
# what a block of attention and a feed-forward may have, beside what TINY has
BLOCKS: list[dict[str, Any]] = [
    *(
        {"activation": activation, "gated": gated}
        for activation in ("relu", "gelu", "gelu_tanh", "silu", "relu2", "sigmoid")
        for gated in (False, True)
    ),
    {"activation": "silu", "swish_beta": 1.7},
    {"activation": "silu", "swish_beta": 1.7, "gated": False},
    {"activation": "identity"},
    {"activation": "clamped_swiglu"},
    LAYERNORM,
    {"norm_affine": False},
    {"norm_unit_offset": True},
    *({"qk_norm": kind} for kind in ("head", "full", "l2")),
    {"qk_norm": "layernorm", **LAYERNORM},
    {"qk_norm": "head", "norm_unit_offset": True},
    {"qk_norm": "full", "norm_unit_offset": True},
]
# what of it is trained: all, or one thing with all else frozen
TRAINED = (None, "gate_proj", "up_proj", "down_proj", "q_proj", "k_proj", "v_proj", "norm")
CHOICES = [
    (changed, trained)
    for changed, trained in itertools.product(BLOCKS, TRAINED)
    if (trained != "gate_proj" or changed.get("gated", True))
    and (trained != "norm" or changed.get("norm_affine", True))
]


def all_but(spec: ModelSpec, name: str | None) -> tuple[str, ...]:
    """What is frozen where the tensors with `name` in their paths are trained; of None nothing is.

    A dot stands before and behind each path, so that a name may be a whole one.
    """
    if name is None:
        return ()
    paths = tensors_by_path(spec)
    found = tuple(path for path in paths if name not in f".{path}.")
    assert len(found) < len(paths), f"no tensor is called {name}"
    return found


@daily(20)
@pytest.mark.parametrize(("changed", "trained"), CHOICES)
def test_each_choice_in_a_block(changed: dict[str, Any], trained: str | None) -> None:
    spec = ModelSpec.from_dict({**ONE, **changed})
    setup = Setup(optimizer="sgd", freeze=all_but(spec, trained and f"{trained}."))
    for dtype in ("bf16", "fp32") if trained is None else ("bf16",):
        assert_equal(*both(spec, workload(spec, 2, 5, dtype), setup))


MLA: dict[str, Any] = {
    "attention": "mla",
    "q_lora_rank": 9,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
    "n_kv_heads": None,
    "head_dim": None,
}
ONE_HEAD = {"n_heads": 1, "n_kv_heads": 1}
GROWTH = {"query_growth": {"weight": 0.1, "step": 4, "shift": 1, "nope_only": False}}
GROWTH_OF_SOME = {
    "query_growth": {"weight": 0.1, "step": 4, "shift": 1, "nope_only": True},
    "nope_every": 2,
    "n_layers": 2,
}
# what attention may be, beside TINY's six heads on two of keys and values
ATTENTIONS: list[dict[str, Any]] = [
    {},
    {"n_kv_heads": 1},
    {"n_kv_heads": 6},
    ONE_HEAD,
    {"position": "none"},
    {"position": "alibi"},
    {"position": "t5", "n_buckets": 4, "max_distance": 8},
    {"position": "transformer_xl"},
    {"rotary_dim": 2},
    {"attention_softcap": 30.0},
    {"attention_sinks": True},
    {"window": 3},
    {"window": 3, "window_kind": "chunked"},
    {"window": 3, "position": "alibi"},
    {"window": 3, "position": "t5", "n_buckets": 4, "max_distance": 8},
    {"window": 3, "window_pattern": "LG", "n_layers": 2},
    {"window": 3, "window_kind": "chunked", "window_pattern": "LG", "n_layers": 3},
    {"kind": "prefix-decoder"},
    {"output_gate": True},
    {"output_gate": True, "qk_norm": "head"},
    *(
        {"output_gate": True, **ONE_HEAD, **changed}
        for changed in ({}, {"position": "none"}, {"qk_norm": "head"}, GROWTH)
    ),
    GROWTH,
    {**GROWTH_OF_SOME, "output_gate": True, **ONE_HEAD},
    {"qk_norm": "head"},
    {"qk_norm": "full"},
    {"q_bias": True, "k_bias": True, "v_bias": True, "o_bias": True},
    MLA,
    {**MLA, "q_lora_rank": None},
    {**MLA, "v_head_dim": 1},
    {**MLA, "v_head_dim": 6},
    {**MLA, "v_head_dim": 8},
    {**MLA, "n_heads": 1},
    {**MLA, "attention_softcap": 30.0},
    {**MLA, "position": "none"},
]
# attention, dtype, batch size
RUNS = (
    ("eager", "bf16", 3),
    ("flash", "bf16", 3),
    ("sdpa", "bf16", 3),
    ("eager", "fp32", 1),
    ("flash", "bf16", 1),
    ("sdpa", "fp32", 1),
)
OF_ATTENTION = (None, "q_", "k_proj", "kv_", "v_proj", "o_proj", "norm", "embed")


@daily(20)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("number", range(len(ATTENTIONS)))
def test_each_choice_of_attention(number: int, run: tuple[str, str, int]) -> None:
    """Everything is trained, and one thing of it, another with each run."""
    spec = ModelSpec.from_dict({**ONE, **ATTENTIONS[number]})
    attention, dtype, batch_size = run
    paths = tensors_by_path(spec)
    alone = [each for each in OF_ATTENTION if each and any(each in path for path in paths)]
    for trained in (None, alone[(number + RUNS.index(run)) % len(alone)]):
        setup = Setup(optimizer="sgd", attention=attention, freeze=all_but(spec, trained))
        work = workload(spec, batch_size, 5, dtype)
        try:
            figures = both(spec, work, setup)
        except Uncovered as error:
            known = attention == "flash" or spec.attention_softcap or spec.attention_sinks
            unlike = spec.position == "transformer_xl" or spec.output_gate
            assert (known and attention != "eager") or (unlike and trained), error
            continue
        assert_equal(*figures)


T5 = {"position": "t5", "n_buckets": 4, "max_distance": 8}


MATRICES = ("q_", "k_proj", "kv_b_proj", "v_proj", "o_proj", "bias", "sinks")
KERNELS: list[tuple[str, str, dict[str, Any]]] = [
    ("flash", "bf16", {}),
    ("flash", "bf16", MLA),
    ("eager", "fp32", {}),
    ("eager", "bf16", GROWTH),
    ("eager", "fp32", {"attention_sinks": True}),
    ("sdpa", "bf16", {}),
    ("sdpa", "bf16", T5),
    ("sdpa", "bf16", {"position": "alibi"}),
    ("sdpa", "bf16", {"window": 3}),
    ("sdpa", "bf16", {"kind": "prefix-decoder"}),
]


@daily(12)
@pytest.mark.parametrize(
    ("kernel", "trained"),
    [
        (kernel, trained)
        for kernel, trained in itertools.product(KERNELS, MATRICES)
        if any(
            trained in path for path in tensors_by_path(ModelSpec.from_dict({**ONE, **kernel[2]}))
        )
    ],
)
def test_one_matrix_of_attention(kernel: tuple[str, str, dict[str, Any]], trained: str) -> None:
    """Alone, and with T5's bias, for whose gradient sdpa is written out."""
    attention, dtype, changed = kernel
    spec = ModelSpec.from_dict({**ONE, **changed})
    alone = all_but(spec, trained)
    beside_bias = tuple(path for path in alone if "bias" not in path)
    for freeze in {alone, beside_bias}:
        setup = Setup(optimizer="sgd", attention=attention, freeze=freeze)
        assert_equal(*both(spec, workload(spec, 2, 5, dtype), setup))


EXPERTS = {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "d_ff": None}
SHARED = {"n_shared_experts": 2, "d_ff_shared": 11}
# what a mixture may have beside experts of SiLU with a softmax over them
MIXTURES: list[dict[str, Any]] = [
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
OF_MIXTURE = (None, "experts", "mlp.gate", "norm")


@daily(20)
@pytest.mark.parametrize(
    ("changed", "trained"),
    [
        (changed, trained)
        for changed, trained in itertools.product(MIXTURES, OF_MIXTURE)
        if trained is None or "n_zero_experts" not in changed  # has no formula
    ],
)
def test_each_choice_in_a_mixture(changed: dict[str, Any], trained: str | None) -> None:
    spec = ModelSpec.from_dict({**ONE, **EXPERTS, **changed})
    setup = Setup(optimizer="sgd", freeze=all_but(spec, trained))
    for dtype in ("bf16", "fp32") if trained is None else ("bf16",):
        assert_equal(*both(spec, workload(spec, 2, 5, dtype), setup))


BIASED = {**SHARED, "expert_bias": True, "router_bias": True, "shared_expert_gate": True}


@daily(8)
@pytest.mark.parametrize(
    "changed",
    [
        SHARED,
        BIASED,
        {**BIASED, "gated": False, "activation": "gelu"},
        {**BIASED, "activation": "relu"},
        {**BIASED, "swish_beta": 1.7},
        {**BIASED, "router": "sigmoid", "router_scales_input": True},
        {**SHARED, "router_scales_input": True},
        {**SHARED, "router": "softmax_renorm", "activation": "clamped_swiglu"},
    ],
)
def test_one_tensor_of_a_mixture(changed: dict[str, Any]) -> None:
    spec = ModelSpec.from_dict({**ONE, **EXPERTS, **changed})
    for alone in tensors_by_path(spec):
        if ".mlp." in alone or "post_attention" in alone:
            setup = Setup(optimizer="sgd", freeze=all_but(spec, f".{alone}."))
            assert_equal(*both(spec, workload(spec, 2, 5), setup))


LEARNED = {"position": "learned", "n_positions": 11}
TRANSFORM = {"head_transform": True, "head_transform_bias": True}
PROJECTED = {"kind": "encoder", "d_embedding": 7, **TRANSFORM}
# what stands before the first block and behind the last
ENDS: list[dict[str, Any]] = [
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
OF_ENDS = (None, "embed_", "embed_types", "embed_positions", "embed_queries", "embed_proj")
OF_ENDS += ("embed_norm", "lm_head", "head_transform", "head_transform.norm", "q_proj")


@daily(20)
@pytest.mark.parametrize("number", range(len(ENDS)))
def test_each_choice_of_the_ends(number: int) -> None:
    spec = ModelSpec.from_dict({**ONE, **ENDS[number]})
    paths = tensors_by_path(spec)
    partly_too = not spec.n_query_positions  # which has no formula
    for dtype, trained in zip(itertools.cycle(("bf16", "fp32")), OF_ENDS, strict=False):
        absent = trained is not None and not any(trained in path for path in paths)
        if absent or (trained is not None and not partly_too):
            continue
        for each in (dtype,) if trained is not None else ("bf16", "fp32"):
            setup = Setup(optimizer="sgd", freeze=all_but(spec, trained))
            assert_equal(*both(spec, workload(spec, 2, 5, each), setup))


TWO: dict[str, dict[str, Any]] = {
    "encoder": {"kind": "encoder-decoder", "n_encoder_layers": 2},
    "sandwich": {"norm_placement": "sandwich"},
    "post": {"norm_placement": "post"},
    "parallel": {"norm_placement": "parallel"},
    "two norms": {"norm_placement": "parallel_two"},
    "two layernorms": {"norm_placement": "parallel_two", **LAYERNORM},
    "dense first": {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "n_dense_layers": 1},
    "biases": {"q_bias": True, "k_bias": True, "v_bias": True, "o_bias": True, "ffn_bias": True}
    | LAYERNORM,
}


ENDS_OF_BRANCHES = ("norm", "o_proj", "down_proj")
# of these the tensors of such names
ONLY = {
    "encoder": ("cross", "encoder.norm.weight", "decoder.layers.1.mlp"),
    "biases": (".bias",),
    **dict.fromkeys(
        ("sandwich", "post", "parallel", "two norms", "two layernorms"), ENDS_OF_BRANCHES
    ),
}
SPECS_OF_TWO = {
    name: ModelSpec.from_dict({**TINY, "n_layers": 2, **changed}) for name, changed in TWO.items()
}


@daily(20)
@pytest.mark.parametrize(
    ("name", "number", "alone"),
    [
        (name, number, path)
        for name, spec in SPECS_OF_TWO.items()
        for number, path in enumerate(tensors_by_path(spec))
        if any(each in path for each in ONLY.get(name, (".",)))
    ],
)
def test_one_tensor_of_two_blocks(name: str, number: int, alone: str) -> None:
    """What lies below it has no gradient, what lies above it has one."""
    spec = SPECS_OF_TWO[name]
    way, dtype = ("none", "full")[number % 2], ("bf16", "fp32")[number // 2 % 2]
    setup = Setup(optimizer="sgd", checkpointing=way, freeze=all_but(spec, f".{alone}."))
    assert_equal(*both(spec, workload(spec, 2, 5, dtype), setup))


UNLIKE: list[tuple[str, dict[str, Any]]] = [
    ("eager", {"nope_every": 2}),
    ("sdpa", {"window": 3, "window_pattern": "LG"}),
    ("sdpa", {"window": 3, "window_kind": "chunked", "window_pattern": "LG", "nope_every": 2}),
    ("eager", {"first_norm": False}),
    ("eager", {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "n_dense_layers": 1}),
    ("eager", {"kind": "encoder-decoder", "n_encoder_layers": 3}),
    ("eager", {"position": "alibi"}),
    ("sdpa", MLA),  # whose products are written out, in float32
]


@daily(20)
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
@pytest.mark.parametrize(("attention", "changed"), UNLIKE)
def test_a_gradient_through_frozen_blocks(
    attention: str, changed: dict[str, Any], checkpointing: str
) -> None:
    """Blocks that have nothing to train are told apart by what they compute, or keep nothing."""
    spec = ModelSpec.from_dict({**TINY, **changed})
    for alone in ("embed_tokens", "lm_head"):
        setup = Setup(
            optimizer="sgd",
            attention=attention,
            checkpointing=checkpointing,
            freeze=all_but(spec, alone),
        )
        assert_equal(*both(spec, workload(spec, 2, 5), setup))


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_an_encoder_that_reads_as_much_as_its_decoder(checkpointing: str) -> None:
    spec = SPECS_OF_TWO["encoder"]
    freeze = all_but(spec, "embed_tokens")
    setup = Setup(optimizer="sgd", checkpointing=checkpointing, freeze=freeze)
    work = Workload(batch_size=2, seq_len=5, source_len=5, dtype="bf16")
    assert_equal(*both(spec, work, setup))


@daily(2)
@pytest.mark.parametrize("alone", ["embed_tokens", "lm_head"])
def test_a_gradient_through_layers_with_an_index_and_without(alone: str) -> None:
    spec = miniature(entry("minimax-m3-text").spec())
    setup = Setup(optimizer="sgd", checkpointing="full", freeze=all_but(spec, alone))
    assert_equal(*both(spec, workload(spec, 2, 5), setup))
