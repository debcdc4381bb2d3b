"""Attention with h query heads over h_kv key/value heads: MHA (h_kv = h), GQA, MQA (h_kv = 1)."""

from __future__ import annotations

from metacount.formulas.dim import Dim, exact_div, floor_div, smaller
from metacount.formulas.terms import (
    PAIRS,
    SOURCE,
    TOKENS,
    Product,
    Weight,
    flops_of,
    matrix,
    params_of,
)


def attention_weights(
    d_model: Dim,
    n_heads: Dim,
    n_kv_heads: Dim,
    head_dim: Dim,
    *,
    q_bias: bool = False,
    k_bias: bool = False,
    v_bias: bool = False,
    o_bias: bool = False,
    sinks: bool = False,
    cross: bool = False,
) -> tuple[Weight, ...]:
    """The tensors of one attention layer; of a cross-attention, k and v read the source.

    q [h·h_d, d], k and v [h_kv·h_d, d], o [d, h·h_d], a bias of as many values as rows, h sinks

    Returns: tensors, without those of a QK-norm, see `norm.qk_norm_weights`.
    Source: as `attention_params`.

    >>> for weight in attention_weights(5120, 64, 8, 128):  # Qwen3-32B
    ...     print(weight.name, weight.shape)
    self_attn.q_proj.weight (8192, 5120)
    self_attn.k_proj.weight (1024, 5120)
    self_attn.v_proj.weight (1024, 5120)
    self_attn.o_proj.weight (5120, 8192)
    """
    where = "cross_attn" if cross else "self_attn"
    q_width, kv_width = n_heads * head_dim, n_kv_heads * head_dim
    each = (
        ("q_proj", q_width, d_model, TOKENS, q_bias),
        ("k_proj", kv_width, d_model, SOURCE if cross else TOKENS, k_bias),
        ("v_proj", kv_width, d_model, SOURCE if cross else TOKENS, v_bias),
        ("o_proj", d_model, q_width, TOKENS, o_bias),
    )
    found: list[Weight] = []
    for name, n_rows, n_columns, rows, bias in each:
        found += matrix(f"{where}.{name}", "attention", (n_rows, n_columns), rows, bias=bias)
    if sinks:
        found.append(Weight(role="attention", name=f"{where}.core.sinks", shape=(n_heads,)))
    return tuple(found)


def attention_params(
    d_model: Dim,
    n_heads: Dim,
    n_kv_heads: Dim,
    head_dim: Dim,
    *,
    q_bias: bool = False,
    k_bias: bool = False,
    v_bias: bool = False,
    o_bias: bool = False,
    sinks: bool = False,
) -> Dim:
    """Parameters of one attention layer.

    q [h·h_d, d] + k, v [h_kv·h_d, d] + o [d, h·h_d] = 2·d·h_d·(h + h_kv)
    (+ h·h_d, h_kv·h_d, h_kv·h_d, d with a bias on q, k, v, o;   + h with one sink per head)

    Returns: parameters, exact; without the weights of a QK-norm, see `norm.qk_norm_params`.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2, their d_k = d_v is our h_d;
    Ainslie et al. 2023, arXiv:2305.13245, sec. 2.2, their G groups are our h_kv;
    gpt-oss model card, arXiv:2508.10925, sec. 2.2 (sinks).

    >>> attention_params(4096, 32, 32, 128)  # LLaMA-7B
    67108864
    >>> attention_params(5120, 64, 8, 128)  # Qwen3-32B
    94371840
    """
    return params_of(
        attention_weights(
            d_model,
            n_heads,
            n_kv_heads,
            head_dim,
            q_bias=q_bias,
            k_bias=k_bias,
            v_bias=v_bias,
            o_bias=o_bias,
            sinks=sinks,
        )
    )


def attention_projection_flops(
    n_tokens: Dim,
    d_model: Dim,
    n_heads: Dim,
    n_kv_heads: Dim,
    head_dim: Dim,
    *,
    n_kv_tokens: Dim | None = None,
) -> Dim:
    """FLOPs of the four projections of one attention layer.

    2 FLOPs per multiply-add × (q and o over n tokens, k and v over n_kv tokens)
    = 4·n·d·h·h_d + 4·n_kv·d·h_kv·h_d

    `n_kv_tokens` is n itself unless keys and values come from elsewhere: cross-attention projects
    its source, and nothing at all once the source is cached.

    Returns: FLOPs of the forward, exact.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2.
    Not counted: biases, QK-norm, rotary embedding.

    >>> attention_projection_flops(128, 4096, 32, 32, 128)  # LLaMA-7B, 128 tokens
    17179869184
    """
    weights = attention_weights(d_model, n_heads, n_kv_heads, head_dim, cross=True)
    n_kv = n_tokens if n_kv_tokens is None else n_kv_tokens
    return flops_of(weights, {TOKENS: n_tokens, SOURCE: n_kv})


def attention_products(n_heads: Dim, head_dim: Dim, *, per: str = PAIRS) -> tuple[Product, ...]:
    """The two products between positions, `per` pair of them: scores q·kᵀ, weighted sums p·v.

    h·h_d multiply-adds each

    Returns: products of one layer.
    Source: as `attention_pair_flops`.

    >>> [(product.name, product.width) for product in attention_products(32, 128)]  # LLaMA-7B
    [('scores', 4096), ('sums of values', 4096)]
    """
    return tuple(
        Product(role="attention", name=name, width=n_heads * head_dim, per=per)
        for name in ("scores", "sums of values")
    )


def attention_pair_flops(n_pairs: Dim, n_heads: Dim, head_dim: Dim) -> Dim:
    """FLOPs of the two products between positions: scores q·kᵀ and the weighted sum p·v.

    per head and pair of positions, 2 FLOPs per multiply-add × 2 products × h_d
    = 4·n_pairs·h·h_d

    Returns: FLOPs of the forward, exact; h_kv does not matter.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
    Not counted: scaling, mask, softmax, sinks.

    >>> attention_pair_flops(128 * 128, 32, 128)  # LLaMA-7B, 128 tokens
    268435456
    """
    return flops_of(attention_products(n_heads, head_dim), {PAIRS: n_pairs})


def causal_pairs(seq_len: Dim, window: Dim | None = None) -> Dim:
    """Pairs (t, t') with t' <= t, and t - t' < window where there is one.

    With w = min(S, window), Σ_t min(t, w) over t = 1 … S: S rows of w positions,
    less what is missing in the first rows, (w-1) + … + 1 + 0 = w·(w-1)/2

    Returns: pairs of one sequence, exact.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.3 (mask); Mistral 7B, arXiv:2310.06825,
    sec. 2 (window: their W, the position itself included).

    >>> causal_pairs(8192), causal_pairs(8192, 4096)  # Mistral 7B, without and with its window
    (33558528, 25167872)
    """
    w = seq_len if window is None else smaller(seq_len, window)
    return seq_len * w - exact_div(w * (w - 1), 2)


def chunked_pairs(seq_len: Dim, window: Dim) -> Dim:
    """Pairs (t, t') with t' <= t in the same chunk of `window` positions.

    S // window whole chunks and a rest of S % window positions, each causal inside

    Returns: pairs of one sequence, exact.
    Source: Llama 4, `attention_chunk_size` of Meta's llama-models `args.py` and of transformers.

    >>> chunked_pairs(10000, 8192)  # Llama 4: 8192·8193/2 + 1808·1809/2
    35193864
    """
    n_chunks = floor_div(seq_len, window)
    rest = seq_len - n_chunks * window
    return n_chunks * causal_pairs(window) + causal_pairs(rest)


def prefix_pairs(seq_len: Dim, prefix_len: Dim) -> Dim:
    """Pairs (t, t') with t' <= t, or t' among the first `prefix_len` positions.

    The causal pairs, and inside the prefix the other triangle: + P·(P-1)/2, for P <= S

    Returns: pairs of one sequence, exact.
    Source: Raffel et al. 2019, arXiv:1910.10683, sec. 3.2.1 and fig. 3, right.

    >>> prefix_pairs(2048, 512)  # GLM-130B's context, a quarter of it prompt
    2228992
    """
    return causal_pairs(seq_len) + exact_div(prefix_len * (prefix_len - 1), 2)


def banded_pairs(seq_len: Dim, window: Dim) -> Dim:
    """Pairs (t, t') with |t - t'| <= window // 2, the window of an encoder.

    The diagonal has S pairs, the k-th beside it S - k on either side, the S-th none.
    With r = min(window // 2, S): S + 2·Σ_k (S - k) over k = 1 … r = S·(2·r + 1) - r·(r + 1)

    Returns: pairs of one sequence, exact.
    Source: Beltagy et al. 2020, arXiv:2004.05150, sec. 3.1, their w is our window.

    >>> banded_pairs(4096, 512)  # Longformer
    2035456
    """
    r = smaller(floor_div(window, 2), seq_len)
    return seq_len * (2 * r + 1) - r * (r + 1)


def self_attention_pairs(
    kind: str,
    seq_len: Dim,
    *,
    window: Dim | None,
    chunked: bool,
    prefix_len: Dim,
) -> Dim:
    """Pairs that the mask of a self-attention keeps, for a `kind` of model.

    `window` is None in a layer that sees everything its kind allows. A window slides unless it is
    `chunked`. Only a prefix-decoder has a prefix.

    Returns: pairs of one sequence, exact.
    Source: the function of each mask.

    >>> self_attention_pairs("decoder", 8192, window=4096, chunked=False, prefix_len=0)
    25167872
    """
    if kind == "encoder":
        return seq_len * seq_len if window is None else banded_pairs(seq_len, window)
    if kind == "prefix-decoder":
        return prefix_pairs(seq_len, prefix_len)
    if window is not None and chunked:
        return chunked_pairs(seq_len, window)
    return causal_pairs(seq_len, window)


def attended_positions(kv_len: Dim, window: Dim | None = None) -> Dim:
    """Positions that the newest of `kv_len` tokens attends to, itself included: min(T, window).

    The same for sliding and chunked windows; a chunk is taken at its fullest.

    Returns: positions.
    Source: Mistral 7B, arXiv:2310.06825, sec. 2.

    >>> attended_positions(8192), attended_positions(8192, 4096)  # Mistral 7B
    (8192, 4096)
    """
    return kv_len if window is None else smaller(kv_len, window)


def cached_positions(seq_len: Dim, window: Dim | None = None) -> Dim:
    """Positions whose keys and values the next token can need: T, or min(T, window - 1).

    The next token sees itself and window - 1 others, and brings its own key and value.

    Returns: positions.
    Source: Mistral 7B, arXiv:2310.06825, sec. 2, with a rolling buffer of one entry less.

    >>> cached_positions(8192), cached_positions(8192, 4096)  # Mistral 7B
    (8192, 4095)
    """
    return seq_len if window is None else smaller(seq_len, window - 1)


def kv_cache_values(n_kv_heads: Dim, head_dim: Dim) -> Dim:
    """Values that one token leaves in the cache of one layer: a key and a value per KV head.

    2·h_kv·h_d

    Returns: values, not bytes.
    Source: Shazeer 2019, arXiv:1911.02150, sec. 2.4 and 3; their k = v is our h_d.

    >>> kv_cache_values(8, 128)  # Qwen3-32B
    2048
    """
    return 2 * n_kv_heads * head_dim


def lettered_layers(n_layers: Dim, pattern: str, letters: str) -> Dim:
    """Layers that have one of `letters`, the letters of `pattern` repeated over the layers.

    Letter i of a pattern of length p falls on the layers i, i + p, … below N: ⌈(N - i) / p⌉ =
    (N + p - 1 - i) // p of them. Sum over the letters asked for; N where it is all of them.

    Returns: a count.
    Source: Jamba, arXiv:2403.19887, sec. 3.1 (one attention layer in eight).

    >>> lettered_layers(32, "RRRRARRR", "A")  # Jamba
    4
    """
    if set(pattern) <= set(letters):
        return n_layers
    period = len(pattern)
    return sum(
        floor_div(n_layers + reach, period)
        for reach, letter in enumerate(reversed(pattern))
        if letter in letters
    )


def windowed_layers(n_layers: Dim, pattern: str) -> Dim:
    """Layers that see a window only: letter L of a pattern that is repeated over the layers.

    Returns: a count.
    Source: Gemma 3, arXiv:2503.19786, sec. 2 (LLLLLG).

    >>> windowed_layers(62, "LLLLLG")  # Gemma 3 27B
    52
    """
    return lettered_layers(n_layers, pattern, "L")
