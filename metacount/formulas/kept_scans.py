"""What a backward keeps of scans: Mamba's by doubling, Mamba-2's and lightning's in chunks."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim, ceil_div, is_symbolic, smaller
from metacount.formulas.forward import FLAG, Kept
from metacount.formulas.kept import norm_kept
from metacount.formulas.kept_attention import several
from metacount.formulas.kept_mixing import ROLE, Mixing, convolution_kept, rounds
from metacount.formulas.lightning import CHUNK_PAIRS, lightning_run
from metacount.spec.lightning import Lightning
from metacount.spec.mamba import Mamba
from metacount.spec.mamba2 import Mamba2
from metacount.spec.norm import Norms

RMS = Norms(kind="rmsnorm")


def mamba_kept(run: Mixing, part: Mamba) -> list[Kept]:
    """Count what one Mamba mixer keeps behind its input.

    in the model's type: the convolution's; x and the gate z of d_i channels, z with the x that it
    was made with; step, B and C as one tensor [n, r_t + 2·d_s], or each behind its norm; the
    states as C reads them [n, d_i, d_s]; y, silu(z), their product
    in float32 at least: the step before and after softplus and Δ·x, [n, d_i] each; exp(A) and
    -exp(A); exp(Δ·A) [n, d_i, d_s]; the state before the first position; of ⌈log2 S⌉ rounds the
    states, and the decays of all but the first, which are exp(Δ·A)

    Returns: terms, exact.
    Source: Gu, Dao 2023, arXiv:2312.00752, algorithm 2 and fig. 3; Hillis and Steele 1986 (rounds);
    torch's derivatives.
    """
    inner, states, rank = part.d_ssm, part.state_dim, part.dt_rank
    n, values = run.tokens, run.tokens * part.d_ssm
    copied = several(run.batch_size, run.seq_len, inner)  # else x lies as its matrix wants it
    n_rounds = rounds(run.seq_len)
    return [
        *convolution_kept(run, inner, part.conv_kernel),
        run.term("x", (1 + copied) * values),
        *_read(run, n, {"step": rank, "B": states, "C": states}, part.norms),
        run.wide("step before and after softplus, step · x", values, 3),
        run.wide("rates", inner * states, 2),
        run.wide("decays", values * states),
        run.wide("state before the first position", run.batch_size * inner * states),
        run.wide(
            "states and decays of the rounds",
            values * states,
            2 * n_rounds - smaller(n_rounds, 1),
        ),
        run.term("states", values * states),
        run.term("gate, with the x beside it", 2 * values),
        run.term("y, silu of the gate, their product", values, 3),
    ]


def _read(run: Mixing, n: Dim, widths: dict[str, Dim], norms: str) -> list[Kept]:
    """List step, B and C as they come from one matrix, and what their norms keep, if any."""
    whole = run.term("step, B and C", n * sum(widths.values()))
    if norms == "none":
        return [whole]
    found = [whole]
    for name, width in widths.items():
        made = Norms(kind="rmsnorm", affine=norms == "affine")
        found += norm_kept(f"norm of {name}", n, width, made, run.widths)
    return found


def lightning_kept(run: Mixing, part: Lightning) -> list[Kept]:
    """Count what one lightning attention mixer keeps behind its input.

    q, k and v before their activation [n, 3·W]; q, k, v as the products of a chunk want them, and
    v for its state once more (of one sequence, or one head, as they lie: one tensor [n, 3·W])
    of each chunk of Q positions: scores [h_l, Q, Q] with their decays, the decays of q and of k
    [h_l, Q], the state it begins with [h_l, d_l, d_l], decayed q and k [h_l, Q, d_l]; the first
    begins with zeros and needs no q for them, the last hands on nothing
    the norm's, the output gate, what is normed, their product [n, W]

    Returns: terms, exact.
    Source: MiniMax 2025, arXiv:2501.08313, algorithm 1; torch's derivatives; `kept.norm_kept`.
    """
    heads, width = part.n_heads, part.n_heads * part.head_dim
    sequences, n, chunk = run.batch_size, run.tokens, part.chunk_size
    chunks = ceil_div(run.seq_len, chunk)
    first = smaller(run.seq_len, chunk)
    before_last = (chunks - 1) * chunk  # positions before the last chunk
    pairs = lightning_run(1, run.seq_len, linear_chunk_size=chunk)[CHUNK_PAIRS]
    copied = several(sequences, heads, run.seq_len)
    lying = 3 * n * width
    copies = 3 * n * width + sequences * before_last * width
    return [
        run.term("q, k and v before their activation", 3 * n * width),
        run.term("q, k and v", copied * copies + (1 - copied) * lying),
        run.term("scores of chunks", (sequences + 1) * heads * pairs),
        run.term("decays of q and k", heads * (run.seq_len + before_last)),
        run.term("decays of states", heads * (chunks - smaller(chunks, 2))),
        run.term("states", sequences * chunks * width * part.head_dim),
        run.term("decayed q", sequences * (run.seq_len - first) * width),
        run.term("decayed k", sequences * before_last * width),
        *norm_kept("norm of the mixer", n, width, RMS, run.widths),
        run.term("gate, what is normed, their product", n * width, 3),
    ]


def mamba2_kept(run: Mixing, part: Mamba2) -> list[Kept]:
    """Count what one Mamba-2 mixer keeps behind its input.

    in the model's type the convolution's and the input of the output projection, the rest in
    float32 at least; L positions with those that fill the last of C chunks:
    x [n, d_i]; the step before and after softplus (and before it is cut to a range) [n, h_s]
    B, C, Δ·x of all heads, each as two products want it [L, h_s, d_s or p_s], and B with its decay
    decays inside a chunk, C·B, and their product [C, h_s, c_s, c_s]; two masks of them
    decays to the end and from the start of a chunk [L, h_s]; decays between chunks
    [h_s, C + 1, C + 1] with two masks; states [C + 1, h_s, p_s, d_s], and those that are read
    what is read of the states [L, d_i]
    the gate and the norm: z, silu(z), y, what is normed, normed y [n, d_i], and [n, g_s]

    Returns: terms, exact.
    Source: Dao, Gu 2024, arXiv:2405.21060, listing 1 and fig. 6; torch's derivatives.
    """
    heads, state = part.n_heads, part.state_dim
    if heads == 1 if isinstance(heads, int) else not is_symbolic(heads) and 1 in heads:
        # torch takes such a tensor for an image, whose channels it lays last
        raise SpecError(
            "n_ssm_heads", "has no formula for training", heads, "choose 2 or more, or measure it"
        )
    inner, n, sequences = heads * part.head_dim, run.tokens, run.batch_size
    chunk, chunks = part.chunk_size, ceil_div(run.seq_len, part.chunk_size)
    filled = sequences * chunks * chunk
    convolved = inner + 2 * part.n_groups * state
    squares = filled * heads * chunk
    twice = 1 + several(sequences * chunks, heads)  # one chunk's heads lie as a product wants them
    # read where they lie, with the one after the last chunk, unless heads and chunks change places
    read = chunks + 1 - several(chunks)
    ranged = (part.dt_min, part.dt_max) != (None, None)

    def mask(name: str, values: Dim) -> Kept:
        return Kept(role=ROLE, name=name, values=values, width=FLAG, times=2)

    return [
        *convolution_kept(run, convolved, part.conv_kernel),
        # in float32 x is a part of what was convolved, which is kept whole
        run.wide("x", n * (inner if run.widths.copies else convolved)),
        run.wide("step", n * heads, 2 + ranged),
        run.wide("rates", heads, 2),
        run.wide("C of every head", filled * heads * state, twice),
        run.wide("B of every head", filled * heads * state, twice),
        run.wide("step · x", filled * inner, twice),
        run.wide("B with its decay", filled * heads * state),
        mask("masks of a chunk", chunk * chunk),
        run.wide("scores, their decays, their product", squares, 3),
        run.wide("decays from the start and to the end", filled * heads, 2),
        mask("masks of the chunks", (chunks + 1) * (chunks + 1)),
        run.wide("decays between chunks", sequences * heads * (chunks + 1) * (chunks + 1)),
        run.wide("states", sequences * (chunks + 1) * inner * state),
        run.wide("states that are read", sequences * read * inner * state),
        run.wide("what is read of states", filled * inner),
        *_gated(run, part, inner),
        run.term("input of the output projection", n * inner),
    ]


def _gated(run: Mixing, part: Mamba2, inner: Dim) -> list[Kept]:
    """List what the gate keeps, and the norm before or behind it."""
    n = run.tokens
    # where the gate is not copied nor scaled it is a part of what the first matrix gave
    projected = 2 * inner + 2 * part.n_groups * part.state_dim + part.n_heads
    lying = n * (projected if part.scales is None else inner)
    if part.norm == "none":
        return [
            run.term("gate", lying),
            run.term("silu of the gate", n * inner),
            run.wide("y", n * inner),
        ]
    return [
        run.wide("gate", n * inner if run.widths.copies else lying),
        run.wide("silu of the gate, y, what is normed, normed y", n * inner, 4),
        run.wide("scale of the norm", n * part.n_groups),
    ]
