"""A training step counted by the formulas alone: what `train` measures, without torch.

`TRAINING` are its quantities, each also for the other ways to run it: `activation_bytes:flash:full`
are those of fused attention with full checkpointing, `optimizer_bytes:muon` those of Muon.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import model, step
from metacount.formulas.dim import Dim
from metacount.formulas.tape import (
    ATTENTIONS,
    CHECKPOINTINGS,
    EAGER,
    FLASH,
    FULL,
    NONE,
    Pass,
    params_of,
)
from metacount.formulas.trained import (
    MASTER,
    OPTIMIZERS,
    WHOLE,
    Part,
    chosen_tensors,
    gradient_bytes_by_role,
    optimizer_bytes_by_role,
    trained_tensors,
)
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, ModelSpec, Request, Workload
from metacount.spec.attention import NoAttention
from metacount.textbook.count import fitted
from metacount.textbook.training.blocks import block_bytes as block_bytes
from metacount.textbook.training.blocks import block_numbers
from metacount.textbook.training.memory import SIXTEEN

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from metacount.files import Json

    Count: TypeAlias = Callable[[ModelSpec, dict[str, Dim]], dict[str, Dim]]

ADAMW = "adamw"


def _pass(run: Mapping[str, Dim], attention: str, checkpointing: str) -> Pass:
    return Pass(
        batch_size=run["batch_size"],
        seq_len=run["seq_len"],
        source_len=run["source_len"] or None,
        bytes_per_value=run["bytes_per_value"],
        attention=attention,
        checkpointing=checkpointing,
    )


def _of_pass(
    count: Callable[[ModelSpec, Pass], dict[str, Dim]], attention: str, checkpointing: str
) -> Count:
    return lambda spec, run: count(spec, _pass(run, attention, checkpointing))


def _of_optimizer(name: str) -> Count:
    return lambda spec, run: optimizer_bytes_by_role(
        spec, optimizer=name, bytes_per_value=run["bytes_per_value"]
    )


def _gradients(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return gradient_bytes_by_role(spec, bytes_per_value=run["bytes_per_value"])


def _named(quantity: str, *ways: str) -> str:
    return ":".join([quantity, *(way for way in ways if way not in (EAGER, NONE, ADAMW))])


# What is counted of a step, by the names that `formula` and `check` take.
TRAINING: dict[str, Count] = {
    **{
        _named("backward_matmul_flops", attention): _of_pass(
            step.backward_matmul_flops_by_role, attention, NONE
        )
        for attention in ATTENTIONS
    },
    "recompute_matmul_flops": _of_pass(step.recompute_matmul_flops_by_role, EAGER, FULL),
    **{
        _named("activation_bytes", attention, checkpointing): _of_pass(
            step.activation_bytes_by_role, attention, checkpointing
        )
        for checkpointing in CHECKPOINTINGS
        for attention in ATTENTIONS
    },
    "gradient_bytes": _gradients,
    **{_named("optimizer_bytes", name): _of_optimizer(name) for name in OPTIMIZERS},
}


def holds_dtype(quantity: str) -> bool:
    """Tell whether a quantity is of one dtype:
    what is computed in float32 is a copy only below float32.

    >>> holds_dtype("activation_bytes:flash"), holds_dtype("optimizer_bytes")
    (True, False)
    """
    return quantity.startswith("activation_bytes")


@frozen
class TrainingCount:
    """The figures of one step, exact; None for what has no formula, `uncovered` says why.

    `activation_bytes_of_block` are those of one block of each kind, of which `n_blocks` says how
    many there are. A way to run the step that no formula covers leaves the figures that do not
    depend on it.
    """

    workload: Workload
    attention: str
    checkpointing: str
    optimizer: str
    master_weights: bool
    lora_rank: int | None
    lora_targets: tuple[str, ...]
    freeze: tuple[str, ...]
    params: int
    trainable_params: int
    param_bytes: int
    matmul_flops: int | None
    matmul_flops_by_role: dict[str, int] | None
    backward_matmul_flops: int | None
    backward_matmul_flops_by_role: dict[str, int] | None
    recompute_matmul_flops: int | None
    recompute_matmul_flops_by_role: dict[str, int] | None
    activation_bytes: int | None
    activation_bytes_by_role: dict[str, int] | None
    activation_bytes_of_block: dict[str, int] | None
    n_blocks: dict[str, int]
    gradient_bytes: int
    optimizer_bytes: int
    master_weight_bytes: int
    uncovered: dict[str, str]

    def to_dict(self) -> Json:
        """Convert the figures to plain data, under their public names."""
        data = {name: value for name, value in vars(self).items() if name != "workload"}
        data |= {"lora_targets": list(self.lora_targets), "freeze": list(self.freeze)}
        return {"workload": self.workload.to_dict(), **data, "source": "formula"}


def training_count(
    spec: ModelSpec,
    workload: Workload | Request,
    *,
    attention: str = EAGER,
    checkpointing: str = NONE,
    optimizer: str = ADAMW,
    master_weights: bool = False,
    part: Part = WHOLE,
) -> TrainingCount:
    """Count one training step of `spec` running `workload`, by the formulas; of all, or a `part`.

    >>> from metacount.catalog import entry
    >>> step = training_count(entry("llama-7b").spec(), Workload())
    >>> step.backward_matmul_flops, step.activation_bytes, step.optimizer_bytes
    (58523224375296, 39605280772, 26953663628)
    >>> adapters = Part(rank=8, targets=("q_proj", "v_proj"))
    >>> step = training_count(entry("llama-7b").spec(), Workload(), part=adapters)
    >>> step.trainable_params, step.backward_matmul_flops < 2 * step.matmul_flops
    (4194304, True)
    """
    run = fitted(spec, workload)
    width = DTYPE_BYTES[run.dtype]
    sizes = _pass(
        {**run.to_dict(), "bytes_per_value": width},
        attention if attention in ATTENTIONS else EAGER,
        checkpointing if checkpointing in CHECKPOINTINGS else NONE,
    )
    uncovered: dict[str, str] = {}
    found: dict[str, dict[str, int] | None] = {}
    tensors = None if part == WHOLE else chosen_tensors(spec, part)
    walked: list[step.Step] = []

    def partial() -> step.Step:
        if not walked:
            assert tensors is not None
            walked.append(step.partial_step(spec, sizes, tensors))
        return walked[0]

    def of_part(name: str) -> dict[str, Dim]:
        if name == "activation_bytes_of_block":
            rule = "has no formula of what one block keeps"
            held = ("freeze", ",".join(part.freeze))
            field, value = held if part.freeze else ("lora_rank", part.rank)
            raise SpecError(field, rule, value, "measure it instead")
        step.check_figure(name, spec, sizes)
        figures: dict[str, Dim] = getattr(partial(), name)
        return figures

    def of_pass(
        name: str, count: Callable[[ModelSpec, Pass], dict[str, Dim]], attends: str, keeps: str
    ) -> None:
        try:
            _check_way(spec, sizes, attends, keeps)
            forward = name == "matmul_flops" and part.rank is None
            whole = part == WHOLE or forward
            found[name] = count(spec, sizes) if whole else of_part(name)
        except SpecError as error:
            found[name], uncovered[name] = None, str(error)

    # any kernel of attention multiplies as much in a forward, unless values are filled for flash
    of_pass("matmul_flops", step.forward_flops_by_role, sizes.attention, NONE)
    # what a backward multiplies no checkpoint changes
    of_pass("backward_matmul_flops", step.backward_matmul_flops_by_role, attention, NONE)
    for name, count in (
        ("recompute_matmul_flops", step.recompute_matmul_flops_by_role),
        ("activation_bytes", step.activation_bytes_by_role),
        ("activation_bytes_of_block", block_bytes),
    ):
        of_pass(name, count, attention, checkpointing)
    total = {name: None if parts is None else sum(parts.values()) for name, parts in found.items()}
    stored = MASTER if master_weights else width
    if tensors is None:
        adapters, trained = 0, params_of(trained_tensors(spec).all)
        states = optimizer_bytes_by_role(spec, optimizer=optimizer, bytes_per_value=stored)
        state = sum(states.values())
    else:
        adapters, trained = tensors.adapter_params, tensors.trained_params
        state = tensors.optimizer_bytes(optimizer=optimizer, width=stored)
    return TrainingCount(
        workload=run,
        attention=attention,
        checkpointing=checkpointing,
        optimizer=optimizer,
        master_weights=master_weights,
        lora_rank=part.rank,
        lora_targets=part.targets if part.rank is not None else (),
        freeze=part.freeze,
        params=model.params(spec) + adapters,
        trainable_params=trained,
        param_bytes=model.param_bytes(spec, bytes_per_value=width) + width * adapters,
        matmul_flops=total["matmul_flops"],
        matmul_flops_by_role=found["matmul_flops"],
        backward_matmul_flops=total["backward_matmul_flops"],
        backward_matmul_flops_by_role=found["backward_matmul_flops"],
        recompute_matmul_flops=total["recompute_matmul_flops"],
        recompute_matmul_flops_by_role=found["recompute_matmul_flops"],
        activation_bytes=total["activation_bytes"],
        activation_bytes_by_role=found["activation_bytes"],
        activation_bytes_of_block=found["activation_bytes_of_block"],
        n_blocks=block_numbers(spec),
        gradient_bytes=width * trained,
        optimizer_bytes=state,
        master_weight_bytes=MASTER * trained if master_weights else 0,
        uncovered=uncovered,
    )


def _check_way(spec: ModelSpec, run: Pass, attention: str, checkpointing: str) -> None:
    """Raise `SpecError` for a way to run a step that no formula covers."""
    for name, value, known in (
        ("attention", attention, ATTENTIONS),
        ("checkpointing", checkpointing, CHECKPOINTINGS),
    ):
        if value not in known:
            raise SpecError(name, "has no formula", value, f"choose {' or '.join(known)}")
    attends = not isinstance(spec.last_stack.attention, NoAttention)
    if attention == FLASH and attends and run.bytes_per_value != SIXTEEN:
        raise SpecError(
            "attention",
            "is of a kernel for 16-bit types",
            attention,
            "choose eager, or bf16 or fp16",
        )
