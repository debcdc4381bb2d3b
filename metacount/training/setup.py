"""What a training step is made of beside model and workload, and what one showed, without torch."""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.frozen import fields, frozen
from metacount.spec import DTYPE_BYTES
from metacount.spec.field import check_int

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Collection

    from metacount.files import Json

# Every choice, and what it means.
OPTIMIZERS = {
    "adamw": "torch.optim.AdamW",
    "sgd": "torch.optim.SGD without momentum",
    "sgd-momentum": "torch.optim.SGD with momentum 0.9",
    "adagrad": "torch.optim.Adagrad",
    "adafactor": "torch.optim.Adafactor",
    "muon": "torch.optim.Muon for the matrices of the layers, AdamW for the rest",
    "adam8bit": "AdamW with its state in 8 bits, torchao's AdamW8bit",
}
ATTENTIONS = {
    "eager": "both products written out",
    "sdpa": "torch's scaled_dot_product_attention, by the kernel that torch's CPU would choose",
    "flash": "torch's flash-attention kernel of CUDA",
}
CHECKPOINTINGS = {
    "none": "everything that the backward needs is kept",
    "selective": "of each layer its input and the results of its matrix products are kept",
    "full": "of each layer its input alone is kept",
}
LOSSES = {
    "full": "cross-entropy of a float32 copy of all logits",
    "chunked": "cross-entropy of a float32 copy of a chunk of the logits after the other, "
    "each recomputed in the backward",
}
# What parameters and gradients are of, in a step.
TRAINED_DTYPES = ("fp64", "fp32", "bf16", "fp16")
MAX_RANK = 2**20
ALL_LINEAR = "all-linear"  # among LoRA's targets: every linear layer but the output head


@frozen
class Setup:
    """How a step is trained: choices of the tables above, and what of the model is trained.

    `grad_dtype` None is the parameters' own. `lora_rank` None trains the model itself; else it is
    frozen, and adapters of that rank stand beside the linear layers called `lora_targets`.
    `freeze` are paths or last names of modules and parameters that are not trained.
    """

    optimizer: str = "adamw"
    master_weights: bool = False
    grad_dtype: str | None = None
    foreach: bool = False
    attention: str = "eager"
    checkpointing: str = "none"
    loss: str = "full"
    loss_chunks: int = 8
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (
            ("optimizer", OPTIMIZERS),
            ("attention", ATTENTIONS),
            ("checkpointing", CHECKPOINTINGS),
            ("loss", LOSSES),
        ):
            check_choice(name, getattr(self, name), known)
        if self.grad_dtype is not None:
            check_choice("grad_dtype", self.grad_dtype, TRAINED_DTYPES)
        check_int("loss_chunks", self.loss_chunks, 1, MAX_RANK)
        if self.lora_rank is not None:
            check_int("lora_rank", self.lora_rank, 1, MAX_RANK)

    def to_dict(self) -> Json:
        """Return every field, in order."""
        data = {name: getattr(self, name) for name in fields(type(self))}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in data.items()}


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Raise `SpecError` unless `value` is one of the words that are known."""
    if value not in known:
        remedy = nearest(str(value), known, f"choose one of {', '.join(known)}")
        raise SpecError(name, "is unknown", value, remedy)


def check_dtypes(setup: Setup, dtype: str) -> None:
    """Raise `SpecError` for parameters, gradients and master weights that are not trained together.

    >>> check_dtypes(Setup(master_weights=True), "bf16")
    >>> check_dtypes(Setup(master_weights=True), "fp32")
    Traceback (most recent call last):
    metacount.errors.SpecError: master_weights is for 16-bit parameters: got 'fp32'; leave it out
    """
    if dtype not in TRAINED_DTYPES:
        remedy = f"choose one of {', '.join(TRAINED_DTYPES)}"
        raise SpecError("dtype", "is not one that a module is trained in", dtype, remedy)
    if setup.master_weights and DTYPE_BYTES[dtype] > 2:
        raise SpecError("master_weights", "is for 16-bit parameters", dtype, "leave it out")
    grads = setup.grad_dtype or dtype
    if grads != dtype and not setup.master_weights:
        raise SpecError(
            "grad_dtype",
            f"must be that of the parameters ({dtype}), which the optimizer updates",
            grads,
            "choose master_weights too, or leave it out",
        )


# What no figure here has in it.
NOT_COUNTED = (
    "the allocator's rounding and fragmentation",
    "workspaces inside kernels",
    "the device's own context and libraries",
    "buffers of communication",
)


@frozen
class Stage:
    """A stretch of the step: bytes alive at its beginning and end, and the most in between."""

    phase: str
    place: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int


@frozen
class Training:
    """A training step: every figure is measured, bytes are those of distinct storages.

    `activation_bytes` are kept by autograd for the backward when forward and loss are done;
    `held_bytes` are alive then too, though the backward does not need them. `peak_parts` says of
    what the peak consists, and sums to it. `formula` is what formulas say of the same step, by
    quantity: None where there is none, for the reason in `uncovered`; it is of a reference module
    alone, as others keep other tensors.
    """

    model: str
    name: str
    source: str
    device: str
    workload: Json
    setup: Json
    params: int
    trainable_params: int
    param_bytes: int
    buffer_bytes: int
    master_weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    optimizer_state: dict[str, int]
    activation_bytes: int
    activation_bytes_by_role: dict[str, int]
    activation_bytes_by_module: dict[str, int]
    activation_bytes_by_operator: dict[str, int]
    activation_bytes_by_layer: dict[str, int]
    held_bytes: int
    logits_bytes: int
    logits_float32_bytes: int
    matmul_flops: int
    matmul_flops_by_role: dict[str, int]
    backward_matmul_flops: int
    backward_matmul_flops_by_role: dict[str, int]
    backward_matmul_flops_by_operator: dict[str, int]
    backward_matmul_flops_by_module: dict[str, int]
    train_matmul_flops: int
    recompute_matmul_flops: int
    recompute_matmul_flops_by_role: dict[str, int]
    optimizer_matmul_flops: int
    peak_bytes: int
    peak_phase: str
    peak_place: str
    peak_parts: dict[str, int]
    timeline: tuple[Stage, ...]
    not_counted: tuple[str, ...] = NOT_COUNTED
    notes: tuple[str, ...] = ()
    versions: dict[str, str]
    formula: dict[str, int | None]
    uncovered: dict[str, str]

    def to_dict(self) -> Json:
        """Return every field as plain data."""
        data = {name: getattr(self, name) for name in fields(Training)}
        data["timeline"] = [
            {name: getattr(stage, name) for name in fields(Stage)} for stage in self.timeline
        ]
        return {name: list(v) if isinstance(v, tuple) else v for name, v in data.items()}
