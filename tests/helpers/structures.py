"""The catalog's structures, a model for each: sisters differ in sizes alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from helpers.miniatures import miniature
from metacount.catalog import entries, entry
from metacount.files import read_of_package
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
    ("gemma-3n-e2b-text", {"window": None, "window_pattern": "L", "rope_theta_windowed": None}),
    ("jamba-1.5-mini", {"window": 4}),
    ("jamba-1.5-mini", {"mixer_pattern": "RAA", "window": 4, "window_pattern": "GLG"}),
    ("jamba-1.5-mini", {"norm_placement": "sandwich"}),
    ("longcat-flash", {"zero_expert_rows": True}),
    ("zamba2-1.2b", {"norm_affine": False, "gated": False}),
    ("zamba2-1.2b", {"norm": "layernorm", **BIASES}),
    *(("zamba2-1.2b", {bias: True}) for bias in ("q_bias", "k_bias", "v_bias", "o_bias")),
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
