"""A forward on symbolic tensors, and the tape that records it.

A sublayer is a short function that runs its forward on a `Tape`. The tape records the weights that
it declares, its operations in order, and which storages autograd saves of each for the backward.
Every count is a sum over what was recorded: parameters and FLOPs over its weights and products, so
that a count can be taken apart (which tensor, of which role, how often stored, how often used);
backward and saved bytes over its operations (`folds.py`).

Sizes are ints, SymPy expressions or NumPy arrays. No value is ever computed: a tensor knows its
rows and columns, the storage that it lies in, and whether it has a gradient. A view shares its
storage, and a cast to the type that a tensor has is the tensor itself: so a tensor that two
operations save counts once, as it does in torch.

The rules of autograd stand here and nowhere else, one for each operation (torch's
`derivatives.yaml`): a product saves each factor whose other factor has a gradient, an activation
its argument or its result, a look-up its indices; a sum, a reshape and a cast save nothing.
Parameters are saved as well, and not counted: they are stored anyhow.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim, smaller
from metacount.frozen import frozen
from metacount.spec.field import altered

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import Any

    from metacount.spec.stack import Norms


# What multiplies a matrix in one forward, or how often a product of activations is computed. The
# numbers behind these words are those of a run.
TOKENS = "tokens"  # each new token of each sequence
SOURCE = "source tokens"  # each token that the encoder of an encoder-decoder reads
CACHED = "cached tokens"  # each position whose keys and values are expanded from a latent
SEQUENCES = "sequences"  # once per sequence
POSITIONS = "positions"  # each position attended to, once for all sequences
WINDOWED_POSITIONS = "positions in a window"
PAIRS = "pairs of positions"  # a query and a key that it attends to
WINDOWED_PAIRS = "pairs of positions in a window"
SPARSE_PAIRS = "pairs of a position and an entry that an indexer scores"
HEAVY_PAIRS = "pairs of a position and an entry of many positions"
CROSS_PAIRS = "pairs of a position and a source position"
SOURCE_PAIRS = "pairs of source positions"
OF_PAIRS = (PAIRS, WINDOWED_PAIRS, SPARSE_PAIRS, HEAVY_PAIRS, CROSS_PAIRS, SOURCE_PAIRS)


@frozen
class Weight:
    """A stored tensor: its role, its name, its shape, and how many of its kind there are.

    `times` of them are stored, of which one token uses `used` (None: all). `rows` says what it is
    multiplied with: "" where it is added, looked up or multiplied element by element. `split` says
    what its values are for, where a matrix is several in one: they sum to its size. `uses`: how
    often one token is multiplied with one of them (None: once with each that it uses). `cut` is the
    axis that tensor parallelism cuts (None: whole on every rank), in `halves` one after another.
    Not `seen`: the loss has no gradient of it.
    """

    role: str
    name: str
    shape: tuple[Dim, ...]
    times: Dim = 1
    used: Dim | None = None
    rows: str = ""
    split: tuple[tuple[str, Dim], ...] = ()
    uses: Dim | None = None
    cut: int | None = None
    halves: int = 1
    seen: bool = True

    @property
    def size(self) -> Dim:
        """Values of one such tensor."""
        return product(self.shape)

    def repeated(self, times: Dim) -> Weight:
        """Repeat the tensor in `times` layers."""
        if type(times) is int and times == 1:
            return self
        return altered(
            self,
            times=times * self.times,
            used=None if self.used is None else times * self.used,
            uses=None if self.uses is None else times * self.uses,
        )

    def shared(self, times: Dim, uses: Dim) -> Weight:
        """Repeat the tensor `times` times; a token is multiplied with these `uses` times in all."""
        return altered(self.repeated(times), uses=uses)

    @property
    def params(self) -> Dim:
        """Values that are stored."""
        return self.times * self.size

    @property
    def active(self) -> Dim:
        """Values that one token uses."""
        return self.params if self.used is None else self.used * self.size

    def flops(self, run: Mapping[str, Dim]) -> Dim:
        """Count the tensor's FLOPs, 2 per multiply-add; `run` has the number behind `rows`."""
        values = self.active if self.uses is None else self.uses * self.size
        return 2 * run[self.rows] * values if self.rows else 0


@frozen
class Product:
    """A product of activations with each other, as scores are: `width` multiply-adds, `per` what.

    `times` counts the layers that compute it.
    """

    role: str
    name: str
    width: Dim
    per: str
    times: Dim = 1

    def repeated(self, times: Dim) -> Product:
        """Repeat the product in `times` layers."""
        return altered(self, times=times * self.times)

    def flops(self, run: Mapping[str, Dim]) -> Dim:
        """Count the product's FLOPs, 2 per multiply-add; `run` has the number behind `per`."""
        return 2 * run[self.per] * self.times * self.width


def by_role(
    terms: Iterable[Weight | Product], of: Callable[[Any], Dim], roles: Iterable[str] = ()
) -> dict[str, Dim]:
    """Sum what `of` gives for each term, by role; `roles` come first, in order.

    >>> up = Weight(role="ffn", name="up_proj", shape=(11008, 4096), times=32)
    >>> by_role([up], lambda weight: weight.params, ["attention"])
    {'attention': 0, 'ffn': 1442840576}
    """
    sums: dict[str, Dim] = dict.fromkeys(roles, 0)
    for term in terms:
        sums[term.role] = sums.get(term.role, 0) + of(term)
    return sums


def product(sizes: Iterable[Dim]) -> Dim:
    """Multiply sizes; give 1 for none.

    >>> product((3, 4096)), product(())
    (12288, 1)
    """
    total: Dim = 1
    for size in sizes:
        total = total * size
    return total


def params_of(weights: Iterable[Weight]) -> Dim:
    """Count the stored parameters of some tensors.

    >>> params_of([Weight(role="ffn", name="up_proj", shape=(11008, 4096), times=32)])
    1442840576
    """
    return sum(weight.params for weight in weights)


def active_params_of(weights: Iterable[Weight]) -> Dim:
    """Count the parameters of some tensors that one token uses.

    >>> active_params_of([Weight(role="moe", name="up_proj", shape=(14336, 4096), times=8, used=2)])
    117440512
    """
    return sum(weight.active for weight in weights)


def flops_of(terms: Iterable[Weight | Product], run: Mapping[str, Dim]) -> Dim:
    """Count the FLOPs of some terms in a run.

    >>> flops_of([Weight(role="ffn", name="up_proj", shape=(11008, 4096), rows=TOKENS)],
    ...          {TOKENS: 128})
    11542724608
    """
    return sum(term.flops(run) for term in terms)


@frozen
class State:
    """A tensor that one layer keeps between tokens, of a size that does not grow with them.

    `bytes_per_value` is its own where the dtype is not that of the run (None: that of the run).
    """

    name: str
    shape: tuple[Dim, ...]
    bytes_per_value: int | None = None

    @property
    def size(self) -> Dim:
        """Values for one sequence and one layer."""
        return product(self.shape)


EAGER, FLASH, SDPA = "eager", "flash", "sdpa"
ATTENTIONS = (EAGER, FLASH, SDPA)
NONE, FULL, SELECTIVE = "none", "full", "selective"
CHECKPOINTINGS = (NONE, FULL, SELECTIVE)


@frozen
class Rank:
    """The degrees that matter to one rank of a mesh, and its indices in them.

    `tp` ranks hold parts of each matrix, `ep` whole experts each; with `ep` 1, experts are cut by
    `tp` like everything else. `cp` ranks hold parts of the same sequences and exchange keys and
    values. `shard` ranks hold the same part of a dense tensor, `copies` the same experts: ZeRO
    spreads each over these. With `sequence`, what lies between the matrices is not whole on every
    one of the `tp` ranks: each has a part of the tokens of a sequence. With `cut_logits` each keeps
    the logits of its own part of the vocabulary, of which the loss is computed.
    """

    tp: Dim = 1
    ep: Dim = 1
    cp: Dim = 1
    shard: Dim = 1
    copies: Dim = 1
    tp_index: Dim = 0
    shard_index: Dim = 0
    copy_index: Dim = 0
    sequence: bool = False
    cut_logits: bool = False

    @property
    def between(self) -> Dim:
        """Ranks over which the tokens between the matrices are spread."""
        return self.tp if self.sequence else 1


ALONE = Rank()


@frozen
class Pass:
    """One forward of a model: its sizes, bytes of an activation, kind of attention, checkpoints.

    An encoder-decoder reads `source_len` tokens of each sequence (None: `seq_len`). In a `ring`,
    `seq_len` are those of one rank. In a `decode` step one token of each sequence is new. On a
    `rank` of a mesh, sizes are its own. Bytes may be a letter: FLOPs do not depend on them.
    """

    batch_size: Dim
    seq_len: Dim
    source_len: Dim | None = None
    bytes_per_value: int = 2
    attention: str = EAGER
    checkpointing: str = NONE
    ring: bool = False
    decode: bool = False
    rank: Rank = ALONE

    def __post_init__(self) -> None:
        for name, value, known in (
            ("attention", self.attention, ATTENTIONS),
            ("checkpointing", self.checkpointing, CHECKPOINTINGS),
        ):
            if value not in known:
                raise SpecError(name, "has no formula", value, f"choose {' or '.join(known)}")

    @property
    def source(self) -> Dim:
        """Tokens that an encoder reads."""
        return self.seq_len if self.source_len is None else self.source_len


@frozen
class Run:
    """The forward of one stack: `n_queries` positions of each sequence, which see `n_keys`.

    A cross-attention sees `source_len` positions of what an encoder gave.

    `counts` are the numbers behind words (`TOKENS`, ...): tokens, pairs of positions, chunks, ...
    `value` is the bytes of an activation. `attention` is `eager`, written out, or one fused kernel:
    `flash` of CUDA, `sdpa` of torch's CPU, which is written out where that has none. In a `ring`,
    ranks that have parts of the same sequences exchange keys and values. In a `decode` step one
    token is new: latent attention is absorbed, mixers with a state go one step. On a `rank` of a
    mesh, heads and hidden widths are the rank's own.
    """

    counts: Mapping[str, Dim]
    batch_size: Dim
    n_queries: Dim
    n_keys: Dim
    source_len: Dim = 0
    value: int = 2
    attention: str = EAGER
    ring: bool = False
    decode: bool = False
    rank: Rank = ALONE

    @property
    def wide(self) -> int:
        """Bytes of a value in float32, or in float64 where the activations are."""
        return max(FLOAT32, self.value)


INDEX = 8  # bytes of a token id, a position or any other index
FLAG = 1  # bytes of a bool
FLOAT32, FLOAT64 = 4, 8

# The axis of a matrix that tensor parallelism cuts: of what comes out, with its bias, or of what
# goes in, whose bias is added once, after the sum.
COLUMNS, ROWS = 0, 1
FORWARD, BACKWARD = "forward", "backward"
BASE, LOW, HIGH = "base", "lora_a", "lora_b"  # a frozen linear layer, and its adapter B·A

# What the derivative of an activation needs: its argument or its result.
SAVES_RESULT = ("relu", "sigmoid")


class Store:
    """One storage of `rows` x `columns` values of `width` bytes.

    Of a copy that torch makes only where sizes are larger than 1, `copied` is 1 or 0, or that as
    an expression of the sizes; where it is 0 the tensor lies in `base`.
    """

    __slots__ = ("base", "columns", "copied", "rows", "width")

    def __init__(self, rows: Dim, columns: Dim, width: int) -> None:
        self.rows, self.columns, self.width = rows, columns, width
        self.base: Store | None = None
        self.copied: Dim = 1

    @property
    def bytes(self) -> Dim:
        """Bytes of the storage."""
        return self.rows * self.columns * self.width


class Tensor:
    """A tensor of `rows` x `columns` values in a storage.

    `word` says what its rows are (`TOKENS`, ...), `grad` whether it has a gradient,
    `by_heads` that its values lie head after head.
    """

    __slots__ = ("by_heads", "columns", "grad", "rows", "store", "word")

    def __init__(
        self, store: Store, columns: Dim, word: str, grad: bool, *, by_heads: bool = False
    ) -> None:
        self.store, self.columns, self.word, self.grad = store, columns, word, grad
        self.rows, self.by_heads = store.rows, by_heads

    @property
    def values(self) -> Dim:
        """How many values it has."""
        return self.rows * self.columns


class Move:
    """One collective: when, what it does, among whom, and the values of the whole tensor.

    `kept`: they are not of the type that is computed with: "counts" are whole numbers; a "choice"'s
    weights are in float32 or wider, "router" too where what is gathered is cast to another type;
    "sums" are in float32, what a "loss" adds up in float32 or wider.
    """

    __slots__ = ("group", "kept", "kind", "phase", "values")

    def __init__(self, phase: str, kind: str, group: str, values: Dim, kept: str = "") -> None:
        self.phase, self.kind, self.group, self.values = phase, kind, group, values
        self.kept = kept

    def width(self, computed: int, *, cast: bool) -> int:
        """Return the bytes of one value; `computed` is those of the type that is computed with.

        Where what is gathered is cast, so is what experts read, weights of the choice too.
        """
        if self.kept == "counts":
            return INDEX
        if self.kept == "sums":
            return FLOAT32
        if self.kept in ("router", "loss") or (self.kept == "choice" and not cast):
            return max(computed, FLOAT32)
        return computed


class Op:
    """One operation: its FLOPs, those of its backward, the storages that its backward needs.

    `rows` x `width` multiply-adds; the backward computes as many for each of its `factors` that
    has a gradient, unless `backward` says how many. `results` of a product are what selective
    checkpointing keeps. `needs`: its backward needs a tensor or a parameter. `moves` are what ranks
    of a mesh send each other in it, and in its backward.
    """

    __slots__ = (
        "backward_adds",
        "factors",
        "moves",
        "name",
        "needs",
        "out",
        "results",
        "role",
        "rows",
        "saves",
        "width",
    )

    def __init__(
        self,
        role: str,
        name: str,
        out: Store,
        saves: list[Store],
        *,
        rows: Dim = 0,
        width: Dim = 0,
        factors: int = 0,
        backward: Dim | None = None,
        results: list[Store] | None = None,
        needs: bool,
        moves: tuple[Move, ...] = (),
    ) -> None:
        self.role, self.name, self.out, self.saves = role, name, out, saves
        self.moves = moves
        self.rows, self.width, self.factors, self.backward_adds = rows, width, factors, backward
        self.results, self.needs = results or [], needs

    @property
    def flops(self) -> Dim:
        """FLOPs of the forward: 2 per multiply-add."""
        return 2 * self.rows * self.width

    @property
    def backward_flops(self) -> Dim:
        """FLOPs of the backward: 2 per multiply-add."""
        if self.backward_adds is not None:
            return 2 * self.backward_adds
        return self.factors * self.flops


class Tape:
    """Records one forward.

    `trained`: the names of weights that are trained (None: all). `adapters`: the rank of the
    adapter beside a linear layer, by the layer's name.
    """

    def __init__(
        self,
        run: Run,
        *,
        trained: Collection[str] | None = None,
        adapters: Mapping[str, Dim] | None = None,
    ) -> None:
        self.run, self.trained, self.adapters = run, trained, adapters or {}
        self.is_seen = True  # by the loss
        self.role, self.prefix = "other", ""  # the prefix stands before the names of weights
        self.ops: list[Op] = []
        self.weights: list[Weight] = []
        self.products: list[Product] = []
        self.cached: list[State] = []
        self.states: list[State] = []

    # --- tensors ---------------------------------------------------------------------------

    def tensor(
        self, columns: Dim, word: str, *, grad: bool, width: int = 0, rows: Dim | None = None
    ) -> Tensor:
        """Make a tensor in a storage of its own; of activations unless a width is given."""
        count = self.run.counts[word] if rows is None else rows
        return Tensor(Store(count, columns, width or self.run.value), columns, word, grad)

    def like(
        self, x: Tensor, *, columns: Dim | None = None, grad: bool | None = None, width: int = 0
    ) -> Tensor:
        """Make a tensor like another one, in a storage of its own."""
        columns = x.columns if columns is None else columns
        store = Store(x.rows, columns, width or x.store.width)
        grad = x.grad if grad is None else grad
        return Tensor(store, columns, x.word, grad, by_heads=x.by_heads)

    def make(self, rows: Dim, columns: Dim, *, grad: bool, width: int = 0) -> Tensor:
        """Make a tensor of so many rows, in float32 at least unless a width is given."""
        store = Store(rows, columns, width or self.run.wide)
        return Tensor(store, columns, TOKENS, grad)

    def part(self, x: Tensor, columns: Dim) -> Tensor:
        """Take some columns of x: a view, which keeps the whole storage alive."""
        return Tensor(x.store, columns, x.word, x.grad, by_heads=x.by_heads)

    def copy(self, x: Tensor, copied: Dim = 1, *, columns: Dim | None = None) -> Tensor:
        """Copy x, or some columns of it, where `copied` is 1; where it is 0, take it as it lies."""
        columns = x.columns if columns is None else columns
        known = type(copied) is int  # and no letter, nor a number that writes down what is asked
        if known and copied == 0:
            return self.part(x, columns)
        y = self.like(x, columns=columns)
        if not known:
            y.store.base, y.store.copied = x.store, copied
        return y

    def constant(self, rows: Dim, columns: Dim = 1, *, width: int = 0) -> Store:
        """Make the storage of a tensor without a gradient: a mask, a table, indices."""
        return Store(rows, columns, width or self.run.wide)

    # --- weights ---------------------------------------------------------------------------

    def weight(self, name: str, *shape: Dim, role: str = "", **how: Any) -> bool:
        """Declare a stored tensor, with what else a `Weight` has; say whether it is trained."""
        name = self.prefix + name
        role = role or self.role
        self.weights.append(Weight(role=role, name=name, shape=shape, seen=self.is_seen, **how))
        return self.is_trained(name)

    def is_trained(self, name: str) -> bool:
        """Tell whether a step updates the weight of this name."""
        return self.trained is None or name in self.trained

    def detach(self, x: Tensor) -> Tensor:
        """Take x without its gradient."""
        return Tensor(x.store, x.columns, x.word, False, by_heads=x.by_heads)

    def without_gradients(self) -> Tape:
        """Give a tape that records here what trains nothing: a choice, what no loss sees."""
        tape = Tape(self.run, trained=(), adapters=self.adapters)
        tape.is_seen = False
        for name in ("role", "prefix", "ops", "weights", "products", "cached", "states"):
            setattr(tape, name, getattr(self, name))
        return tape

    # --- operations ------------------------------------------------------------------------

    def record(
        self,
        name: str,
        out: Tensor,
        saves: Iterable[tuple[Tensor | Store, bool]] = (),
        *,
        rows: Dim = 0,
        width: Dim = 0,
        factors: tuple[bool, ...] = (),
        backward: Dim | None = None,
        results: list[Store] | None = None,
        moves: tuple[Move, ...] = (),
    ) -> Tensor:
        """Record an operation that gives `out`; of `saves` what its backward needs, and whether."""
        saved = [x.store if isinstance(x, Tensor) else x for x, needed in saves if needed]
        self.ops.append(
            Op(
                self.role,
                name,
                out.store,
                saved,
                rows=rows,
                width=width,
                factors=sum(factors),
                backward=backward,
                results=results,
                needs=bool(saved) or any(factors),
                moves=moves,
            )
        )
        return out

    def linear(
        self,
        x: Tensor,
        name: str,
        out: Dim,
        *,
        bias: bool = False,
        split: tuple[tuple[str, Dim], ...] = (),
        counted: bool = True,
        times: Dim = 1,
        uses: Dim | None = None,
        cut: int | None = None,
    ) -> Tensor:
        """Compute x·Wᵀ (+ b): weight [out, columns of x], bias [out].

        The backward needs x for the weight's gradient and the weight for x's. Beside a frozen
        layer an adapter adds B·(A·x) (Hu et al. 2021, arXiv:2106.09685). Not `counted`: what it
        multiplies is not by token, and the caller says how much.
        """
        rank = self.adapters.get(self.prefix + name)
        base = name if rank is None else f"{name}.{BASE}"
        low = None if rank is None else self._low_rank(x, f"{name}.{LOW}", rank)
        shape = (out, x.columns)
        trained = self.weight(
            f"{base}.weight",
            *shape,
            rows=x.word if counted else "",
            split=split,
            times=times,
            uses=uses,
            cut=cut,
        )
        of_bias = COLUMNS if cut == COLUMNS else None
        biased = self.weight(f"{base}.bias", out, cut=of_bias) if bias else False
        y = self.by_weight(x, base, out, trained, times=times if uses is None else uses)
        y.grad = y.grad or biased
        if low is None:
            return y
        high = self._low_rank(low, f"{name}.{HIGH}", out)
        return self.add(y, high)

    def _low_rank(self, x: Tensor, name: str, out: Dim) -> Tensor:
        return self.by_weight(x, name, out, self.weight(name, out, x.columns, rows=x.word))

    def by_weight(self, x: Tensor, name: str, out: Dim, trained: bool, *, times: Dim = 1) -> Tensor:
        """Multiply x by a weight [out, columns of x] that is declared, and `trained` or not.

        The backward needs x for the weight's gradient, and for x's the weight, which is stored.
        """
        y = self.tensor(out, x.word, grad=x.grad or trained, rows=x.rows)
        return self.record(
            name,
            y,
            [(x, trained)],
            rows=x.rows,
            width=out * x.columns * times,
            factors=(x.grad, trained),
            results=[y.store],
        )

    def matmul(
        self,
        name: str,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        *,
        per: str,
        width: Dim,
        times: Dim = 1,
        listed: bool = True,
        backward: Dim | None = None,
    ) -> Tensor:
        """Multiply activations with each other: the backward needs each for the other's gradient.

        Not `listed`: another product stands for it among the terms.
        """
        out.grad = a.grad or b.grad
        return self.product(
            name,
            out,
            [(a, b.grad), (b, a.grad)],
            per=per,
            width=width,
            times=times,
            listed=listed,
            factors=(a.grad, b.grad),
            backward=backward,
        )

    def product(
        self,
        name: str,
        out: Tensor,
        saves: Iterable[tuple[Tensor | Store, bool]],
        *,
        per: str,
        width: Dim,
        factors: tuple[bool, ...],
        backward: Dim | None = None,
        times: Dim = 1,
        listed: bool = True,
    ) -> Tensor:
        """Record and list a product of activations: `width` multiply-adds for each of `per`."""
        if listed:
            term = Product(role=self.role, name=name, width=width, per=per, times=times)
            self.products.append(term)
        return self.record(
            name,
            out,
            saves,
            rows=self.run.counts[per],
            width=width,
            factors=factors,
            backward=backward,
            results=[out.store],
        )

    def add(self, a: Tensor, b: Tensor, name: str = "add") -> Tensor:
        """Add two tensors: nothing is saved."""
        return self.record(name, self.like(a, grad=a.grad or b.grad))

    def mul(self, a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Multiply element by element: each factor is saved for the other's gradient.

        `out` is the result where one of them is repeated along an axis.
        """
        y = self.like(a, width=max(a.store.width, b.store.width)) if out is None else out
        y.grad = a.grad or b.grad
        return self.record("mul", y, [(a, b.grad), (b, a.grad)])

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """Multiply by a number: nothing is saved; by 1, x stays itself."""
        return x if factor == 1.0 else self.record("scale", self.like(x))

    def scale_by(self, x: Tensor, table: Store, name: str) -> Tensor:
        """Multiply by a table without a gradient, which is saved."""
        return self.record(name, self.like(x), [(table, x.grad)])

    def cast(self, x: Tensor, width: int) -> Tensor:
        """Convert to a type of `width` bytes: x itself where it has that type already."""
        return x if x.store.width == width else self.record("cast", self.like(x, width=width))

    def widen(self, x: Tensor) -> Tensor:
        """Convert to float32, or leave float64."""
        return self.cast(x, self.run.wide)

    def narrow(self, x: Tensor) -> Tensor:
        """Convert to the type of activations."""
        return self.cast(x, self.run.value)

    def from_argument(self, x: Tensor, name: str) -> Tensor:
        """Apply a function whose derivative needs its argument: SiLU, GELU, softplus, square."""
        return self.record(name, self.like(x), [(x, x.grad)])

    def from_result(self, x: Tensor, name: str) -> Tensor:
        """Apply a function whose derivative needs its result: ReLU, sigmoid, tanh, exp, softmax."""
        y = self.like(x)
        return self.record(name, y, [(y, x.grad)])

    def activation(self, x: Tensor, name: str, swish_beta: float = 1.0) -> Tensor:
        """Apply an activation by its name; SiLU with a β of its own is x·sigmoid(β·x)."""
        if name == "identity":
            return x
        if name == "relu2":
            return self.from_argument(self.from_result(x, "relu"), "square")
        if name == "silu" and swish_beta != 1.0:
            return self.mul(x, self.from_result(x, "sigmoid"))
        if name in SAVES_RESULT:
            return self.from_result(x, name)
        return self.from_argument(x, name)

    def norm(
        self,
        x: Tensor,
        name: str,
        norms: Norms,
        *,
        rows: Dim | None = None,
        width: Dim | None = None,
        affine: bool | None = None,
    ) -> Tensor:
        """Norm each of `rows` rows of `width` values (by default those of x), written out.

        In float32 at least: x (of LayerNorm x less its mean) times the inverse root of the mean
        square of a row, times the weight. The backward of x needs the first two, that of the
        weight their product; where the weight is stored less 1, x's needs 1 + weight.

        Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4; Ba et al. 2016, arXiv:1607.06450,
        eq. 4.
        """
        role = self.role
        self.role = "norm" if name else role  # without a name it is of no module of its own
        width = x.columns if width is None else width
        affine = norms.affine if affine is None else affine
        wide = self.widen(x)
        if norms.kind == "layernorm":
            wide = self.record("centre", self.like(wide))
        scale = self.constant(x.rows if rows is None else rows)
        y = self.record("normalise", self.like(wide), [(wide, x.grad), (scale, x.grad)])
        if affine:
            if self.run.rank.sequence and rows is None:  # of each rank's own tokens
                for _ in range(1 + norms.bias):
                    self.sum_gradients(wide, width)
            trained = self.weight(f"{name}.weight", width)
            biased = norms.bias and self.weight(f"{name}.bias", width)
            saves: list[tuple[Tensor | Store, bool]] = [(y, trained)]
            if norms.unit_offset:
                saves.append((self.constant(width), x.grad))
            y = self.record("weigh", self.like(y, grad=x.grad or trained), saves)
            if biased:
                y.grad = True
        y = self.cast(y, x.store.width)
        self.role = role
        return y

    def index(self, x: Tensor, index: Store, out: Tensor, name: str = "index") -> Tensor:
        """Read rows of x by their index, which is saved."""
        out.grad = x.grad
        return self.record(name, out, [(index, x.grad)])

    def gather(self, x: Tensor, index: Store, out: Tensor, name: str = "gather") -> Tensor:
        """Read values of x along an axis by their index: torch saves both."""
        out.grad = x.grad
        return self.record(name, out, [(x, x.grad), (index, x.grad)])

    def look_up(
        self,
        name: str,
        rows: Dim,
        width: Dim,
        index: Store,
        *,
        role: str,
        word: str,
        cut: int | None = None,
    ) -> Tensor:
        """Read rows of a learned table [rows, width] by their index, which is saved."""
        self.role = role
        trained = self.weight(f"{name}.weight", rows, width, cut=cut)
        y = self.tensor(width, word, grad=trained, rows=index.rows)
        return self.record(name, y, [(index, trained)])

    # --- what ranks of a mesh send each other ------------------------------------------------

    def sum_over_ranks(self, y: Tensor) -> Tensor:
        """Add up what each rank has a part of the sum of; with sequence parallelism, its tokens."""
        if self.run.rank.sequence:
            own = self.tensor(y.columns, y.word, grad=y.grad, rows=y.rows // self.run.rank.tp)
            n = y.values
            moves = Move(FORWARD, "reduce-scatter", "tp", n), Move(BACKWARD, "all-gather", "tp", n)
            return self._sent(own, *moves)
        return self._sent(y, Move(FORWARD, "all-reduce", "tp", y.values))

    def sum_gradients(self, x: Tensor, values: Dim | None = None, kept: str = "") -> Tensor:
        """Read x, which is whole on every rank; in the backward the ranks' gradients are added.

        With sequence parallelism x, what a branch reads, is gathered first.
        Source: Korthikanti et al. 2022, arXiv:2205.05198, sec. 4.2.2, their g and ḡ.
        """
        if self.run.rank.sequence and values is None:
            gathered = self.tensor(x.columns, x.word, grad=x.grad, rows=x.rows * self.run.rank.tp)
            n = gathered.values
            moves = Move(FORWARD, "all-gather", "tp", n), Move(BACKWARD, "reduce-scatter", "tp", n)
            return self._sent(gathered, *moves)
        moved = x.values if values is None else values
        return self._sent(x, Move(BACKWARD, "all-reduce", "tp", moved, kept))

    def sum_loss(self, x: Tensor) -> None:
        """Find the softmax of logits that are cut: of each row the maximum, the sum, its target's.

        Source: Shoeybi et al. 2019, arXiv:1909.08053, sec. 3; torch's `loss_parallel`.
        """
        self._sent(x, *[Move(FORWARD, "all-reduce", "tp", x.rows, "loss")] * 3)

    def gather_parts(self, x: Tensor, values: Dim, *, backward: bool) -> Tensor:
        """Put together what each rank of a `tp` group has a part of; `backward`: gradients too."""
        moves = [Move(phase, "all-gather", "tp", values) for phase in (FORWARD, BACKWARD)]
        return self._sent(x, *moves[: 1 + backward])

    def gather_gradient(self, x: Tensor, values: Dim, kept: str = "") -> Tensor:
        """Take this rank's rows of x; in the backward the ranks' gradients are put together."""
        return self._sent(x, Move(BACKWARD, "all-gather", "tp", values, kept))

    def exchange_rows(self, x: Tensor) -> Tensor:
        """Send each row to the rank of its expert, or back; so go the gradients."""
        moves = [Move(phase, "all-to-all", "ep", x.values) for phase in (FORWARD, BACKWARD)]
        return self._sent(self.like(x), *moves)

    def exchange_keys(self, k: Tensor, values: Dim) -> None:
        """Gather the keys and values of ranks that have parts of the same sequences.

        They are gathered again for the backward, in which their gradients go around in a ring.

        Source: Liu et al. 2023, arXiv:2310.01889, sec. 3; torch's context parallelism, whose
        default gathers where the paper passes on, and sums gradients in float32.
        """
        n = self.run.rank.cp
        gathers = [Move(phase, "all-gather", "cp", n * values) for phase in (FORWARD, BACKWARD)]
        steps = [Move(BACKWARD, "permute", "cp", values, "sums")] * n
        self._sent(k, *gathers, *steps)

    def send_counts(self, x: Tensor, values: Dim) -> None:
        """Tell the other ranks how many rows go to each of their experts."""
        self._sent(x, Move(FORWARD, "all-to-all", "ep", values, "counts"))

    def _sent(self, x: Tensor, *moves: Move) -> Tensor:
        rank = self.run.rank
        if getattr(rank, moves[0].group) == 1:
            return x
        return self.record("send", x, moves=moves)


def several(*counts: Dim) -> Dim:
    """Return 1 where each count is at least 2, 0 where one of them is 1.

    torch copies a tensor that has several of each, and takes it as it lies where one is 1.

    >>> several(3, 12), several(3, 1)
    (1, 0)
    """
    number: Dim = 1
    for count in counts:
        number = number * smaller(count - 1, 1)
    return number
