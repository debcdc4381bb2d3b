"""A real step on the CPU, every storage followed, against what was measured on meta.

The witness shares no code with the ledger: it asks the allocator's addresses of real tensors, and
adds up what is alive after each operator.
"""

from __future__ import annotations

from typing import Any

import pytest
from helpers.miniatures import miniature
from helpers.real_step import on_meta, really, transformers_on_meta, transformers_really
from helpers.release import daily
from helpers.small_configs import small_config

from metacount import catalog
from metacount.spec import Workload
from metacount.training.setup import Setup

OURS = (
    "llama-7b",
    "mistral-7b",
    "gpt2",
    "qwen3-0.6b",
    "opt-175b",
    "gemma2-2b",
    "gemma-3n-e2b-text",
    "mixtral-8x7b",
    "deepseek-v2",
    "deepseek-v3.2",
    "gpt-oss-20b",
    "bloom-176b",
    "t5-base",
    "bert-base",
    "llama4-scout-text",
    "falcon-h1-7b",
    "jamba-1.5-mini",
    "mamba-2.8b",
    "olmo-hybrid-7b",
    "lfm2-350m",
)
THEIRS = (
    "llama",
    "gpt2",
    "qwen3",
    "mixtral",
    "gemma2",
    "gpt_oss",
    "deepseek_v3",
    "t5",
    "bert",
    "mamba2",
)
SETUPS: tuple[dict[str, Any], ...] = (
    {"dtype": "fp32"},
    {"dtype": "bf16", "attention": "sdpa", "loss": "chunked", "master_weights": True},
    {"dtype": "bf16", "checkpointing": "full", "foreach": True},
    {"dtype": "fp32", "checkpointing": "selective", "freeze": ("0", "1")},
    {"dtype": "bf16", "attention": "sdpa", "lora_rank": 3, "lora_targets": ("all-linear",)},
)
OPTIMIZERS = ("adamw", "adagrad", "sgd", "adafactor", "sgd-momentum", "muon")
EAGER = {"attention": "eager"}
# torch's CPU keeps a LayerNorm's statistics of 16 bits in 16, CUDA in 32: no CPU can show these
WIDE = {"dtype": "fp32", "master_weights": False}
# What a model is run with instead, where a setup is not to be had; by the setup's number.
INSTEAD: dict[str, dict[int, dict[str, Any]]] = {
    # sdpa is refused: scores are capped, there are sinks, or transformers' class has none
    "gemma2-2b": {1: EAGER, 4: EAGER},
    "gpt-oss-20b": {1: EAGER, 4: EAGER},
    "transformers:gemma2": {1: EAGER, 4: EAGER},
    "transformers:mamba2": {1: EAGER, 4: EAGER},
    # and torch refuses to run again what changes a kept result in place
    "transformers:gpt_oss": {1: EAGER, 3: {"checkpointing": "full"}, 4: EAGER},
    "transformers:bert": {1: WIDE, 2: WIDE, 4: WIDE},
    # and its projections are no linear layers, which adapters stand beside
    "transformers:gpt2": {1: WIDE, 2: WIDE, 4: {**WIDE, "lora_rank": None, "freeze": ("2", "3")}},
}


@daily(15)
@pytest.mark.parametrize("number", range(len(SETUPS)))
@pytest.mark.parametrize("name", [*OURS, *(f"transformers:{name}" for name in THEIRS)])
def test_a_real_step_holds_what_was_measured(name: str, number: int) -> None:
    choices = SETUPS[number] | INSTEAD.get(name, {}).get(number, {})
    dtype = choices.pop("dtype")
    _, theirs, model_type = name.rpartition("transformers:")
    row = (THEIRS if theirs else OURS).index(model_type)
    setup = Setup(optimizer=OPTIMIZERS[(row + number) % len(OPTIMIZERS)], **choices)
    if theirs:
        config = small_config(model_type)
        workload = Workload(batch_size=3, seq_len=29, dtype=dtype)
        assert transformers_on_meta(config, workload, setup) == (
            transformers_really(config, workload, setup)
        )
        return
    spec = miniature(catalog.entry(name).spec())
    # tokens enough for every expert to get one; fewer than there are positions
    seq_len = 41 if spec.is_moe else 11
    source_len = 7 if spec.has_encoder else None
    workload = Workload(batch_size=3, seq_len=seq_len, dtype=dtype, source_len=source_len)
    assert on_meta(spec, workload, setup) == really(spec, workload, setup)
