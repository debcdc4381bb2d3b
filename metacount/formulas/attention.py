"""Attention with h query heads over h_kv key/value heads: MHA (h_kv = h), GQA, MQA (h_kv = 1)."""

from __future__ import annotations

from metacount.formulas.dim import Dim, floor_div
from metacount.formulas.masks import attended_positions as attended_positions
from metacount.formulas.masks import banded_pairs as banded_pairs
from metacount.formulas.masks import cached_positions as cached_positions
from metacount.formulas.masks import causal_pairs as causal_pairs
from metacount.formulas.masks import chunked_pairs as chunked_pairs
from metacount.formulas.masks import prefix_pairs as prefix_pairs
from metacount.formulas.masks import self_attention_pairs as self_attention_pairs
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
    output_gate: bool = False,
    cross: bool = False,
    d_input: Dim | None = None,
    borrows: bool = False,
) -> tuple[Weight, ...]:
    """List the tensors of one attention layer; in a cross-attention, k and v read the source.

    q [h·h_d, d], k and v [h_kv·h_d, d], o [d, h·h_d], a bias of as many values as rows, h sinks;
    with an output gate q has twice the rows; q, k and v read `d_input` values where it is not d;
    a layer that `borrows` the keys and values of another has no k and v

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
    read = d_model if d_input is None else d_input
    each = (
        ("q_proj", (2 if output_gate else 1) * q_width, read, TOKENS, q_bias),
        ("k_proj", kv_width, read, SOURCE if cross else TOKENS, k_bias),
        ("v_proj", kv_width, read, SOURCE if cross else TOKENS, v_bias),
        ("o_proj", d_model, q_width, TOKENS, o_bias),
    )
    found: list[Weight] = []
    for name, n_rows, n_columns, rows, bias in each:
        if borrows and name in ("k_proj", "v_proj"):
            continue
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
    output_gate: bool = False,
) -> Dim:
    """Count the parameters of one attention layer.

    q [h·h_d, d] + k, v [h_kv·h_d, d] + o [d, h·h_d] = 2·d·h_d·(h + h_kv)
    (+ h·h_d, h_kv·h_d, h_kv·h_d, d with a bias on q, k, v, o;   + h with one sink per head;
     with an output gate h·h_d more rows of q)

    Returns: parameters, exact; without the weights of a QK-norm, see `norm.qk_norm_params`.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.2, their d_k = d_v is our h_d;
    Ainslie et al. 2023, arXiv:2305.13245, sec. 2.2, their G groups are our h_kv;
    gpt-oss model card, arXiv:2508.10925, sec. 2.2 (sinks); Qiu et al. 2025, arXiv:2505.06708
    (output gate).

    >>> attention_params(4096, 32, 32, 128)  # LLaMA-7B
    67108864
    >>> attention_params(5120, 64, 8, 128)  # Qwen3-32B
    94371840
    >>> attention_params(2048, 16, 2, 256, output_gate=True)  # Qwen3-Next-80B-A3B
    27262976
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
            output_gate=output_gate,
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
    """Count the FLOPs of the four projections of one attention layer.

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
    """List the two products of each pair of positions (`per`): scores q·kᵀ, weighted sums p·v.

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
    """Count the FLOPs of the two products between positions: scores q·kᵀ and the weighted sum p·v.

    per head and pair of positions, 2 FLOPs per multiply-add × 2 products × h_d
    = 4·n_pairs·h·h_d

    Returns: FLOPs of the forward, exact; h_kv does not matter.
    Source: Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
    Not counted: scaling, mask, softmax, sinks.

    >>> attention_pair_flops(128 * 128, 32, 128)  # LLaMA-7B, 128 tokens
    268435456
    """
    return flops_of(attention_products(n_heads, head_dim), {PAIRS: n_pairs})


def kv_cache_values(n_kv_heads: Dim, head_dim: Dim) -> Dim:
    """Count the values that one token leaves in one layer's cache: a key and a value per KV head.

    2·h_kv·h_d

    Returns: values, not bytes.
    Source: Shazeer 2019, arXiv:1911.02150, sec. 2.4 and 3; their k = v is our h_d.

    >>> kv_cache_values(8, 128)  # Qwen3-32B
    2048
    """
    return 2 * n_kv_heads * head_dim


def lettered_layers(n_layers: Dim, pattern: str, letters: str) -> Dim:
    """Count the layers whose letter is one of `letters`, `pattern` repeated over the layers.

    Letter i of a pattern of length p falls on the layers i, i + p, … below N: ⌈(N - i) / p⌉ =
    (N + p - 1 - i) // p of them. Sum over the letters asked for, or N less the sum over the others
    where these are fewer.

    Returns: a count.
    Source: Jamba, arXiv:2403.19887, sec. 3.1 (one attention layer in eight).

    >>> lettered_layers(32, "RRRRARRR", "A")  # Jamba
    4
    """
    period = len(pattern)
    reaches = [reach for reach, letter in enumerate(reversed(pattern)) if letter in letters]
    others = [reach for reach in range(period) if reach not in reaches]
    if len(others) < len(reaches):
        return n_layers - sum(floor_div(n_layers + reach, period) for reach in others)
    return sum(floor_div(n_layers + reach, period) for reach in reaches)


def windowed_layers(n_layers: Dim, pattern: str) -> Dim:
    """Count the layers that see a window only: letter L of a pattern repeated over the layers.

    Returns: a count.
    Source: Gemma 3, arXiv:2503.19786, sec. 2 (LLLLLG).

    >>> windowed_layers(62, "LLLLLG")  # Gemma 3 27B
    52
    """
    if set(pattern) == {"L"}:
        return n_layers
    period = len(pattern)
    return sum(
        floor_div(n_layers + reach, period)
        for reach, letter in enumerate(reversed(pattern))
        if letter == "L"
    )
