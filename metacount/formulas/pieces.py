"""A model's forward in pieces: each branch of each kind of block once, with how many there are.

Every count of a whole model is a sum over its pieces. What one piece computes does not depend on
the others, but for whether its input has a gradient.
"""

from __future__ import annotations

from metacount.formulas import ends
from metacount.formulas.block import (
    CROSS,
    FFN,
    MIXER,
    STORED,
    Given,
    Layer,
    around,
    is_parallel,
    run_branch,
    run_parallel,
    run_shared,
)
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.layers import Kind, feed_forward_kinds, mixer_kinds, shared_uses
from metacount.formulas.mixers import mixer_counts
from metacount.formulas.tape import ALONE, EAGER, Rank, Run, Store, Tape, Tensor
from metacount.formulas.terms import (
    CACHED,
    CROSS_PAIRS,
    PAIRS,
    POSITIONS,
    SEQUENCES,
    SOURCE,
    SOURCE_PAIRS,
    TOKENS,
    WINDOWED_PAIRS,
    WINDOWED_POSITIONS,
    Product,
    Weight,
)
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.field import altered
from metacount.spec.stack import SHARING

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from metacount.spec.stack import Stack

    Term = TypeVar("Term", Weight, Product, Weight | Product)
    Made = TypeVar("Made")

NORM = "layernorm"  # the last part of the name of every norm of the residual stream in a block
BLOCK, BEFORE, AFTER = "block", "before", "after"


@frozen
class Piece:
    """One branch of blocks that are alike, or an end of the model, as it was recorded.

    `place` is where it stands: in a `block`, `before` the blocks of a stack or `after` them.
    `of_encoder`: it is of the encoder beside a decoder. `memory`: the storage of what the encoder
    gave, which all blocks of a decoder read. `layer` says of which blocks a branch is.
    """

    times: Dim
    tape: Tape
    place: str
    of_encoder: bool = False
    memory: Store | None = None
    layer: Layer = Layer()


@frozen
class Sizes:
    """Sizes of one forward of a model, from which each stack's `Run` is made."""

    batch_size: Dim
    seq_len: Dim
    source_len: Dim = 0
    value: int = 2
    attention: str = EAGER
    ring: bool = False
    decode: bool = False
    rank: Rank = ALONE


def counts_of(spec: ModelSpec, sizes: Sizes) -> dict[str, Dim]:
    """Count what the words of `terms` stand for: attention over every pair of positions.

    In a step of decoding one token of each sequence is new, and `seq_len` positions are attended
    to, of a windowed layer as many as it sees; the encoder does not run again.
    """
    batch, n, source = sizes.batch_size, sizes.seq_len, sizes.source_len
    part = spec.last_stack.recurrent
    if sizes.decode:
        from metacount.formulas.masks import attended_positions

        window = spec.last_stack.attention.window
        near = attended_positions(n, None if window is None else window.size)
        return {
            TOKENS: batch,
            SOURCE: 0,
            CACHED: batch,
            SEQUENCES: batch,
            POSITIONS: n,
            WINDOWED_POSITIONS: near,
            PAIRS: batch * n,
            WINDOWED_PAIRS: batch * near,
            CROSS_PAIRS: batch * source,
            SOURCE_PAIRS: 0,
            **mixer_counts(part, batch, 1, decode=True),
        }
    return {
        TOKENS: batch * n,
        SOURCE: batch * source,
        CACHED: batch * n,
        SEQUENCES: batch,
        POSITIONS: n,
        WINDOWED_POSITIONS: n,
        PAIRS: batch * n * n,
        WINDOWED_PAIRS: batch * n * n,
        CROSS_PAIRS: batch * n * source,
        SOURCE_PAIRS: batch * source * source,
        **mixer_counts(part, batch, n),
    }


def run_of(spec: ModelSpec, sizes: Sizes, *, of_encoder: bool = False) -> Run:
    """Describe the forward of one stack."""
    n = sizes.source_len if of_encoder else sizes.seq_len
    return Run(
        counts=counts_of(spec, sizes),
        batch_size=sizes.batch_size,
        n_queries=1 if sizes.decode else n,
        n_keys=n,
        source_len=sizes.source_len,
        value=sizes.value,
        attention=sizes.attention,
        ring=sizes.ring,
        decode=sizes.decode,
        rank=sizes.rank,
    )


def pieces_of(
    spec: ModelSpec, sizes: Sizes, *, loss: bool = False, blocks: bool = True
) -> list[Piece]:
    """Record every piece of a model's forward, or its ends alone; with `loss` the loss as well.

    All is trained: each piece's input has a gradient.
    """
    found: list[Piece] = []
    memory = None
    for stack in spec.stacks:
        of_encoder = spec.has_encoder and stack is not spec.decoder
        run = run_of(spec, sizes, of_encoder=of_encoder)
        word = SOURCE if of_encoder else TOKENS
        tape = Tape(run)
        x, bias, queries = ends.embed(tape, spec, stack, word)
        found.append(Piece(times=1, tape=tape, place=BEFORE, of_encoder=of_encoder))
        given = Given(bias=bias, memory=memory, queries=queries)
        if blocks:
            found += block_pieces(spec, stack, run, given, word)
        tape = Tape(run)
        x = ends.final_norm(tape, stack, stream(tape, spec, word))
        read = None if memory is None else memory.store
        found.append(Piece(times=1, tape=tape, place=AFTER, of_encoder=of_encoder, memory=read))
        if of_encoder:
            memory = Tensor(Store(x.rows, spec.d_model, sizes.value), spec.d_model, SOURCE, True)
    tape = Tape(run_of(spec, sizes))
    logits = ends.unembed(tape, spec, stream(tape, spec, TOKENS))
    if loss and logits is not None:
        ends.loss(tape, logits)
    found.append(Piece(times=1, tape=tape, place=AFTER))
    return found


def stream(t: Tape, spec: ModelSpec, word: str, *, grad: bool = True) -> Tensor:
    """Make what a piece reads: hidden states of the residual stream."""
    return t.tensor(spec.d_model, word, grad=grad)


def block_pieces(
    spec: ModelSpec, stack: Stack, run: Run, given: Given, word: str = TOKENS
) -> list[Piece]:
    """Record the branches of a stack's blocks, each kind once."""
    of_encoder, memory = word == SOURCE, given.memory
    found: list[Piece] = []

    def add(times: Dim, layer: Layer, branch: Callable[[Tape, Tensor, Layer], object]) -> None:
        if is_zero(times):
            return
        tape = Tape(run)
        branch(tape, stream(tape, spec, word), layer)
        found.append(
            Piece(
                times=times,
                tape=tape,
                place=BLOCK,
                of_encoder=of_encoder,
                memory=None if memory is None else memory.store,
                layer=layer,
            )
        )

    mixers, feeds = mixer_kinds(spec, stack), feed_forward_kinds(spec, stack)
    if is_parallel(spec):
        for kind in _side_by_side(mixers, feeds):
            add(kind.times, kind.layer, lambda t, x, y: run_parallel(t, spec, y, x, given))
        return found
    for kind in mixers:
        add(kind.times, kind.layer, lambda t, x, y: run_branch(t, spec, y, MIXER, x, given))
    if stack.shared is not None:
        sharing = Layer(mixer=SHARING)
        add(shared_uses(spec, stack), sharing, lambda t, x, _: run_shared(t, spec, x, given))
    if spec.has_encoder and not of_encoder:
        crossed = Layer(cross=True)
        add(stack.n_layers, crossed, lambda t, x, y: run_branch(t, spec, y, CROSS, x, given))
    for kind in feeds:
        add(kind.times, kind.layer, lambda t, x, y: run_branch(t, spec, y, FFN, x, given))
    if stack.altup is not None or stack.layer_inputs is not None:
        add(stack.n_layers, Layer(), lambda t, x, _: around(t, spec, x))
    return found


def _side_by_side(mixers: list[Kind], feeds: list[Kind]) -> list[Kind]:
    """Join the kinds of mixers and of feed-forwards that stand side by side in one branch."""
    plain, *others = feeds
    found = [
        Kind(
            times=kind.times,
            layer=altered(kind.layer, ffn=plain.layer.ffn, second=plain.layer.second),
        )
        for kind in mixers
    ]
    base = found[0].layer
    for other in others:
        layer = altered(base, ffn=other.layer.ffn, second=other.layer.second)
        found.append(Kind(times=other.times, layer=layer))
        found.append(Kind(times=-other.times, layer=base))
    return found


def merged(terms: Iterable[tuple[Dim, Term]]) -> list[tuple[Dim, Term]]:
    """Put those terms together that are the same: their numbers add up."""
    times: dict[object, Dim] = {}
    first: dict[object, Term] = {}
    for number, term in terms:
        key: object = tuple(vars(term).values())
        try:
            hash(key)
        except TypeError:  # arrays
            key = id(term)
        if key in times:
            times[key] = times[key] + number
        else:
            first[key], times[key] = term, number
    return [(number, first[key]) for key, number in times.items() if not is_zero(number)]


_recorded: dict[str, tuple[ModelSpec, object, Any]] = {}


def remembered(spec: ModelSpec, name: str, make: Callable[[], Made], of: object = None) -> Made:
    """Make something of a spec and of a run, or give what was just made of the same: many ask."""
    known = _recorded.get(name)
    if known is None or known[0] is not spec or known[1] is not of:
        known = _recorded[name] = spec, of, make()
    made: Made = known[2]
    return made


def nominal_pieces(spec: ModelSpec, *, decode: bool = False) -> list[Piece]:
    """Record a model's pieces for what does not depend on the sizes of a run."""
    sizes = Sizes(batch_size=2, seq_len=2, source_len=2, decode=decode)
    return remembered(spec, f"pieces {decode}", lambda: pieces_of(spec, sizes))


def counted_weights(spec: ModelSpec, pieces: list[Piece]) -> list[tuple[Dim, Weight]]:
    """List the tensors of some pieces with how many blocks have each.

    Those of blocks that many layers share stand last, once, with their own numbers.
    """
    found: list[tuple[Dim, Weight]] = []
    shared: list[Weight] = []
    known: set[str] = set()
    for piece in pieces:
        for weight in piece.tape.weights:
            if weight.name.startswith(STORED):
                stack = spec.last_stack
                assert stack.shared is not None
                one = altered(weight, name=weight.name.removeprefix(STORED))
                shared.append(one.shared(stack.shared.n_blocks, piece.times))
                continue
            if piece.place != BLOCK and weight.name.startswith(ends.OF_MODEL):
                if weight.name in known:  # of the encoder too
                    continue
                known.add(weight.name)
                if weight.rows == SOURCE:
                    weight = altered(weight, rows=TOKENS)
            found.append((piece.times, generic(weight) if piece.place == BLOCK else weight))
    return [*merged(found), *((1, one) for one in shared)]


def weights_of_pieces(spec: ModelSpec, pieces: list[Piece]) -> list[Weight]:
    """List the tensors of some pieces, each with the number of its copies."""
    return [one.repeated(number) for number, one in counted_weights(spec, pieces)]


def generic(weight: Weight) -> Weight:
    """Name a norm of the residual stream by what it is: all of them are alike."""
    name, _, kind = weight.name.rpartition(".")
    if weight.role == "norm" and "." not in name and name.endswith(NORM):
        return altered(weight, name=f"{NORM}.{kind}")
    return weight


def products_of_pieces(pieces: list[Piece]) -> list[Product]:
    """List the products of activations of some pieces."""
    found = merged((piece.times, product) for piece in pieces for product in piece.tape.products)
    return [product.repeated(number) for number, product in found]
