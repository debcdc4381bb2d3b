"""Tensors and figures of a model against the module that is built of it: by path, shape, role."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from helpers import one_line
from helpers.miniatures import TINY, miniature
from helpers.random_models import changed
from helpers.release import daily, one_day_in
from helpers.same_tensors import unmatched
from helpers.structures import OTHER_WAYS, first_of_each, miniatures, with_logits
from hypothesis import HealthCheck, given, settings

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import model, sublayers
from metacount.formulas.step import (
    Part,
    chosen_tensors,
    is_inner,
    tensors_by_path,
    trained_tensors,
)
from metacount.measure.ours import measure_params
from metacount.modules.build import build
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.spec import ModelSpec
from metacount.training.model import trainable
from metacount.training.setup import Setup

BOTH = {"kind": "encoder-decoder", "n_encoder_layers": 2}
LEARNED = {"position": "learned", "n_positions": 11}
BIASES = dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias", "ffn_bias", "head_bias"), True)
NORMS: list[dict[str, Any]] = [
    {"norm": "rmsnorm"},
    {"norm": "rmsnorm", "norm_affine": False},
    {"norm": "layernorm", "norm_bias": True},
    {"norm": "layernorm"},
]
AROUND: dict[str, Any] = {"n_altup_inputs": 3, "altup_active": 1, "laurel_rank": 5}
AROUND |= {"d_per_layer": 11, "vocab_size_per_layer": 97, "n_kv_shared_layers": 3}
AROUND |= {"n_layers": 7, "window": 5, "window_pattern": "LLG", "norm_placement": "sandwich"}
AROUND |= {"head_dim": 10, "qk_norm": "head", "v_norm": True, "activation": "gelu_tanh"}
# beside the structures of the catalog: TINY with changes
CHANGED: list[dict[str, Any]] = [
    *(
        {"norm_placement": placement, **kind}
        for placement in ("pre", "post", "deep", "sandwich", "post_branch")
        for kind in ({}, BOTH)
    ),
    *({"norm_placement": placement} for placement in ("parallel", "parallel_two", "stream")),
    {"first_norm": False},
    {"first_norm": False, **BOTH},
    {"kind": "encoder", "d_embedding": 7, "embedding_norm": True, "has_head": False},
    {"kind": "encoder", "n_token_types": 3, "head_transform": True, "d_embedding": 7},
    {**LEARNED, "n_query_positions": 11, "tie_embeddings": True},
    {**LEARNED, **BOTH},
    {"d_ff_second": 29, "d_ff_pattern": "MMW", "n_layers": 5},
    {"position": "t5", "n_buckets": 4, "max_distance": 8, **BOTH},
    {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "d_ff": None},
    *({**AROUND, **norms} for norms in NORMS),
    {
        "n_experts": 5,
        "top_k": 2,
        "d_ff_expert": 7,
        "ffn_pattern": "B",
        "scaled_router": True,
        "norm_placement": "sandwich",
    },
]
SPECS: dict[str, ModelSpec] = {
    **{name: miniature(entry(name).spec()) for name in first_of_each()},
    **{
        f"{name} {changed}": miniature(entry(name).spec()).replace(**changed)
        for name, changed in OTHER_WAYS
    },
    **{f"TINY {changed}": ModelSpec.from_dict({**TINY, **changed}) for changed in CHANGED},
    "two widths": miniature(entry("gemma-3n-e2b-text").spec()).replace(
        d_ff_second=29, d_ff_pattern="MWMMW"
    ),
}


def assert_same_tensors(spec: ModelSpec) -> None:
    """By path and shape, by name and how often, by role."""
    module = build(spec)
    counted = tensors_by_path(spec)
    stored = {path: tuple(tensor.shape) for path, tensor in module.named_parameters()}
    assert {path: weight.shape for path, weight in counted.items()} == stored
    for weight in counted.values():
        assert (weight.size, weight.times) == (prod(weight.shape), 1)
    assert unmatched(module, model.weights(spec)) == (set(), {})
    found = measure_params(module)
    for by_role, measured, total in (
        (model.params_by_role(spec), found.by_role, model.params(spec)),
        (model.active_params_by_role(spec), found.active_by_role, model.active_params(spec)),
    ):
        assert by_role == measured and list(by_role) == list(model.ROLES)
        assert {type(n) for n in (total, *by_role.values())} == {int}
        assert total == sum(measured.values())
    assert model.active_params_no_embed(spec) == found.no_embed
    assert model.buffers(spec)["selection_bias"] == found.buffers.get("selection_bias", 0)


@daily(4)
@pytest.mark.parametrize("name", SPECS)
def test_a_model_has_the_tensors_of_the_module(name: str) -> None:
    assert_same_tensors(SPECS[name])


@one_day_in(6)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(changed(miniatures()))
def test_a_random_model_has_the_tensors_of_the_module(spec: ModelSpec) -> None:
    assert_same_tensors(spec)


# --- sublayers of a block -------------------------------------------------------------------------


def numel(*modules: Any) -> int:
    return sum(tensor.numel() for module in modules for tensor in module.parameters())


SINKS = {"attention_sinks": True}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        *((name, {}) for name in ("qwen3-0.6b", "deepseek-v3", "gpt2", "t5-small")),
        ("gpt-oss-20b", {}),  # sinks are of the attention to itself
        ("t5-small", SINKS),
    ],
)
def test_the_parts_of_an_attention(name: str, changed: dict[str, Any]) -> None:
    spec = miniature(entry(name).spec()).replace(**changed)
    layer = build(spec).decoder.layers[-1]
    norms = [m for m in layer.self_attn.modules() if isinstance(m, RMSNorm | LayerNorm)]
    assert bool(norms) == (name in ("qwen3-0.6b", "deepseek-v3"))
    tape = sublayers.attention_tape(spec)
    assert sublayers.params_of_role(tape, "norm") == numel(*norms)
    attended = numel(layer.self_attn) - numel(*norms)
    assert sublayers.self_attention_params(spec) == attended
    assert sublayers.block_params(spec, moe=spec.is_moe)["attention"] == attended
    if changed:
        assert attended == numel(layer.cross_attn) + spec.n_heads


# --- what a step trains ---------------------------------------------------------------------------

WITHOUT_GRADIENT = ("pooler.", ".indexer.")
BIASED = ModelSpec.from_dict({**TINY, **BIASES, "tie_embeddings": True})
TRAINED: dict[str, ModelSpec] = {
    **with_logits(),
    "ends": ModelSpec.from_dict(
        {**TINY, "kind": "encoder", "n_token_types": 3, "head_transform": True, "d_embedding": 7}
    ),
    "pooler": miniature(entry("bert-base").spec()).replace(has_head=True),
    "biases": BIASED,
}
ALL_LINEAR = {"lora_rank": 2, "lora_targets": ("all-linear",)}
CHOICES = (
    Setup(),
    Setup(**ALL_LINEAR),
    Setup(**ALL_LINEAR, freeze=("layers.0", "lora_b")),
    Setup(freeze=("layers.0",)),
    *(Setup(freeze=(name,)) for name in ("embed_tokens", "lm_head")),  # tied, either name
)
Tensors = tuple[dict[str, tuple[int, ...]], set[str]]


def of_module(spec: ModelSpec, setup: Setup) -> Tensors:
    """Shapes by path with the adapters of a setup, and what of it the loss has a gradient of."""
    module = build(spec)
    with trainable(module, setup, getattr(module, "lm_head", None)):
        found = dict(module.named_parameters())
        required = {path for path, tensor in found.items() if tensor.requires_grad}
        unseen = {path for path in found if any(name in path for name in WITHOUT_GRADIENT)}
        return {path: tuple(tensor.shape) for path, tensor in found.items()}, required - unseen


def of_formulas(spec: ModelSpec, setup: Setup) -> Tensors:
    part = Part(rank=setup.lora_rank, targets=setup.lora_targets, freeze=setup.freeze)
    found = chosen_tensors(spec, part)
    assert all(w.size == prod(w.shape) for w in found.stored.values())
    return {path: w.shape for path, w in found.stored.items()}, set(found.trained)


@daily(6)
@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained(name: str) -> None:
    spec = TRAINED[name]
    for setup in CHOICES:
        assert of_formulas(spec, setup) == of_module(spec, setup)
    # an optimizer has those of blocks and those of ends apart, each as often as it stands there
    shapes, seen = of_module(spec, Setup())
    for inner in (True, False):
        weights = [weight for weight, stands_in in trained_tensors(spec) if stands_in is inner]
        counted = sorted(weight.shape for weight in weights for _ in range(weight.times))
        assert counted == sorted(shapes[path] for path in seen if is_inner(path) == inner)


@pytest.mark.parametrize(
    ("part", "field", "said"),
    [
        (Part(rank=2, targets=("q_porj",)), "lora_targets", "q_proj"),
        # tables, norms and the head have weights too
        *(
            (Part(rank=2, targets=(name,)), "lora_targets", "down_proj")
            for name in ("embed_tokens", "norm", "lm_head")
        ),
        (Part(freeze=("q_porj",)), "freeze", "q_proj"),
        (Part(freeze=("xyz",)), "freeze", "'xyz'"),
        (Part(freeze=("embed_tokens", "decoder", "lm_head")), "freeze", "embed_tokens,decoder"),
    ],
)
def test_what_cannot_be_chosen_is_said(part: Part, field: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        chosen_tensors(ModelSpec.from_dict(TINY), part)
    assert refused.value.field == field and said in one_line(refused.value)
