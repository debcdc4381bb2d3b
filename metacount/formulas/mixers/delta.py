"""Delta rules in chunks: gated DeltaNet, and Kimi delta attention, whose channels decay apart.

A state S of keys by values for each head, S ← α·S + β·k·(v - (α·S)ᵀ·k)ᵀ, read by the query as
Sᵀ·q; α decays, β is the rate of the correction. One token more is a step of the recurrence, which
is computed element by element and has no products.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, ceil_div, exact_div, floor_div, smaller
from metacount.formulas.mixers.convolution import (
    CONVOLVED,
    convolved_positions,
    convolved_silu,
)
from metacount.formulas.mixers.state_space import CHUNKS, negative_rates
from metacount.formulas.tape import FLAG, State, Tape, Tensor, several
from metacount.frozen import frozen
from metacount.spec.mixers import GatedDelta, KimiDelta
from metacount.spec.stack import Norms

RMS = Norms(kind="rmsnorm")


@frozen
class Chunked:
    """The chunks of one delta rule: heads, widths of keys and values, positions of a chunk."""

    heads: Dim
    key: Dim
    value: Dim
    chunk: Dim
    chunks: Dim
    sequences: Dim

    @property
    def full(self) -> Dim:
        """Rows of all chunks of all heads, the last chunk filled up."""
        return self.sequences * self.chunks * self.chunk * self.heads

    @property
    def square(self) -> Dim:
        """Pairs of positions of a chunk, of all heads."""
        return self.heads * self.chunk * self.chunk

    @property
    def of_state(self) -> Dim:
        """Multiply-adds of a chunk that is read from or written to the state, of all heads."""
        return self.chunk * (self.heads * self.key * self.value)

    @property
    def handing(self) -> Dim:
        """1 where a chunk hands a state on to another, 0 of one chunk alone."""
        return several(self.chunks)


def _chunked(t: Tape, part: GatedDelta | KimiDelta, heads: Dim, key: Dim, value: Dim) -> Chunked:
    return Chunked(
        heads=heads,
        key=key,
        value=value,
        chunk=part.chunk_size,
        chunks=ceil_div(t.run.n_queries, part.chunk_size),
        sequences=t.run.batch_size,
    )


def gated_delta(t: Tape, part: GatedDelta, x: Tensor) -> Tensor:
    """Gated DeltaNet: out(norm(delta(q, k, v)) · silu(g)); queries and keys have h_lk heads.

    With K = h_lk·d_lk and V = h_lv·d_lv: q, k [K, d] each, v [V, d], their convolution
    [2·K + V, 1, k_c], output gate [V, d], rate and decay [h_lv, d] each, dt_bias and A_log h_lv
    each, norm d_lv, out [d, V].

    The paper's letters: d_k and d_v are our linear_k_head_dim and linear_v_head_dim (d_lk, d_lv),
    C our linear_chunk_size (c_l).

    Source: Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, sec. 3.3, 3.4 and fig. 1;
    arXiv:2406.06484, sec. 3 (the triangle, which transformers solves rather than inverts); more
    value heads than key heads are Qwen3-Next's.
    """
    t.role, run, n = "recurrent", t.run, x.rows
    heads, width, value_dim = part.n_v_heads, part.k_head_dim, part.v_head_dim
    key, value = part.n_k_heads * width, heads * value_dim
    q, k, v = (
        t.linear(x, f"linear_attn.{name}_proj", size)
        for name, size in (("q", key), ("k", key), ("v", value))
    )
    mixed = t.record("cat", t.like(q, columns=2 * key + value, grad=q.grad or k.grad or v.grad))
    mixed = convolved_silu(t, mixed, part.conv_kernel, "linear_attn.conv1d", bias=False)

    def of_heads(columns: Dim) -> Tensor:  # every head has its group's key head
        return t.record("repeat", t.make(n * heads, columns, grad=mixed.grad))

    q, k, v = _unit(t, of_heads(width)), _unit(t, of_heads(width)), of_heads(value_dim)
    beta = t.widen(t.linear(x, "linear_attn.b_proj", heads))
    beta = t.from_result(beta, "sigmoid")
    step = t.widen(t.linear(x, "linear_attn.a_proj", heads))
    biased = t.weight("linear_attn.dt_bias", heads)
    step = t.from_argument(t.record("add", t.like(step, grad=step.grad or biased)), "softplus")
    decay = _decay(t, t.weight("linear_attn.A_log", heads), step, heads)
    t.states += [
        State(name="conv", shape=(2 * key + value, part.conv_kernel)),
        State(name="recurrent", shape=(heads, width, value_dim), bytes_per_value=4),
    ]
    if run.decode:
        y = t.make(n * heads, value_dim, grad=True)
    else:
        size = _chunked(t, part, heads, width, value_dim)
        y = _solved_chunks(t, size, (q, k, v), beta, decay)
    y = t.norm(_cut_off(y, n * heads), "linear_attn.o_norm", RMS, width=value_dim)
    gate = t.widen(t.linear(x, "linear_attn.g_proj", value))
    y = t.mul(y, t.from_argument(gate, "silu"))
    y = t.record("cast", t.make(n, value, grad=y.grad, width=run.value))
    return t.linear(y, "linear_attn.o_proj", x.columns)


def _unit(t: Tape, x: Tensor) -> Tensor:
    """Divide each row by its length: x times the inverse root of the sum of squares."""
    return t.record("unit", t.like(x), [(x, x.grad), (t.constant(x.rows), x.grad)])


def _decay(t: Tape, trained: bool, step: Tensor, heads: Dim) -> Tensor:
    """Multiply the step with -exp(A_log), one number a head: the logarithm of the decay."""
    return t.mul(negative_rates(t, 1, heads, trained), step, out=t.like(step))


def _cut_off(y: Tensor, rows: Dim) -> Tensor:
    """Leave out the positions that filled the last chunk up: a view of all."""
    y = Tensor(y.store, y.columns, y.word, y.grad)
    y.rows = rows
    return y


def _fill(t: Tape, size: Chunked, columns: Dim, grad: bool) -> Tensor:
    """Cut a factor into chunks, the last one filled up: a tensor of its own."""
    return t.record("fill", t.make(size.full, columns, grad=grad))


def _solved_chunks(
    t: Tape,
    size: Chunked,
    qkv: tuple[Tensor, Tensor, Tensor],
    beta: Tensor,
    decay: Tensor,
) -> Tensor:
    """Solve the triangle (I + A)·c = β·(v - what k reads) of every chunk, and hand the states on.

    k·kᵀ and q·kᵀ          2·c_l²·d_lk
    solved triangle        c_l·(c_l - 1)/2·(d_lk + d_lv); in its backward it is solved once, and
                           multiplied once as a square for the gradient of the triangle
    from and to the state  3·c_l·d_lk·d_lv: what keys and queries read, what is written
    inside the chunk       c_l²·d_lv

    Source: Yang et al. 2024, arXiv:2412.06464, sec. 3.3; Giles 2008, eq. for C = A⁻¹·B.
    """
    key, value, chunk, chunks = size.key, size.value, size.chunk, t.run.counts[CHUNKS]
    grad = qkv[0].grad
    q, k = _fill(t, size, key, grad), _fill(t, size, key, grad)
    v, beta = _fill(t, size, value, grad), _fill(t, size, 1, beta.grad)
    between = t.make(size.full, chunk, grad=decay.grad)
    mask = t.constant(chunk, chunk, width=FLAG)
    between = t.from_result(t.record("mask", between, [(mask, decay.grad)]), "exp")
    beta_k, beta_v = _rated(t, beta, k), _rated(t, beta, v)

    def compared(name: str, a: Tensor, b: Tensor) -> Tensor:
        out = t.make(size.full, chunk, grad=False)
        return t.matmul(name, a, b, out, per=CHUNKS, width=size.square * key)

    # nothing is filled up: heads and positions change places for the product
    n_chunks = 1 + floor_div(t.run.n_queries, chunk) - size.chunks
    copied = n_chunks * several(size.sequences * size.chunks, size.heads)
    again = t.constant(copied * size.full, key)
    moved = beta_k
    if not isinstance(copied, int) or copied:
        moved = t.record("move", Tensor(again, key, beta_k.word, beta_k.grad))
        moved.rows = size.full
    triangle = compared("k @ k", moved, k)
    if not isinstance(copied, int):  # read elsewhere or where it lies, which is saved in any case
        t.ops[-1].saves.append(beta_k.store)
    triangle = t.mul(triangle, between)
    scores = t.mul(compared("q @ k", q, k), between)
    start = t.from_result(t.make(size.full, 1, grad=decay.grad), "exp")
    decayed_k = _rated(t, start, beta_k)
    pairs_below = size.heads * exact_div(chunk * (chunk - 1), 2)

    def solved(name: str, b: Tensor, columns: Dim) -> Tensor:
        y = t.make(size.full, columns, grad=b.grad or triangle.grad)
        of_factor = chunks * pairs_below * columns if y.grad else 0
        of_triangle = chunks * size.square * columns if triangle.grad else 0
        return t.product(
            name,
            y,
            [(triangle, y.grad), (y, triangle.grad)],
            per=CHUNKS,
            width=pairs_below * columns,
            factors=(b.grad, triangle.grad),
            backward=of_factor + of_triangle,
        )

    values = solved("triangle solved for v", beta_v, value)
    keys = solved("triangle solved for k", decayed_k, key)
    end = t.make(size.handing * size.full, 1, grad=decay.grad)
    end = t.from_result(end, "exp")
    end.rows = size.full
    return hand_on(t, size, q=q, k=k, keys=keys, values=values, scores=scores, start=start, end=end)


def _rated(t: Tape, rate: Tensor, x: Tensor) -> Tensor:
    """Multiply each row of x with a number of its own, which may have a gradient."""
    return t.mul(rate, x, out=t.like(x))


def hand_on(
    t: Tape,
    size: Chunked,
    *,
    q: Tensor,
    k: Tensor,
    keys: Tensor,
    values: Tensor,
    scores: Tensor,
    start: Tensor,
    end: Tensor,
    decay: Tensor | None = None,
) -> Tensor:
    """Run the chunks one after the other, each from the state that the one before it left.

    The first state is zero and has no gradient, and what the last chunk writes is read by nobody:
    so what keys and queries read has one gradient less in the first chunk, and what is written none
    in the last. `decay`: that of a whole chunk, where it is a tensor of its own.

    Source: Yang et al. 2024, arXiv:2412.06464, sec. 3.3.
    """
    key, value, handing, chunks = size.key, size.value, size.handing, t.run.counts[CHUNKS]
    every = size.sequences * size.chunks * size.heads
    flowing = any(x.grad for x in (k, keys, values, end))
    states = t.make(every, key * value, grad=flowing)
    # what is saved for the gradient of a state, which the first chunk's has not
    read_q = t.mul(q, start, out=t.make(handing * size.full, key, grad=False))
    written = t.make(handing * size.full, key, grad=k.grad or end.grad)
    t.record("mul", written, [(k, handing_grad(handing, end.grad)), (end, k.grad)])
    state, first = chunks * size.of_state, size.sequences * size.of_state
    corrections = t.make(size.full, value, grad=values.grad or keys.grad or flowing)
    keys_for_states = t.constant(handing * size.full, key) if decay is not None else keys.store

    def reads(name: str, factor: Tensor, saved: Tensor | None, out: Tensor) -> None:
        of_factor = state if factor.grad else 0
        of_states = state - first if flowing else 0
        t.product(
            name,
            out,
            [
                (states, factor.grad),
                (keys_for_states if saved is None else saved, handing_grad(handing, flowing)),
            ],
            per=CHUNKS,
            width=size.of_state,
            factors=(factor.grad, flowing),
            backward=of_factor + of_states,
        )

    reads("k @ state", keys, None, corrections)
    queried = t.make(size.full, value, grad=read_q.grad or flowing)
    reads("q @ state", read_q, read_q, queried)
    y = t.make(size.full, value, grad=False)
    y = t.matmul("scores @ v", scores, corrections, y, per=CHUNKS, width=size.square * value)
    gradients = written.grad + corrections.grad
    added = t.make(every, key * value, grad=flowing)
    t.product(
        "k @ v",
        added,
        [(written, corrections.grad), (corrections, handing_grad(handing, written.grad))],
        per=CHUNKS,
        width=size.of_state,
        factors=(written.grad, corrections.grad),
        backward=gradients * (state - first),
    )
    if decay is not None:
        # of a state with a gradient, and read by a chunk that follows: from three chunks on
        inner = (
            decay
            if decay.grad
            else t.constant(several(size.chunks - 1) * decay.rows, decay.columns)
        )
        t.record("mul", t.like(states), [(states, decay.grad), (inner, flowing)])
    y.grad = y.grad or queried.grad
    return y


def handing_grad(handing: Dim, grad: bool) -> bool:
    """Tell whether a gradient flows through what chunks hand on: of one chunk there is none."""
    return grad and not (isinstance(handing, int) and handing == 0)


def delta_counts(
    part: GatedDelta | KimiDelta, batch_size: Dim, seq_len: Dim, *, decode: bool = False
) -> dict[str, Dim]:
    """Count what a delta rule's own words stand for in one forward.

    from nothing:  B·⌈S/c_l⌉ chunks
    continued:     one token a sequence, by the recurrence, no chunk
    """
    n = convolved_positions(batch_size, seq_len, part.conv_kernel, decode=decode)
    chunks = 0 if decode else batch_size * ceil_div(seq_len, part.chunk_size)
    return {CONVOLVED: n, CHUNKS: chunks}


def kimi_delta(t: Tape, part: KimiDelta, x: Tensor) -> Tensor:
    """Kimi delta attention: out(norm(delta(q, k, v)) · sigmoid(g_b(g_a(x)))).

    With W = h_l·d_l channels: q, k, v [W, d] each, their convolution [3·W, 1, k_c], decay
    [d_l, d], [W, d_l], dt_bias W and A_log h_l, rate [h_l, d], output gate [d_l, d], [W, d_l],
    norm d_l, out [d, W].

    Every channel has a decay of its own, so that k·kᵀ and q·kᵀ and the inverse of the triangle are
    computed element by element; matrix products are those of `_inverted_chunks`.

    The paper's letters: H heads are our n_linear_heads (h_l), d_k = d_v our linear_head_dim (d_l),
    C our linear_chunk_size (c_l).

    Source: Kimi Team 2025, arXiv:2510.26692, sec. 3, 4 and fig. 3; transformers'
    `modeling_kimi_linear.py`.
    """
    t.role, run, n = "recurrent", t.run, x.rows
    heads, width = part.n_heads, part.head_dim
    channels = heads * width
    q, k, v = (t.linear(x, f"linear_attn.{name}_proj", channels) for name in "qkv")
    mixed = t.record("cat", t.like(q, columns=3 * channels, grad=q.grad or k.grad or v.grad))
    mixed = convolved_silu(t, mixed, part.conv_kernel, "linear_attn.conv1d", bias=False)
    q, k, v = (t.widen(t.part(mixed, channels)) for _ in "qkv")
    for unit in (q, k):
        scale = t.constant(n * heads)
        t.record("unit", t.like(unit), [(unit, unit.grad), (scale, unit.grad)])
    inside = t.linear(x, "linear_attn.forget_gate.f_a_proj", width)
    step = t.widen(t.linear(inside, "linear_attn.forget_gate.f_b_proj", channels))
    biased = t.weight("linear_attn.forget_gate.dt_bias", channels)
    step = t.from_argument(t.record("add", t.like(step, grad=step.grad or biased)), "softplus")
    trained = t.weight("linear_attn.forget_gate.A_log", 1, 1, heads, 1)
    decay = _decay(t, trained, step, heads)
    beta = t.from_result(t.widen(t.linear(x, "linear_attn.b_proj", heads)), "sigmoid")
    t.states += [
        State(name="conv", shape=(3 * channels, part.conv_kernel)),
        State(name="recurrent", shape=(heads, width, width), bytes_per_value=4),
    ]
    if run.decode:
        y = t.make(n * heads, width, grad=True)
    else:
        size = _chunked(t, part, heads, width, width)
        y = _inverted_chunks(t, size, mixed.grad, beta, decay)
    gate = t.linear(x, "linear_attn.g_a_proj", width)
    gate = t.from_result(t.widen(t.linear(gate, "linear_attn.g_b_proj", channels)), "sigmoid")
    y = t.norm(_cut_off(y, n * heads), "linear_attn.o_norm", RMS, width=width)
    y = t.mul(y, gate)
    y = t.record("cast", t.make(n, channels, grad=y.grad, width=run.value))
    return t.linear(y, "linear_attn.o_proj", x.columns)


def _inverted_chunks(t: Tape, size: Chunked, grad: bool, beta: Tensor, decay: Tensor) -> Tensor:
    """Compare positions of a chunk channel by channel, invert the triangle row by row, hand on.

    per head, with the inverse M of the triangle:
    M·v and M·k            2·c_l²·d_l
    from and to the state  3·c_l·d_l²: what keys and queries read, what is written
    inside the chunk       c_l²·d_l
    """
    width, chunk, full = size.key, size.chunk, size.full
    q, k, v = (_fill(t, size, width, grad) for _ in "qkv")
    beta = _fill(t, size, 1, beta.grad)
    mask = t.constant(chunk, chunk, width=FLAG)
    between = t.make(full, chunk * width, grad=decay.grad)
    between = t.from_result(t.record("mask", between, [(mask, decay.grad)]), "exp")
    pairs = t.mul(k, between, out=t.like(between))
    beta_k = _rated(t, beta, k)

    def compared(a: Tensor) -> Tensor:
        y = t.make(full, chunk, grad=a.grad or pairs.grad)
        return t.record("compare", y, [(a, pairs.grad), (pairs, a.grad)])

    triangle, scores = compared(beta_k), compared(q)
    # the rows above row i of the inverse are stacked for it, Σ i·c_l; the first is no result
    above = t.constant(full, exact_div(chunk * (chunk - 1), 2))
    rows = t.constant((smaller(chunk, 3) - smaller(chunk, 2)) * full, chunk)
    inverse = t.make(full, chunk, grad=triangle.grad)
    t.record("invert", inverse, [(above, triangle.grad), (rows, triangle.grad)])
    start = t.from_result(t.make(full, width, grad=decay.grad), "exp")
    beta_v, decayed_k = _rated(t, beta, v), t.mul(beta_k, start)

    def product(name: str, a: Tensor, b: Tensor) -> Tensor:
        out = t.make(full, width, grad=False)
        return t.matmul(name, a, b, out, per=CHUNKS, width=size.square * width)

    values, keys = (
        product("inverse @ v", inverse, beta_v),
        product("inverse @ k", inverse, decayed_k),
    )
    end = t.from_result(t.make(size.handing * full, width, grad=decay.grad), "exp")
    again = t.from_result(t.make(full, width, grad=decay.grad), "exp")
    every = size.handing * size.sequences * size.chunks
    solved = t.from_result(t.make(every, size.heads * width, grad=decay.grad), "exp")
    return hand_on(
        t,
        size,
        q=q,
        k=k,
        keys=keys,
        values=values,
        scores=scores,
        start=again,
        end=end,
        decay=solved,
    )
