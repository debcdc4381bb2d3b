"""What a measured training step showed, as one record and as plain data."""

from __future__ import annotations

from metacount.frozen import fields, frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

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
        found = {name: getattr(self, name) for name in fields(Training)}
        found["timeline"] = [
            {name: getattr(stage, name) for name in fields(Stage)} for stage in self.timeline
        ]
        return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}
