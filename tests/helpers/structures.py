"""The catalog's structures, a model for each: sisters differ in sizes alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from helpers.miniatures import TINY, miniature
from helpers.small_specs import DENSE as ROTATED
from helpers.small_specs import MLA, MOE
from metacount.catalog import entries, entry
from metacount.package import read_of_package
from metacount.spec import ModelSpec
from metacount.textbook.proven import structure

Json = dict[str, Any]


@cache
def first_of_each(*, logits: bool = False) -> tuple[str, ...]:
    """The first model of each structure of the catalog; with `logits`, of those that have them."""
    found: dict[str, str] = {}
    for one in entries():
        if one.sizes is None:
            continue
        spec = one.spec()
        if not logits or None not in (spec.embedding, spec.head):
            found.setdefault(structure(spec), one.id)
    return tuple(found.values())


@cache
def miniatures() -> tuple[ModelSpec, ...]:
    """A miniature of each structure."""
    return tuple(miniature(entry(name).spec()) for name in first_of_each())


def with_logits() -> dict[str, ModelSpec]:
    """A miniature of each structure that has logits, by the name of its model."""
    return {name: miniature(entry(name).spec()) for name in first_of_each(logits=True)}


def read_record() -> Json:
    """The whole record of proofs: `structures`, each with its forms, conditions and records."""
    record: Json = json.loads(read_of_package("proofs.json"))
    return record


def all_recorded(record: Json) -> Iterator[tuple[Json, Json, Json, str, Json]]:
    """Structure, record, case, quantity and what is recorded of it, one after the other."""
    for of_one in record["structures"]:
        for one in of_one["records"]:
            for case in one["cases"]:
                for quantity, found in case["quantities"].items():
                    yield of_one, one, case, quantity, found


# what a layer may have, or be without, besides what its model of the catalog does
BIASES = dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias", "ffn_bias", "norm_bias"), True)
OTHER_WAYS: list[tuple[str, dict[str, Any]]] = [
    ("chinchilla-70b", {"window": 4}),
    ("chinchilla-70b", {"window": 4, "window_pattern": "LG"}),
    ("deepseek-v3.2", {"window": 4}),
    ("deepseek-v3.2", {"window": 4, "window_pattern": "LG"}),
    ("gemma-3n-e2b-text", {"d_ff_second": 29, "d_ff_pattern": "MWMMW"}),
    ("gemma-3n-e2b-text", {"window": None, "window_pattern": "L", "rope_theta_windowed": None}),
    ("jamba-1.5-mini", {"window": 4}),
    ("jamba-1.5-mini", {"mixer_pattern": "RAA", "window": 4, "window_pattern": "GLG"}),
    ("jamba-1.5-mini", {"norm_placement": "sandwich"}),
    ("longcat-flash", {"zero_expert_rows": True}),
    ("zamba2-1.2b", {"norm_affine": False, "gated": False}),
    ("zamba2-1.2b", {"norm": "layernorm", **BIASES}),
    *(("zamba2-1.2b", {bias: True}) for bias in ("q_bias", "k_bias", "v_bias", "o_bias")),
    ("t5-small", {"attention_sinks": True}),
    ("lfm2-1.2b", {"short_conv_bias": True}),
    ("lfm2-1.2b", {"conv_kernel": 1}),
    ("recurrentgemma-2b", {"conv_kernel": 1}),
    *(
        (name, changed)
        for name in ("mamba-2.8b", "mamba2-1.3b")
        for changed in (
            {"ssm_conv_bias": False},
            {"ssm_in_bias": True},
            {"ssm_out_bias": True},
            {"conv_kernel": 1},
        )
    ),
    ("mamba-2.8b", {"ssm_inner_norms": "affine"}),
    ("mamba-2.8b", {"ssm_inner_norms": "plain"}),
    ("mamba2-1.3b", {"ssm_norm": "none"}),
    ("mamba2-1.3b", {"ssm_norm": "before_gate"}),
    ("mamba2-1.3b", {"n_ssm_groups": 3}),
    ("qwen3-next-80b-a3b", {"linear_chunk_size": 2, "conv_kernel": 1}),
    ("kimi-linear-48b-a3b", {"linear_chunk_size": 2, "conv_kernel": 1}),
    ("minimax-text-01", {"linear_chunk_size": 3}),
]

# structures that no model of the catalog has: TINY with changes
BOTH = {"kind": "encoder-decoder", "n_encoder_layers": 2}
LEARNED = {"position": "learned", "n_positions": 11}
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

# small models with prediction modules
OF_NORMS = {"head_bias": True, "q_bias": True, "ffn_bias": True, "norm_bias": True}
HYBRID = {"recurrent": "gated_delta", "conv_kernel": 3, "linear_chunk_size": 4}
HYBRID |= {"n_linear_k_heads": 2, "n_linear_v_heads": 4}
HYBRID |= {"linear_k_head_dim": 5, "linear_v_head_dim": 7}
EXPERTS = {"n_experts": 12, "top_k": 2, "d_ff_expert": 7, "n_shared_experts": 2}
INDEX = {"index_top_k": 3, "n_index_heads": 2, "index_head_dim": 8}
PREDICTING: dict[str, dict[str, Any]] = {
    "dense": {**ROTATED, "n_mtp_layers": 1},
    "three, tied": {**ROTATED, **OF_NORMS, "n_mtp_layers": 3, "tie_embeddings": True}
    | {"norm": "layernorm"},
    "experts": {**MOE, "n_mtp_layers": 2, "selection_bias": True, "router": "sigmoid_renorm"},
    "dense beside experts": {**MOE, "n_mtp_layers": 2, "mtp_dense": True},
    "mla, experts": {**MLA, **EXPERTS, "n_dense_layers": 1, "n_mtp_layers": 1},
    "mla, an index": {**MLA, **INDEX, "n_mtp_layers": 1},
    "windows": {**ROTATED, "window": 3, "window_pattern": "LG", "n_mtp_layers": 1},
    "a hybrid that ends with a state": {**ROTATED, **HYBRID, "mixer_pattern": "RAR"}
    | {"n_mtp_layers": 1, "output_gate": True},
    "experts, modules dense": {**ROTATED, **EXPERTS, "n_mtp_layers": 1, "mtp_dense": True},
    "without positions": {**ROTATED, "position": "none", "n_mtp_layers": 1},
    "norms without weights": {**ROTATED, "norm": "layernorm", "norm_affine": False}
    | {"n_mtp_layers": 1},
}


def changed_miniature(name: str, changes: dict[str, Any]) -> ModelSpec:
    return miniature(entry(name).spec()).replace(**changes)


def every_structure() -> dict[str, ModelSpec]:
    """A small model of each structure that the tests know, by a name."""
    found = {name: miniature(entry(name).spec()) for name in first_of_each()}
    found |= {f"{name} {how}": changed_miniature(name, how) for name, how in OTHER_WAYS}
    found |= {f"TINY {how}": ModelSpec.from_dict({**TINY, **how}) for how in CHANGED}
    return found | {name: ModelSpec.from_dict(sizes) for name, sizes in PREDICTING.items()}
