"""A training step counted by the formulas alone: what `train` measures, without torch.

`TRAINING` are its quantities, each also for the other ways to run it: `activation_bytes:flash:full`
are those of fused attention with full checkpointing, `optimizer_bytes:muon` those of Muon.

What no formula covers is told by name, with the reason; nothing is left out, nothing is zero.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import model, step
from metacount.formulas.dim import Dim, exact_div, when
from metacount.formulas.pieces import remembered
from metacount.formulas.step import (
    block_stores,
    check_alike,
    check_saved,
    saved_in_block,
    saved_in_blocks,
)
from metacount.formulas.sublayers import norms_per_block
from metacount.formulas.tape import (
    ATTENTIONS,
    CHECKPOINTINGS,
    EAGER,
    FLASH,
    FULL,
    NONE,
    SDPA,
    Pass,
    params_of,
    several,
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
from metacount.spec.attention import Attention, NoAttention
from metacount.spec.position import Rope
from metacount.spec.rules import beyond_branches
from metacount.spec.stack import WITH_ATTENTION
from metacount.textbook.count import fitted

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from metacount.files import Json

    Count: TypeAlias = Callable[[ModelSpec, dict[str, Dim]], dict[str, Dim]]
    from metacount.spec import ModelSpec, Request, Workload
    from metacount.spec.stack import Stack
    from metacount.training.setup import Setup


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


def _named(quantity: str, *ways: str) -> str:
    return ":".join([quantity, *(way for way in ways if way not in (EAGER, NONE, ADAMW))])


# What is counted of a step, by the names that `formula` and `check` take.
TRAINING: dict[str, Count] = {
    **{
        _named(name, attention): _of_pass(count, attention, NONE)
        for name, count in (
            ("backward_matmul_flops", step.backward_matmul_flops_by_role),
            ("train_matmul_flops", step.train_matmul_flops_by_role),
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
    "gradient_bytes": lambda spec, run: gradient_bytes_by_role(
        spec, bytes_per_value=run["bytes_per_value"]
    ),
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
    train_matmul_flops: int | None
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
    of_block = found.pop("activation_bytes_of_block")
    figures: Json = {f"{name}_by_role": parts for name, parts in found.items()}
    figures |= {n: None if parts is None else sum(parts.values()) for n, parts in found.items()}
    passes = ("matmul_flops", "backward_matmul_flops")
    both = [figures[name] for name in passes]
    if missing := [uncovered[name] for name in passes if name in uncovered]:
        uncovered["train_matmul_flops"] = missing[0]
    stored = MASTER if master_weights else width
    if tensors is None:
        adapters, trained = 0, params_of(trained_tensors(spec).all)
        states = optimizer_bytes_by_role(spec, optimizer=optimizer, bytes_per_value=stored)
        state = sum(states.values())
    else:
        adapters, trained = tensors.adapter_params, tensors.trained_params
        state = tensors.optimizer_bytes(optimizer=optimizer, width=stored)
    params = model.params(spec) + adapters
    return TrainingCount(
        workload=run,
        attention=attention,
        checkpointing=checkpointing,
        optimizer=optimizer,
        master_weights=master_weights,
        lora_rank=part.rank,
        lora_targets=part.targets if part.rank is not None else (),
        freeze=part.freeze,
        params=params,
        trainable_params=trained,
        param_bytes=width * params,
        activation_bytes_of_block=of_block,
        **figures,
        train_matmul_flops=None if None in both else sum(both),
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
        rule = "is of a kernel for 16-bit types"
        raise SpecError("attention", rule, attention, "choose eager, or bf16 or fp16")


# --- blocks by their kind ---------------------------------------------------------------------

MIXERS = {
    "A": "attention",
    "R": "recurrent",
    "P": "attention and recurrent",
    "S": "recurrent behind a shared block",
    "N": "no mixer",
}
FFNS = {"F": "dense", "E": "experts", "B": "dense and experts", "N": "no feed-forward"}


def block_bytes(spec: ModelSpec, run: Pass) -> dict[str, int]:
    """Count the bytes that one block of each kind keeps, by its kind.

    >>> from metacount.catalog import entry
    >>> run = Pass(batch_size=1, seq_len=2048)
    >>> block_bytes(entry("llama-7b").spec(), run)
    {'dense': 1226850304}
    """
    kinds = remembered(spec, "kinds of blocks", lambda: _kinds(spec))
    alike = len(kinds) == 1 and not beyond_branches(spec) and not spec.n_query_positions
    if alike and run.checkpointing == NONE and run.attention != SDPA:
        ((kind, (number, _, _)),) = kinds.items()
        saved = sum(times * amount for times, _, amount in saved_in_blocks(spec, run))
        return {kind: exact_div(saved, number)}
    return {kind: _of_block(spec, run, part, index) for kind, (_, part, index) in kinds.items()}


def block_numbers(spec: ModelSpec) -> dict[str, int]:
    """Count the blocks of each kind.

    >>> from metacount.catalog import entry
    >>> block_numbers(entry("deepseek-v3").spec())
    {'dense': 3, 'experts': 58}
    """
    kinds = remembered(spec, "kinds of blocks", lambda: _kinds(spec))
    return {kind: number for kind, (number, _, _) in kinds.items()}


def _kinds(spec: ModelSpec) -> dict[str, tuple[int, Stack, int]]:
    """Find the kinds of blocks, in words: how many, and stack and number of the first."""
    last, positions = spec.last_stack, spec.positions
    turns = positions.law.holds if isinstance(positions, Rope) else None
    some_index = len({spec.has_index_layer(i) for i in range(last.n_layers)}) > 1
    found: dict[str, tuple[int, Stack, int]] = {}
    for part in spec.stacks:
        of_encoder = spec.has_encoder and part is not spec.decoder
        words = ["encoder"] if of_encoder else ["decoder"] if spec.has_encoder else []
        kinds = (
            (
                last.mixer_of(i),
                last.ffn_of(i),
                turns is None or turns(i),
                i > 0 or last.norms.first,
                some_index and spec.has_index_layer(i),
            )
            for i in range(part.n_layers)
        )
        first: dict[tuple[str, str, bool, bool, bool], tuple[int, int]] = {}
        for index, kind in enumerate(kinds):
            number, at = first.get(kind, (0, index))
            first[kind] = number + 1, at
        for (mixer, ffn, turned, normed, indexed), (number, at) in first.items():
            said = [*words] if last.uniform else [*words, MIXERS[mixer]]
            said.append(FFNS[ffn])
            if not turned and mixer in WITH_ATTENTION:
                said.append("without rotation")
            if not normed:
                said.append("without a first norm")
            if indexed:
                said.append("with an index")
            name = ", ".join(said)
            before, stack, earliest = found.get(name, (0, part, at))
            found[name] = before + number, stack, earliest
    return found


def _of_block(spec: ModelSpec, run: Pass, part: Stack, index: int) -> int:
    if run.checkpointing == FULL:
        n = run.source if spec.has_encoder and part is not spec.decoder else run.seq_len
        return int(run.batch_size * n * spec.d_model * run.bytes_per_value)
    stack = spec.last_stack
    seen = {bool(spec.is_windowed_layer(i)) for i in range(stack.n_layers)}
    if run.attention == SDPA and len(seen) > 1:  # blocks that see a window share a mask
        rule = "has no formula of what one block keeps where some see a window"
        raise SpecError("attention", rule, SDPA, "choose eager or flash")
    return int(saved_in_block(spec, run, part, index))


# --- a step as `train` sets it up -------------------------------------------------------------

# What is counted and measured alike.
COMPARED = (
    "param_bytes",
    "master_weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "matmul_flops",
    "backward_matmul_flops",
    "train_matmul_flops",
    "recompute_matmul_flops",
)
OVER_TIME = ("held_bytes", "logits_bytes", "logits_float32_bytes", "peak_bytes")
WITHOUT_PRODUCTS = ("adamw", "sgd", "sgd-momentum", "adagrad")  # value by value
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


# --- what conventions of training name ------------------------------------------------------
#
# J  16-bit tensors that products and activations of all blocks keep, pairs of positions apart, with
#    keys and values of every key/value head once
# N  the input of every norm of the blocks, in 16 bits, which is all that a fused norm keeps
# O  masks of a dropout at the end of every branch, a byte a value
# V  5 bytes a pair of positions and head: the softmax, the mask of its dropout and the result
# I  every parameter that is trained in 16 bits
# F  the same in 32 bits
# S  Adam's two moments of each in 32 bits

SIXTEEN = 2  # bytes of a value in 16 bits
PAIR = 2 + 1 + 2  # softmax, mask, result


def activation_amounts(spec: ModelSpec, batch_size: Dim, seq_len: Dim) -> dict[str, Dim]:
    """Count what the blocks of a model keep, by the letters J, N, O and V."""
    run = Pass(batch_size=batch_size, seq_len=seq_len, bytes_per_value=SIXTEEN)
    check_alike(spec)
    check_saved(spec, run)
    stack, n_layers, tokens = spec.last_stack, spec.last_stack.n_layers, batch_size * seq_len
    kept = [
        times * store.bytes
        for times, role, store, is_of_pairs in block_stores(spec, run)
        if role != "norm" and store.width == SIXTEEN and not is_of_pairs
    ]
    placement, mixer = stack.norms.placement, stack.attention
    n_norms = n_layers * norms_per_block(placement) - when(not stack.norms.first, 1)
    branches = 2 * n_layers
    return {
        "J": sum(kept) - _repeated(mixer, batch_size, tokens) * n_layers,
        "N": SIXTEEN * n_norms * tokens * spec.d_model,
        "O": branches * tokens * spec.d_model,
        "V": PAIR * n_layers * spec.n_heads * tokens * seq_len,
    }


def _repeated(mixer: object, batch_size: Dim, tokens: Dim) -> Dim:
    """Count the bytes by which a product written out copies keys
    and values for every query head.
    """
    if not isinstance(mixer, Attention):
        return 0
    copied = several(batch_size * mixer.n_kv_heads) * (mixer.n_heads - mixer.n_kv_heads)
    return 2 * SIXTEEN * tokens * copied * mixer.head_dim


def stored_amounts(spec: ModelSpec) -> dict[str, Dim]:
    """Count what is stored of a model that is trained, by the letters I, F and S."""
    trained = params_of(trained_tensors(spec).all)
    # the moments alone: nobody counts the 4 bytes of a step counter of each tensor
    return {"I": SIXTEEN * trained, "F": MASTER * trained, "S": 2 * MASTER * trained}


def inputs_of_blocks(spec: ModelSpec, run: Pass) -> Dim:
    """Count the bytes that blocks keep with full checkpointing: the input of each.

    >>> from metacount.catalog import entry
    >>> inputs_of_blocks(entry("llama-7b").spec(), Pass(batch_size=1, seq_len=2048))
    536870912
    """
    tokens = run.batch_size * run.seq_len
    return spec.last_stack.n_layers * tokens * spec.d_model * run.bytes_per_value
