"""Attention: grouped heads, latent heads, cross-attention, relative positions and indexers.

Each forward runs on a tape. The two products between positions are written out (`eager`: every pair
is kept), or one fused kernel's (`flash`, `sdpa`: it keeps queries, keys, values, its result and one
number a row, and computes the probabilities again).
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.dim import Dim, floor_div, is_symbolic
from metacount.formulas.tape import (
    CACHED,
    COLUMNS,
    EAGER,
    FLAG,
    FLASH,
    FLOAT32,
    FLOAT64,
    INDEX,
    PAIRS,
    POSITIONS,
    ROWS,
    SDPA,
    TOKENS,
    Product,
    State,
    Store,
    Tape,
    Tensor,
    several,
)
from metacount.frozen import frozen
from metacount.spec.attention import Attention, BlockIndexer, Indexer, LatentAttention
from metacount.spec.field import altered
from metacount.spec.stack import Norms

RANDOM_STATE = 3  # seed and offset of flash's dropout, and one number that is not used
RMS, LAYER = Norms(kind="rmsnorm"), Norms(kind="layernorm", bias=True)
INDEXER, SIGMOID = "self_attn.indexer", "sigmoid"


@frozen
class Attending:
    """How a layer attends, beside its heads: to what, and what is done to queries and keys.

    `pairs` and `positions` are the words by which they are counted. `mask`: what sdpa's kernel is
    given beside a causal mask: the mask of a "window" or of a "prefix", [S, T]; `relative`:
    Transformer-XL's distances are part of the scores; `per_head`: a bias of each head is. So many
    columns of a head are rotated (`rotary_dim`, None: none), queries `grown` by their position. A
    layer that `borrows` reads keys and values of an earlier one, one that `shares` what an earlier
    indexer chose; an `indexed` one has a block indexer. With `adapter_rank` each of q, k and v has
    an adapter of its own (Zamba2).
    """

    pairs: str = PAIRS
    positions: str = POSITIONS
    mask: str = ""
    relative: bool = False
    per_head: bool = False
    rotary_dim: Dim | None = None
    grown: bool = False
    indexed: bool = False
    borrows: bool = False
    shares: bool = False
    unit_offset: bool = False  # of the norms of queries and keys
    adapter_rank: Dim | None = None


EVERY_PAIR = Attending()


def attention_core(
    t: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    how: Attending,
    *,
    heads: Dim,
    groups: Dim,
    widths: tuple[Dim, Dim],
    parts: tuple[tuple[str, Dim], ...] = (),
    softcap: float | None = None,
    sinks: str = "",
    bias: Tensor | None = None,
) -> Tensor:
    """Compute softmax(q·kᵀ + bias)·v of `heads` query heads over `groups` of keys and values.

    `widths` are those of a key's and of a value's head; `parts` name the products with their
    multiply-adds a pair, where these are others than the scores and the sums of values. `sinks`
    names a weight of one value a head, a further key of the softmax.

    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1; Dao et al. 2022, arXiv:2205.14135,
    algorithms 1 and 4 (flash: in the backward five products, the scores once more); gpt-oss model
    card, arXiv:2508.10925, sec. 2.2 (sinks).
    """
    run, (key, value) = t.run, widths
    t.exchange_keys(k, k.rows * groups * 2 * key)  # values are filled up to the width of keys
    parts = parts or (("scores", heads * key), ("sums of values", heads * value))
    t.products += [
        Product(role=t.role, name=name, width=width, per=how.pairs) for name, width in parts
    ]
    learned = bias is not None and bias.grad
    sunk = bool(sinks) and t.weight(sinks, heads, cut=COLUMNS)  # of any kernel: they are stored
    if run.attention == FLASH or (run.attention == SDPA and not _is_written(key, value, learned)):
        if not same(key, value):  # filled with zeros
            v = t.copy(v, columns=groups * key)
        return _kernel(t, q, k, v, how, heads=heads, widths=widths)
    wide = run.attention == SDPA  # torch's CPU has no kernel: it writes out, in float32
    rows = run.batch_size * run.n_queries
    keys_columns, pairs_columns = heads * key, heads * run.n_keys
    if wide:
        if learned:
            hidden = t.constant(run.n_queries, run.n_keys, width=FLAG)
            assert bias is not None
            bias = t.record("hide", t.like(bias), [(hidden, True)])
        q, k, v = t.widen(q), t.widen(k), t.widen(v)
        if not same(heads, groups) or learned:
            k, v = t.copy(k, columns=keys_columns), t.copy(v, columns=heads * value)
    elif not same(heads, groups):
        copied = several(run.batch_size * groups)
        k = t.copy(k, copied, columns=keys_columns)
        v = t.copy(v, copied, columns=heads * value)
    scores = t.tensor(pairs_columns, q.word, grad=False, width=q.store.width, rows=rows)
    scores = _product(t, "scores", q, k, scores, how, width=heads * key)
    if softcap is not None:
        scores = t.from_result(scores, "tanh")
    scores = t.widen(scores)
    if bias is not None:
        scores = t.record("add", t.like(scores, grad=scores.grad or bias.grad))
    if not wide:
        mask = t.constant(run.n_queries, run.n_keys, width=FLAG)
        scores = t.record("mask", t.like(scores), [(mask, scores.grad)])
    columns = pairs_columns
    if sinks:
        scores = t.like(scores, grad=sunk or scores.grad)
        columns = pairs_columns + heads
    softmax = t.like(scores, columns=columns)
    t.record("softmax", softmax, [(softmax, softmax.grad)])
    weights = t.part(softmax, pairs_columns) if wide else t.narrow(t.part(softmax, pairs_columns))
    y = t.tensor(heads * value, q.word, grad=False, width=v.store.width, rows=rows)
    y = _product(t, "sums of values", weights, v, y, how, width=heads * value)
    return t.copy(t.narrow(y))  # from heads back to positions


def _product(
    t: Tape, name: str, a: Tensor, b: Tensor, out: Tensor, how: Attending, *, width: Dim
) -> Tensor:
    return t.matmul(name, a, b, out, per=how.pairs, width=width, listed=False)


def _is_written(key: Dim, value: Dim, learned: bool) -> bool:
    """Tell whether torch's CPU has no fused kernel: values of another width than the keys' heads,
    or a bias that has a gradient.
    """
    if learned:
        return True
    if same(key, value):
        return False
    if isinstance(key, int) and isinstance(value, int):
        return True
    rule = "has no formula in letters for latent attention: its kernel depends on widths"
    raise SpecError("attention", rule, SDPA, "choose eager or flash, or give numbers")


def _kernel(
    t: Tape, q: Tensor, k: Tensor, v: Tensor, how: Attending, *, heads: Dim, widths: tuple[Dim, Dim]
) -> Tensor:
    """Run a fused kernel, whose values are as wide as the keys."""
    run, (key, value) = t.run, widths
    rows, columns = run.batch_size * run.n_queries, heads * key
    grad = q.grad or k.grad or v.grad
    y = Tensor(Store(rows, columns, run.value), columns, q.word, grad, by_heads=True)
    numbers = [t.constant(rows, heads, width=run.wide)]  # the logarithm of each row's sum
    if run.attention == FLASH:
        numbers = [t.constant(rows, heads, width=FLOAT32), t.constant(RANDOM_STATE, width=INDEX)]
    masks: list[Store] = []
    if run.attention == SDPA and (how.per_head or how.mask):
        # Transformer-XL's depends on the queries
        each = run.batch_size * heads if how.relative else heads if how.per_head else 1
        masks = [t.constant(run.n_queries * each, run.n_keys, width=run.value)]
    scores = run.counts[how.pairs] * columns
    t.record(
        "attention kernel",
        y,
        [*((x, grad) for x in (q, k, v, y)), *((store, grad) for store in (*numbers, *masks))],
        rows=run.counts[how.pairs],
        width=2 * columns,
        factors=(grad,),
        backward=5 * scores if grad else 0,  # torch computes q·kᵀ once more
        results=[y.store, *numbers],
    )
    if not same(key, value):
        return t.copy(y, several(heads), columns=heads * value)
    by_heads = q.by_heads or run.ring
    # head by head it must be copied for the next matrix
    store_copied = several(run.n_queries, heads) if by_heads else 0
    return t.copy(y, store_copied)


def same(a: Dim, b: Dim) -> bool:
    """Tell whether two sizes are the same number or the same expression; of arrays, nobody knows.

    >>> same(8, 8), same(8, 2)
    (True, False)
    """
    if isinstance(a, int) and isinstance(b, int):
        # as plain ints: a page that records comparisons of sizes needs none about copies
        return int(a) == int(b)
    return a is b or (is_symbolic(a) and is_symbolic(b) and bool(a == b))


def rotate(t: Tape, x: Tensor, n: Dim, rotary_dim: Dim) -> Tensor:
    """Rotate the first `rotary_dim` columns of each head by n positions: saves cosines and sines.

    Source: Su et al. 2021, arXiv:2104.09864, eq. 34.
    """
    y = t.scale_by(x, t.constant(n, rotary_dim), "rotate")
    y.by_heads = True
    return y


def grouped_attention(
    t: Tape,
    part: Attention,
    x: Tensor,
    how: Attending = EVERY_PAIR,
    *,
    d_model: Dim | None = None,
    bias: Tensor | None = None,
    source: Tensor | None = None,
    asks: Tensor | None = None,
) -> Tensor:
    """Attention with h query heads over h_kv key/value heads: MHA (h_kv = h), GQA, MQA (h_kv = 1).

    q [h·h_d, d], k [h_kv·h_d, d], v [h_kv·d_v, d], o [d, h·d_v], a bias of as many values as rows;
    d_v is h_d unless said. With an output gate q has twice the rows; a gate of each head is a
    matrix [h, d]. The result has `d_model` columns (None: as many as x). In cross-attention keys
    and values are made of `source`. `asks` replaces x as what queries are made of.

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2, their d_k = d_v is our h_d;
    Ainslie et al. 2023, arXiv:2305.13245, sec. 2.2, their G groups are our h_kv; Qiu et al. 2025,
    arXiv:2505.06708 (output gate); Dehghani et al. 2023, arXiv:2302.05442, sec. 2.1 (QK-norm of a
    head); OLMo 2, arXiv:2501.00656, sec. 2 (of all heads); Brandon et al. 2024, arXiv:2405.12981
    (borrowed keys and values).
    """
    t.role, run = "attention", t.run
    name = "self_attn" if source is None else "cross_attn"
    h, g, w, value = part.n_heads, part.n_kv_heads, part.head_dim, part.value_dim
    own = source is None
    gate = None
    asking = t.sum_gradients(x) if asks is None else asks
    made_of = x if asks is not None else asking
    made_of = made_of if source is None else source
    width = (2 if part.output_gate and own else 1) * h * w
    q = t.linear(asking, f"{name}.q_proj", width, bias=part.q_bias, cut=COLUMNS)
    q = adapted(t, q, asking, "q", how.adapter_rank)
    if part.output_gate and own:
        copied = several(h)
        q, gate = t.copy(q, copied, columns=h * w), t.copy(q, copied, columns=h * w)
    k, v = _keys_values(t, part, how, made_of, name)
    if own:
        q = _head_norm(t, part, how, q, f"{name}.q_norm", h)
        if not how.borrows:
            k = _head_norm(t, part, how, k, f"{name}.k_norm", g)
            if part.v_norm:
                v = t.norm(v, "", RMS, rows=v.rows * g, affine=False)
    if how.rotary_dim is not None:
        q = _rotated(t, part, q, run.n_queries, h, how.rotary_dim)
        k = k if how.borrows else _rotated(t, part, k, run.n_keys, g, how.rotary_dim)
    if own and not how.borrows:
        t.cached += [State(name="keys", shape=(g, w)), State(name="values", shape=(g, value))]
    if how.grown:
        q = t.scale_by(q, t.constant(run.n_queries), "grow")
    if how.indexed:
        assert isinstance(part.indexer, BlockIndexer)
        block_index(t, part.indexer, x)
    d_model = x.columns if d_model is None else d_model
    if how.relative:
        bias = relative_scores(t, part, q, d_model, how)
        q = t.record("add", t.like(q, grad=bias.grad or q.grad))
    sinks = f"{name}.core.sinks" if part.sinks and own else ""
    y = attention_core(
        t, q, k, v, how, heads=h, groups=g, widths=(w, value), softcap=part.softcap, sinks=sinks,
        bias=bias,
    )  # fmt: skip
    if part.head_gate != "none" and own:
        gate = t.linear(asking, f"{name}.g_proj", h, cut=COLUMNS)
    y = _through(t, part, gate, y)
    y = t.linear(y, f"{name}.o_proj", d_model, bias=part.o_bias, cut=ROWS)
    y = t.sum_over_ranks(y)
    return t.scale(y, part.out_scale)


def _keys_values(
    t: Tape, part: Attention, how: Attending, made_of: Tensor, name: str
) -> tuple[Tensor, Tensor]:
    """Make keys and values, or take those of an earlier layer."""
    keys, values = part.n_kv_heads * part.head_dim, part.n_kv_heads * part.value_dim
    if how.borrows:
        k = t.tensor(keys, TOKENS, grad=True)
        return k, k if part.v_head_dim is None else t.tensor(values, TOKENS, grad=True)
    k = t.linear(made_of, f"{name}.k_proj", keys, bias=part.k_bias, cut=COLUMNS)
    k = adapted(t, k, made_of, "k", how.adapter_rank)
    if part.values_of_keys:  # a bias of values is that of layers with a window
        return k, k
    v = t.linear(made_of, f"{name}.v_proj", values, bias=part.v_bias, cut=COLUMNS)
    return k, adapted(t, v, made_of, "v", how.adapter_rank)


def _through(t: Tape, part: Attention, gate: Tensor | None, y: Tensor) -> Tensor:
    """Multiply what attention gives with its gate, where there is one."""
    if gate is None:
        return y
    softplus = part.head_gate == "softplus"
    return t.mul(y, t.from_argument(gate, "softplus") if softplus else t.from_result(gate, SIGMOID))


def adapted(t: Tape, y: Tensor, x: Tensor, name: str, rank: Dim | None) -> Tensor:
    """Add to a projection y of x what this use's adapter gives, up(down(x)), where there is one.

    Hu et al. 2021, arXiv:2106.09685, eq. 3; here it is part of the model.
    """
    if rank is None:
        return y
    prefix, t.prefix = t.prefix, ""
    low = t.linear(x, f"shared_use.adapters.{name}.down_proj", rank, cut=ROWS)
    up = t.linear(low, f"shared_use.adapters.{name}.up_proj", y.columns, cut=COLUMNS)
    y = t.add(y, up)
    t.prefix = prefix
    return y


def _rotated(t: Tape, part: Attention, x: Tensor, n: Dim, heads: Dim, rotary_dim: Dim) -> Tensor:
    """Rotate queries or keys, and norm what is rotated where the model does (Llama 4)."""
    x = rotate(t, x, n, rotary_dim)
    if part.qk_norm != "l2":
        return x
    return t.norm(x, "", RMS, rows=x.rows * heads, affine=False)


def _head_norm(
    t: Tape, part: Attention, how: Attending, x: Tensor, name: str, heads: Dim
) -> Tensor:
    """Norm queries or keys, each head or all together, where the model does."""
    width, rms = part.head_dim, altered(RMS, unit_offset=how.unit_offset)
    if part.qk_norm == "full":
        return t.norm(x, name, rms)
    kind = {"head": rms, "layernorm": LAYER}.get(part.qk_norm)
    if kind is None:
        return x
    for _ in range(1 + kind.bias):  # the heads of all ranks share the weight
        x = t.sum_gradients(x, width)
    return t.norm(x, name, kind, rows=x.rows * heads, width=width)


def relative_scores(t: Tape, part: Attention, q: Tensor, d_model: Dim, how: Attending) -> Tensor:
    """Transformer-XL's scores by distance: (q + v)·(W·R)ᵀ, one column a distance, read by key.

    projection of the sinusoids [h·h_d, d], the vectors u and v [h, h_d]

    Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3, terms (b) and (d); their W_k,R, u and v.
    """
    t.role, run = "position", t.run
    h, width = part.n_heads, part.n_heads * part.head_dim
    # made in float64 in pairs, of which a copy takes d columns; where none is needed all are kept
    columns = d_model if run.value < FLOAT64 else 2 * floor_div(d_model + 1, 2)
    n_distances = run.counts[how.positions]  # of a window no more than it sees
    table = Store(n_distances, columns, run.value)
    sinusoids = Tensor(table, d_model, how.positions, False)
    t.products.append(
        Product(
            role=t.role,
            name="projection of the relative positions",
            width=d_model * width,
            per=how.positions,
        )
    )
    r = t.linear(sinusoids, "self_attn.relative.r_proj", width, counted=False)
    content = t.weight("self_attn.relative.content_bias", h, part.head_dim)
    position = t.weight("self_attn.relative.position_bias", h, part.head_dim)
    asking = t.record("add", t.like(q, grad=q.grad or position))
    distances = Tensor(Store(run.batch_size * n_distances, width, run.value), width, q.word, r.grad)
    columns = h * n_distances
    rows = run.batch_size * run.n_queries
    by_distance = Tensor(Store(rows, columns, run.value), columns, q.word, False)
    name = "scores of the relative positions"
    by_distance = t.matmul(name, asking, distances, by_distance, per=how.pairs, width=width)
    index = t.constant(run.n_queries, n_distances, width=INDEX)
    scores = t.gather(by_distance, index, t.like(by_distance))
    t.role = "attention"
    scores.grad = scores.grad or content
    return scores


def latent_attention(
    t: Tape, part: LatentAttention, x: Tensor, how: Attending = EVERY_PAIR
) -> Tensor:
    """Multi-head latent attention: keys and values of all heads from one cached latent.

    q_a [r_q, d] and q_b [h·(d_n + d_r), r_q], or q [h·(d_n + d_r), d] without q_lora_rank;
    kv_a [d_c + d_r, d], kv_b [h·(d_n + d_v), d_c], o [d, h·d_v]

    Expanded, keys and values of every head are made of what is cached. Absorbed (a decode step),
    kv_b's two halves move to the query and to the result, and attention runs over the latent.

    The paper's letters: d_c is our kv_lora_rank, d_c' our q_lora_rank (r_q here), d_h our
    qk_nope_head_dim (d_n) and v_head_dim (d_v), d_h^R our qk_rope_head_dim (d_r), n_h our n_heads.

    Source: DeepSeek-V2, arXiv:2405.04434, eq. 37-47 (appendix), sec. 2.1.2 (absorbed), sec. 2.1.3
    (cache); LongCat-Flash, arXiv:2509.01322, sec. 2.3 (scaled latents).
    """
    t.role, run = "attention", t.run
    h, plain, turned = part.n_heads, part.qk_nope_head_dim, part.qk_rope_head_dim
    value, rank, d_model = part.v_head_dim, part.kv_lora_rank, x.columns
    query = d_model if part.q_lora_rank is None else part.q_lora_rank
    split = (("not rotated", query * h * plain), ("rotated", query * h * turned))
    latent = None
    if part.q_lora_rank is None:
        q = t.sum_gradients(x)
        q = t.linear(q, "self_attn.q_proj", h * (plain + turned), split=split, cut=COLUMNS)
    else:
        latent = t.linear(x, "self_attn.q_a_proj", part.q_lora_rank, bias=part.bias)
        latent = t.norm(latent, "self_attn.q_a_layernorm", RMS)
        q = t.sum_gradients(latent)
        q = t.linear(q, "self_attn.q_b_proj", h * (plain + turned), split=split, cut=COLUMNS)
        q = t.record("scale", t.like(q)) if part.scaled else q
    both = t.linear(
        x,
        "self_attn.kv_a_proj_with_mqa",
        rank + turned,
        bias=part.bias,
        split=(("latent", d_model * rank), ("rotated key", d_model * turned)),
    )
    q_n, q_r = t.part(q, h * plain), t.part(q, h * turned)
    compressed, k_r = t.part(both, rank), t.part(both, turned)
    if how.rotary_dim is not None:
        q_r = rotate(t, q_r, run.n_queries, turned)
        k_r = rotate(t, k_r, run.n_keys, turned)
    normed = t.norm(compressed, "self_attn.kv_a_layernorm", RMS)
    normed = t.record("scale", t.like(normed)) if part.scaled else normed
    cached = t.record("cat", t.like(normed, columns=rank + turned, grad=normed.grad or k_r.grad))
    t.cached += [State(name="latents", shape=(rank,)), State(name="rotated keys", shape=(turned,))]
    if part.indexer is not None and not how.shares:
        assert latent is not None  # the spec requires it
        position_index(t, part.indexer, x, latent, how)
    t.sum_gradients(k_r)
    expanding = t.sum_gradients(Tensor(cached.store, rank, CACHED, cached.grad))
    expanded = t.linear(
        expanding,
        "self_attn.kv_b_proj",
        h * (plain + value),
        split=(("keys", rank * h * plain), ("values", rank * h * value)),
        cut=COLUMNS,
    )
    key = plain + turned
    q = t.record("cat", t.like(q_n, columns=h * key, grad=q_n.grad or q_r.grad))
    q.by_heads = True
    width = rank if run.decode else plain
    parts = (
        ("scores", h * width),
        ("scores of the rotated keys", h * turned),
        ("sums of values", h * (rank if run.decode else value)),
    )
    if run.decode:
        shared = t.part(cached, rank)
        attention_core(
            t, q, shared, shared, how, heads=h, groups=1, widths=(rank + turned, rank), parts=parts
        )
        y = t.tensor(h * value, x.word, grad=True)
    else:
        k = t.record("cat", t.like(expanded, columns=h * key, grad=expanded.grad or cached.grad))
        v = t.part(expanded, h * value)
        if run.attention == EAGER or (run.attention == SDPA and _is_written(key, value, False)):
            lies = run.attention == SDPA and run.value < FLOAT32  # else the cast copies it anyhow
            v = v if lies else t.copy(v, several(run.batch_size, run.n_keys, h))
        y = attention_core(
            t, q, k, v, how, heads=h, groups=h, widths=(key, value), parts=parts,
            softcap=part.softcap,
        )  # fmt: skip
    return t.sum_over_ranks(t.linear(y, "self_attn.o_proj", d_model, bias=part.bias, cut=ROWS))


def position_index(t: Tape, part: Indexer, x: Tensor, latent: Tensor, how: Attending) -> None:
    """DeepSeek-V3.2's indexer: Σ_j w_j·relu(q_j·k) over h_i small heads; the best are read.

    q [h_i·d_i, r_q], k [d_i, d], weights [h_i, d], and a LayerNorm with bias over keys; h_i·d_i
    multiply-adds a pair for the heads' products with the key, h_i for their weighted sum. No
    gradient passes the choice.

    Source: DeepSeek-V3.2, arXiv:2512.02556, sec. 2.1, eq. 1 and 2; their H^I is our h_i, d^I d_i.
    """
    u = t.without_gradients()
    u.role = "attention"
    h, width = part.n_heads, part.head_dim
    x, latent = u.detach(x), u.detach(latent)
    q = u.linear(latent, f"{INDEXER}.wq_b", h * width)
    k = u.linear(x, f"{INDEXER}.wk", width)
    weights = u.linear(x, f"{INDEXER}.weights_proj", h)
    q, k = u.widen(q), u.widen(u.norm(k, f"{INDEXER}.k_norm", LAYER))
    scores = u.like(q, columns=h * u.run.n_keys)
    scores = u.matmul("index scores", q, k, scores, per=how.pairs, width=h * width)
    total = u.like(scores, columns=u.run.n_keys)
    u.matmul("index weights", weights, scores, total, per=how.pairs, width=h)
    t.cached.append(State(name="keys of the index", shape=(width,)))


def block_index(t: Tape, part: BlockIndexer, x: Tensor) -> None:
    """MiniMax-M3's indexer: the best q_j·k of each block, of which attention reads the best blocks.

    q [h_i·d_I, d], k [d_I, d], and an RMSNorm over each; h_i·d_I multiply-adds a pair. Every
    position before a token is scored, and no gradient passes the choice.

    Source: MiniMax-M3 in transformers 5.23, `MiniMaxM3VLIndexer`.
    """
    u = t.without_gradients()
    u.role = "attention"
    h, width = part.n_heads, part.head_dim
    x = u.detach(x)
    q = u.linear(x, f"{INDEXER}.q_proj", h * width, cut=COLUMNS)
    k = u.linear(x, f"{INDEXER}.k_proj", width, cut=COLUMNS)
    q = u.norm(q, f"{INDEXER}.q_norm", RMS, rows=q.rows * h, width=width)
    q, k = u.widen(q), u.widen(u.norm(k, f"{INDEXER}.k_norm", RMS))
    scores = u.like(q, columns=h * u.run.n_keys)
    u.matmul("index scores", q, k, scores, per=PAIRS, width=h * width)
    t.cached.append(State(name="keys of the index", shape=(width,)))
