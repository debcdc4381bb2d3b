"""Tiny layers for the tests of the benchmarks: sizes are small primes wherever the rules allow.

And a variant of a case altered, and a line of a results file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from helpers.miniatures import TINY
from metacount.bench import layers
from metacount.bench.case import Case, Inputs, Variant
from metacount.bench.layers import Positions
from metacount.bench.run import error_in
from metacount.spec import ModelSpec

DENSE: dict[str, Any] = {**TINY, "n_layers": 2}
# the grouped product asks for rows of a multiple of 16 bytes
SPARSE = {**DENSE, "d_ff": None, "d_model": 24, "n_experts": 5, "top_k": 2, "d_ff_expert": 40}
LATENT = {
    **DENSE,
    "attention": "mla",
    "n_heads": 3,
    "n_kv_heads": None,
    "head_dim": None,
    "q_lora_rank": 11,
    "kv_lora_rank": 7,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
}

PREFILL = Positions(batch_size=2, seq_len=5, kv_len=5)
DECODE = Positions(batch_size=3, seq_len=1, kv_len=7)


def spec(sizes: dict[str, Any], **changes: Any) -> ModelSpec:
    return ModelSpec.from_dict({**sizes, **changes})


attention = partial(layers.attention_case, "tiny")
mla = partial(layers.mla_case, "tiny")
moe = partial(layers.moe_case, "tiny")
norm = partial(layers.norm_case, "tiny")


def ffn(sizes: ModelSpec, n: int, dtype: str, **how: Any) -> Case:
    return layers.ffn_case("tiny", sizes.d_model, layers.widths(sizes), n, dtype, **how)


def tiny_cases(dtype: str) -> list[Case]:
    """Every topic, every kind of workload."""
    uncompressed = spec(LATENT, q_lora_rank=None)
    return [
        ffn(spec(DENSE), 3, dtype),
        *(attention(spec(DENSE), at, dtype) for at in (PREFILL, DECODE)),
        *(mla(spec(LATENT), at, dtype) for at in (PREFILL, DECODE)),
        mla(uncompressed, DECODE, dtype),
        *(moe(spec(SPARSE), 11, routing, dtype) for routing in layers.ROUTINGS),
        norm(spec(DENSE), 3, dtype),
    ]


def build(case: Case, n_sets: int = 1) -> dict[tuple[str, str], Variant]:
    """The variants of a case on the CPU, by name and direction."""
    built = case.build(torch.device("cpu"), n_sets)
    return {(variant.name, variant.direction): variant for variant in built}


def error_of(variant: Variant, inputs: Inputs, rows: list[int]) -> float:
    """The relative error of some rows of what a variant gives."""
    expected = variant.reference(inputs, rows)
    return error_in(variant.module(*inputs), rows, expected, variant.pick)


def altered(case: Case, change: Callable[[Variant], dict[str, Any]]) -> Case:
    """The case with the fields that `change` gives of its variant `swiglu`."""

    def changed(device: torch.device, n_sets: int) -> list[Variant]:
        built = case.build(device, n_sets)
        return [replace(v, **change(v)) if v.name == "swiglu" else v for v in built]

    return replace(case, build=changed)


def result(**changes: Any) -> dict[str, Any]:
    """A line of a results file, as `bench --save` writes it on a GPU."""
    ceiling = {"dtype": "bf16", "flops_per_s": 7.9e14, "shape": [2, 3, 5], "bytes_per_s": 4.321e12}
    return {
        **{"date": "2026-01-02T03:04:05+00:00", "device": "some GPU", "torch": "2.13"},
        **{"format": 2, "kind": "cuda", "ceiling": ceiling, "topic": "ffn", "model": "llama-7b"},
        **{"sizes": {"d_model": 4096}, "workload": {"tokens": 16}, "dtype": "bf16"},
        **{"variant": "gelu", "state": "hot", "launch": "graph", "direction": "forward"},
        **{"status": "ok", "median_s": 0.01, "p20_s": 0.009, "p80_s": 0.012},
        **{"low_s": 0.0099, "high_s": 0.0101, "intensity": 8.0, "tflops_per_s": 20.0},
        **{"ratio": 1.0, **changes},
    }
