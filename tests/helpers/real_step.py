"""A training step on the CPU, every storage followed, and the same step measured on meta."""

from __future__ import annotations

import gc

import torch

from helpers.allocations import Alive
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
        with program.context():
            step.loss_of(step.forward()).backward()  # type: ignore[no-untyped-call]
        step.drop_unreached()  # of the copies in float32 alone is something dropped
        assert not list(step.updates.state())
        step.updates.step()
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
