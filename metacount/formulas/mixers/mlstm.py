"""The mLSTM of xLSTM: a memory C of keys by values for each head, C ← σ(f)·C + exp(i)·k·vᵀ.

Whole chunks of positions are a few matrix products; what is left over, and a token more, goes step
by step.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, floor_div, smaller, when
from metacount.formulas.mixers.lightning import CHUNK_PAIRS
from metacount.formulas.tape import (
    FLAG,
    INDEX,
    TOKENS,
    Product,
    State,
    Store,
    Tape,
    Tensor,
)
from metacount.frozen import frozen
from metacount.spec.mixers import MLstm
from metacount.spec.stack import Norms

LAYER = Norms(kind="layernorm")
NAME = "mlstm_layer"


@frozen
class Factors:
    """What the recurrence reads, and which of it has a gradient: q, k, v, and either gate."""

    q: bool
    k: bool
    v: bool
    gates: bool

    @property
    def cell(self) -> bool:
        """Whether the memory has a gradient once something is written."""
        return self.k or self.v or self.gates

    @property
    def normalizer(self) -> bool:
        """Whether the normaliser has one."""
        return self.k or self.gates

    @property
    def read(self) -> bool:
        """Whether what a head's output is divided by has one."""
        return self.q or self.k or self.gates


@frozen
class Lengths:
    """How a sequence is run: `chunks` whole ones of `chunk` positions, then `rest` steps."""

    chunk: Dim
    chunks: Dim
    rest: Dim

    @property
    def steps(self) -> Dim:
        """1 where there is a step, else 0."""
        return smaller(self.rest, 1)

    @property
    def parts(self) -> Dim:
        """How often the memory is handed on: chunks, and one for all steps."""
        return self.chunks + self.steps


def mlstm(t: Tape, part: MLstm, x: Tensor) -> Tensor:
    """The mLSTM layer: out(sigmoid(o) · norm(h)), h = Cᵀ·q / max(|nᵀ·q|, 1) of each head.

    With K = h_l·d_lk and V = h_l·d_lv: q, k [K, d] each, v, output gate [V, d] each, input and
    forget gate [h_l, d] each with a bias, norm V, out [d, V].

    The paper's letters: d_qk and d_hv are our linear_k_head_dim and linear_v_head_dim (d_lk, d_lv),
    L our linear_chunk_size (c_l).

    Source: Beck et al. 2024, arXiv:2405.04517, sec. 2.3 (the recurrence); Beck et al. 2025,
    arXiv:2503.13427 (projections, caps, norms) and arXiv:2503.14376 (chunks); which chunks and
    steps are run is transformers' choice, `models/xlstm/modeling_xlstm.py` of 5.23.
    """
    t.role, run, n = "recurrent", t.run, x.rows
    heads, width, value_dim = part.n_heads, part.k_head_dim, part.v_head_dim
    q, k, v = (
        t.widen(t.linear(x, f"{NAME}.{name}", heads * each))
        for name, each in (("q", width), ("k", width), ("v", value_dim))
    )
    gates = [_gate(t, x, f"{NAME}.{letter}gate_preact", heads) for letter in "if"]
    t.from_argument(t.record("negate", t.like(gates[1])), "softplus")
    given = Factors(q=q.grad, k=k.grad, v=v.grad, gates=gates[0].grad or gates[1].grad)
    t.products += mlstm_products(part).values()
    t.states += [
        State(name="cell", shape=(heads, width, value_dim)),
        State(name="normalizer", shape=(heads, width)),
        State(name="highest", shape=(heads,)),
    ]
    chunks = floor_div(run.n_queries, part.chunk_size)
    lengths = Lengths(
        chunk=part.chunk_size, chunks=chunks, rest=run.n_queries - chunks * part.chunk_size
    )
    _in_chunks(t, part, lengths, given, forget=gates[1].grad)
    _step_by_step(t, part, lengths, given)
    y = t.record("cat", t.make(n, heads * value_dim, grad=given.q or given.cell))
    y = t.norm(y, f"{NAME}.multihead_norm", LAYER, rows=n * heads, width=heads * value_dim)
    gate = t.from_result(t.linear(x, f"{NAME}.ogate_preact", heads * value_dim), "sigmoid")
    return t.linear(t.mul(gate, t.narrow(y)), f"{NAME}.out_proj", x.columns)


def _gate(t: Tape, x: Tensor, name: str, heads: Dim) -> Tensor:
    """Bound the pre-activation of a gate: cap·tanh(W·x + b / cap)."""
    bounded = t.from_result(t.widen(t.linear(x, name, heads, bias=True)), "tanh")
    return t.record("scale", t.like(bounded))


def _in_chunks(t: Tape, part: MLstm, lengths: Lengths, given: Factors, *, forget: bool) -> None:
    """Run the whole chunks side by side; only the memory is handed on from one to the next.

    The first chunk reads a memory of zeros, which has no gradient; what the last part of a
    sequence writes is read by nobody. `forget`: the forget gate has a gradient.
    """
    run, keys, values, gates = t.run, part.k_head_dim, part.v_head_dim, given.gates
    count, chunk, named = lengths.chunks, lengths.chunk, mlstm_products(part)
    each = run.batch_size * part.n_heads
    every, any_chunk = each * count, smaller(count, 1)
    rows, tokens = every * chunk, run.batch_size * count * chunk
    written_on, handed = at_least(lengths.parts, 2), at_least(count, 2)
    q, k, v = (t.constant(rows, width) for width in (keys, keys, values))

    # the highest exponent behind each chunk: where it is, and both that were compared
    highest = t.make(every, 1, grad=gates)
    indices = t.constant(every * written_on, width=INDEX)
    t.record("max", highest, [(indices, gates), (t.constant(2 * every * written_on), gates)])
    # what each chunk writes
    weight = t.make(rows * written_on, 1, grad=gates)
    t.record("exp", weight, [(weight, gates)])
    written = t.make(rows * written_on, keys, grad=given.normalizer)
    read = k if given.q else t.constant(rows * written_on, keys)
    t.record("mul", written, [(read, gates), (weight, given.k)])
    added = t.make(every, keys * values, grad=given.cell)
    t.record(
        "k @ v",
        added,
        [(written, given.v), (v, given.normalizer)],
        rows=tokens,
        width=named["k @ v"].width,
        backward=written_on * tokens * named["k @ v"].width * (given.normalizer + given.v),
        results=[added.store],
    )
    # the memory that is handed on, and what is kept of it
    memory = t.make(every, keys * values + keys, grad=given.cell)
    keep = t.constant(every * (written_on if gates else at_least(lengths.parts, 3)))
    held = t.constant(each * (lengths.parts - 1) * any_chunk, keys * values + keys)
    t.record("keep", memory, [(keep, given.cell), (held, gates)])
    # what each position reads of its chunk
    decays = t.make(rows, chunk, grad=gates)
    t.record("mask", decays, [(t.constant(chunk * any_chunk, chunk, width=FLAG), forget)])
    compared = [(t.constant(rows, width=INDEX), gates), (t.constant(2 * rows), gates)]
    t.record("max", t.make(rows, 1, grad=gates), compared)
    t.record("exp", decays, [(decays, gates)])
    scores = t.make(rows, chunk, grad=given.q or given.k)
    _multiply(t, named["q @ k"], tokens * chunk, scores, (q, given.q), (k, given.k))
    weighed = t.make(rows, chunk, grad=given.read)
    t.record("mul", weighed, [(scores, gates), (decays, scores.grad)])
    y = t.make(rows, values, grad=given.q or given.cell)
    factors = (weighed.store, given.read), (v, given.v)
    _multiply(t, named["scores @ v"], tokens * chunk, y, *factors)
    # what it reads of the memory
    weight = t.make(rows, 1, grad=gates)
    t.record("exp", weight, [(weight, gates)])
    asked = t.make(rows, keys, grad=given.q or gates)
    t.record("mul", asked, [(q, gates), (weight, given.q)])
    asked = t.make(rows * handed, keys, grad=asked.grad)  # saved where the memory has a gradient
    for name, size, out, grad in (
        ("q @ state", keys * values, values, given.cell),
        ("q @ normalizer", keys, 1, given.normalizer),
    ):
        made = t.make(rows, out, grad=asked.grad or grad)
        t.record(
            name,
            made,
            [(asked, grad), (t.constant(every, size), asked.grad)],
            rows=tokens,
            width=named[name].width,
            backward=tokens * named[name].width * (when(asked.grad, 1) + when(grad, handed)),
            results=[made.store],
        )
    _divide(t, given, y)


def _step_by_step(t: Tape, part: MLstm, lengths: Lengths, given: Factors) -> None:
    """Run what is left over, one position after the other, each with a memory of its own."""
    run, keys, values, gates = t.run, part.k_head_dim, part.v_head_dim, given.gates
    named, any_step = mlstm_products(part), lengths.steps
    each = run.batch_size * part.n_heads
    rows, tokens = each * lengths.rest, run.batch_size * lengths.rest
    after_first = lengths.rest - any_step
    q, k, v = (t.constant(rows, width) for width in (keys, keys, values))
    # the highest exponent: both that were compared
    t.record("max", t.make(rows, 1, grad=gates), [(t.constant(2 * rows), gates)])
    write = t.make(rows, 1, grad=gates)
    t.record("exp", write, [(write, given.cell)])
    outer = t.make(rows, keys * values, grad=given.k or given.v)
    _multiply(t, named["k @ v"], tokens, outer, (k, given.k), (v, given.v))
    memory = t.make(rows, keys * values + keys, grad=given.cell)
    t.record("mul", memory, [(outer, gates), (k, gates)])
    # without a gradient of its own, what is kept of a memory of zeros is not saved
    keep = rows if gates else each * (after_first + any_step * smaller(lengths.chunks, 1))
    t.record("keep", memory, [(t.constant(keep), given.cell)])
    for name, size, out, grad in (
        ("q @ state", keys * values, values, given.cell),
        ("q @ normalizer", keys, 1, given.normalizer),
    ):
        first, last = (t.constant(each * any_step, size) for _ in range(2))
        between = t.constant(each * after_first, size)
        t.record("keep", t.make(rows, size, grad=grad), [(first, gates), (between, gates)])
        made = t.make(rows, out, grad=given.q or grad)
        t.record(
            name,
            made,
            [(q, grad), (between, given.q), (last, given.q)],
            rows=tokens,
            width=named[name].width,
            factors=(given.q, grad),
            results=[made.store],
        )
    _divide(t, given, t.make(rows, values, grad=given.q or given.cell))


def _multiply(
    t: Tape,
    product: Product,
    count: Dim,
    out: Tensor,
    a: tuple[Store, bool],
    b: tuple[Store, bool],
) -> None:
    """Record a product of two factors, each with whether it has a gradient."""
    t.record(
        product.name,
        out,
        [(a[0], b[1]), (b[0], a[1])],
        rows=count,
        width=product.width,
        factors=(a[1], b[1]),
        results=[out.store],
    )


def _divide(t: Tape, given: Factors, y: Tensor) -> None:
    """Divide y by max(|nᵀ·q|, exp(-m)) + ε: |nᵀ·q|, its argument, exp(-m), the divisor and y."""
    divisor = t.make(y.rows, 1, grad=given.read)
    t.record("max", divisor, [(t.constant(3 * y.rows), given.read)])
    quotient = t.make(y.rows, y.columns, grad=y.grad)
    # y is the sum of both that were read
    t.record("divide", quotient, [(divisor, y.grad), (t.constant(y.rows, y.columns), given.read)])


def at_least(x: Dim, n: int) -> Dim:
    """Return 1 where x is at least n, else 0.

    >>> at_least(3, 2), at_least(2, 2), at_least(1, 2)
    (1, 1, 0)
    """
    return smaller(floor_div(x, n), 1)


def mlstm_products(part: MLstm) -> dict[str, Product]:
    """List the products of activations by name.

    per pair of positions in a chunk, and head:  q·kᵀ  d_lk, scores·v  d_lv
    per token and head:                          Cᵀ·q and k·vᵀ  d_lk·d_lv each, nᵀ·q  d_lk
    """
    keys, values = part.n_heads * part.k_head_dim, part.n_heads * part.v_head_dim
    widths = {
        "q @ k": (keys, CHUNK_PAIRS),
        "scores @ v": (values, CHUNK_PAIRS),
        "q @ state": (keys * part.v_head_dim, TOKENS),
        "q @ normalizer": (keys, TOKENS),
        "k @ v": (keys * part.v_head_dim, TOKENS),
    }
    return {
        name: Product(role="recurrent", name=name, width=width, per=per)
        for name, (width, per) in widths.items()
    }


def mlstm_counts(
    part: MLstm, batch_size: Dim, seq_len: Dim, *, decode: bool = False
) -> dict[str, Dim]:
    """Count what the mixer's own word stands for in one forward.

    from nothing:  per sequence ⌊S / c_l⌋ chunks of c_l² pairs; what is left over goes step by step
    continued:     step by step, no pairs

    Source: transformers 5.23, `wrap_chunkwise_arbitrary_sequence_length` of `modeling_xlstm.py`.
    """
    pairs = floor_div(seq_len, part.chunk_size) * part.chunk_size * part.chunk_size
    return {CHUNK_PAIRS: 0 if decode else batch_size * pairs}
