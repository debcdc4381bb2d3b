"""DeepSeek-V4's attention over a window and compressed entries, and its hyper-connections.

What runs is as in transformers 5.23, `modeling_deepseek_v4.py`, which cites the report's sections.
"""

from __future__ import annotations

from metacount.formulas.attention import RMS, Attending, rotate
from metacount.formulas.dim import Dim, exact_div, floor_div, smaller
from metacount.formulas.tape import (
    HEAVY_PAIRS,
    SPARSE_PAIRS,
    TOKENS,
    WINDOWED_PAIRS,
    State,
    Store,
    Tape,
    Tensor,
)
from metacount.spec.attention import CompressedAttention
from metacount.spec.stack import HyperConnections

ENTRIES = {"S": SPARSE_PAIRS, "H": HEAVY_PAIRS}  # by a layer's letter, the pairs with its entries


def compressed_attention(
    t: Tape, part: CompressedAttention, x: Tensor, how: Attending, letter: str
) -> Tensor:
    """Attend to a window of keys that are their values, and to entries of many tokens.

    q_a [r_q, d], q_b [h·h_d, r_q], kv [h_d, d], a sink [h]; of the output a matrix
    [r_o, h·h_d/g_o] for each of g_o groups and one [d, g_o·r_o] for all. A layer of letter S or H
    has a compressor beside: `compress`. Every head reads the same key, as its value too.

    Source: DeepSeek-V4 in transformers 5.23, `DeepseekV4Attention`; DeepSeek-V4's report, sec. 2.3.
    """
    t.role, run = "attention", t.run
    h, width, groups, d_model = part.n_heads, part.head_dim, part.o_groups, x.columns
    latent = t.norm(t.linear(x, "self_attn.q_a_proj", part.q_rank), "self_attn.q_a_norm", RMS)
    q = t.linear(latent, "self_attn.q_b_proj", h * width)
    q = t.norm(q, "", RMS, rows=q.rows * h, affine=False)
    kv = t.norm(t.linear(x, "self_attn.kv_proj", width), "self_attn.kv_norm", RMS)
    rotary_dim = width if how.rotary_dim is None else how.rotary_dim
    q, kv = rotate(t, q, run.n_queries, rotary_dim), rotate(t, kv, run.n_keys, rotary_dim)
    t.cached += [State(name="keys", shape=(width,))]
    sources = [("", WINDOWED_PAIRS, kv)]
    if letter in ENTRIES:
        entries = compress(t, part, x, "self_attn.compressor", letter, width)
        sources.append((" of entries", ENTRIES[letter], entries))
        if letter == "S":
            choose(t, part, x, latent)
    scores = [
        t.matmul(f"scores{of}", q, k, t.like(q, columns=h * k.rows), per=per, width=h * width)
        for of, per, k in sources
    ]
    t.weight("self_attn.sinks", h)
    t.record("softmax", t.like(scores[0]), [(each, True) for each in scores])
    y = q
    for (of, per, values), weights in zip(sources, scores, strict=True):
        y = t.like(q)
        t.matmul(f"sums of values{of}", weights, values, y, per=per, width=h * width)
    y = rotate(t, y, run.n_queries, rotary_dim)  # back, as values were rotated with the keys
    each = exact_div(h * width, groups)
    rank = groups * part.o_lora_rank
    trained = t.weight("self_attn.o_a_proj.weight", rank, each, rows=x.word)
    y = t.by_weight(t.part(y, each), "self_attn.o_a_proj", rank, trained)
    return t.linear(y, "self_attn.o_b_proj", d_model)


def compress(
    t: Tape, part: CompressedAttention, x: Tensor, name: str, letter: str, width: Dim
) -> Tensor:
    """Make an entry of so many tokens: softmax over them of gate(x) + bias, times kv(x), summed.

    kv and gate [s·w, d], bias [tokens, s·w], a norm [w]. In layers of letter S two series (s = 2)
    are made: an entry sums one over its own tokens and the other over those of the entry before.

    Source: DeepSeek-V4 in transformers 5.23, `DeepseekV4CSACompressor`, `DeepseekV4HCACompressor`.
    Not counted: the sums, which are no matrix products.
    """
    ratio, both = part.ratio_of(letter), (2 if letter == "S" else 1) * width
    kv = t.linear(x, f"{name}.kv_proj", both)
    gate = t.linear(x, f"{name}.gate_proj", both)
    t.weight(f"{name}.position_bias", ratio, both)
    shares = t.from_result(t.widen(gate), "softmax")
    rows = floor_div(t.run.n_keys, ratio)
    entries = Tensor(Store(rows, width, t.run.value), width, x.word, kv.grad)
    entries = t.record("sum", entries, [(kv, shares.grad), (shares, kv.grad)])
    return t.norm(entries, f"{name}.kv_norm", RMS)


def choose(t: Tape, part: CompressedAttention, x: Tensor, latent: Tensor) -> None:
    """Score every entry by its own small compressor: Σ_j w_j·relu(q_j·k); the best are read.

    q [h_i·d_I, r_q], weights [h_i, d], and a compressor of width d_I; h_i·d_I multiply-adds a pair.
    No gradient passes the choice.

    Source: DeepSeek-V4 in transformers 5.23, `DeepseekV4Indexer`.
    """
    index = part.indexer
    assert index is not None  # the spec requires it
    u = t.without_gradients()
    name, h, width = "self_attn.compressor.indexer", index.n_heads, index.head_dim
    x, latent = u.detach(x), u.detach(latent)
    entries = compress(u, part, x, name, "S", width)
    u.role = "attention"
    q = u.widen(u.linear(latent, f"{name}.q_b_proj", h * width))
    scores = u.like(q, columns=h * entries.rows)
    u.matmul("index scores", q, entries, scores, per=SPARSE_PAIRS, width=h * width)
    u.linear(x, f"{name}.weights_proj", h)


def cached_values(part: CompressedAttention, letter: str, seq_len: Dim) -> Dim:
    """Count the values that a layer of a letter keeps of one sequence, keys of its window apart.

    An entry for each c tokens, w values; of the tokens that fill none yet, kv and gate, 2·s·w each;
    with two series, those of the last entry that the next one needs, 2·c·w. An indexer's too.

    Source: DeepSeek-V4 in transformers 5.23, `DeepseekV4CSACache`.
    """
    if letter not in ENTRIES:
        return 0
    ratio, width = part.ratio_of(letter), part.head_dim
    n_entries = floor_div(seq_len, ratio)
    waiting = seq_len - ratio * n_entries
    if letter == "H":
        return width * (n_entries + 2 * waiting)
    assert part.indexer is not None  # the spec requires it
    width = width + part.indexer.head_dim
    return width * (n_entries + 4 * waiting + 2 * ratio * smaller(n_entries, 1))


def entry_pairs(seq_len: Dim, ratio: Dim) -> Dim:
    """Count the pairs (t, e) of a token and an entry of tokens up to t: Σ ⌊t/c⌋ over t = 1 … S.

    Q = ⌊S/c⌋ entries are complete; c tokens see each number below Q, those that are left see all:
    c·(0 + … + (Q - 1)) + (S - c·Q + 1)·Q

    Returns: pairs of one sequence, exact.
    Source: DeepSeek-V4 in transformers 5.23, the causal threshold of its compressors.

    >>> entry_pairs(9, 4)  # one each for tokens 4 to 7, two for 8 and 9
    8
    """
    n_entries = floor_div(seq_len, ratio)
    rest = seq_len - ratio * n_entries
    return exact_div(ratio * n_entries * (n_entries - 1), 2) + (rest + 1) * n_entries


# --- several residual streams -----------------------------------------------------------------


def read_streams(t: Tape, part: HyperConnections, x: Tensor, name: str, d_model: Dim) -> Tensor:
    """Sum the n streams by weights that a projection of all makes, into what a branch reads.

    fn [(2 + n)·n, n·d], base [(2 + n)·n], scale [3]: n weights to read by, n to add what the branch
    gives to each stream, n·n to mix them.

    Source: DeepSeek-V4 in transformers 5.23, `DeepseekV4HyperConnection`; Xie et al. 2025,
    arXiv:2512.24880 (mHC).
    """
    t.role, n = "other", part.n_streams
    made = (2 + n) * n
    flat = t.norm(t.widen(x), "", RMS, affine=False)
    weights = t.linear(flat, f"{name}.fn", made)
    t.weight(f"{name}.base", made)
    t.weight(f"{name}.scale", 3)
    weights = t.from_result(weights, "sigmoid")
    return t.narrow(t.mul(x, weights, out=t.like(x, columns=d_model)))


def write_streams(t: Tape, part: HyperConnections, x: Tensor, y: Tensor) -> Tensor:
    """Mix the streams, [n, n] @ [n, d] for each token, and add to each what the branch gave.

    Source: as `read_streams`.
    """
    t.role, n = "other", part.n_streams
    mixing = t.like(x, columns=n * n)
    mixed = t.like(x)
    t.matmul("mixed streams", mixing, x, mixed, per=TOKENS, width=n * x.columns)
    return t.add(mixed, y)


def join_streams(t: Tape, part: HyperConnections, x: Tensor, d_model: Dim) -> Tensor:
    """Sum the streams behind the last block: fn [n, n·d], base [n], scale [1].

    Source: DeepSeek-V4 in transformers 5.23, `DeepseekV4HyperHead`.
    """
    t.role, n = "other", part.n_streams
    flat = t.norm(t.widen(x), "", RMS, affine=False)
    weights = t.linear(flat, "hc_head.fn", n)
    t.weight("hc_head.base", n)
    t.weight("hc_head.scale", 1)
    return t.narrow(t.mul(x, t.from_result(weights, "sigmoid"), out=t.like(x, columns=d_model)))
