"""What a backward keeps of attention: heads with keys and values of their own, or MLA.

Written out (eager), the probabilities of every pair are kept; a fused kernel (flash) keeps queries,
keys, values, its result and one number a row, and computes the probabilities again.
"""

from __future__ import annotations

from metacount.formulas.covered import check_fused
from metacount.formulas.dim import Dim, smaller, when
from metacount.formulas.forward import (
    EAGER,
    FLAG,
    FLASH,
    FLOAT32,
    INDEX,
    MATH,
    SDPA,
    WRITTEN,
    Attending,
    Kept,
    Widths,
)
from metacount.formulas.kept import norm_kept
from metacount.formulas.kept_position import rope_kept
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention
from metacount.spec.norm import Norms
from metacount.spec.position import Rope

RANDOM_STATE = 3  # seed and offset in one tensor of two, and one that is not used
CORE = ("q", "k", "v")  # a fused kernel keeps everything where one of them has a gradient
OUT = ("o_proj",)
LATENT_NORMS = Norms(kind="rmsnorm")


def core_kept(run: Attending, part: Attention | LatentAttention, *, sinks: bool) -> list[Kept]:
    """Count what softmax(q·kᵀ)·v keeps beside its three factors.

    eager, per pair of positions: the softmax of h heads in float32, the same in c bytes (below
    float32), and a flag of the mask; with a cap on the scores also their tanh; a sink is one more
    key of the softmax
    flash: the logarithm of each row's sum, 4 bytes of each head and query, and the three 8-byte
    numbers by which torch's kernel could repeat its dropout, though none is run
    sdpa: the logarithm of each row's sum, w bytes; where it is written out (`math`), the softmax of
    h heads in float32

    Returns: terms, exact; without the result, which the output projection keeps.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Dao et al. 2022, arXiv:2205.14135,
    algorithm 1 (flash).

    >>> from metacount.formulas.kept import bytes_of
    >>> heads = Attention(n_heads=32, n_kv_heads=32, head_dim=128)
    >>> run = Attending(batch_size=1, n_queries=2048, n_keys=2048, widths=Widths(value=2))
    >>> bytes_of(core_kept(run, heads, sinks=False))  # LLaMA-7B, 2048 tokens
    809500672
    """
    widths, rows = run.widths, run.tokens * part.n_heads
    if run.attention == FLASH:
        check_fused(part)
        return [
            run.term("log-sum-exp", rows, width=FLOAT32, gradients=CORE),
            run.term("random state", RANDOM_STATE, width=INDEX, gradients=CORE),
        ]
    if run.attention == SDPA:
        return [run.term("log-sum-exp", rows, width=widths.wide, gradients=CORE)]
    if run.attention == MATH:
        # written out for a bias that has a gradient, or for MLA, whose keys have one if values have
        needed = ("softmax",)
        return [run.term("softmax", rows * run.n_keys, width=widths.wide, gradients=needed)]
    pairs, copies = rows * run.n_keys, widths.copies
    softmax = ("softmax",) if copies else ("softmax", "v")  # else the probabilities are the same
    kept = [
        run.term("mask", run.n_queries * run.n_keys, width=FLAG, gradients=("scores",)),
        run.term("softmax", pairs + when(sinks, rows), width=widths.wide, gradients=softmax),
    ]
    if copies:
        kept.append(run.term("probabilities", pairs, gradients=("v",)))
    if part.softcap is not None:
        kept.append(run.term("tanh of the scores", pairs, gradients=("q", "k")))
    return kept


def attention_kept(
    run: Attending,
    part: Attention,
    norms: Norms,
    *,
    rope: Rope | None = None,
    grown: bool = False,
    qk_norm: str = "none",
    sinks: bool = False,
    gate: bool = False,
) -> list[Kept]:
    """Count what one attention with key/value heads keeps behind its input.

    eager: q, and k and v copied for each of the h heads, the core's, its result
    = c·(2·n·h·h_d + 2·n_kv·h·h_d) + `core_kept`
    flash: q, and k and v of h_kv heads, the core's, its result; rotated queries lie head by head,
    and the result like them, so that the output projection needs a copy: the result twice; so does
    what a ring gives, the sum of its parts
    (+ rotation, QK-norm, growth of the queries with their position; with an output gate its sigmoid
    and what it multiplies)

    One key/value head of one sequence is not copied: every head reads the same.

    Returns: terms, exact; without the input, which whoever made it names.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2; `core_kept`, `rope_kept`,
    `kept.norm_kept`.

    >>> from metacount.formulas.kept import bytes_of
    >>> heads = Attention(n_heads=32, n_kv_heads=32, head_dim=128)
    >>> run = Attending(batch_size=1, n_queries=2048, n_keys=2048, widths=Widths(value=2))
    >>> bytes_of(attention_kept(run, heads, Norms(kind="rmsnorm")))  # without rotation
    876609536
    """
    wide, width = run.widths.wide, part.n_heads * part.head_dim
    kept = list(core_kept(run, part, sinks=sinks))
    kv_heads = part.n_kv_heads
    if run.attention == EAGER:
        copied = several(run.batch_size * part.n_kv_heads)
        kv_heads += copied * (part.n_heads - part.n_kv_heads)
    elif run.attention == MATH:
        kv_heads = part.n_heads  # repeated for each query head
    keys = run.source_tokens * kv_heads * part.head_dim
    kept += [
        _factor(run, "queries", run.tokens * width, "k"),
        _factor(run, "keys", keys, "q"),
        _factor(run, "values", keys, "softmax"),
        *_results(run, part.n_heads, run.tokens * width, by_heads=rope is not None or run.ring),
    ]
    if rope is not None:
        kept += rope_kept(run, part.head_dim if rope.rotary_dim is None else rope.rotary_dim)
    if gate:
        kept.append(run.term("output gate, and what it multiplies", 2 * run.tokens * width))
        # the queries of one head lie beside its gate, and are kept with it where they lie
        as_made = rope is None and not grown if qk_norm == "none" else not run.widths.copies
        beside = (1 - several(part.n_heads)) * run.tokens * width
        kept.append(run.term("gate beside the queries", when(as_made, beside)))
    if grown:
        kept.append(run.term("growth of queries", run.n_queries, width=wide, gradients=("q",)))
    for name, heads, n in (
        ("queries", part.n_heads, run.tokens),
        ("keys", part.n_kv_heads, run.source_tokens),
    ):
        kept += _head_norm(f"norm of {name}", qk_norm, n, heads, part.head_dim, norms, run.widths)
    return kept


def several(*counts: Dim) -> Dim:
    """Return 1 where each count is at least 2, 0 where one of them is 1.

    torch copies a tensor that has several of each, and takes it as it lies where one is 1.

    >>> several(3, 12), several(3, 1)
    (1, 0)
    """
    found: Dim = 1
    for count in counts:
        found = found * smaller(count - 1, 1)
    return found


def _factor(run: Attending, name: str, values: Dim, other: str) -> Kept:
    """Build the term of a factor of q·kᵀ or p·v: for the gradient of the `other`, or a kernel's.

    sdpa multiplies in float32 at least where it is written out.
    """
    width = run.widths.wide if run.attention == MATH else 0
    gradients = (other,) if run.attention in WRITTEN else CORE
    return run.term(name, values, width=width, gradients=gradients)


def _results(run: Attending, n_heads: Dim, values: Dim, *, by_heads: bool) -> list[Kept]:
    """List attention's result, and the copy for o_proj where a fused kernel gives it head by head.

    Where nothing is copied it is the kernel's own.
    """
    if run.attention in WRITTEN:
        return [run.term("result", values, gradients=OUT)]
    copied = several(run.n_queries, n_heads) if by_heads else 0
    # sizes are numbers wherever somebody asks for gradients
    result = OUT if isinstance(copied, int) and copied else CORE + OUT
    found = [run.term("result", values, gradients=result)]
    if by_heads:
        found.append(run.term("result, head by head", copied * values, gradients=CORE))
    return found


def _head_norm(
    name: str, kind: str, n: Dim, heads: Dim, head_dim: Dim, norms: Norms, widths: Widths
) -> list[Kept]:
    """List what a norm of queries or keys keeps, over each head or over all."""
    if kind == "none":
        return []
    rows, width = (n, heads * head_dim) if kind == "full" else (n * heads, head_dim)
    made = {
        "head": Norms(kind="rmsnorm", unit_offset=norms.unit_offset),
        "full": Norms(kind="rmsnorm", unit_offset=norms.unit_offset),
        "layernorm": Norms(kind="layernorm"),
        "l2": Norms(kind="rmsnorm", affine=False),
    }[kind]
    return norm_kept(name, rows, width, made, widths)


def latent_kept(run: Attending, part: LatentAttention, *, rotated: bool = True) -> list[Kept]:
    """Count what one expanded MLA layer keeps behind its input.

    query: (the norm of its latent, and the latent [n, r_q]) q [n, h·(d_n + d_r)]
    keys and values: the norm of the latent, latent and rotated key [n, d_c + d_r],
    k [n, h·(d_n + d_r)], v [n, h·d_v]; `core_kept`, the rotations, the result [n, h·d_v]

    v is a part of the expanded latent [n, h·(d_n + d_v)]. The product of several sequences and
    heads copies it, that of one keeps all that it is a part of; a fused kernel wants it as wide as
    the keys, filled with zeros, and its result, as wide, is copied for the output projection.

    An indexer keeps nothing: no gradient passes its choice.

    Returns: terms, exact; without the input, which whoever made it names.
    Source: DeepSeek-V2, arXiv:2405.04434, eq. 37-47 (appendix); `core_kept`, `kept.norm_kept`.

    >>> from metacount.formulas.kept import bytes_of
    >>> mla = LatentAttention(n_heads=128, q_lora_rank=1536, kv_lora_rank=512,
    ...                       qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    >>> run = Attending(batch_size=2, n_queries=128, n_keys=128, widths=Widths(value=2))
    >>> bytes_of(latent_kept(run, mla))  # DeepSeek-V3, 2 × 128 tokens
    72468480
    """
    n, widths, heads = run.tokens, run.widths, part.n_heads
    rope_dim, rank = part.qk_rope_head_dim, part.kv_lora_rank
    qk_width = heads * (part.qk_nope_head_dim + rope_dim)
    kept = core_kept(run, part, sinks=False)
    if rotated:
        kept += rope_kept(run, rope_dim, keys="rotated key")
    if part.q_lora_rank is not None:
        kept += norm_kept("norm of the query latent", n, part.q_lora_rank, LATENT_NORMS, widths)
        read = run.term("query latent", n * part.q_lora_rank, gradients=("q_b_proj",))
        kept.append(read)
    kept += norm_kept("norm of the latent", n, rank, LATENT_NORMS, widths)
    if not widths.copies:
        # in float32 the norm keeps its argument where it lies: beside the key that is rotated
        beside = ("norm of the latent: x",)
        kept.append(run.term("key beside the latent", n * rope_dim, gradients=beside))
    values = _latent_values(run, part)
    return [
        *kept,
        *values,
        run.term("latent and rotated key", n * (rank + rope_dim), gradients=("kv_b_proj",)),
        _factor(run, "queries", n * qk_width, "k"),
        _factor(run, "keys", n * qk_width, "q"),
    ]


def _latent_values(run: Attending, part: LatentAttention) -> list[Kept]:
    """List every head's values and the result, which a fused kernel gives as wide as the keys."""
    n, heads, v_head_dim = run.tokens, part.n_heads, part.v_head_dim
    qk_head_dim = part.qk_nope_head_dim + part.qk_rope_head_dim
    expanded = heads * (part.qk_nope_head_dim + v_head_dim)
    if run.attention in WRITTEN:
        copied = several(run.batch_size, run.n_keys, heads)
        if run.attention == MATH and run.widths.copies:
            copied = 1
        width = expanded - copied * heads * part.qk_nope_head_dim
        result = run.term("result", n * heads * v_head_dim, gradients=OUT)
        return [_factor(run, "values", n * width, "softmax"), result]
    if v_head_dim == qk_head_dim:
        results = _results(run, heads, n * heads * v_head_dim, by_heads=True)
        return [run.term("values", n * expanded, gradients=CORE), *results]
    copied = several(heads)  # of one head the part that counts is taken where it lies
    kernel = CORE if isinstance(copied, int) and copied else CORE + OUT
    return [
        run.term("values, filled", n * heads * qk_head_dim, gradients=CORE),
        run.term("result, head by head", n * heads * qk_head_dim, gradients=kernel),
        run.term("result", copied * n * heads * v_head_dim, gradients=OUT),
    ]
