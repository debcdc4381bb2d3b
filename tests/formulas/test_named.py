"""Tensors by their paths, for every placement of norms, against the module's own."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from helpers.miniatures import TINY, miniature

from metacount.catalog import entry
from metacount.formulas.named import norms_of_block, tensors_by_path
from metacount.formulas.terms import Weight
from metacount.modules.build import build
from metacount.spec import ModelSpec

BOTH = {"kind": "encoder-decoder", "n_encoder_layers": 2}
CASES: list[dict[str, Any]] = [
    *(
        {"norm_placement": placement, **kind}
        for placement in ("pre", "post", "deep", "sandwich", "post_branch")
        for kind in ({}, BOTH)
    ),
    {"norm_placement": "parallel"},
    {"norm_placement": "parallel_two"},
    {"norm_placement": "stream"},
    {"first_norm": False},
    {"first_norm": False, **BOTH},
    {"kind": "encoder", "d_embedding": 7, "embedding_norm": True, "has_head": False},
    {"kind": "encoder", "n_token_types": 3, "head_transform": True, "d_embedding": 7},
    {"position": "learned", "n_positions": 11, "n_query_positions": 11, "tie_embeddings": True},
    {"position": "learned", "n_positions": 11, **BOTH},
    {"d_ff_second": 29, "d_ff_pattern": "MMW", "n_layers": 5},
    {"position": "t5", "n_buckets": 4, "max_distance": 8, **BOTH},
]


@pytest.mark.parametrize("changes", CASES)
def test_tensors_are_those_of_the_module(changes: dict[str, Any]) -> None:
    spec = ModelSpec.from_dict({**TINY, **changes})
    stored = {path: tuple(t.shape) for path, t in build(spec).named_parameters()}
    counted = tensors_by_path(spec)
    assert {path: weight.shape for path, weight in counted.items()} == stored
    assert all(weight.size == prod(weight.shape) for weight in counted.values())


def test_copies_stand_in_lists() -> None:
    spec = miniature(entry("gemma-3n-e2b-text").spec())
    stored = {path: t.numel() for path, t in build(spec).named_parameters()}
    counted = tensors_by_path(spec)
    assert {path: weight.size for path, weight in counted.items()} == stored
    assert {weight.times for weight in counted.values()} == {1}


def test_experts_are_one_tensor() -> None:
    mixture = {"n_experts": 5, "top_k": 2, "d_ff_expert": 7, "d_ff": None}
    counted = tensors_by_path(ModelSpec.from_dict({**TINY, **mixture}))
    found = counted["decoder.layers.0.mlp.experts.down_proj"]
    assert found == Weight(role="moe", name="mlp.experts.down_proj", shape=(5, TINY["d_model"], 7))


# of self-attention, cross-attention and feed-forward, the norm before and the norm behind
BY_HAND = {
    "pre": (
        ("input_layernorm", ""),
        ("cross_attention_layernorm", ""),
        ("post_attention_layernorm", ""),
    ),
    "post": (
        ("", "self_attention_layernorm"),
        ("", "cross_attention_layernorm"),
        ("", "feedforward_layernorm"),
    ),
    "sandwich": (
        ("input_layernorm", "post_attention_layernorm"),
        ("pre_cross_attention_layernorm", "post_cross_attention_layernorm"),
        ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
    "post_branch": (
        ("", "post_attention_layernorm"),
        ("", "post_cross_attention_layernorm"),
        ("", "post_feedforward_layernorm"),
    ),
}


@pytest.mark.parametrize("placement", BY_HAND)
def test_branches_and_their_norms(placement: str) -> None:
    spec = ModelSpec.from_dict({**TINY, "norm_placement": placement, **BOTH})
    attention, cross, ffn = BY_HAND[placement]
    found = norms_of_block(spec, 0, cross=True)
    assert found == {"self_attn": attention, "cross_attn": cross, "mlp": ffn}
    assert norms_of_block(spec, 0, cross=False) == {"self_attn": attention, "mlp": ffn}


def test_a_parallel_block_has_one_norm_or_two() -> None:
    one, two = (
        norms_of_block(ModelSpec.from_dict({**TINY, "norm_placement": name}), 0, cross=False)
        for name in ("parallel", "parallel_two")
    )
    assert one == {"self_attn": ("input_layernorm", ""), "mlp": ("", "")}
    assert two == {"self_attn": ("input_layernorm", ""), "mlp": ("post_attention_layernorm", "")}
