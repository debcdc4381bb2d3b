"""A training step: FLOPs of its forward, backward and recomputation, and the bytes that are saved.

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

from metacount.errors import SpecError
from metacount.formulas import folds
from metacount.formulas.block import (
    Given,
    Layer,
    branches_of,
    is_parallel,
    run_branch,
    run_parallel,
)
from metacount.formulas.dim import Dim, is_symbolic, is_zero
from metacount.formulas.model import ROLES
from metacount.formulas.pieces import (
    BLOCK,
    Piece,
    layers_with,
    nominal_pieces,
    pieces_of,
    remembered,
    run_of,
    stream,
    walk,
)
from metacount.formulas.tape import (
    EAGER,
    FLASH,
    FULL,
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
)
from metacount.formulas.trained import Tensors, check_reached
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, LatentAttention, NoAttention
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

    Returns: every role in order, exact.
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

    Returns: every role in order, exact.
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
    found = folds.by_role((*_saved(spec, run, forward), *forward.extra), ROLES)
    check_written(found.values())
    return found


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

    found: dict[Tape, Piece] = {}
    blocks: dict[bool, Dim] = dict.fromkeys(_all_trained(spec, []).blocks, 0)
    keeps_first = reads_first = False
    for piece in walk(spec, run, tape_of=tape_of, loss=True):
        times = found[piece.tape].times + 1 if piece.tape in found else 1
        found[piece.tape] = altered(piece, times=times)
        if piece.place == BLOCK and folds.needs_backward(piece.tape):
            blocks[piece.of_encoder] += 1
            keeps_first = keeps_first or piece.index == 0  # as its own input
            reads_first = not keeps_first and (reads_first or piece.layer.mixer == SHARING)
    extra: tuple[tuple[Dim, str, Dim], ...] = ()
    if reads_first and run.checkpointing != NONE:
        # the embedded tokens, which a block of those that layers share reads beside its input
        embedded = run.batch_size * run.seq_len * spec.d_model * run.bytes_per_value
        extra = ((1, "other", embedded),)
    return Forward(pieces=list(found.values()), blocks=blocks, extra=extra)


def role_of_memory(run: Pass) -> str:
    """Tell whose the output of an encoder is: keys are made of it, or a checkpoint keeps it."""
    return "attention" if run.checkpointing == NONE else "other"


def kept_beside(spec: ModelSpec, run: Pass, n_kept: Dim, word: str) -> list[tuple[Dim, str, Dim]]:
    """List what checkpointing keeps of blocks: the input of each, and what else it is given."""
    if run.checkpointing == NONE or is_zero(n_kept):
        return []
    n = run.source if word == SOURCE else run.seq_len
    width, d = run.bytes_per_value, spec.d_model
    found = [(n_kept, "other", run.batch_size * n * d * width)]
    mixer, positions = spec.last_stack.attention, spec.positions
    if isinstance(positions, RelativeBuckets | Alibi):
        assert not isinstance(mixer, NoAttention)  # a bias of scores belongs to attention
        of_bias = 8 if isinstance(positions, Alibi) else width  # in float64, as it is made
        found.append((1, "other", mixer.n_heads * n * n * of_bias))
    if getattr(positions, "n_query_positions", 0):
        found.append((1, "other", n * d * width))
    return found


def _owner(path: str) -> tuple[str, str]:
    """Split a path into the block, stack or model ("") that the tensor belongs to, and the rest."""
    parts = path.split(".")
    if parts[1] in ("layers", "shared_blocks"):
        return ".".join(parts[:3]), ".".join(parts[3:])
    if parts[0] in ("encoder", "decoder"):
        return parts[0], ".".join(parts[1:])
    return "", path


def _of(pieces: list[Piece], fold: Callable[[Iterable[Op]], Iterator[tuple[str, Dim]]]) -> Amounts:
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
    for piece in _recorded(spec, run, None).pieces:
        if piece.place == BLOCK:
            for role, amount in folds.saved_bytes(piece.tape.ops):
                yield piece.times, role, amount


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
        of_one = name.endswith("_pattern") and {*value} == {*str(plain[0])}
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
