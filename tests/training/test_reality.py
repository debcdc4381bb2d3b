"""A real step on the CPU, every storage followed, against what was measured on meta.

The witness shares no code with the ledger: it asks the allocator's addresses of real tensors, and
adds up what is alive after each operator.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from helpers.allocations import Alive
from helpers.miniatures import miniature

from metacount import catalog
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.training.ours import reference_program
from metacount.training.setup import Setup
from metacount.training.step import Step, measure_step


def really(spec: ModelSpec, workload: Workload, setup: Setup) -> dict[str, int]:
    """A real step on the CPU: the second one, as on meta."""
    torch.manual_seed(0)
    model = build(spec, device="cpu", dtype=workload.dtype)
    program = reference_program(model, workload, setup, device="cpu")
    with Step(program, setup) as step:
        step.updates.prepare()
        alive = Alive()
        targets = [] if program.targets is None else [program.targets]
        state = [tensor for _, tensor in step.updates.state()]
        there = (*model.parameters(), *model.buffers(), *step.updates.master_tensors(), *state)
        for tensor in (*there, *program.inputs, *targets):
            alive.add(tensor)
        before = alive.now
        gc.collect()
        gc.disable()
        try:
            with alive, program.context():
                loss = step.loss_of(step.forward())
                kept = alive.now - before - loss.untyped_storage().nbytes()
                loss.backward()  # type: ignore[no-untyped-call]
                del loss
                after_backward = alive.now
                gradients = sum(
                    p.grad.untyped_storage().nbytes()
                    for p in step.trained.values()
                    if p.grad is not None
                )
                step.updates.step()
        finally:
            gc.enable()
        assert alive.now == before
        return {
            "kept": kept,
            "gradients": gradients,
            "left": after_backward - before - gradients,
            "peak": alive.most,
            "state": sum(t.untyped_storage().nbytes() for t in state),
        }


def on_meta(spec: ModelSpec, workload: Workload, setup: Setup) -> dict[str, int]:
    """The same step, measured."""
    model = build(spec, dtype=workload.dtype)
    program = reference_program(model, workload, setup)
    found = measure_step(program, setup)
    ledger, numbers = found.ledger, found.numbers
    _, alive = ledger.peak()
    # tokens and targets that a backward keeps were there before
    kept = ledger.sum(numbers["activations"] - numbers["inputs"])
    assert not numbers["held"]
    return {
        "kept": kept,
        "gradients": ledger.sum(numbers["gradients"]),
        "left": 0,
        "peak": ledger.sum(alive),
        "state": sum(found.optimizer_state.values()),
    }


# the choices of a setup, each with a model that shows it
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-7b", "bf16", {}),
    ("llama-7b", "fp32", {"attention": "sdpa", "loss": "chunked"}),
    ("mistral-7b", "bf16", {"attention": "sdpa", "checkpointing": "full"}),
    ("gpt2", "bf16", {"checkpointing": "selective", "optimizer": "adafactor"}),
    ("gemma2-2b", "bf16", {"master_weights": True, "grad_dtype": "fp32"}),
    ("mixtral-8x7b", "bf16", {"attention": "sdpa", "foreach": True}),
    ("deepseek-v2", "bf16", {"checkpointing": "full", "optimizer": "muon"}),
    ("gpt-oss-20b", "fp32", {"checkpointing": "selective"}),
    ("bloom-176b", "bf16", {"attention": "sdpa", "optimizer": "sgd-momentum"}),
    ("t5-base", "bf16", {"attention": "sdpa", "optimizer": "sgd"}),
    ("bert-base", "bf16", {"freeze": ("embed_tokens", "0"), "master_weights": True}),
    ("llama4-scout-text", "bf16", {"lora_rank": 3, "lora_targets": ("all-linear",)}),
]


@pytest.mark.parametrize(("name", "dtype", "choices"), CASES)
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
