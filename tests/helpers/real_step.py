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
from metacount.tensors import DTYPES
from metacount.training.programs import attending, foreign_program, layers_of, reference_program
from metacount.training.setup import Setup
from metacount.training.step import Program, Step, measure_step


def really(spec: ModelSpec, workload: Workload, setup: Setup) -> dict[str, int]:
    """A real step of our modules on the CPU."""
    torch.manual_seed(0)
    model = build(spec, device="cpu", dtype=workload.dtype)
    return _followed(reference_program(model, workload, setup, device="cpu"), setup)


def transformers_really(config: dict[str, Any], workload: Workload, setup: Setup) -> dict[str, int]:
    """The same of transformers' own class, of random tokens."""
    torch.manual_seed(0)
    model = transformers_on_cpu(config, workload.dtype)
    takes = inspect.signature(model.forward).parameters
    names = ["input_ids"]
    if "decoder_input_ids" in takes and getattr(model.config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    size = workload.batch_size, workload.seq_len
    given = [torch.randint(0, 97, size) for _ in names]
    plain = {"use_cache": False} if "use_cache" in takes and model.can_generate() else {}

    def run(*tensors: Tensor) -> Any:
        with quiet():
            return model(**dict(zip(names, tensors, strict=True)), **plain)[0]

    with torch.no_grad():
        has_head = "logits" in model(**dict(zip(names, given, strict=True)), **plain)
    program = Program(
        model=model,
        inputs=tuple(given),
        run=run,
        targets=torch.randint(0, 97, size) if has_head else None,
        layers=layers_of(model),
        head=model.get_output_embeddings() if has_head else None,
        context=lambda: attending(model, setup.attention),
    )
    return _followed(program, setup)


def _followed(program: Program, setup: Setup) -> dict[str, int]:
    """Run two steps and follow every storage of the second, as on meta."""
    model = program.model
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
    kept = ledger.sum((numbers["activations"] | numbers["held"]) - numbers["inputs"])
    return {
        "kept": kept,
        "gradients": ledger.sum(numbers["gradients"]),
        "left": 0,
        "peak": ledger.sum(alive),
        "state": sum(found.optimizer_state.values()),
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
