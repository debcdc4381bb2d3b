"""Lightning attention: a state S of keys by values for each head, S ← λ·S + k·vᵀ, read as Sᵀ·q."""

from __future__ import annotations

from metacount.formulas.dim import Dim, ceil_div, floor_div, smaller
from metacount.formulas.tape import TOKENS, State, Store, Tape, Tensor, several
from metacount.spec.mixers import Lightning
from metacount.spec.stack import Norms

CHUNK_PAIRS = "pairs of positions in a chunk"  # of all sequences, masked or not
RMS = Norms(kind="rmsnorm")


def lightning(t: Tape, part: Lightning, x: Tensor) -> Tensor:
    """Lightning attention: out(sigmoid(gate(x)) · norm(S·q)), with q, k, v = silu(qkv(x)).

    With W = h_l·d_l: q, k, v [3·W, d], norm W, output gate [W, d], out [d, W]; λ is fixed.
    per pair of positions in a chunk, and head:  q·kᵀ and scores·v          2·d_l
    per token and head:                          q·S and k·vᵀ               2·d_l²

    A step of decoding has the products per token alone. In the backward, the first chunk's state is
    zero and has no gradient, and what the last chunk writes is read by nobody.

    The paper's letters: h heads of width d_h are our n_linear_heads and linear_head_dim (h_l, d_l),
    B our linear_chunk_size (c_l).

    Source: MiniMax 2025, arXiv:2501.08313, sec. 2.2, fig. 3 and algorithm 1; Qin et al. 2024,
    arXiv:2401.04658, algorithm 1.
    """
    t.role, run = "recurrent", t.run
    heads, head_dim, chunk = part.n_heads, part.head_dim, part.chunk_size
    width, n, sequences = heads * head_dim, x.rows, run.batch_size
    qkv = t.from_argument(t.linear(x, "linear_attn.qkv_proj", 3 * width), "silu")
    grad = qkv.grad
    state = width * head_dim
    t.states.append(State(name="recurrent", shape=(heads, head_dim, head_dim)))
    chunks = ceil_div(run.n_queries, chunk)
    before_last = (chunks - 1) * chunk  # positions before the last chunk
    first = smaller(run.n_queries, chunk)
    # a product reads q, k and v, and a state v once more, head by head: copied, or as they lie
    copied = several(sequences, heads, run.n_queries)
    if isinstance(copied, int) and not copied:
        read = qkv.store
    else:
        read = Store(3 * n * width + sequences * before_last * width, 1, run.value)
        if not isinstance(copied, int):
            read.base, read.copied = qkv.store, copied

    def product(name: str, rows: Dim, *saves: Tensor | Store, per: str, backward: Dim) -> Tensor:
        return t.product(
            name,
            of_values(rows),
            [(each, grad) for each in saves],
            per=per,
            width=width if per == CHUNK_PAIRS else state,
            factors=(grad, grad),
            backward=backward if grad else 0,
        )

    def of_values(rows: Dim) -> Tensor:
        return t.make(rows, 1, grad=grad, width=run.value)

    pairs = run.counts[CHUNK_PAIRS]
    square = 2 * pairs * width
    scores = product("q @ k", heads * pairs, read, per=CHUNK_PAIRS, backward=square)
    each = t.constant(heads * _pairs(run.n_queries, chunk), width=run.value)
    scores = t.record("decay", of_values(heads * pairs), [(each, grad)])
    product("scores @ v", n * width, scores, read, per=CHUNK_PAIRS, backward=square)
    of_q, of_k = (
        t.constant(heads * rows, width=run.value) for rows in (run.n_queries, before_last)
    )
    decayed_q = t.record(
        "decay", of_values(sequences * (run.n_queries - first) * width), [(of_q, grad)]
    )
    decayed_k = t.record("decay", of_values(sequences * before_last * width), [(of_k, grad)])
    states = t.constant(sequences * chunks * width, head_dim, width=run.value)
    between = t.constant(heads * (chunks - smaller(chunks, 2)), width=run.value)
    tokens = run.counts[TOKENS]
    of_states = (tokens + sequences * (run.n_queries - first)) * state
    product("q @ state", n * width, states, decayed_q, per=TOKENS, backward=of_states)
    written = 2 * sequences * before_last * state
    product("k @ v", sequences * chunks * state, decayed_k, read, per=TOKENS, backward=written)
    t.record("decay", of_values(sequences * chunks * state), [(between, grad)])
    y = t.make(n, width, grad=grad, width=run.value)
    y = t.norm(t.record("cat", y), "linear_attn.o_norm", RMS)
    gate = t.from_result(t.linear(x, "linear_attn.output_gate", width), "sigmoid")
    return t.linear(t.mul(y, gate), "linear_attn.o_proj", x.columns)


def lightning_counts(
    part: Lightning, batch_size: Dim, seq_len: Dim, *, decode: bool = False
) -> dict[str, Dim]:
    """Count what the mixer's own word stands for in one forward.

    from nothing:  per sequence S // c_l chunks of c_l² pairs, and (S % c_l)² in the last one
    continued:     step by step, no pairs

    Source: MiniMax 2025, arXiv:2501.08313, algorithm 1; transformers' code does not fill up the
    last chunk.
    """
    return {CHUNK_PAIRS: 0 if decode else batch_size * _pairs(seq_len, part.chunk_size)}


def _pairs(seq_len: Dim, chunk: Dim) -> Dim:
    chunks = floor_div(seq_len, chunk)
    rest = seq_len - chunks * chunk
    return chunks * chunk * chunk + rest * rest
