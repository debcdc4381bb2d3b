"""What a backward keeps of delta rules in chunks: gated DeltaNet, Kimi delta attention."""

from __future__ import annotations

from metacount.formulas.dim import Dim, ceil_div, exact_div, floor_div, smaller
from metacount.formulas.forward import FLAG, Kept
from metacount.formulas.kept_attention import several
from metacount.formulas.kept_mixing import ROLE, Mixing, convolution_kept
from metacount.spec.gated_delta import GatedDelta
from metacount.spec.kimi_delta import KimiDelta


def gated_delta_kept(run: Mixing, part: GatedDelta) -> list[Kept]:
    """Count what one gated DeltaNet mixer keeps behind its input.

    In float32 at least, but for the convolution's and the input of the output projection. h_lv
    heads; L positions with those that fill the last of C chunks:
    q and k, each before it is of unit length [n, h_lv, d_lk], and 1 / its length; β, the step
    before and after softplus [n, h_lv]; the rates, twice
    filled: k, β·k, q, the solved keys [L, h_lv, d_lk], v and the solved values [L, h_lv, d_lv];
    β, decays from the start of a chunk, with several chunks those to its end too [L, h_lv]
    between positions of a chunk: decays, k·k, q·k, the triangle, the scores [C, h_lv, c_l, c_l]
    where S is a multiple of c_l: β·k once more, heads before positions
    `handed_on`; the norm of y, filled; silu(g) and its argument, what is normed, [n, h_lv, d_lv]

    Returns: terms, exact.
    Source: Yang et al. 2024, arXiv:2412.06464, sec. 3.3 and fig. 1; torch's derivatives.
    """
    heads, key, value, n = part.n_v_heads, part.k_head_dim, part.v_head_dim, run.tokens
    chunks = ceil_div(run.seq_len, part.chunk_size)
    filled = run.batch_size * chunks * part.chunk_size * heads
    convolved = 2 * part.n_k_heads * key + heads * value
    # nothing is filled up: heads and positions change places for the product
    whole = 1 + floor_div(run.seq_len, part.chunk_size) - chunks
    copied = several(run.batch_size * chunks, heads)
    return [
        *convolution_kept(run, convolved, part.conv_kernel),
        run.wide("queries and keys before their norm", n * heads * (key + 1), 2),
        run.wide("rate of writing, step before and after softplus", n * heads, 3),
        run.wide("rates", heads, 2),
        _mask(part.chunk_size),
        run.wide("keys, rate · keys, queries, solved keys", filled * key, 4),
        run.wide("rate · keys, as a product reads it", whole * copied * filled * key),
        run.wide("values, solved values", filled * value, 2),
        run.wide("rates of writing, decays from the start", filled, 2),
        run.wide("decays to the end", smaller(chunks - 1, 1) * filled),
        run.wide("decays, products, triangle, scores", filled * part.chunk_size, 5),
        *handed_on(run, heads, key, value, part.chunk_size),
        *_normed(run, heads, value, filled),
        run.wide("gate, silu of the gate", n * heads * value, 2),
        run.term("input of the output projection", n * heads * value),
    ]


def kimi_delta_kept(run: Mixing, part: KimiDelta) -> list[Kept]:
    """Count what one Kimi delta attention mixer keeps behind its input.

    In float32 at least, but for the convolution's, what the second matrices of decay and gate read
    [n, d_l], and the input of the output projection. L positions with those that fill the last of C
    chunks:
    q and k before they are of unit length [n, W] and 1 / their lengths; the step before and after
    softplus [n, W], β [n, h_l]; the rates, twice
    between positions of a chunk, for every channel: decays, and keys with them [L, c_l, W]
    filled: k, β·k, q, v, β·v, decays from the start (twice), keys with theirs [L, W]; β [L, h_l]
    the triangle, where rows of its inverse need it (c_l > 2), its inverse and the scores
    [L, c_l, h_l]; the rows above each row i of the inverse, Σ i·c_l for i below c_l
    `handed_on`; where there are several chunks the keys that read states, decays to the end [L, W]
    and over a chunk [C, W]; the norm of y, filled; the gate [n, W]

    Returns: terms, exact.
    Source: Kimi Team 2025, arXiv:2510.26692, sec. 3 and 4; torch's derivatives.
    """
    heads, width, n = part.n_heads, part.head_dim, run.tokens
    chunk, chunks = part.chunk_size, ceil_div(run.seq_len, part.chunk_size)
    filled = run.batch_size * chunks * chunk * heads
    channels = heads * width
    several_rows = smaller(chunk, 3) - smaller(chunk, 2)
    handing = smaller(chunks - 1, 1)  # one chunk hands nothing on
    above = exact_div(chunk * (chunk - 1), 2)
    # in float32 queries and keys are parts of what was convolved, which is kept whole
    normed = 2 * n * channels if run.widths.copies else 3 * n * channels
    return [
        *convolution_kept(run, 3 * channels, part.conv_kernel),
        run.wide("queries and keys before their norm", normed),
        run.wide("lengths of queries and keys", n * heads, 2),
        run.term("inside of decay and gate", n * width, 2),
        run.wide("step before and after softplus", n * channels, 2),
        run.wide("rate of writing", n * heads),
        run.wide("rates", heads, 2),
        _mask(chunk),
        run.wide("decays between positions, keys with them", filled * chunk * width, 2),
        run.wide("keys, queries, values, with rates and decays", filled * width, 8),
        run.wide("rates of writing, filled", filled),
        run.wide("inverse, scores", filled * chunk, 2),
        run.wide("triangle", several_rows * filled * chunk),
        run.wide("rows above a row of the inverse", filled * above),
        run.wide("keys that read states, decays to the end", handing * filled * width, 2),
        run.wide("decays over a chunk", handing * run.batch_size * chunks * channels),
        *handed_on(run, heads, width, width, chunk),
        *_normed(run, heads, width, filled),
        run.wide("gate", n * channels),
        run.term("input of the output projection", n * channels),
    ]


def handed_on(run: Mixing, heads: Dim, key: Dim, value: Dim, chunk: Dim) -> list[Kept]:
    """Count what chunks that hand a state on keep: the states, and what is written to them.

    of each chunk its first state [d_lk, d_lv] and its corrections [c_l, d_lv]; with several chunks
    q with its decays, which reads a state that has a gradient, and k with its own, which writes one
    that is read, each filled: [L, d_lk]

    Source: Yang et al. 2024, arXiv:2412.06464, sec. 3.3; torch's derivatives.
    """
    chunks = ceil_div(run.seq_len, chunk)
    each = run.batch_size * heads * chunks
    return [
        run.wide("states", each * key * value),
        run.wide("corrections", each * chunk * value),
        run.wide("decayed queries and keys", smaller(chunks - 1, 1) * each * chunk * key, 2),
    ]


def _normed(run: Mixing, heads: Dim, value: Dim, filled: Dim) -> list[Kept]:
    """List what the norm of each head's y keeps: y, with the last chunk filled, and its result."""
    rows = run.tokens * heads
    return [
        run.wide("y", filled * value),
        run.wide("scale of the norm", rows),
        run.wide("normed, and what meets the gate", rows * value, 2),
    ]


def _mask(chunk: Dim) -> Kept:
    return Kept(role=ROLE, name="mask of a chunk", values=chunk * chunk, width=FLAG)
