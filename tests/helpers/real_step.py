"""A training step on the CPU, every storage followed, and the same step measured on meta."""

from __future__ import annotations

import gc
import inspect
from typing import Any

import torch
from torch import Tensor

from helpers.allocations import Alive
from metacount.huggingface.module.model import build_transformers
from metacount.measure.theirs import quiet
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.tensors import DTYPES, tensor_bytes
from metacount.training.optimizers import Updates
from metacount.training.programs import attending, foreign_program, reference_program
from metacount.training.setup import Setup
from metacount.training.step import Program, Step, loss_of, measure_step


def really(spec: ModelSpec, workload: Workload, setup: Setup) -> dict[str, int]:
    """A real step on the CPU: the second one, as on meta."""
    torch.manual_seed(0)
    model = build(spec, device="cpu", dtype=workload.dtype)
    program = reference_program(model, workload, setup, device="cpu")
    with Step(program, setup) as step:
        with program.context():
            step.loss_of(step.forward()).backward()  # type: ignore[no-untyped-call]
        step.drop_unreached()  # of the copies in float32 alone is something dropped
        # Adagrad makes its state when it is made, others in their first step
        assert (setup.optimizer == "adagrad") is any(step.updates.state())
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
    return _measured(reference_program(model, workload, setup), setup)


def transformers_on_meta(
    config: dict[str, Any], workload: Workload, setup: Setup
) -> dict[str, int]:
    """The same of transformers' module of a config."""
    model, _ = build_transformers(config, dtype=DTYPES[workload.dtype])
    return _measured(foreign_program(model, workload, setup), setup)


def _measured(program: Program, setup: Setup) -> dict[str, int]:
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


def transformers_really(config: dict[str, Any], workload: Workload, setup: Setup) -> dict[str, int]:
    """A second step of transformers' own class on the CPU, of random tokens; nothing of ours but
    the loss and the optimizer.
    """
    torch.manual_seed(0)
    model = transformers_on_cpu(config, workload.dtype)
    takes = inspect.signature(model.forward).parameters
    names = ["input_ids"]
    if "decoder_input_ids" in takes and getattr(model.config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    size = workload.batch_size, workload.seq_len
    given = {name: torch.randint(0, 97, size) for name in names}
    plain = {"use_cache": False} if "use_cache" in takes and model.can_generate() else {}
    targets = torch.randint(0, 97, size)
    trained = dict(model.named_parameters())
    updates = Updates(setup, trained, set())
    has_head = "logits" in model(**given, **plain)

    def loss() -> Tensor:
        out = model(**given, **plain)[0]
        return loss_of(out, targets, setup) if has_head else torch.stack([out.float().sum()]).sum()

    with quiet(), attending(model, setup.attention):
        loss().backward()  # type: ignore[no-untyped-call]
        updates.step()
        state = [tensor for _, tensor in updates.state()]
        alive = Alive()
        inputs = [*given.values(), *([targets] if has_head else [])]
        for tensor in (*model.parameters(), *model.buffers(), *state, *inputs):
            alive.add(tensor)
        before = alive.now
        gc.collect()
        with alive:
            of_step = loss()
            kept = alive.now - before - of_step.untyped_storage().nbytes()
            of_step.backward()  # type: ignore[no-untyped-call]
            del of_step
            after_backward = alive.now
            gradients = tensor_bytes([p.grad for p in trained.values() if p.grad is not None])
            updates.step()
    return {
        "kept": kept,
        "gradients": gradients,
        "left": after_backward - before - gradients,
        "peak": alive.most,
        "state": tensor_bytes(state),
    }


def transformers_on_cpu(config: dict[str, Any], dtype: str) -> Any:
    """The class that a config means, really there."""
    made, _ = build_transformers(config)
    torch.set_default_dtype(DTYPES[dtype])
    try:
        with quiet():
            model: Any = type(made)(made.config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    model.set_attn_implementation("eager")
    return model
