"""A training step: the tensors that it trains, FLOPs of its forward, backward and recomputation,
the bytes that it saves, gradients and optimizer states.

>>> from metacount.catalog import entry
>>> llama, run = entry("llama-7b").spec(), Pass(batch_size=1, seq_len=2048)
>>> sum(backward_matmul_flops_by_role(llama, run).values())
58523224375296
>>> sum(activation_bytes_by_role(llama, run).values())
39605280772

Where all is trained, each kind of branch is recorded once and counts as often as it stands there.
Of a part every block is gone through in order, as a gradient exists from the first trained tensor.
What has no formula is refused, at the end of this file: structures, and ways to run attention.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.formulas import ends, folds
from metacount.formulas.block import (
    STORED,
    Given,
    Layer,
    branches_of,
    is_parallel,
    run_branch,
    run_parallel,
)
from metacount.formulas.dim import Dim, ceil_div, is_symbolic, is_zero, smaller
from metacount.formulas.model import ROLES
from metacount.formulas.pieces import (
    BLOCK,
    LAYERS,
    SHARED,
    Piece,
    counted_weights,
    layers_with,
    nominal_pieces,
    pieces_of,
    remembered,
    run_of,
    stream,
    walk,
)
from metacount.formulas.tape import (
    BASE,
    EAGER,
    FLASH,
    FULL,
    HIGH,
    LOW,
    NONE,
    SELECTIVE,
    SOURCE,
    TOKENS,
    Op,
    Pass,
    Run,
    Store,
    Tape,
    Weight,
    by_role,
    product,
)
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import (
    Attention,
    CompressedAttention,
    LatentAttention,
    NoAttention,
)
from metacount.spec.field import altered
from metacount.spec.mixers import Mamba2
from metacount.spec.position import Alibi, RelativeBuckets, TransformerXL
from metacount.spec.rules import AROUND, beyond_branches
from metacount.spec.stack import SHARING

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from metacount.spec.stack import Stack

    Amounts = Iterator[tuple[Dim, str, Dim]]


# --- the tensors that a step trains -----------------------------------------------------------

ALL_LINEAR = "all-linear"  # among targets: every linear layer but the output head
ADAPTERS = (f".{LOW}", f".{HIGH}")
# a linear layer though no token meets it: what it multiplies is a product of positions
OF_POSITIONS = "self_attn.relative.r_proj.weight"
OF_STACK = ("embed_queries.", "embed_proj.")  # of the ends, but inside the stack


def trained_tensors(spec: ModelSpec) -> list[tuple[Weight, bool]]:
    """List every tensor that the loss has a gradient of: all but a pooler's and an indexer's.

    An indexer chooses positions, and no gradient passes a choice. Tied ones stand once, experts in
    one tensor [E, out, in].

    Returns: tensors with shapes, and whether each is in a block.
    """
    check_reached(spec)
    return remembered(spec, "trained", lambda: _collect(spec))


def check_reached(spec: ModelSpec) -> None:
    """Raise `SpecError` where the loss does not see all parameters: of embeddings that go nowhere.

    Each layer's own embedding is added to all copies of the stream but the first.
    """
    part = spec.last_stack.altup
    alone = part is not None and isinstance(part.n_inputs, int) and part.n_inputs == 1
    if alone and spec.last_stack.layer_inputs is not None:
        rule = "has no formula for training: of one copy, d_per_layer is added to none"
        raise SpecError("n_altup_inputs", rule, 1, "measure it instead, or choose 2 or more")


def _collect(spec: ModelSpec) -> list[tuple[Weight, bool]]:
    tensors = []
    for inner in (True, False):
        pieces = [piece for piece in nominal_pieces(spec) if (piece.place == BLOCK) is inner]
        for number, weight in counted_weights(spec, pieces):
            if weight.seen and not any(is_zero(n) for n in weight.shape):
                tensors.append((as_stored(weight).repeated(number), inner))
    return tensors


def as_stored(weight: Weight) -> Weight:
    """Return a tensor as a module stores it: experts, of which a token uses some, are one."""
    if weight.used is None:
        return weight
    return altered(weight, shape=(weight.times, *weight.shape), times=1, used=None, rows="")


@frozen
class Part:
    """Which part of a model a step trains: all but what is frozen, or adapters of low rank.

    `freeze` are paths or last names of modules and parameters. With a `rank` all is frozen but the
    adapters beside the linear layers whose last names are `targets`.
    """

    rank: int | None = None
    targets: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()


WHOLE = Part()


@frozen
class Tensors:
    """The tensors of a model with its adapters, by path; the paths of those that are trained."""

    stored: dict[str, Weight]
    trained: frozenset[str]

    @property
    def trained_weights(self) -> list[tuple[Weight, bool]]:
        """The tensors that are trained, and whether each is in a block."""
        return [(self.stored[path], is_inner(path)) for path in self.trained]

    @property
    def adapter_params(self) -> Dim:
        """Values of adapters, those among them that have no gradient."""
        return sum(w.size for path, w in self.stored.items() if path.endswith(ADAPTERS))


def is_inner(path: str) -> bool:
    """Tell whether a tensor is in a block, one that is shared among layers included.

    >>> is_inner("decoder.layers.0.mlp.up_proj.weight"), is_inner("decoder.norm.weight")
    (True, False)
    """
    return path.split(".")[1] in (LAYERS, SHARED)


def tensors_by_path(spec: ModelSpec, structure: ModelSpec | None = None) -> dict[str, Weight]:
    """List every tensor of a model, by its path in the reference module; a tied one once.

    Experts are one tensor [E, out, in]. `structure` is the same spec with numbers for sizes, where
    `spec` has letters.
    """
    structure = structure or spec
    tensors: dict[str, Weight] = {}
    altup = structure.last_stack.altup
    for piece in walk(spec, Pass(batch_size=2, seq_len=2), structure=structure):
        stack = "encoder" if piece.of_encoder or spec.decoder is None else "decoder"
        lead = stack if piece.index is None else f"{stack}.{LAYERS}.{piece.index}"
        for weight in piece.tape.weights:
            if any(is_zero(n) for n in weight.shape):
                continue
            name, path = weight.name, f"{lead}.{weight.name}"
            if name.startswith(STORED):
                assert piece.index is not None  # a block uses it
                number = structure.last_stack.shared_of(piece.index)
                path = f"{stack}.{SHARED}.{number}.{name.removeprefix(STORED)}"
            elif name.startswith(ends.OF_MODEL) and not name.startswith(OF_STACK):
                path = name
            paths = [path]
            if altup is not None and ".copies." in path:  # in a list of modules
                path, _, kind = path.rpartition(".")
                paths = [f"{path}.{number}.{kind}" for number in range(altup.n_inputs - 1)]
            for each in paths:
                tensors.setdefault(each, altered(as_stored(weight), times=1))
    return tensors


def chosen_tensors(spec: ModelSpec, part: Part) -> Tensors:
    """Return the tensors of a model with its adapters, and the paths of those that are trained.

    An indexer and a pooler have no gradient: no gradient passes a choice, and the loss is not of
    what a pooler gives.

    Source: Hu et al. 2021, arXiv:2106.09685, sec. 4.1 (adapters).

    >>> from metacount.catalog import entry
    >>> gpt2 = entry("gpt2").spec()
    >>> sorted(chosen_tensors(gpt2, Part(freeze=("decoder",))).trained)
    ['embed_tokens.weight']
    >>> len(chosen_tensors(gpt2, Part(rank=8, targets=("q_proj",))).trained)
    24
    """
    plain = tensors_by_path(spec)
    adapted = set() if part.rank is None else _adapted_layers(plain, part.targets)
    stored: dict[str, Weight] = {}
    for path, weight in plain.items():
        layer, _, kind = path.rpartition(".")
        if layer not in adapted:
            stored[path] = weight
            continue
        stored[f"{layer}.{BASE}.{kind}"] = weight
        if kind == "weight":
            out, into = weight.shape
            for name, shape in ((LOW, (part.rank, into)), (HIGH, (out, part.rank))):
                made = Weight(role=weight.role, name=name, shape=shape, seen=weight.seen)
                stored[f"{layer}.{name}"] = made
    trained = {path for path, weight in stored.items() if weight.seen}
    if part.rank is not None:
        trained = {path for path in trained if path.endswith(ADAPTERS)}
    tied = spec.head is not None and spec.head.tied
    for name in part.freeze:
        trained -= _named(name, stored, tied=tied)
    if not trained:
        raise SpecError("freeze", "leaves nothing to train", ",".join(part.freeze), "name less")
    return Tensors(stored=stored, trained=frozenset(trained))


def _adapted_layers(tensors: dict[str, Weight], targets: tuple[str, ...]) -> set[str]:
    """Find the linear layers with these last names, the output head apart.

    Raises `SpecError` for a target that no linear layer is called.
    """
    linear = {
        path.removesuffix(".weight")
        for path, weight in tensors.items()
        if (weight.rows or path.endswith(OF_POSITIONS)) and len(weight.shape) == 2
    } - {ends.HEAD}
    known = {layer.rpartition(".")[2] for layer in linear}
    for target in targets:
        if target not in known and target != ALL_LINEAR:
            remedy = nearest(target, known, f"choose {', '.join(sorted(known))}")
            raise SpecError("lora_targets", "names no linear layer", target, remedy)
    return (
        linear
        if ALL_LINEAR in targets
        else {layer for layer in linear if layer.rpartition(".")[2] in targets}
    )


def _named(name: str, paths: Iterable[str], *, tied: bool) -> set[str]:
    """Find the tensors called `name`, or in a module called so: by the whole path, or its end."""
    named = set()
    for path in paths:
        also = [path, f"{ends.HEAD}.weight"] if tied and path == "embed_tokens.weight" else [path]
        if any(f".{name}." in f".{each}." for each in also):
            named.add(path)
    if not named:
        last = {end for path in paths for end in path.split(".")}
        remedy = nearest(name, last, "`metacount tree` shows the names")
        raise SpecError("freeze", "names nothing of the model that has parameters", name, remedy)
    return named


# --- FLOPs, and bytes that are saved ----------------------------------------------------------


@frozen
class Forward:
    """A step's forward, recorded in pieces.

    `blocks`: how many blocks of the encoder (True) and of the decoder need a backward. `extra`:
    what checkpointing keeps beside their inputs.
    """

    pieces: list[Piece]
    blocks: dict[bool, Dim]
    extra: tuple[tuple[Dim, str, Dim], ...] = ()


def forward_flops_by_role(
    spec: ModelSpec, run: Pass, tensors: Tensors | None = None
) -> dict[str, Dim]:
    """Count the FLOPs of the forward by role, with the zeros that a fused kernel multiplies."""
    return folds.by_role(_of(_recorded(spec, run, tensors).pieces, folds.flops), ROLES)


def backward_matmul_flops_by_role(
    spec: ModelSpec, run: Pass, tensors: Tensors | None = None
) -> dict[str, Dim]:
    """Count the FLOPs of a backward by role: every parameter of the model trained, or `tensors`.

    Two products for each of the forward, y = x·W having dx = dy·Wᵀ and dW = xᵀ·dy, but where no
    gradient flows; a fused kernel computes its scores once more.

    Returns: every role in order, exact.
    Source: Rumelhart, Hinton and Williams 1986, doi:10.1038/323533a0 (the two gradients); Dao et
    al. 2022, arXiv:2205.14135, algorithm 4 (flash).
    Not counted: softmax, norms, activations, rotary embedding, routing, biases, the look-ups.
    """
    check_run(spec, run)
    check_reached(spec)
    if spec.embedding is None:
        rule = "has no formula for a backward: what is given instead of tokens has no gradient"
        raise SpecError("vocab_size", rule, None, "measure it instead")
    return folds.by_role(_of(_recorded(spec, run, tensors).pieces, folds.backward_flops), ROLES)


def train_matmul_flops_by_role(spec: ModelSpec, run: Pass) -> dict[str, Dim]:
    """Count the FLOPs of a forward and its backward by role: what 6·N·D approximates.

    Source: Kaplan et al. 2020, arXiv:2001.08361, sec. 2.1; as model FLOPs, without what
    checkpointing computes again, Chowdhery et al. 2022, arXiv:2204.02311, appendix B.
    """
    forward, backward = forward_flops_by_role(spec, run), backward_matmul_flops_by_role(spec, run)
    return {role: forward[role] + backward[role] for role in ROLES}


def recompute_matmul_flops_by_role(
    spec: ModelSpec, run: Pass, tensors: Tensors | None = None
) -> dict[str, Dim]:
    """Count the FLOPs of what a backward computes a second time, by role.

    full checkpointing: the forward of the blocks once more, up to the last tensor that is saved;
    without checkpoints nothing, as what a fused kernel repeats is its backward's own; nothing with
    selective ones, which keep the results of all products

    Source: Chen et al. 2016, arXiv:1604.06174.
    """
    check_run(spec, run)
    if run.checkpointing != FULL:
        return dict.fromkeys(ROLES, 0)
    check_around(spec)
    blocks = [piece for piece in _recorded(spec, run, tensors).pieces if piece.place == BLOCK]
    if tensors is None:
        again = (*_of(blocks, folds.flops), *_not_repeated(spec, run))
    else:
        again = tuple(_of(blocks, lambda ops: folds.flops(folds.repeated_ops([*ops]))))
    return folds.by_role(again, ROLES)


def activation_bytes_by_role(
    spec: ModelSpec, run: Pass, tensors: Tensors | None = None
) -> dict[str, Dim]:
    """Count the bytes that autograd holds between the loss and its backward, by role.

    Every storage once, parameters and buffers apart; to the role of the first operation that saves
    it. With checkpointing a block keeps its input, and if it is selective the results of products.

    Returns: bytes, exact for the reference modules.
    """
    check_saved(spec, run)
    if tensors is None and run.checkpointing == FULL:  # what is in the blocks does not matter
        forward = _all_trained(spec, pieces_of(spec, run, loss=True, blocks=False))
    else:
        forward = _recorded(spec, run, tensors)
    saved = folds.by_role((*_saved(spec, run, forward), *forward.extra), ROLES)
    check_written(saved.values())
    return saved


def _all_trained(spec: ModelSpec, pieces: list[Piece]) -> Forward:
    blocks = {spec.has_encoder and each is not spec.decoder: each.n_layers for each in spec.stacks}
    return Forward(pieces=pieces, blocks=blocks)


def _recorded(spec: ModelSpec, run: Pass, tensors: Tensors | None) -> Forward:
    """Record a step's forward with its loss; several figures of one run share it."""
    if tensors is not None:
        # whether what stands around a block has a gradient, no block says
        check_around(spec, "has no formula of a step that trains a part")
        return remembered(spec, "part", lambda: _walked(spec, run, tensors), run, tensors)
    pieces = remembered(spec, "step", lambda: pieces_of(spec, run, loss=True), run)
    nominal_pieces(spec, made=pieces)
    return _all_trained(spec, pieces)


def _walked(spec: ModelSpec, run: Pass, tensors: Tensors) -> Forward:
    """Record a step that trains a part of a model block by block, each kind of block once.

    Of a frozen weight a product has one gradient less, and a tensor that no gradient needs is not
    saved; below the lowest tensor that is trained there is no gradient at all.
    """
    local: dict[str, list[tuple[str, str]]] = {}  # by owner: paths, and names in it
    for path in tensors.stored:
        owner, name = _owner(path)
        local.setdefault(owner, []).append((path, name))

    def tape_of(stack_run: Run, *owners: tuple[str, str]) -> Tape:
        """Make a tape that knows what is trained of the tensors of some owners."""
        trained: set[str] = set()
        adapters: dict[str, Dim] = {}
        for owner, prefix in owners:
            for path, name in local.get(owner, ()):
                if path in tensors.trained:
                    trained.add(prefix + name)
                if name.endswith(f".{LOW}"):
                    adapters[prefix + name.removesuffix(f".{LOW}")] = tensors.stored[path].shape[0]
        return Tape(stack_run, trained=frozenset(trained), adapters=adapters)

    pieces: dict[Tape, Piece] = {}
    blocks: dict[bool, Dim] = dict.fromkeys(_all_trained(spec, []).blocks, 0)
    keeps_first = reads_first = False
    for piece in walk(spec, run, tape_of=tape_of, loss=True):
        times = pieces[piece.tape].times + 1 if piece.tape in pieces else 1
        pieces[piece.tape] = altered(piece, times=times)
        if piece.place == BLOCK and folds.needs_backward(piece.tape):
            blocks[piece.of_encoder] += 1
            keeps_first = keeps_first or piece.index == 0  # as its own input
            reads_first = not keeps_first and (reads_first or piece.layer.mixer == SHARING)
    extra: tuple[tuple[Dim, str, Dim], ...] = ()
    if reads_first and run.checkpointing != NONE:
        # the embedded tokens, which a block of those that layers share reads beside its input
        embedded = run.batch_size * run.seq_len * spec.d_model * run.bytes_per_value
        extra = ((1, "other", embedded),)
    return Forward(pieces=list(pieces.values()), blocks=blocks, extra=extra)


def role_of_memory(run: Pass) -> str:
    """Tell whose the output of an encoder is: keys are made of it, or a checkpoint keeps it."""
    return "attention" if run.checkpointing == NONE else "other"


def kept_beside(spec: ModelSpec, run: Pass, n_kept: Dim, word: str) -> list[tuple[Dim, str, Dim]]:
    """List what checkpointing keeps of blocks: the input of each, and what else it is given."""
    if run.checkpointing == NONE or is_zero(n_kept):
        return []
    n = run.source if word == SOURCE else run.seq_len
    width, d = run.bytes_per_value, spec.d_model
    amounts = [(n_kept, "other", run.batch_size * n * d * width)]
    mixer, positions = spec.last_stack.attention, spec.positions
    if isinstance(positions, RelativeBuckets | Alibi):
        assert not isinstance(mixer, NoAttention)  # a bias of scores belongs to attention
        of_bias = 8 if isinstance(positions, Alibi) else width  # in float64, as it is made
        amounts.append((1, "other", mixer.n_heads * n * n * of_bias))
    if getattr(positions, "n_query_positions", 0):
        amounts.append((1, "other", n * d * width))
    return amounts


def _owner(path: str) -> tuple[str, str]:
    """Split a path into the block, stack or model ("") that the tensor belongs to, and the rest."""
    parts = path.split(".")
    if parts[1] in ("layers", "shared_blocks"):
        return ".".join(parts[:3]), ".".join(parts[3:])
    if parts[0] in ("encoder", "decoder"):
        return parts[0], ".".join(parts[1:])
    return "", path


def _of(pieces: list[Piece], fold: Callable[[Iterable[Op]], Iterator[tuple[str, Dim]]]) -> Amounts:
    """Yield what a fold gives of each piece, with how many there are of it."""
    for piece in pieces:
        for role, amount in fold(piece.tape.ops):
            yield piece.times, role, amount


def _saved(spec: ModelSpec, run: Pass, forward: Forward) -> Amounts:
    """Yield what is saved: what an encoder gave once, where keys or a checkpoint need it."""
    memory, is_held = None, not is_zero(forward.blocks[False]) and run.checkpointing != NONE
    for piece in forward.pieces:
        memory = piece.memory or memory
        outside = () if piece.memory is None else (piece.memory,)
        if piece.place != BLOCK or run.checkpointing == NONE:
            is_held = is_held or piece.memory in folds.saved_stores(piece.tape.ops)
            amounts = folds.saved_bytes(piece.tape.ops, outside)
        elif run.checkpointing == SELECTIVE and folds.needs_backward(piece.tape):
            amounts = folds.product_results(piece.tape.ops)
        else:
            continue
        for role, amount in amounts:
            yield piece.times, role, amount
    for of_encoder, n in forward.blocks.items():
        yield from kept_beside(spec, run, n, SOURCE if of_encoder else TOKENS)
    if memory is not None and is_held:
        yield 1, role_of_memory(run), memory.bytes


def _not_repeated(spec: ModelSpec, run: Pass) -> Amounts:
    """Yield, negative, what is not run again at the end of each block."""
    last = spec.last_stack
    for stack in spec.stacks:
        of_encoder = spec.has_encoder and stack is not spec.decoder
        apart = last.norms.placement == "hybrid"  # norms depend on the mixer
        every = sorted({*last.mixer_pattern})
        for ffn in "FEBN":
            for mixers in every if apart or ffn == "N" else ["".join(every)]:
                times = layers_with(spec, stack.n_layers, mixers=mixers, ffns=ffn)
                if is_zero(times):
                    continue
                tape = Tape(run_of(spec, run, of_encoder=of_encoder))
                layer = Layer(mixer=mixers[0], ffn=ffn, of_encoder=of_encoder)
                x = stream(tape, spec, SOURCE if of_encoder else TOKENS)
                if is_parallel(spec):
                    run_parallel(tape, spec, layer, x, Given())
                else:
                    run_branch(tape, spec, layer, branches_of(layer)[-1], x, Given())
                n = len(folds.repeated_ops(tape.ops))
                for role, amount in folds.flops(tape.ops[n:]):
                    yield -times, role, amount


def saved_in_block(spec: ModelSpec, run: Pass, stack: Stack, index: int) -> Dim:
    """Count the bytes that one block saves, all trained; without the output of an encoder."""
    of_encoder = spec.has_encoder and stack is not spec.decoder
    n = run.source if of_encoder else run.seq_len
    read = run.batch_size * n * spec.d_model * run.bytes_per_value
    if run.checkpointing == FULL:
        return read
    pieces = walk(spec, run)
    block = next(each for each in pieces if (each.index, each.of_encoder) == (index, of_encoder))
    if run.checkpointing == SELECTIVE:
        return read + sum(amount for _, amount in folds.product_results(block.tape.ops))
    outside = () if block.memory is None else (block.memory,)
    return sum(amount for _, amount in folds.saved_bytes(block.tape.ops, outside))


def saved_in_blocks(spec: ModelSpec, run: Pass) -> Amounts:
    """Yield number, role and bytes of what all blocks of a model save, without checkpoints."""
    pieces = _recorded(spec, run, None).pieces
    return _of([piece for piece in pieces if piece.place == BLOCK], folds.saved_bytes)


def block_stores(spec: ModelSpec, run: Pass) -> Iterator[tuple[Dim, str, Store, bool]]:
    """Yield number, role and storage of what all blocks save, and whether it is of pairs.

    Of pairs of positions: the probabilities, and the tanh of capped scores.
    """
    for piece in pieces_of(spec, run):
        ops = piece.tape.ops if piece.place == BLOCK else []
        of_pairs = {op.out for op in ops if (op.role, op.name) == ("attention", "tanh")}
        of_pairs |= {op.saves[0] for op in ops if op.name == "sums of values" and op.saves}
        for store, role in folds.saved_stores(ops).items():
            yield piece.times, role, store, store in of_pairs


# --- gradients and optimizer states ----------------------------------------------------------

STEP = 4  # bytes of a step counter, a float32 of its own for each tensor
MASTER = 4  # bytes of a master weight, and of the state that belongs to it
BLOCK_VALUES = 256  # values of a state in 8 bits that share a scale
SCALE = 4  # bytes of a scale, a float32
CODES = 4 * 2**8  # bytes of the table of what each code means, a float32 each
CODED = 4096  # values from which on a tensor's state is kept in 8 bits


def kept_values(n: int, *, counted: bool = True) -> Callable[[Weight, int], Dim]:
    """Give an optimizer's state of `n` values for each value: n·c·size, and a step's.

    >>> kept_values(2)(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    180355076
    """
    return lambda weight, width: n * width * weight.size + counted * STEP


def adafactor_state(weight: Weight, width: int) -> Dim:
    """Count the state of Adafactor for one tensor: means over rows and over columns, and a step.

    c·(n / last + n / last but one) + 4 of a matrix or a stack of them; c·n + 4 of a vector

    Source: Shazeer and Stern 2018, arXiv:1804.04235, algorithm 4; torch.optim, without momentum.

    >>> adafactor_state(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    30212
    """
    shape = weight.shape
    if len(shape) < 2:
        return width * weight.size + STEP
    return width * (product(shape[:-1]) + product(shape[:-2]) * shape[-1]) + STEP


def in_blocks(size: Dim) -> Dim:
    """Say whether a tensor of so many values has its state in 8 bits: 1, else 0.

    min(1, n // 4096) · (1 + n // 256 − ⌈n / 256⌉)

    Source: torchao's rule: at least 4,096 values, in whole blocks of 256.

    >>> in_blocks(4096), in_blocks(4095), in_blocks(5000)
    (1, 0, 0)
    """
    return smaller(1, size // CODED) * (1 + size // BLOCK_VALUES - ceil_div(size, BLOCK_VALUES))


def adam8bit_state(weight: Weight, width: int) -> Dim:
    """Count the state of AdamW in 8 bits for one tensor: two coded moments, and a step counter.

    A moment has a byte a value, a scale for each block and a table of what the codes mean:
    2·(n + 4·n / 256 + 1024) + 4; where `in_blocks` is 0, it is what AdamW keeps: 2·c·n + 4

    Source: Dettmers et al. 2022, arXiv:2110.02861, sec. 2; torchao.optim.AdamW8bit of 0.18.

    >>> adam8bit_state(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    91588612
    """
    size = weight.size
    # of ints, rounded down only where it does not count
    blocks = size / BLOCK_VALUES if is_symbolic(size) else size // BLOCK_VALUES
    coded, plain = 2 * (size + SCALE * blocks + CODES), 2 * width * size
    return plain + in_blocks(size) * (coded - plain) + STEP


# The state of one tensor by each optimizer; Muon's is that of a matrix in a block.
OPTIMIZERS: dict[str, Callable[[Weight, int], Dim]] = {
    "adamw": kept_values(2),
    "sgd": kept_values(0, counted=False),
    "sgd-momentum": kept_values(1, counted=False),
    "adagrad": kept_values(1),
    "adafactor": adafactor_state,
    "muon": kept_values(1, counted=False),
    "adam8bit": adam8bit_state,
}


def state_bytes(weight: Weight, *, optimizer: str, width: int, inner: bool) -> Dim:
    """Count an optimizer's state for one tensor, `inner` to the blocks or not.

    adamw         two moments, their m and v, and a step counter: 2·c·n + 4
    sgd           nothing
    sgd-momentum  its velocity: c·n
    adagrad       a sum of squares and a step counter: c·n + 4
    adafactor     `adafactor_state`
    muon          of a matrix of a block its momentum, c·n, of what else there is adamw's
    adam8bit      `adam8bit_state`

    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2 (adamw); Robbins and Monro
    1951, doi:10.1214/aoms/1177729586 (sgd); Polyak 1964, doi:10.1016/0041-5553(64)90137-5
    (momentum); Duchi et al. 2011, jmlr.org/papers/v12/duchi11a.html, sec. 1.1 (adagrad); Jordan et
    al. 2024, kellerjordan.github.io/posts/muon; torch.optim.

    >>> up = Weight(role="ffn", name="up_proj", shape=(11008, 4096))  # LLaMA-7B
    >>> kinds = ("adamw", "sgd", "sgd-momentum", "adagrad", "muon")
    >>> [state_bytes(up, optimizer=kind, width=2, inner=True) for kind in kinds]
    [180355076, 0, 90177536, 90177540, 90177536]
    """
    if optimizer not in OPTIMIZERS:
        remedy = nearest(optimizer, OPTIMIZERS, f"choose {', '.join(OPTIMIZERS)}")
        raise SpecError("optimizer", "has no formula", optimizer, remedy)
    if optimizer == "muon" and not (inner and len(weight.shape) == 2):
        optimizer = "adamw"
    return OPTIMIZERS[optimizer](weight, width)


def optimizer_bytes_by_role(
    spec: ModelSpec,
    *,
    optimizer: str = "adamw",
    bytes_per_value: int,
    master_weights: bool = False,
    tensors: Tensors | None = None,
) -> dict[str, Dim]:
    """Count the state of an optimizer by role: that of each tensor, as many as there are.

    `tensors`: what is trained, where that is a part of the model.

    State is kept in the parameters' type, with master weights in float32; of a tensor as
    `state_bytes` says. Muon is for the matrices of the blocks, AdamW for the rest: tables, head,
    vectors, experts stacked in one tensor.

    Returns: bytes of every tensor of the state, master weights apart.
    Not counted: what a step needs while it runs.

    >>> from metacount.catalog import entry
    >>> llama = entry("llama-7b").spec()
    >>> sum(optimizer_bytes_by_role(llama, bytes_per_value=2).values())  # 4 bytes × 6738415616 + …
    26953663628
    """
    width = MASTER if master_weights else bytes_per_value
    bytes_of_role: dict[str, Dim] = dict.fromkeys(ROLES, 0)
    for weight, inner in trained_tensors(spec) if tensors is None else tensors.trained_weights:
        state = state_bytes(weight, optimizer=optimizer, width=width, inner=inner)
        bytes_of_role[weight.role] += weight.times * state
    return bytes_of_role


def gradient_bytes_by_role(spec: ModelSpec, *, bytes_per_value: int) -> dict[str, Dim]:
    """Count the gradients by role: a value for each that is trained, c·P.

    Returns: bytes, all gradients at once; a pooler has none, the loss does not see it.

    >>> from metacount.catalog import entry
    >>> sum(gradient_bytes_by_role(entry("llama-7b").spec(), bytes_per_value=2).values())
    13476831232
    """
    weights = (weight for weight, _ in trained_tensors(spec))
    return by_role(weights, lambda weight: bytes_per_value * weight.params, ROLES)


# --- what has no formula ---------------------------------------------------------------------

# One kind of layer, with attention and nothing beside it: of each field the values that say so.
ALIKE: dict[str, tuple[object, ...]] = {
    "recurrent": ("none",),
    "mixer_pattern": ("A",),
    "ffn_pattern": ("F",),
    "n_zero_experts": (0,),
    "output_gate": (False,),
    "head_gate": ("none",),
    "n_heads_windowed": (None,),
    "n_kv_heads_windowed": (None,),
    "head_dim_windowed": (None,),
    "index_top_k": (None,),
    "index_block_len": (None,),
    "attention_out_scale": (1.0,),
    "gate_scale": (1.0,),
    "ffn_scale": (1.0,),
    "residual_weight": (1.0,),
    **{name: (plain,) for name, plain in AROUND.items()},
    "norm_placement": (
        "pre", "post", "deep", "post_branch", "sandwich", "parallel", "parallel_two",
    ),
}  # fmt: skip
REMEDY = "measure it instead"
EAGERLY = "choose attention eager"


def check_alike(spec: ModelSpec) -> None:
    """Raise `SpecError` unless every layer has attention and a feed-forward, and no more.

    Conventions of training are of such models alone.
    """
    for name, plain in ALIKE.items():
        value = getattr(spec, name)
        # a pattern may be longer
        of_one = (
            isinstance(value, str) and name.endswith("_pattern") and {*value} == {*str(plain[0])}
        )
        if not of_one and value not in plain:
            raise SpecError(name, "has no formula for training", value, REMEDY)


def check_saved(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` where what a step saves has no formula."""
    if spec.embedding is None or spec.head is None:
        rule = "has no formula for training: without logits there is no loss"
        name = "has_head" if spec.embedding else "vocab_size"
        raise SpecError(name, rule, getattr(spec, name), "choose a model with an output head")
    check_run(spec, run)
    check_around(spec)
    check_reached(spec)
    part, window = spec.last_stack.recurrent, spec.last_stack.attention.window
    width = run.bytes_per_value
    if width not in (2, 4, 8):
        rule = "has no formula for what a backward keeps"
        raise SpecError("dtype", rule, width, "choose bf16, fp16, fp32 or fp64")
    biased = isinstance(spec.positions, RelativeBuckets | Alibi)
    if window is not None and set(window.pattern) != {"L"} and biased:
        rule = "has no formula for training with a bias of positions"
        raise SpecError("window_pattern", rule, window.pattern, "leave the window out")
    if isinstance(part, Mamba2) and _may_be_one(part.n_heads):
        # torch takes such a tensor for an image, whose channels it lays last
        remedy = "choose 2 or more, or measure it"
        raise SpecError("n_ssm_heads", "has no formula for training", part.n_heads, remedy)


def check_written(amounts: Iterable[Dim]) -> None:
    """Raise `SpecError` for a logarithm: closed forms are of sums, products, floors and least ones.

    A scan that doubles its reach needs log2(seq_len) rounds, and saves something in each.
    """
    for amount in amounts:
        if is_symbolic(amount) and "log(" in str(amount):
            rule = "has no form in letters where a scan doubles its reach, in log2(seq_len) rounds"
            remedy = "count with numbers, or choose full checkpointing"
            raise SpecError("seq_len", rule, None, remedy)


def _may_be_one(x: Dim) -> bool:
    if isinstance(x, int):
        return x == 1
    return hasattr(x, "dtype") and 1 in x


def check_around(spec: ModelSpec, rule: str = "has no formula for what training keeps") -> None:
    """Raise `SpecError` for what Gemma 3n has: what it saves and repeats is measured."""
    name = beyond_branches(spec)
    if name:
        raise SpecError(name, rule, getattr(spec, name), REMEDY)


def check_run(spec: ModelSpec, run: Pass) -> None:
    """Raise `SpecError` for attention that a fused kernel is asked for and does not compute."""
    part, positions, flash = spec.last_stack.attention, spec.positions, run.attention == FLASH
    if run.attention == EAGER or isinstance(part, NoAttention):
        return
    fused = "has no formula with fused attention"
    if isinstance(part, CompressedAttention):
        raise SpecError("attention", fused, part.word, EAGERLY)
    mask, adds = f"{fused}: it needs a mask", f"{fused}: it adds to scores"
    latent = isinstance(part, LatentAttention)
    # a block indexer's choice is a mask, which no kernel takes
    index = "index_top_k" if latent else "index_block_len"
    chunked = part.window is not None and part.window.kind == "chunked"
    biased = isinstance(positions, Alibi | RelativeBuckets | TransformerXL)
    for wrong, field, rule in (
        (part.softcap is not None, "attention_softcap", fused),
        (isinstance(part, Attention) and part.sinks, "attention_sinks", fused),
        (part.window is not None and part.window.sinks, "sinks_windowed", fused),
        (flash and _is_wide(part), "v_head_dim" if latent else "value_head_dim", fused),
        (part.indexer is not None, index, fused),
        (flash and chunked, "window_kind", mask),
        (flash and spec.kind == "prefix-decoder", "kind", mask),
        (flash and biased, "position", adds),
    ):
        if wrong:
            raise SpecError(field, rule, getattr(spec, field), EAGERLY)


def _is_wide(part: Attention | LatentAttention) -> bool:
    """Tell whether values are wider than the keys, or of one value, which torch does not copy."""
    if not isinstance(part.v_head_dim, int):
        return False
    if isinstance(part, LatentAttention):
        keys = part.qk_nope_head_dim + part.qk_rope_head_dim
    else:
        keys = min(part.of_layer(windowed).head_dim for windowed in (False, True))
    return bool(part.v_head_dim > keys or part.v_head_dim == 1)
