"""A training step as `train` sets it up, counted by formulas, and its figures beside measured ones.

What no formula covers is told by name, with the reason; nothing is left out, nothing is zero.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.trained import Part
from metacount.spec import DTYPE_BYTES
from metacount.textbook.training import TrainingCount, training_count

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec, Request, Workload
    from metacount.training.setup import Setup

# What is counted and measured alike.
COMPARED = (
    "param_bytes",
    "master_weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "matmul_flops",
    "backward_matmul_flops",
    "recompute_matmul_flops",
)
OVER_TIME = ("held_bytes", "logits_bytes", "logits_float32_bytes", "peak_bytes")
WITHOUT_PRODUCTS = ("adamw", "sgd", "sgd-momentum")  # value by value
OF_KEPT = ("activation_bytes", "activation_bytes_by_role")


def count_step(spec: ModelSpec, workload: Workload | Request, setup: Setup) -> TrainingCount:
    """Count one training step of `spec` by formulas, as a setup says.

    `SpecError` where nothing of a step can be said. `foreach` changes no figure that has a formula.

    >>> from metacount.catalog import entry
    >>> from metacount.spec import Workload
    >>> from metacount.training.setup import Setup
    >>> setup = Setup(master_weights=True, grad_dtype="fp32")
    >>> step = count_step(entry("llama-7b").spec(), Workload(), setup)
    >>> step.gradient_bytes, step.uncovered["peak_bytes"].partition(":")[0]
    (26953662464, 'what is alive from stage to stage has no formula')
    """
    counted = training_count(
        spec,
        workload,
        attention=setup.attention,
        checkpointing=setup.checkpointing,
        optimizer=setup.optimizer,
        master_weights=setup.master_weights,
        part=part_of(setup),
    )
    found, uncovered = dict(vars(counted)), dict(counted.uncovered)
    if setup.grad_dtype is not None:
        found["gradient_bytes"] = DTYPE_BYTES[setup.grad_dtype] * counted.trainable_params
    if setup.loss != "full" and counted.activation_bytes is not None:
        found |= dict.fromkeys(OF_KEPT)
        error = SpecError("loss", "has no formula of what it keeps", setup.loss, "choose full")
        uncovered["activation_bytes"] = str(error)
    if setup.optimizer not in WITHOUT_PRODUCTS:
        rule = "has no formula for the products of its step"
        error = SpecError("optimizer", rule, setup.optimizer, "measure it instead")
        uncovered["optimizer_matmul_flops"] = str(error)
    why = "what is alive from stage to stage has no formula: measure it instead"
    uncovered |= dict.fromkeys(OVER_TIME, why)
    return TrainingCount(**{**found, "uncovered": uncovered})


def part_of(setup: Setup) -> Part:
    """Return the part of a model that a setup trains."""
    adapts = setup.lora_rank is not None
    return Part(
        rank=setup.lora_rank,
        targets=setup.lora_targets if adapts else (),
        freeze=setup.freeze,
    )


def beside(
    spec: ModelSpec, workload: Workload | Request, setup: Setup
) -> tuple[dict[str, int | None], dict[str, str]]:
    """Count what is compared with a measured step: numbers by quantity, and why one is None.

    >>> from metacount.catalog import entry
    >>> from metacount.spec import Workload
    >>> from metacount.training.setup import Setup
    >>> figures, why = beside(entry("gpt2").spec(), Workload(seq_len=8), Setup(loss="chunked"))
    >>> figures["gradient_bytes"], figures["activation_bytes"], list(why)
    (248879616, None, ['activation_bytes'])
    """
    try:
        counted = count_step(spec, workload, setup)
    except SpecError as error:
        return dict.fromkeys(COMPARED), dict.fromkeys(COMPARED, str(error))
    figures: dict[str, int | None] = {name: getattr(counted, name) for name in COMPARED}
    return figures, {name: why for name, why in counted.uncovered.items() if name in COMPARED}
