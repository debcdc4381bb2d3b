"""A model's forward in pieces: each branch of each kind of block once, with how many there are.

Every count of a whole model is a sum over its pieces. What one piece computes does not depend on
the others, but for whether its input has a gradient.

How many blocks there are of each kind is an int, an expression or an array: patterns repeat over
the layers, a law says which have experts, the last ones may borrow keys and values. What
distinguishes the mixers of blocks and what distinguishes their feed-forwards is counted apart, as
every count is a sum over branches.
"""

from __future__ import annotations

from operator import is_

from metacount.errors import SpecError
from metacount.formulas import ends
from metacount.formulas.block import (
    CROSS,
    FFN,
    MIXER,
    STORED,
    Given,
    Layer,
    around,
    has_queries,
    is_parallel,
    layer_of,
    run_block,
    run_branch,
    run_parallel,
    run_shared,
)
from metacount.formulas.compressed import ENTRIES, join_streams
from metacount.formulas.dim import Dim, floor_div, is_symbolic, is_zero, smaller
from metacount.formulas.mixers import mixer_counts
from metacount.formulas.tape import (
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
    Pass,
    Product,
    Run,
    Store,
    Tape,
    Tensor,
    Weight,
)
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, CompressedAttention, Indexer
from metacount.spec.field import altered
from metacount.spec.mixers import NoRecurrent
from metacount.spec.position import Rope
from metacount.spec.stack import (
    BESIDE,
    SHARING,
    WITH_ATTENTION,
    WITH_DENSE,
    WITH_EXPERTS,
    WITH_STATE,
    Stack,
    common_period,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from typing import Any, TypeAlias, TypeVar

    Term = TypeVar("Term", Weight, Product, Weight | Product)
    Made = TypeVar("Made")
    TapeOf: TypeAlias = Callable[..., Tape]  # of a run, and of each owner its path and a prefix
    # How many blocks of a stack have this mixer, or this feed-forward. Numbers may be negative:
    # blocks that differ in two ways are counted as if each way stood alone, and once less as the
    # plain kind. Every sum over branches is right all the same.
    Kinds: TypeAlias = list[tuple[Dim, Layer]]

ANY_MIXER, ANY_FFN = "ARPSN", "FEBN"
NORM = "layernorm"  # the last part of the name of every norm of the residual stream in a block
BLOCK, BEFORE, AFTER = "block", "before", "after"
LAYERS, SHARED = "layers", "shared_blocks"  # what the modules' lists of blocks are called
ANY_WIDTH = 2  # FLOPs do not depend on the bytes of a value


def lettered_layers(n_layers: Dim, pattern: str, letters: str) -> Dim:
    """Count the layers whose letter is one of `letters`, `pattern` repeated over the layers.

    Letter i of a pattern of length p falls on the layers i, i + p, … below N: ⌈(N - i) / p⌉ =
    (N + p - 1 - i) // p of them. Sum over the letters asked for, or N less the sum over the others
    where these are fewer.

    Source: Jamba, arXiv:2403.19887, sec. 3.1 (one attention layer in eight).

    >>> lettered_layers(32, "RRRRARRR", "A")  # Jamba
    4
    """
    period = len(pattern)
    reaches = [reach for reach, letter in enumerate(reversed(pattern)) if letter in letters]
    others = [reach for reach in range(period) if reach not in reaches]
    if len(others) < len(reaches):
        return n_layers - sum(floor_div(n_layers + reach, period) for reach in others)
    return sum(floor_div(n_layers + reach, period) for reach in reaches)


def windowed_layers(n_layers: Dim, pattern: str) -> Dim:
    """Count the layers that see a window only: letter L of a pattern repeated over the layers.

    Source: Gemma 3, arXiv:2503.19786, sec. 2 (LLLLLG).

    >>> windowed_layers(62, "LLLLLG")  # Gemma 3 27B
    52
    """
    if set(pattern) == {"L"}:
        return n_layers
    period = len(pattern)
    return sum(
        floor_div(n_layers + reach, period)
        for reach, letter in enumerate(reversed(pattern))
        if letter == "L"
    )


def layers_by_law(
    n_layers: Dim, *, n_dense_layers: Dim = 0, moe_every: Dim = 1, moe_offset: Dim = 0
) -> Dim:
    """Count a stack's MoE layers: i >= n_dense_layers, from 0, where moe_every divides i + 1 - o.

    o is moe_offset, which is less than moe_every. Numbers up to N that are o more than a multiple
    of moe_every, less those up to the dense layers:
    (N - o) // moe_every - (min(n_dense_layers, N) - o) // moe_every

    Returns: a count; a symbol for either count is taken at its word: n_dense_layers <= N.
    Source: DeepSeek-V3, arXiv:2412.19437, sec. 4.2 (leading dense layers); Fedus et al. 2021,
    arXiv:2101.03961, table 9 (Switch-Base, expert frequency 1/2).

    >>> layers_by_law(61, n_dense_layers=3)  # DeepSeek-V3
    58
    >>> layers_by_law(12, moe_every=2)  # one stack of Switch-Base
    6
    >>> layers_by_law(12, moe_every=4, moe_offset=2)  # layers 1, 5 and 9
    3
    """
    if is_symbolic(n_layers) or is_symbolic(n_dense_layers):
        leading = n_dense_layers
    else:
        leading = smaller(n_dense_layers, n_layers)
    upto_last = floor_div(n_layers - moe_offset, moe_every)
    return upto_last - floor_div(leading - moe_offset, moe_every)


def moe_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the MoE blocks in a stack of n_layers: by the mixture's law, or by a pattern."""
    mixture = spec.last_stack.mixture
    if mixture is None:
        return 0
    if spec.last_stack.names_experts:
        return lettered_layers(n_layers, spec.last_stack.ffn_pattern, WITH_EXPERTS)
    dense: Dim = mixture.n_dense_layers
    if spec.has_encoder:
        dense = smaller(dense, n_layers)  # one of two stacks may have fewer layers
    return layers_by_law(
        n_layers, n_dense_layers=dense, moe_every=mixture.every, moe_offset=mixture.offset
    )


def dense_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks with a dense feed-forward in a stack, alone or beside experts."""
    pattern = spec.last_stack.ffn_pattern
    if set(pattern) == {"F"}:
        return n_layers - moe_layers(spec, n_layers)
    return lettered_layers(n_layers, pattern, WITH_DENSE)


def attention_layers(spec: ModelSpec) -> tuple[Dim, Dim]:
    """Count the (decoder) stack's blocks that see a window only, and those that see everything."""
    last = spec.last_stack
    with_any = lettered_layers(last.n_layers, last.mixer_pattern, WITH_ATTENTION)
    windowed = windowed_layers(last.n_layers, last.seen)
    return windowed, with_any - windowed


def borrowing_layers(spec: ModelSpec) -> Dim:
    """Count the blocks whose attention reads keys and values of an earlier block: the last ones.

    Source: Gemma 3n's released code, its num_kv_shared_layers; Brandon et al. 2024,
    arXiv:2405.12981, sec. 3 (attention across layers).
    """
    mixer = spec.last_stack.attention
    return mixer.n_kv_shared_layers if isinstance(mixer, Attention) else 0


def caching_layers(spec: ModelSpec) -> tuple[Dim, Dim]:
    """Count the blocks that keep keys and values: windowed ones, and those that see everything.

    All blocks with attention but the last `borrowing_layers`.
    """
    windowed, full = attention_layers(spec)
    n_borrowing, last = borrowing_layers(spec), spec.last_stack
    if is_zero(n_borrowing):
        return windowed, full
    n_making = last.n_layers - n_borrowing  # of layers that borrow, all have attention
    near = windowed_layers(n_making, last.seen)
    return near, n_making - near


def recurrent_layers(spec: ModelSpec) -> Dim:
    """Count the blocks whose mixer keeps a state."""
    last = spec.last_stack
    return lettered_layers(last.n_layers, last.mixer_pattern, WITH_STATE)


def indexed_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks with a block indexer in a stack of n_layers."""
    mixer = spec.last_stack.attention
    index = mixer.indexer if isinstance(mixer, Attention) else None
    return 0 if index is None else lettered_layers(n_layers, index.pattern, "I")


def sharing_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks of a stack of n_layers that read what an earlier block's indexer chose."""
    index = getattr(spec.last_stack.attention, "indexer", None)
    return lettered_layers(n_layers, index.pattern, "S") if isinstance(index, Indexer) else 0


def rotated_layers(spec: ModelSpec, n_layers: Dim, n_attending: Dim) -> Dim:
    """Count the blocks whose attention rotates queries and keys, `n_attending` having attention."""
    positions, last = spec.positions, spec.last_stack
    if not isinstance(positions, Rope):
        return 0
    if positions.nope_every is None:
        return n_attending
    if set(last.mixer_pattern) <= set("AP"):
        return positions.law.count(n_layers)
    if not isinstance(n_layers, int) or not isinstance(positions.nope_every, int):
        rule = "has no formula for training in letters beside a pattern of mixers"
        raise SpecError("nope_every", rule, positions.nope_every, "give numbers")
    attending = (i for i in range(n_layers) if last.mixer_of(i) in WITH_ATTENTION)
    return sum(positions.law.holds(i) for i in attending)


def mixer_kinds(spec: ModelSpec, stack: Stack) -> Kinds:
    """List the mixers of a stack's blocks."""
    pattern = spec.last_stack.mixer_pattern
    plain = Layer(of_encoder=spec.has_encoder and stack is not spec.decoder)
    kinds: Kinds = []
    for letter, letters in (("A", "A"), ("P", "P"), ("R", "R" + SHARING)):
        if set(pattern) & set(letters):
            times = lettered_layers(stack.n_layers, pattern, letters)
            base = altered(plain, mixer=letter)
            attends = letter in WITH_ATTENTION
            kinds += _attention_kinds(spec, stack, base, times) if attends else [(times, base)]
    return kinds


def _attention_kinds(spec: ModelSpec, stack: Stack, base: Layer, times: Dim) -> Kinds:
    """List the attentions of blocks with one letter: the plain kind, and what differs from it."""
    last, n, positions = spec.last_stack, stack.n_layers, spec.positions
    windowed = 0 if last.attention.window is None else windowed_layers(n, last.seen)
    unrotated: Dim = 0
    if isinstance(positions, Rope):
        base = altered(base, rotated=True)
        if positions.nope_every is not None:
            unrotated = times - rotated_layers(spec, n, times)
    n_borrowing, of_near = borrowing_layers(spec), 0
    if last.windows_differ and not is_zero(n_borrowing):
        of_near = windowed - caching_layers(spec)[0]
    near = altered(base, windowed=True)
    part = last.attention
    if isinstance(part, CompressedAttention):  # all have a window
        by_letter = [(lettered_layers(n, part.pattern, letter), letter) for letter in "LSH"]
        return [(number, altered(near, compression=letter)) for number, letter in by_letter]
    kinds = [(times, base)]
    for number, fields in (
        (windowed, {"windowed": True}),
        (unrotated, {"rotated": False}),
        (indexed_layers(spec, n), {"indexed": True}),
        (n_borrowing - of_near, {"borrows": True}),
        (sharing_layers(spec, n), {"shares": True}),
        (int(not last.norms.first), {"first_norm": False}),
        (int(has_queries(spec)), {"queried": True}),
    ):
        if not is_zero(number):
            kinds += [(number, altered(base, **fields)), (-number, base)]
    if not is_zero(of_near):  # that differ from layers with a window, not from the plain kind
        kinds += [(of_near, altered(near, borrows=True)), (-of_near, near)]
    return kinds


def feed_forward_kinds(spec: ModelSpec, stack: Stack) -> Kinds:
    """List the feed-forwards of a stack's blocks."""
    last, n = spec.last_stack, stack.n_layers
    part = last.feed_forward
    if part is None:
        return []
    both = lettered_layers(n, last.ffn_pattern, BESIDE)
    dense, routed = dense_layers(spec, n) - both, moe_layers(spec, n) - both
    second = 0 if part.second is None else lettered_layers(n, part.second_pattern, "W")
    plain = Layer(of_encoder=spec.has_encoder and stack is not spec.decoder)
    kinds = [(routed, altered(plain, ffn="E")), (both, altered(plain, ffn=BESIDE))]
    if part.d_ff is not None and last.shared is None:
        kinds += [(dense - second, plain), (second, altered(plain, second=True))]
    return [(times, layer) for times, layer in kinds if not is_zero(times)]


def layers_with(spec: ModelSpec, n_layers: Dim, *, mixers: str = ANY_MIXER, ffns: str) -> Dim:
    """Count the blocks whose mixer is one of `mixers` and whose feed-forward is one of `ffns`.

    A, R, P, S, N and F, E, B, N as in the two patterns; E also where a mixture's own law says so.

    >>> from metacount.catalog import entry
    >>> jamba = entry("jamba-1.5-mini").spec()
    >>> [layers_with(jamba, 32, mixers=mixer, ffns="E") for mixer in "AR"]
    [0, 16]
    """
    last = spec.last_stack
    if set(last.mixer_pattern) <= set(mixers):
        both = lettered_layers(n_layers, last.ffn_pattern, BESIDE)
        routed = moe_layers(spec, n_layers) - both
        dense = dense_layers(spec, n_layers) - both
        by_letter = {"E": routed, "F": dense, "B": both, "N": n_layers - routed - dense - both}
        return sum(by_letter[ffn] for ffn in ffns)
    if not set(last.mixer_pattern) & set(mixers):
        return 0
    if last.mixture is not None and not last.names_experts:
        return _by_law(spec, n_layers, mixers, ffns)
    period = common_period(len(last.mixer_pattern), len(last.ffn_pattern))
    having = "".join("x" if _has(last, i, mixers, ffns) else "-" for i in range(period))
    return lettered_layers(n_layers, having, "x")


def _has(last: Stack, index: int, mixers: str, ffns: str) -> bool:
    return last.mixer_of(index) in mixers and last.ffn_of(index) in ffns


def _by_law(spec: ModelSpec, n_layers: Dim, mixers: str, ffns: str) -> Dim:
    """Count block by block: a law of the mixture and a pattern of the mixers share no letter."""
    if not isinstance(n_layers, int):
        rule = "has no formula for training in letters beside a law of the mixture"
        remedy = "give numbers, or an ffn_pattern"
        raise SpecError("mixer_pattern", rule, spec.mixer_pattern, remedy)
    return sum(_has(spec.last_stack, i, mixers, ffns) for i in range(n_layers))


@frozen
class Piece:
    """One branch of blocks that are alike, or an end of the model, as it was recorded.

    `place` is where it stands: in a `block`, `before` the blocks of a stack or `after` them.
    `of_encoder`: it is of the encoder beside a decoder. `memory`: the storage of what the encoder
    gave, which all blocks of a decoder read. `layer` says of which blocks a branch is, `index`
    which block it is, where each is a piece of its own.
    """

    tape: Tape
    place: str
    times: Dim = 1
    of_encoder: bool = False
    memory: Store | None = None
    layer: Layer = Layer()
    index: int | None = None


def counts_of(spec: ModelSpec, run: Pass) -> dict[str, Dim]:
    """Count what words (`tape.TOKENS`, ...) stand for: attention over every pair of positions.

    In a step of decoding one token of each sequence is new, and `seq_len` positions are attended
    to, of a windowed layer as many as it sees; the encoder does not run again.
    """
    batch, n, source, near = run.batch_size, run.seq_len, run.source, run.seq_len
    new, n_read = (1, 0) if run.decode else (n, source)
    if run.decode:
        from metacount.formulas.masks import attended_positions

        window = spec.last_stack.attention.window
        near = attended_positions(n, None if window is None else window.size)
    attention = spec.last_stack.attention
    part, of_mixer = spec.last_stack.recurrent, {}
    if isinstance(attention, CompressedAttention):
        for letter in set(attention.pattern) & ENTRIES.keys():
            n_entries = floor_div(n, attention.ratio_of(letter))
            of_mixer[ENTRIES[letter]] = batch * new * n_entries
    if not isinstance(part, NoRecurrent):
        of_mixer |= mixer_counts(part, batch, new, decode=run.decode)
    return {
        TOKENS: batch * new,
        SOURCE: batch * n_read,
        CACHED: batch * new,
        SEQUENCES: batch,
        POSITIONS: n,
        WINDOWED_POSITIONS: near,
        PAIRS: batch * new * n,
        WINDOWED_PAIRS: batch * new * near,
        CROSS_PAIRS: batch * new * source,
        SOURCE_PAIRS: batch * n_read * source,
        **of_mixer,
    }


def run_of(spec: ModelSpec, run: Pass, *, of_encoder: bool = False) -> Run:
    """Describe the forward of one stack."""
    n = run.source if of_encoder else run.seq_len
    return Run(
        counts=counts_of(spec, run),
        batch_size=run.batch_size,
        n_queries=1 if run.decode else n,
        n_keys=n,
        source_len=run.source,
        value=run.bytes_per_value if isinstance(run.bytes_per_value, int) else ANY_WIDTH,
        attention=run.attention,
        ring=run.ring,
        decode=run.decode,
        rank=run.rank,
    )


def stack_name(spec: ModelSpec, stack: Stack) -> str:
    """Name a stack as the module does: "decoder" or "encoder"."""
    return "decoder" if stack is spec.decoder else "encoder"


def pieces_of(
    spec: ModelSpec, run: Pass, *, loss: bool = False, blocks: bool = True
) -> list[Piece]:
    """Record every piece of a model's forward, or its ends alone; with `loss` the loss as well.

    All is trained: each piece's input has a gradient.
    """

    def of_kinds(
        stack: Stack, _: Stack, stack_run: Run, given: Given, word: str
    ) -> Generator[Piece, None, bool]:
        yield from block_pieces(spec, stack, stack_run, given, word) if blocks else ()
        return True

    return list(_in_order(spec, run, of_kinds, loss=loss))


def walk(
    spec: ModelSpec,
    run: Pass,
    *,
    structure: ModelSpec | None = None,
    tape_of: TapeOf | None = None,
    loss: bool = False,
) -> Iterator[Piece]:
    """Record a model's forward block by block, in order; blocks that are alike share a tape.

    `structure` is the same spec with numbers for sizes, where `spec` has letters. `tape_of` makes
    the tape of some owners of tensors, which knows what of theirs is trained: each a path, and what
    stands before the names of its weights on the tape. Without it all is trained.
    """
    numbers, tape_of = structure or spec, tape_of or _plain_tape

    def one_by_one(
        stack: Stack, numbered: Stack, stack_run: Run, given: Given, word: str
    ) -> Generator[Piece, None, bool]:
        assert given.first is not None
        path, grad = stack_name(spec, stack), given.first.grad
        known: dict[object, tuple[Tape, bool]] = {}
        for index in range(numbered.n_layers):
            layer, number = layer_of(numbers, numbered, index), numbered.shared_of(index)
            shared = [] if number is None else [(f"{path}.{SHARED}.{number}", STORED)]
            tape = tape_of(stack_run, (f"{path}.{LAYERS}.{index}", ""), *shared)
            grad = grad or tape.trained is None
            key = (layer, tape.trained, grad)
            if key not in known:
                read = stream(tape, spec, word, grad=grad, copies=n_streams(stack))
                known[key] = tape, run_block(tape, spec, layer, read, given).grad
            tape, grad = known[key]
            yield _piece(tape, BLOCK, word, given, layer=layer, index=index)
        return grad

    return _in_order(spec, run, one_by_one, structure=numbers, tape_of=tape_of, loss=loss)


def _plain_tape(run: Run, *_: tuple[str, str]) -> Tape:
    return Tape(run)


def _piece(tape: Tape, place: str, word: str, given: Given, **fields: Any) -> Piece:
    memory = None if given.memory is None else given.memory.store
    of_encoder = word == SOURCE
    return Piece(tape=tape, place=place, of_encoder=of_encoder, memory=memory, **fields)


def _in_order(
    spec: ModelSpec,
    run: Pass,
    blocks: Callable[[Stack, Stack, Run, Given, str], Generator[Piece, None, bool]],
    *,
    structure: ModelSpec | None = None,
    tape_of: TapeOf = _plain_tape,
    loss: bool,
) -> Iterator[Piece]:
    """Record the ends of each stack, with its `blocks` between them.

    `blocks` say in the end whether the stream behind them has a gradient.
    """
    memory: Tensor | None = None
    for stack, numbered in zip(spec.stacks, (structure or spec).stacks, strict=True):
        of_encoder = spec.has_encoder and stack is not spec.decoder
        stack_run = run_of(spec, run, of_encoder=of_encoder)
        word = SOURCE if of_encoder else TOKENS
        owners = ("", ""), (stack_name(spec, stack), "")
        tape = tape_of(stack_run, *owners)
        x, bias, queries = ends.embed(tape, spec, stack, word)
        given = Given(bias=bias, memory=memory, first=x, queries=queries)
        yield _piece(tape, BEFORE, word, given)
        grad = yield from blocks(stack, numbered, stack_run, given, word)
        tape = tape_of(stack_run, *owners)
        x = stream(tape, spec, word, grad=grad, copies=n_streams(stack))
        if stack.hyper is not None:
            x = join_streams(tape, stack.hyper, x, spec.d_model)
        x = ends.final_norm(tape, stack, x)
        if of_encoder:
            store = Store(x.rows, spec.d_model, stack_run.value)
            memory = Tensor(store, spec.d_model, SOURCE, x.grad)
        else:
            logits = ends.unembed(tape, spec, x)
            if loss and logits is not None:
                ends.loss(tape, logits)
        yield _piece(tape, AFTER, word, given)


def n_streams(stack: Stack) -> Dim:
    """Count the residual streams of a stack."""
    return 1 if stack.hyper is None else stack.hyper.n_streams


def stream(t: Tape, spec: ModelSpec, word: str, *, grad: bool = True, copies: Dim = 1) -> Tensor:
    """Make what a piece reads: hidden states of the residual stream, or of several."""
    rows = t.run.counts[word] // t.run.rank.between
    return t.tensor(copies * spec.d_model, word, grad=grad, rows=rows)


def block_pieces(
    spec: ModelSpec, stack: Stack, run: Run, given: Given, word: str = TOKENS
) -> Iterator[Piece]:
    """Record the branches of a stack's blocks, each kind once."""
    for times, layer, branch in _branches(spec, stack, given, word):
        if not is_zero(times):
            tape = Tape(run)
            branch(tape, stream(tape, spec, word, copies=n_streams(stack)), layer)
            yield _piece(tape, BLOCK, word, given, times=times, layer=layer)


def _branches(
    spec: ModelSpec, stack: Stack, given: Given, word: str
) -> Iterator[tuple[Dim, Layer, Callable[[Tape, Tensor, Layer], object]]]:
    mixers, feeds = mixer_kinds(spec, stack), feed_forward_kinds(spec, stack)
    if is_parallel(spec):
        for times, layer in _side_by_side(mixers, feeds):
            yield times, layer, lambda t, x, y: run_parallel(t, spec, y, x, given)
        return
    for times, layer in mixers:
        yield times, layer, lambda t, x, y: run_branch(t, spec, y, MIXER, x, given)
    if stack.shared is not None:
        uses = lettered_layers(stack.n_layers, spec.last_stack.mixer_pattern, SHARING)
        yield uses, Layer(mixer=SHARING), lambda t, x, _: run_shared(t, spec, x, given)
    if spec.has_encoder and word != SOURCE:
        crossed = Layer(cross=True)
        yield stack.n_layers, crossed, lambda t, x, y: run_branch(t, spec, y, CROSS, x, given)
    for times, layer in feeds:
        yield times, layer, lambda t, x, y: run_branch(t, spec, y, FFN, x, given)
    if stack.altup is not None or stack.layer_inputs is not None:
        yield stack.n_layers, Layer(), lambda t, x, _: around(t, spec, x)


def _side_by_side(mixers: Kinds, feeds: Kinds) -> Kinds:
    """Join the kinds of mixers and of feed-forwards that stand side by side in one branch."""

    def joined(layer: Layer, feed: Layer) -> Layer:
        return altered(layer, ffn=feed.ffn, second=feed.second)

    (_, plain), *others = feeds
    kinds = [(times, joined(layer, plain)) for times, layer in mixers]
    base = kinds[0][1]
    for times, feed in others:
        kinds += [(times, joined(base, feed)), (-times, base)]
    return kinds


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


_recorded: dict[str, tuple[tuple[object, ...], Any]] = {}


def remembered(spec: ModelSpec, name: str, make: Callable[[], Made], *of: object) -> Made:
    """Make something of a spec and of a run, or give what was just made of the same: many ask."""
    known, key = _recorded.get(name), (spec, *of)
    if known is None or not all(map(is_, known[0], key)):
        known = _recorded[name] = key, make()
    made: Made = known[1]
    return made


def nominal_pieces(
    spec: ModelSpec, *, decode: bool = False, made: list[Piece] | None = None
) -> list[Piece]:
    """Record a model's pieces for what does not depend on the sizes of a run.

    `made`: pieces that were recorded for a run, and serve as well.
    """

    def record() -> list[Piece]:
        return made or pieces_of(spec, Pass(batch_size=2, seq_len=2, decode=decode))

    return remembered(spec, f"pieces {decode}", record)


def counted_weights(spec: ModelSpec, pieces: list[Piece]) -> list[tuple[Dim, Weight]]:
    """List the tensors of some pieces with how many blocks have each.

    Those of blocks that many layers share stand last, once, with their own numbers.
    """
    counted: list[tuple[Dim, Weight]] = []
    shared: list[Weight] = []
    known: set[str] = set()
    for piece in pieces:
        for weight in piece.tape.weights:
            if weight.name.startswith(STORED):
                stack = spec.last_stack
                assert stack.shared is not None
                renamed = altered(weight, name=weight.name.removeprefix(STORED))
                shared.append(renamed.shared(stack.shared.n_blocks, piece.times))
                continue
            if piece.place != BLOCK and weight.name.startswith(ends.OF_MODEL):
                if weight.name in known:  # of the encoder too
                    continue
                known.add(weight.name)
                if weight.rows == SOURCE:
                    weight = altered(weight, rows=TOKENS)
            counted.append((piece.times, generic(weight) if piece.place == BLOCK else weight))
    return [*merged(counted), *((1, renamed) for renamed in shared)]


def weights_of_pieces(spec: ModelSpec, pieces: list[Piece]) -> list[Weight]:
    """List the tensors of some pieces, each with the number of its copies."""
    return [weight.repeated(number) for number, weight in counted_weights(spec, pieces)]


def generic(weight: Weight) -> Weight:
    """Name a norm of the residual stream by what it is: all of them are alike."""
    if weight.role != "norm":
        return weight
    name, _, kind = weight.name.rpartition(".")
    if "." not in name and name.endswith(NORM):
        return altered(weight, name=f"{NORM}.{kind}")
    return weight


def products_of_pieces(pieces: list[Piece]) -> list[Product]:
    """List the products of activations of some pieces."""
    counted = merged((piece.times, product) for piece in pieces for product in piece.tape.products)
    return [product.repeated(number) for number, product in counted]
