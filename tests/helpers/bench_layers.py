"""Tiny layers for the tests of the benchmarks: sizes are small primes wherever the rules allow."""

from __future__ import annotations

from typing import Any

from helpers.miniatures import TINY
from metacount.bench import attention, ffn, mla, moe, norm
from metacount.bench.case import Case
from metacount.bench.work import Positions
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


def tiny_cases(dtype: str) -> list[Case]:
    """Every topic, every kind of workload."""
    uncompressed = spec(LATENT, q_lora_rank=None)
    return [
        ffn.case("tiny", spec(DENSE), 3, dtype),
        *(attention.case("tiny", spec(DENSE), at, dtype) for at in (PREFILL, DECODE)),
        *(mla.case("tiny", spec(LATENT), at, dtype) for at in (PREFILL, DECODE)),
        mla.case("tiny", uncompressed, DECODE, dtype),
        *(moe.case("tiny", spec(SPARSE), 11, routing, dtype) for routing in moe.ROUTINGS),
        norm.case("tiny", spec(DENSE), 3, dtype),
    ]
