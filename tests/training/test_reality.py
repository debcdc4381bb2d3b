"""A real step on the CPU, every storage followed, against what was measured on meta.

The witness shares no code with the ledger: it asks the allocator's addresses of real tensors, and
adds up what is alive after each operator.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.miniatures import miniature
from helpers.real_step import on_meta, really
from helpers.release import daily, one_in

from metacount import catalog
from metacount.spec import Workload
from metacount.training.setup import Setup

# the choices of a setup, each with a model that shows it
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-7b", "bf16", {}),
    ("llama-7b", "fp32", {"attention": "sdpa", "loss": "chunked"}),
    ("mistral-7b", "bf16", {"attention": "sdpa", "checkpointing": "full"}),
    ("gpt2", "bf16", {"checkpointing": "selective", "optimizer": "adafactor"}),
    ("qwen3-0.6b", "bf16", {"checkpointing": "full", "optimizer": "adagrad"}),
    ("opt-175b", "fp32", {"foreach": True, "optimizer": "adagrad"}),
    ("gemma2-2b", "bf16", {"master_weights": True, "grad_dtype": "fp32"}),
    ("mixtral-8x7b", "bf16", {"attention": "sdpa", "foreach": True}),
    ("deepseek-v2", "bf16", {"checkpointing": "full", "optimizer": "muon"}),
    ("gpt-oss-20b", "fp32", {"checkpointing": "selective"}),
    ("bloom-176b", "bf16", {"attention": "sdpa", "optimizer": "sgd-momentum"}),
    ("t5-base", "bf16", {"attention": "sdpa", "optimizer": "sgd"}),
    ("bert-base", "bf16", {"freeze": ("embed_tokens", "0"), "master_weights": True}),
    ("llama4-scout-text", "bf16", {"lora_rank": 3, "lora_targets": ("all-linear",)}),
]


@daily(3)
@pytest.mark.parametrize(("name", "dtype", "choices"), one_in(4, CASES))
def test_a_real_step_holds_what_was_measured(
    name: str, dtype: str, choices: dict[str, Any]
) -> None:
    spec = miniature(catalog.entry(name).spec())
    # tokens enough for every expert to get one; fewer than there are positions
    seq_len = 41 if spec.is_moe else 11
    source_len = 7 if spec.has_encoder else None
    workload = Workload(batch_size=3, seq_len=seq_len, dtype=dtype, source_len=source_len)
    setup = Setup(**choices)
    assert on_meta(spec, workload, setup) == really(spec, workload, setup)
