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
from metacount.formulas.step import MASTER, WHOLE, Part
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
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, ModelSpec, Request, Workload
from metacount.spec.attention import Attention, NoAttention
from metacount.spec.position import Rope
from metacount.spec.stack import WITH_ATTENTION
from metacount.textbook.count import fitted

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from metacount.files import Json
    from metacount.formulas.step import Tensors

    Count: TypeAlias = Callable[[ModelSpec, dict[str, Dim]], dict[str, Dim]]
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
    return lambda spec, run: step.optimizer_bytes_by_role(
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
    "gradient_bytes": lambda spec, run: step.gradient_bytes_by_role(
        spec, bytes_per_value=run["bytes_per_value"]
    ),
    **{_named("optimizer_bytes", name): _of_optimizer(name) for name in step.OPTIMIZERS},
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


def count_step(spec: ModelSpec, workload: Workload | Request, setup: Setup) -> TrainingCount:
    """Count one training step of `spec` running `workload` by formulas, as a setup says.

    `foreach` changes no figure that has a formula.

    >>> from metacount.catalog import entry
    >>> from metacount.spec import Workload
    >>> from metacount.training.setup import Setup
    >>> llama = entry("llama-7b").spec()
    >>> step = count_step(llama, Workload(), Setup())
    >>> step.backward_matmul_flops, step.activation_bytes, step.optimizer_bytes
    (58523224375296, 39605280772, 26953663628)
    >>> step = count_step(llama, Workload(), Setup(lora_rank=8))
    >>> step.trainable_params, step.backward_matmul_flops < 2 * step.matmul_flops
    (4194304, True)
    >>> step = count_step(llama, Workload(), Setup(master_weights=True, grad_dtype="fp32"))
    >>> step.gradient_bytes, step.uncovered["peak_bytes"].partition(":")[0]
    (26953662464, 'what is alive from stage to stage has no formula')
    """
    run, part = fitted(spec, workload), part_of(setup)
    width = DTYPE_BYTES[run.dtype]
    sizes = _pass({**run.to_dict(), "bytes_per_value": width}, setup.attention, setup.checkpointing)
    tensors = None if part == WHOLE else step.chosen_tensors(spec, part)
    uncovered: dict[str, str] = {}
    figures: Json = {}
    for name, count in OF_PASS.items():
        # a forward is the same whatever is frozen
        trained = None if name == "matmul_flops" and part.rank is None else tensors
        by_part = None
        try:
            _check_way(spec, sizes, setup, name)
            by_part = count(spec, sizes, trained)
        except SpecError as error:
            uncovered[name] = str(error)
        if name == OF_BLOCK:
            figures[name] = by_part
            continue
        figures[name] = None if by_part is None else sum(by_part.values())
        figures[f"{name}_by_role"] = by_part
    both = [figures[name] for name in ("matmul_flops", "backward_matmul_flops")]
    figures["train_matmul_flops"] = None if None in both else sum(both)
    for name in ("backward_matmul_flops", "matmul_flops"):
        if name in uncovered:
            uncovered["train_matmul_flops"] = uncovered[name]
    if setup.optimizer not in WITHOUT_PRODUCTS:
        rule = "has no formula for the products of its step"
        refused = SpecError("optimizer", rule, setup.optimizer, "measure it instead")
        uncovered["optimizer_matmul_flops"] = str(refused)
    why = "what is alive from stage to stage has no formula: measure it instead"
    uncovered |= dict.fromkeys(OVER_TIME, why)
    weights = step.trained_tensors(spec) if tensors is None else tensors.trained_weights
    trained_params = params_of(weight for weight, _ in weights)
    params = model.params(spec) + (0 if tensors is None else tensors.adapter_params)
    state = step.optimizer_bytes_by_role(
        spec,
        optimizer=setup.optimizer,
        bytes_per_value=width,
        master_weights=setup.master_weights,
        tensors=tensors,
    )
    return TrainingCount(
        workload=run,
        attention=setup.attention,
        checkpointing=setup.checkpointing,
        optimizer=setup.optimizer,
        master_weights=setup.master_weights,
        lora_rank=part.rank,
        lora_targets=part.targets,
        freeze=part.freeze,
        params=params,
        trainable_params=trained_params,
        param_bytes=width * params,
        **figures,
        n_blocks={kind: number for kind, (number, _, _) in block_kinds(spec).items()},
        gradient_bytes=DTYPE_BYTES[setup.grad_dtype or run.dtype] * trained_params,
        optimizer_bytes=sum(state.values()),
        master_weight_bytes=MASTER * trained_params if setup.master_weights else 0,
        uncovered=uncovered,
    )


def part_of(setup: Setup) -> Part:
    """Return the part of a model that a setup trains."""
    targets = () if setup.lora_rank is None else setup.lora_targets
    return Part(rank=setup.lora_rank, targets=targets, freeze=setup.freeze)


def _check_way(spec: ModelSpec, run: Pass, setup: Setup, name: str) -> None:
    """Raise `SpecError` for a figure of a way to run a step that no formula covers."""
    part = part_of(setup)
    if name == OF_BLOCK and part != WHOLE:
        field = "freeze" if part.freeze else "lora_rank"
        value = ",".join(part.freeze) or part.rank
        raise SpecError(
            field, "has no formula of what one block keeps", value, "measure it instead"
        )
    attends = not isinstance(spec.last_stack.attention, NoAttention)
    if run.attention == FLASH and attends and run.bytes_per_value != SIXTEEN:
        rule = "is of a kernel for 16-bit types"
        raise SpecError("attention", rule, FLASH, "choose eager, or bf16 or fp16")
    if name == "activation_bytes" and setup.loss != "full":
        raise SpecError("loss", "has no formula of what it keeps", setup.loss, "choose full")


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


def formula_figures(
    spec: ModelSpec, workload: Workload | Request, setup: Setup
) -> tuple[dict[str, int | None], dict[str, str]]:
    """Count what is compared with a measured step: numbers by quantity, and why one is None.

    >>> from metacount.catalog import entry
    >>> from metacount.spec import Workload
    >>> from metacount.training.setup import Setup
    >>> run, setup = Workload(seq_len=8), Setup(loss="chunked")
    >>> figures, why = formula_figures(entry("gpt2").spec(), run, setup)
    >>> figures["gradient_bytes"], figures["activation_bytes"], list(why)
    (248879616, None, ['activation_bytes'])
    """
    try:
        counted = count_step(spec, workload, setup)
    except SpecError as error:
        return dict.fromkeys(COMPARED), dict.fromkeys(COMPARED, str(error))
    figures: dict[str, int | None] = {name: getattr(counted, name) for name in COMPARED}
    return figures, {name: why for name, why in counted.uncovered.items() if name in COMPARED}


# --- blocks by their kind ---------------------------------------------------------------------

MIXERS = {
    "A": "attention",
    "R": "recurrent",
    "P": "attention and recurrent",
    "S": "recurrent behind a shared block",
    "N": "no mixer",
}
OTHERWISE = ("without rotation", "without a first norm", "with a window", "with an index")
FFNS = {"F": "dense", "E": "experts", "B": "dense and experts", "N": "no feed-forward"}


def block_kinds(spec: ModelSpec) -> dict[str, tuple[int, Stack, int]]:
    """Find the kinds of blocks, in words: how many, and stack and number of the first.

    >>> from metacount.catalog import entry
    >>> {kind: number for kind, (number, *_) in block_kinds(entry("deepseek-v3").spec()).items()}
    {'dense': 3, 'experts': 58}
    """
    return remembered(spec, "kinds of blocks", lambda: _kinds(spec))


def _kinds(spec: ModelSpec) -> dict[str, tuple[int, Stack, int]]:
    last, positions = spec.last_stack, spec.positions
    rotates = isinstance(positions, Rope) and positions.nope_every is not None
    index = getattr(last.attention, "indexer", None)
    own_index = () if index is None else index.law.sequence(last.n_layers)
    found: dict[tuple[bool, str, str, tuple[bool, ...]], tuple[int, Stack, int]] = {}
    for stack in spec.stacks:
        for i in range(stack.n_layers):
            mixer = last.mixer_of(i)
            unrotated = rotates and mixer in WITH_ATTENTION and not spec.has_rope_layer(i)
            without_norm = i == 0 and not last.norms.first
            near = last.windows_differ and spec.is_windowed_layer(i)
            indexed = len({*own_index}) > 1 and own_index[i]
            flags = (unrotated, without_norm, near, indexed)
            key = (stack is spec.decoder, mixer, last.ffn_of(i), flags)
            number, first, index_of_first = found.get(key, (0, stack, i))
            found[key] = number + 1, first, index_of_first
    kinds = {}
    for (of_decoder, mixer, ffn, others), numbers in found.items():
        words = ["decoder" if of_decoder else "encoder"] if spec.has_encoder else []
        words += [FFNS[ffn]] if last.uniform else [MIXERS[mixer], FFNS[ffn]]
        words += [word for word, holds in zip(OTHERWISE, others, strict=True) if holds]
        kinds[", ".join(words)] = numbers
    return kinds


def block_bytes(spec: ModelSpec, run: Pass, _: object = None) -> dict[str, int]:
    """Count the bytes that one block of each kind keeps, by its kind.

    >>> from metacount.catalog import entry
    >>> run = Pass(batch_size=1, seq_len=2048)
    >>> block_bytes(entry("llama-7b").spec(), run)
    {'dense': 1226850304}
    """
    step.check_around(spec, "has no formula of what one block keeps")
    last, kinds = spec.last_stack, block_kinds(spec)
    alike = len(kinds) == 1 and not spec.n_query_positions
    if alike and run.checkpointing == NONE and run.attention != SDPA:
        ((kind, (number, *_)),) = kinds.items()
        saved = sum(times * amount for times, _, amount in step.saved_in_blocks(spec, run))
        return {kind: exact_div(saved, number)}
    seen = {bool(spec.is_windowed_layer(i)) for i in range(last.n_layers)}
    if run.checkpointing != FULL and run.attention == SDPA and len(seen) > 1:
        # blocks that see a window share a mask
        rule = "has no formula of what one block keeps where some see a window"
        raise SpecError("attention", rule, SDPA, "choose eager or flash")
    return {
        kind: int(step.saved_in_block(spec, run, stack, index))
        for kind, (_, stack, index) in kinds.items()
    }


# What is counted of a pass, of a model or of a part of it that is trained.
OF_BLOCK = "activation_bytes_of_block"
OF_PASS: dict[str, Callable[[ModelSpec, Pass, Tensors | None], dict[str, Dim]]] = {
    "matmul_flops": step.forward_flops_by_role,
    "backward_matmul_flops": step.backward_matmul_flops_by_role,
    "recompute_matmul_flops": step.recompute_matmul_flops_by_role,
    "activation_bytes": step.activation_bytes_by_role,
    OF_BLOCK: block_bytes,
}


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
    step.check_alike(spec)
    step.check_saved(spec, run)
    stack, n_layers, tokens = spec.last_stack, spec.last_stack.n_layers, batch_size * seq_len
    amounts = [
        times * store.bytes
        for times, role, store, is_of_pairs in step.block_stores(spec, run)
        if role != "norm" and store.width == SIXTEEN and not is_of_pairs
    ]
    placement, mixer = stack.norms.placement, stack.attention
    n_norms = n_layers * norms_per_block(placement) - when(not stack.norms.first, 1)
    branches = 2 * n_layers
    return {
        "J": sum(amounts) - _repeated(mixer, batch_size, tokens) * n_layers,
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
    return SIXTEEN * tokens * copied * (mixer.head_dim + mixer.value_dim)


def stored_amounts(spec: ModelSpec) -> dict[str, Dim]:
    """Count what is stored of a model that is trained, by the letters I, F and S."""
    trained = params_of(weight for weight, _ in step.trained_tensors(spec))
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
