"""State spaces: Mamba's selective scan, and Mamba-2's, whose chunks are matrix products."""

from __future__ import annotations

from metacount.formulas.dim import Dim, ceil_div, is_symbolic, smaller
from metacount.formulas.mixers.convolution import (
    CONVOLVED,
    convolved_positions,
    convolved_silu,
)
from metacount.formulas.tape import FLAG, TOKENS, State, Tape, Tensor, several
from metacount.spec.field import altered
from metacount.spec.mixers import Mamba, Mamba2
from metacount.spec.stack import Norms

CHUNKS = "chunks"  # each chunk of all sequences, the last one of each filled up
CHUNK_STATES = "pairs of chunk states"  # each pair of the states before and after chunks
RMS = Norms(kind="rmsnorm")


def mamba(t: Tape, part: Mamba, x: Tensor) -> Tensor:
    """Mamba: out(scan(x) · silu(z)), a state of d_s values for each of d_i channels.

    in [2·d_i, d], conv [d_i, 1, k_c], x [r_t + 2·d_s, d_i], dt [d_i, r_t] with a bias, A_log
    [d_i, d_s], D d_i, out [d, d_i]; perhaps norms of the step, of B and of C. The state is read
    with C by a product, [d_i, d_s] @ [d_s, 1] for each token; its update is element by element, in
    ⌈log2 S⌉ rounds of spans that double their reach.

    The paper's letters: D is our d_ssm (d_i), N our ssm_state_dim (d_s); dt_rank is r_t here.

    Source: Gu, Dao 2023, arXiv:2312.00752, algorithm 2, eq. 2 and fig. 3; Jamba, arXiv:2403.19887,
    sec. 6.4 (the three norms); Hillis and Steele 1986, doi:10.1145/7902.7903 (rounds).
    """
    t.role, run = "recurrent", t.run
    inner, states, rank, n = part.d_ssm, part.state_dim, part.dt_rank, x.rows
    d_model = x.columns
    both = t.linear(x, "mamba.in_proj", 2 * inner, bias=part.in_bias)
    mixed, z = t.part(both, inner), t.part(both, inner)
    mixed = convolved_silu(t, mixed, part.conv_kernel, "mamba.conv1d", bias=part.conv_bias)
    # of one sequence, position or channel x lies as its matrix wants it
    read = t.copy(mixed, several(run.batch_size, run.n_queries, inner))
    read = t.linear(read, "mamba.x_proj", rank + 2 * states)
    step, b, c = t.part(read, rank), t.part(read, states), t.part(read, states)
    if part.norms != "none":
        made_norm = altered(RMS, affine=part.norms == "affine")
        step = t.norm(step, "mamba.dt_layernorm", made_norm)
        b = t.norm(b, "mamba.b_layernorm", made_norm)
        c = t.norm(c, "mamba.c_layernorm", made_norm)
    step = t.linear(step, "mamba.dt_proj", inner, bias=True)
    step = t.from_argument(t.widen(step), "softplus")
    trained = t.weight("mamba.A_log", inner, states)
    skips = t.weight("mamba.D", inner)
    rates = negative_rates(t, inner, states, trained)
    decay = t.mul(step, rates, out=t.make(n * inner, states, grad=False))
    decay = t.from_result(decay, "exp")
    dx = t.mul(step, mixed)
    added = t.mul(dx, b, out=t.make(n * inner, states, grad=False))
    first = t.constant(run.batch_size * inner, states)
    added = t.record("mul", t.like(added, grad=added.grad or decay.grad), [(first, decay.grad)])
    if not run.decode:
        added = _doubled(t, decay, added, run.n_queries)
    t.states += [
        State(name="conv", shape=(inner, part.conv_kernel)),
        State(name="recurrent", shape=(inner, states), bytes_per_value=4),
    ]
    held = t.narrow(t.record("states", t.like(added)))
    y = t.make(n, inner, grad=False, width=run.value)
    y = t.matmul("state @ C", held, c, y, per=TOKENS, width=inner * states)
    skipped = t.record("mul", t.like(mixed, grad=mixed.grad or skips), [(mixed, skips)])
    y = t.add(y, skipped)
    y = t.mul(y, t.record("silu", t.make(n, inner, grad=z.grad, width=run.value), [(z, z.grad)]))
    return t.linear(t.narrow(y), "mamba.out_proj", d_model, bias=part.out_bias)


def negative_rates(t: Tape, rows: Dim, columns: Dim, trained: bool) -> Tensor:
    """Compute -exp(A_log), the logarithm of a decay over a step of one."""
    rates = t.from_result(t.make(rows, columns, grad=trained), "exp")
    return t.record("negate", t.like(rates))


def _doubled(t: Tape, decay: Tensor, added: Tensor, seq_len: Dim) -> Tensor:
    """Run the rounds: each saves the states and the decays so far, but the last no decays."""
    n_rounds = rounds(seq_len)
    grad = added.grad or decay.grad
    states = t.constant(n_rounds * added.rows, added.columns)
    decays = t.constant((n_rounds - smaller(n_rounds, 1)) * decay.rows, decay.columns)
    # the decays of the first round are exp(Δ·A), which is saved as its own result
    saves = [(states, decay.grad), (decays, grad)]
    if not isinstance(n_rounds, int) or n_rounds:
        saves.append((decay.store, grad))
    return t.record("rounds", t.like(added, grad=grad), saves)


def rounds(seq_len: Dim) -> Dim:
    """Count the rounds in which spans that double reach over `seq_len` positions: ⌈log2 S⌉.

    Source: Hillis and Steele 1986, doi:10.1145/7902.7903.

    >>> [rounds(n) for n in (1, 2, 3, 4, 2048, 2049)]
    [0, 1, 2, 2, 11, 12]
    """
    if is_symbolic(seq_len):
        import sympy

        return sympy.ceiling(sympy.log(seq_len, 2))
    if isinstance(seq_len, int):
        return (seq_len - 1).bit_length()
    # an array: one round more for each power of two that is reached beyond
    most = (int(seq_len.max()) - 1).bit_length()
    return sum(smaller((seq_len - 1) // 2**n, 1) for n in range(most))


def mamba2(t: Tape, part: Mamba2, x: Tensor) -> Tensor:
    """Mamba-2: out(norm(scan(x) · silu(z))), one decay a head, in chunks of c_s positions.

    With d_i = h_s·p_s channels and w = d_i + 2·g_s·d_s convolved ones (x, B and C):
    in [d_i + w + h_s, d], conv [w, 1, k_c], dt_bias, A_log and D h_s each, gated norm d_i, out
    [d, d_i]. The products of the scan are those of `in_chunks`; one token more is a step of
    the recurrence, whose state is read with C.

    The paper's letters: P is our ssm_head_dim (p_s), N our ssm_state_dim (d_s), Q our
    ssm_chunk_size (c_s), H our n_ssm_heads (h_s), G our n_ssm_groups (g_s).

    Source: Dao, Gu 2024, arXiv:2405.21060, listing 1, fig. 6 and sec. 7.1 (norm), 7.2 (groups).
    """
    t.role = "recurrent"
    heads, width, groups, states = part.n_heads, part.head_dim, part.n_groups, part.state_dim
    inner, n, run = heads * width, x.rows, t.run
    convolved = inner + 2 * groups * states
    both = t.linear(x, "mamba.in_proj", inner + convolved + heads, bias=part.in_bias)
    z, mixed, step = t.part(both, inner), t.part(both, convolved), t.part(both, heads)
    if part.scales is not None:
        z, mixed, step = (t.record("scale", t.like(each)) for each in (z, mixed, step))
    mixed = convolved_silu(t, mixed, part.conv_kernel, "mamba.conv1d", bias=part.conv_bias)
    xs = t.widen(t.part(mixed, inner))
    biased = t.weight("mamba.dt_bias", heads)
    trained, skips = t.weight("mamba.A_log", heads), t.weight("mamba.D", heads)
    step = t.make(n, heads, grad=step.grad or biased)
    step = t.from_argument(step, "softplus")
    if (part.dt_min, part.dt_max) != (None, None):
        step = t.from_argument(step, "clamp")
    decay = t.mul(negative_rates(t, 1, heads, trained), step, out=t.like(step))
    dx = t.mul(xs, step, out=t.make(n, inner, grad=False))
    t.states += [
        State(name="conv", shape=(convolved, part.conv_kernel)),
        State(name="recurrent", shape=(heads, width, states), bytes_per_value=4),
    ]
    y = t.make(n, inner, grad=dx.grad or decay.grad or mixed.grad)
    if run.decode:
        t.matmul("state @ C", dx, mixed, y, per=TOKENS, width=inner * states)
    else:
        in_chunks(t, part, dx, decay, mixed)
    y = t.record("add", t.like(y, grad=y.grad or skips), [(xs, skips)])
    return t.linear(_gated(t, part, y, z, inner), "mamba.out_proj", x.columns, bias=part.out_bias)


def in_chunks(t: Tape, part: Mamba2, dx: Tensor, decay: Tensor, mixed: Tensor) -> None:
    """Run the scan in chunks: five products, with decays between positions and between chunks.

    The last chunk is filled up. B and C are repeated for every head first: groups save nothing.

    per chunk and head  C·Bᵀ                [c_s, d_s] @ [d_s, c_s]   c_s²·d_s
                        scores @ x          [c_s, c_s] @ [c_s, p_s]   c_s²·p_s
                        Bᵀ @ x              [d_s, c_s] @ [c_s, p_s]   c_s·d_s·p_s, its state
                        C @ state           [c_s, d_s] @ [d_s, p_s]   c_s·d_s·p_s
    per pair of chunk states and head, the state handed on            d_s·p_s
    """
    heads, width, states, run = part.n_heads, part.head_dim, part.state_dim, t.run
    inner, chunk = heads * width, part.chunk_size
    chunks = ceil_div(run.n_queries, chunk)
    sequences, every = run.batch_size, run.batch_size * chunks
    full = every * chunk
    state, square = inner * states, heads * chunk * chunk

    def product(
        name: str, a: Tensor, b: Tensor, rows: Dim, columns: Dim, width: Dim, per: str = CHUNKS
    ) -> Tensor:
        return t.matmul(name, a, b, t.make(rows, columns, grad=False), per=per, width=width)

    def moved(x: Tensor) -> Tensor:  # heads and chunks change places for a product
        return t.copy(x, several(every, heads))

    dx = t.record("fill", t.make(full, inner, grad=dx.grad))
    b, c = (t.record("repeat", t.make(full, heads * states, grad=mixed.grad)) for _ in "bc")
    # among the positions of a chunk
    scores = product("C @ B", moved(c), moved(b), full, heads * chunk, square * states)
    masks = [(t.constant(chunk, chunk, width=FLAG), decay.grad) for _ in range(2)]
    decays = t.record("sums", t.make(full, heads * chunk, grad=decay.grad), masks)
    scores = t.mul(scores, t.from_result(decays, "exp"))
    inside = product("scores @ x", scores, moved(dx), full, inner, square * width)
    # what each chunk adds to the state
    left = t.from_result(t.make(full, heads, grad=decay.grad), "exp")
    decayed = t.mul(b, left, out=t.make(full, heads * states, grad=False))
    added = product("B @ x", decayed, dx, every, state, chunk * state)
    # the state before each chunk and after the last
    n_states = sequences * (chunks + 1)
    added = t.record("cat", t.make(n_states, state, grad=added.grad))
    masks = [(t.constant(chunks + 1, chunks + 1, width=FLAG), decay.grad) for _ in range(2)]
    between = t.make(n_states, heads * (chunks + 1), grad=decay.grad)
    between = t.from_result(t.record("sums", between, masks), "exp")
    held = product("chunk states", between, added, n_states, state, state, CHUNK_STATES)
    # what each position reads of the state that its chunk began with
    read = t.make(every, state, grad=held.grad)
    copied = several(chunks)
    if not isinstance(copied, int):
        read.store.base, read.store.copied = held.store, copied
    began = read if not _is(copied, 0) else held
    before = product("C @ chunk state", c, began, full, inner, chunk * state)
    start = t.from_result(t.make(full, heads, grad=decay.grad), "exp")
    t.mul(before, start, out=inside)


def _is(x: Dim, number: int) -> bool:
    return isinstance(x, int) and x == number


def _gated(t: Tape, part: Mamba2, y: Tensor, z: Tensor, inner: Dim) -> Tensor:
    """Multiply y with silu(z), and norm each group before or behind it."""
    n, run = y.rows, t.run
    if part.norm == "none":
        gate = t.record("silu", t.make(n, inner, grad=z.grad, width=run.value), [(z, z.grad)])
        return t.mul(y, gate, out=t.make(n, inner, grad=False, width=run.value))
    role, t.role = t.role, "norm"  # one module gates and norms
    z = t.widen(z)
    gate = t.record("silu", t.make(n, inner, grad=z.grad), [(z, z.grad)])
    norm = {"rows": n * part.n_groups, "width": inner}
    if part.norm == "before_gate":
        y = t.mul(t.norm(y, "mamba.norm", RMS, **norm), gate)
    else:
        y = t.norm(t.mul(y, gate), "mamba.norm", RMS, **norm)
    t.role = role
    return t.record("cast", t.make(n, inner, grad=y.grad, width=run.value))


def mamba2_counts(
    part: Mamba2, batch_size: Dim, seq_len: Dim, *, decode: bool = False
) -> dict[str, Dim]:
    """Count what Mamba-2's own words stand for in a forward.

    B·⌈S/c_s⌉ chunks; each chunk's state reaches those after it by one product over all states
    before and after chunks, B·(⌈S/c_s⌉ + 1)² pairs, masked or not

    Source: Dao, Gu 2024, arXiv:2405.21060, listing 1.
    """
    n = convolved_positions(batch_size, seq_len, part.conv_kernel, decode=decode)
    return {CONVOLVED: n, **({} if decode else _chunks(batch_size, seq_len, part.chunk_size))}


def _chunks(batch_size: Dim, seq_len: Dim, chunk: Dim) -> dict[str, Dim]:
    n = ceil_div(seq_len, chunk)
    return {CHUNKS: batch_size * n, CHUNK_STATES: batch_size * (n + 1) * (n + 1)}
