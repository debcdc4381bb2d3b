"""From a model in any form to what a training step of it showed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metacount.errors import InputError, SpecError
from metacount.measure.isolated import isolated
from metacount.measure.torch_private import tree_map
from metacount.resolve import Model, any_of
from metacount.spec import DTYPE_BYTES, Request, Workload
from metacount.spec.field import altered
from metacount.spec.model import left_out
from metacount.summary.modules import (
    Sizes,
    copied,
    input_values,
    made_inputs,
    named,
    reason,
    said_of_device,
)
from metacount.textbook.training import formula_figures
from metacount.training.model import outermost_layers
from metacount.training.optimizers import ADAM8BIT, torchao_version
from metacount.training.setup import Setup, Training, check_dtypes
from metacount.training.step import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    RECOMPUTE,
    Measured,
    Program,
    measure_step,
)
from metacount.verify.subject import OURS, THEIRS, maker_of, subject_in_hand, subject_of

if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.resolve import Given
    from metacount.spec import ModelSpec
    from metacount.verify.subject import Subject


# Of what a peak consists: what a storage is first of all; what is nothing of these is in work.
PARTS = (
    "parameters",
    "buffers",
    "master weights",
    "optimizer state",
    "gradients",
    "inputs",
    "logits",
    "activations",
    "held",
)
IN_WORK = "in work"
STEP = "a step that is not the first: the optimizer's state is there when it begins"


@isolated
def train(
    model: Given,
    workload: Workload | Request | None = None,
    setup: Setup | None = None,
    *,
    reference: bool = False,
    inputs: Sequence[object] = (),
    input_size: Sizes | None = None,
    loss: Callable[..., Tensor] | None = None,
    device: str = "meta",
) -> Training:
    """Measure one training step: FLOPs of the backward, bytes kept, gradients, state, the peak.

    `setup` says with which optimizer, attention, checkpointing and loss, and what is trained. A
    module of somebody's own runs over `inputs`, or over an `input_size`; `loss` is a function of
    what it gives. The module in hand is not touched: a copy is trained, on the meta device, or on
    the CPU (`device`) where its forward depends on data.

    >>> found = train("gpt2")
    >>> found.matmul_flops, found.backward_matmul_flops, found.gradient_bytes
    (291648307200, 583296614400, 248879616)
    """
    if not isinstance(model, nn.Module):
        if inputs or input_size is not None or loss is not None or device != "meta":
            notes = (
                "inputs, sizes, a loss and a device are for a module: a model runs tokens on meta"
            )
            raise InputError(notes)
        known, request = any_of(model), workload or Request()
        check_dtypes(setup or Setup(), request.dtype)  # before a module is built in it
        subject = subject_of(known, request, reference=reference)
        if subject.source == THEIRS and isinstance(known, Model):
            subject = altered(subject, notes=subject.notes + left_out(known.spec))
        return _trained(subject, setup or Setup())
    if reference:
        raise InputError("reference is for a config: a module in hand is trained itself")
    if input_size is not None:
        inputs = made_inputs(model, input_size, None)
    module = copied(model, device)
    if inputs:
        return _of_any(module, named(model), inputs, setup or Setup(), loss, device)
    if device != "meta":
        raise InputError("device is for a module that is given inputs: leave it out")
    if not maker_of(module):
        raise InputError(f"{named(model)} runs no tokens: give inputs, or input_size and dtype")
    dtype = _dtype(module)
    check_dtypes(setup or Setup(), dtype)
    subject = subject_in_hand(module, named(model), workload or Request(dtype=dtype))
    return _trained(subject, setup or Setup())


def _trained(subject: Subject, setup: Setup) -> Training:
    step = reference_training if subject.source == OURS else _transformers_training
    return step(subject, setup)


def reference_training(subject: Subject, setup: Setup) -> Training:
    """Measure a training step of a reference module, beside its formulas."""
    from metacount.training.programs import reference_program

    run, spec = subject.run, subject.module.spec
    program = reference_program(subject.module, run, setup)
    notes = subject.notes + left_out(spec)
    if spec.is_moe:
        none = " that compute, none over zero experts" if spec.n_zero_experts else ""
        notes += (f"tokens are spread evenly over experts{none}",)
    formula, uncovered = formula_figures(spec, run, setup)
    plain = setup.checkpointing == "none" and setup.lora_rank is None and not setup.freeze
    compared = plain and formula["activation_bytes"] is not None
    training = measured_training(
        (subject.id, subject.name),
        "reference",
        program,
        run.to_dict(),
        setup,
        notes,
        partial(_differing, spec, run, setup) if compared else None,
    )
    return Training(**{**vars(training), "formula": formula, "uncovered": uncovered})


def _differing(spec: ModelSpec, run: Workload, setup: Setup, measured: Measured) -> tuple[str, ...]:
    """Hold a step of ours against the formulas' operation by operation: what is first to differ."""
    from metacount.formulas.tape import Pass
    from metacount.verify.operations import differing_step

    run_of_pass = Pass(
        batch_size=run.batch_size,
        seq_len=run.seq_len,
        source_len=run.encoder_len,
        bytes_per_value=DTYPE_BYTES[run.dtype],
        attention=setup.attention,
    )
    return tuple(differing_step(spec, run_of_pass, measured))


def _transformers_training(subject: Subject, setup: Setup) -> Training:
    """Measure a training step of a transformers module, in eval mode: without dropout."""
    from metacount.huggingface.module.witness import shortfall
    from metacount.measure.theirs import ClassBook, as_it_runs
    from metacount.training.programs import foreign_program

    module, run, names = subject.module.eval(), subject.run, (subject.id, subject.name)

    def measure() -> Training:
        program = foreign_program(module, run, setup)
        training = measured_training(
            names, "transformers", program, run.to_dict(), setup, subject.notes
        )
        assert isinstance(program.book, ClassBook)
        assumed = tuple(sorted(program.book.ordinary.assumed))
        return Training(**{**vars(training), "notes": training.notes + assumed})

    try:
        training, widened = as_it_runs(module, measure)
    except (InputError, SpecError):
        raise
    except Exception as error:
        # whatever somebody else's code raises
        raise InputError(f"{names[1]}: its training step was not run: {shortfall(error)}") from None
    if widened:
        raise InputError(f"dtype: {names[1]}'s code does not run in {run.dtype}; choose fp32")
    return training


def measured_training(
    names: tuple[str, str],
    source: str,
    program: Program,
    workload: Json,
    setup: Setup,
    notes: tuple[str, ...] = (),
    compare: Callable[[Measured], tuple[str, ...]] | None = None,
) -> Training:
    """Measure a step of a program; return its figures and what is to be said of them.

    `compare` says what else there is to say of what was measured.
    """
    if setup.checkpointing != "none" and not program.layers:
        raise InputError(f"checkpointing is of layers, and {names[1]} has none: leave it out")
    measured = measure_step(program, setup)
    notes += () if compare is None else compare(measured)
    counter, ledger, numbers = measured.counter, measured.ledger, measured.numbers
    at, alive = ledger.peak()
    by_module = counter.kept_bytes("module")
    by_layer: Counter[str] = Counter()
    for module, size in by_module.items():
        by_layer[program.place_of(module)] += size
    state: Counter[str] = Counter()
    for (_, tensor), size in measured.optimizer_state.items():
        state[tensor] += size
    flops = {phase: counter.flops(phase, "role") for phase in (FORWARD, BACKWARD, RECOMPUTE)}
    if program.targets is None and source != "given":
        notes += ("it has no output head: the loss is the sum of its hidden states",)
    return Training(
        model=names[0],
        name=names[1],
        source=source,
        device=next((p.device.type for p in program.model.parameters()), "meta"),
        workload=workload,
        setup=setup.to_dict(),
        params=measured.params,
        trainable_params=measured.trainable,
        param_bytes=ledger.sum(numbers["parameters"]),
        buffer_bytes=ledger.sum(numbers["buffers"]),
        master_weight_bytes=ledger.sum(numbers["master weights"]),
        gradient_bytes=ledger.sum(numbers["gradients"]),
        optimizer_bytes=sum(state.values()),
        optimizer_state=dict(state),
        activation_bytes=ledger.sum(numbers["activations"]),
        activation_bytes_by_role=counter.kept_bytes("role"),
        activation_bytes_by_module=by_module,
        activation_bytes_by_operator=counter.kept_bytes("operator"),
        activation_bytes_by_layer=dict(by_layer),
        held_bytes=ledger.sum(numbers["held"]),
        logits_bytes=measured.logits_bytes,
        logits_float32_bytes=measured.logits_float32_bytes,
        matmul_flops=sum(flops[FORWARD].values()),
        matmul_flops_by_role=flops[FORWARD],
        backward_matmul_flops=sum(flops[BACKWARD].values()),
        backward_matmul_flops_by_role=flops[BACKWARD],
        backward_matmul_flops_by_operator=counter.flops(BACKWARD, "operator"),
        backward_matmul_flops_by_module=counter.flops(BACKWARD, "module"),
        train_matmul_flops=sum(flops[FORWARD].values()) + sum(flops[BACKWARD].values()),
        recompute_matmul_flops=sum(flops[RECOMPUTE].values()),
        recompute_matmul_flops_by_role=flops[RECOMPUTE],
        optimizer_matmul_flops=sum(counter.flops(OPTIMIZER, "operator").values()),
        peak_bytes=ledger.sum(alive),
        peak_phase=at.phase,
        peak_place=at.place,
        peak_parts=_parts(measured, alive),
        timeline=tuple(ledger.spans()),
        notes=(STEP, *_said(setup, measured), *notes),
        versions=_versions(source, setup),
        formula={},
        uncovered={},
    )


def _parts(measured: Measured, alive: set[int]) -> dict[str, int]:
    """Sum the bytes of the storages of a peak, by what they are."""
    parts: dict[str, int] = {}
    rest = set(alive)
    for part in PARTS:
        alive_part = rest & measured.numbers.get(part, set())
        parts[part] = measured.ledger.sum(alive_part)
        rest -= alive_part
    parts[IN_WORK] = measured.ledger.sum(rest)
    return parts


def _said(setup: Setup, measured: Measured) -> tuple[str, ...]:
    """List what has to be said of a setup as it ran."""
    notes: list[str] = []
    if setup.attention != "eager" and not measured.counter.fused:
        notes.append(
            f"attention {setup.attention}: no fused operator ran; its code or its shapes "
            "have the products written out"
        )
    notes += [*measured.said, *sorted(measured.counter.said)]
    if not setup.foreach and setup.optimizer not in ("sgd", "muon", ADAM8BIT):
        notes.append(
            "the optimizer updates one tensor after the other; CUDA's default (foreach) "
            "holds temporaries of all of them"
        )
    if setup.optimizer == ADAM8BIT:
        ends = [s.peak_bytes for s in measured.ledger.spans() if s.phase != OPTIMIZER]
        notes.append(
            "the optimizer's update ran as it is written; torchao has it compiled, which may need "
            f"other temporaries: the peak before it is {max(ends):,} bytes"
        )
    return tuple(notes)


def _versions(source: str, setup: Setup) -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    if source == "transformers":
        from metacount.huggingface.module.model import version

        versions["transformers"] = version()
    if setup.optimizer == ADAM8BIT:
        versions["torchao"] = torchao_version()
    return versions


def _dtype(module: nn.Module) -> str:
    from metacount.tensors import DTYPES

    kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if kind is None:
        raise InputError(f"{named(module)}: it has no parameters to train")
    dtype_name = next((name for name, known in DTYPES.items() if known == kind), None)
    if dtype_name is None:
        raise InputError(f"{named(module)}: its parameters are of {kind}, which is not trained")
    return dtype_name


def _of_any(
    module: nn.Module,
    name: str,
    inputs: Sequence[object],
    setup: Setup,
    loss: Callable[..., Tensor] | None,
    device: str,
) -> Training:
    """Measure a step of a module over `inputs`; without a loss it is the sum of what the module
    gives, which itself keeps nothing.
    """
    given = tree_map(lambda value: input_values(module, value, device), tuple(inputs))
    tensors = tuple(v for v in given if isinstance(v, Tensor))

    def forward(*some: Tensor) -> object:
        left = iter(some)
        out = module(*(next(left) if isinstance(v, Tensor) else v for v in given))
        return out if loss is None else loss(out)

    check_dtypes(setup, _dtype(module))
    program = Program(
        model=module, inputs=tensors, run=forward, targets=None, layers=outermost_layers(module)
    )
    notes: tuple[str, ...] = (
        ("the loss is the sum of what the module gives",) if loss is None else ()
    )
    if module.training:
        notes += ("in training mode, as it was given: dropout runs",)
    notes += said_of_device(device)
    try:
        return measured_training((name, name), "given", program, {}, setup, notes)
    except (InputError, SpecError):
        raise
    except Exception as error:
        # whatever somebody else's forward raises
        text = f"{name}: its training step was not run: {reason(error, given, {})}"
        raise InputError(text) from None
