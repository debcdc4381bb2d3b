"""A training step counted by the formulas alone: what `train` measures, without torch.

`TRAINING` are its quantities, each also for the other ways to run it: `activation_bytes:flash:full`
are those of fused attention with full checkpointing, `optimizer_bytes:muon` those of Muon.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import backward, model, training
from metacount.formulas import optimizer as optimizers
from metacount.formulas.covered import check_not_shared
from metacount.formulas.dim import Dim
from metacount.formulas.forward import ATTENTIONS, CHECKPOINTINGS, EAGER, FULL, NONE, Pass
from metacount.formulas.kept import bytes_of
from metacount.formulas.kept_model import block_terms
from metacount.formulas.optimizer import MASTER, lora_tensors
from metacount.formulas.terms import params_of
from metacount.formulas.trained import trained_tensors
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, ModelSpec, Request, Workload
from metacount.spec.position import Rope
from metacount.spec.stack import WITH_ATTENTION
from metacount.textbook.count import fitted

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from metacount.files import Json
    from metacount.formulas.terms import Weight

    Count: TypeAlias = Callable[[ModelSpec, dict[str, Dim]], dict[str, Dim]]

ADAMW = "adamw"
LORA_TARGETS = ("q_proj", "v_proj")


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
    return lambda spec, run: optimizers.optimizer_bytes_by_role(
        spec, optimizer=name, bytes_per_value=run["bytes_per_value"]
    )


def _gradients(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return optimizers.gradient_bytes_by_role(spec, bytes_per_value=run["bytes_per_value"])


def _named(quantity: str, *ways: str) -> str:
    return ":".join([quantity, *(way for way in ways if way not in (EAGER, NONE, ADAMW))])


# What is counted of a step, by the names that `formula` and `check` take.
TRAINING: dict[str, Count] = {
    **{
        _named("backward_matmul_flops", attention): _of_pass(
            backward.backward_matmul_flops_by_role, attention, NONE
        )
        for attention in ATTENTIONS
    },
    "recompute_matmul_flops": _of_pass(backward.recompute_matmul_flops_by_role, EAGER, FULL),
    **{
        _named("activation_bytes", attention, checkpointing): _of_pass(
            training.activation_bytes_by_role, attention, checkpointing
        )
        for checkpointing in CHECKPOINTINGS
        for attention in ATTENTIONS
    },
    "gradient_bytes": _gradients,
    **{_named("optimizer_bytes", name): _of_optimizer(name) for name in optimizers.OPTIMIZERS},
}


def holds_dtype(quantity: str) -> bool:
    """Whether a quantity is of one dtype: what is computed in float32 is a copy below it only.

    >>> holds_dtype("activation_bytes:flash"), holds_dtype("optimizer_bytes")
    (True, False)
    """
    return quantity.startswith("activation_bytes")


@frozen
class TrainingCount:
    """The figures of one step, exact; None for what has no formula, `uncovered` says why.

    `activation_bytes_of_block` are those of one block of each kind. A way to run the step that no
    formula covers leaves the figures that do not depend on it.
    """

    workload: Workload
    attention: str
    checkpointing: str
    optimizer: str
    master_weights: bool
    lora_rank: int | None
    lora_targets: tuple[str, ...]
    params: int
    trainable_params: int
    param_bytes: int
    matmul_flops: int
    backward_matmul_flops: int | None
    backward_matmul_flops_by_role: dict[str, int] | None
    recompute_matmul_flops: int | None
    activation_bytes: int | None
    activation_bytes_by_role: dict[str, int] | None
    activation_bytes_of_block: dict[str, int] | None
    gradient_bytes: int
    optimizer_bytes: int
    master_weight_bytes: int
    uncovered: dict[str, str]

    def to_dict(self) -> Json:
        """The figures as plain data, under their public names."""
        data = {name: value for name, value in vars(self).items() if name != "workload"}
        data["lora_targets"] = list(self.lora_targets)
        return {"workload": self.workload.to_dict(), **data, "source": "formula"}


def training_count(
    spec: ModelSpec,
    workload: Workload | Request,
    *,
    attention: str = EAGER,
    checkpointing: str = NONE,
    optimizer: str = ADAMW,
    master_weights: bool = False,
    lora_rank: int | None = None,
    lora_targets: tuple[str, ...] = LORA_TARGETS,
) -> TrainingCount:
    """Count one training step of `spec` running `workload`, by the formulas.

    With a `lora_rank` only adapters are trained, and only what is stored of them has a formula.

    >>> from metacount.catalog import entry
    >>> step = training_count(entry("llama-7b").spec(), Workload())
    >>> step.backward_matmul_flops, step.activation_bytes, step.optimizer_bytes
    (58523224375296, 39605280772, 26953663628)
    """
    run = fitted(spec, workload)
    width = DTYPE_BYTES[run.dtype]
    sizes = _pass(
        {**run.to_dict(), "bytes_per_value": width},
        attention if attention in ATTENTIONS else EAGER,
        checkpointing if checkpointing in CHECKPOINTINGS else NONE,
    )
    uncovered: dict[str, str] = {}
    found: dict[str, dict[str, Dim] | None] = {}

    def of_pass(name: str, count: Callable[[ModelSpec, Pass], dict[str, Dim]]) -> None:
        try:
            _check_way(attention, checkpointing, lora_rank)
            found[name] = count(spec, sizes)
        except SpecError as error:
            found[name], uncovered[name] = None, str(error)

    of_pass("backward_matmul_flops", backward.backward_matmul_flops_by_role)
    of_pass("recompute_matmul_flops", backward.recompute_matmul_flops_by_role)
    of_pass("activation_bytes", training.activation_bytes_by_role)
    of_pass("activation_bytes_of_block", block_bytes)
    products, kept = found["backward_matmul_flops"], found["activation_bytes"]
    again = found["recompute_matmul_flops"]
    tensors = trained_tensors(spec).all
    if lora_rank is not None:
        tensors = lora_tensors(spec, lora_rank, lora_targets)
    trained = params_of(tensors)
    return TrainingCount(
        workload=run,
        attention=attention,
        checkpointing=checkpointing,
        optimizer=optimizer,
        master_weights=master_weights,
        lora_rank=lora_rank,
        lora_targets=lora_targets if lora_rank is not None else (),
        params=model.params(spec),
        trainable_params=trained,
        param_bytes=model.param_bytes(spec, bytes_per_value=width),
        matmul_flops=sum(backward.forward_flops_by_role(spec, sizes).values()),
        backward_matmul_flops=None if products is None else sum(products.values()),
        backward_matmul_flops_by_role=products,
        recompute_matmul_flops=None if again is None else sum(again.values()),
        activation_bytes=None if kept is None else sum(kept.values()),
        activation_bytes_by_role=kept,
        activation_bytes_of_block=found["activation_bytes_of_block"],
        gradient_bytes=width * trained,
        optimizer_bytes=_state(
            spec, optimizer, MASTER if master_weights else width, tensors, lora_rank
        ),
        master_weight_bytes=MASTER * trained if master_weights else 0,
        uncovered=uncovered,
    )


def _check_way(attention: str, checkpointing: str, lora_rank: int | None) -> None:
    """Raise `SpecError` for a way to run a step that no formula covers."""
    for name, value, known in (
        ("attention", attention, ATTENTIONS),
        ("checkpointing", checkpointing, CHECKPOINTINGS),
    ):
        if value not in known:
            raise SpecError(name, "has no formula", value, f"choose {' or '.join(known)}")
    if lora_rank is not None:
        raise SpecError(
            "lora_rank",
            "has no formula for a backward of adapters",
            lora_rank,
            "leave lora_rank out",
        )


def _state(
    spec: ModelSpec, name: str, width: int, tensors: list[Weight], lora_rank: int | None
) -> int:
    """Bytes of an optimizer's state: of adapters, which all are matrices in layers, or of all."""
    if lora_rank is None:
        by_role = optimizers.optimizer_bytes_by_role(spec, optimizer=name, bytes_per_value=width)
        return int(sum(by_role.values()))
    optimizers.check_optimizer(name)
    of_matrix, _ = optimizers.OPTIMIZERS[name]
    return int(sum(weight.times * of_matrix(weight, width) for weight in tensors))


def block_bytes(spec: ModelSpec, run: Pass) -> dict[str, int]:
    """Count the bytes that one block of each kind keeps, by its kind.

    >>> from metacount.catalog import entry
    >>> run = Pass(batch_size=1, seq_len=2048)
    >>> block_bytes(entry("llama-7b").spec(), run)
    {'dense': 1226850304}
    """
    check_not_shared(spec)
    found: dict[str, int] = {}
    for part in spec.stacks:
        of_encoder = spec.has_encoder and part is not spec.decoder
        n = run.source if of_encoder else run.seq_len
        for index in range(part.n_layers):
            words = ["encoder"] if of_encoder else ["decoder"] if spec.has_encoder else []
            words += _kind(spec, index)
            kind = ", ".join(words)
            if kind not in found:
                found[kind] = _of_block(spec, run, n, index, part is spec.decoder)
    return found


MIXERS = {"A": "attention", "R": "recurrent", "P": "attention and recurrent", "N": "no mixer"}
FFNS = {"F": "dense", "E": "experts", "N": "no feed-forward"}


def _kind(spec: ModelSpec, index: int) -> list[str]:
    """What distinguishes a block from others of its stack, in words."""
    last = spec.last_stack
    mixer, ffn = last.mixer_of(index), last.ffn_of(index)
    words = [FFNS[ffn]] if last.uniform else [MIXERS[mixer], FFNS[ffn]]
    if isinstance(spec.positions, Rope) and not spec.has_rope_layer(index):
        words += ["without rotation"] if mixer in WITH_ATTENTION else []
    return words


def _of_block(spec: ModelSpec, run: Pass, n: int, index: int, decodes: bool) -> int:
    if run.checkpointing == FULL:
        return int(run.batch_size * n * spec.d_model * run.bytes_per_value)
    ffn = spec.last_stack.ffn_of(index)
    terms = block_terms(
        spec,
        run,
        n,
        routed=ffn == "E",
        rotated=spec.has_rope_layer(index),
        cross=spec.has_encoder and decodes,
        mixer=spec.last_stack.mixer_of(index),
        feeds=ffn != "N",
    )
    return int(bytes_of(terms))
