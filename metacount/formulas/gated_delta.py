"""Gated DeltaNet: a state S of keys by values for each head, corrected by the delta rule.

S ← α·S + β·k·(v - (α·S)ᵀ·k)ᵀ, read by the query as Sᵀ·q. The paper's letters: d_k and d_v are our
linear_k_head_dim and linear_v_head_dim (d_lk, d_lv), C our linear_chunk_size (c_l); α decays, β is
the rate of the correction. Queries and keys have h_lk heads, values and states h_lv.
"""

from __future__ import annotations

from metacount.formulas.convolution import CONVOLVED, convolution_weights, convolved_positions
from metacount.formulas.dim import Dim, ceil_div, exact_div
from metacount.formulas.terms import TOKENS, Product, State, Weight, flops_of

ROLE = "recurrent"
CHUNKS = "chunks"  # of all sequences, the last one of each filled up


def gated_delta_weights(
    d_model: Dim,
    *,
    n_linear_k_heads: Dim,
    n_linear_v_heads: Dim,
    linear_k_head_dim: Dim,
    linear_v_head_dim: Dim,
    conv_kernel: Dim,
) -> tuple[Weight, ...]:
    """List the tensors of one gated DeltaNet mixer.

    With K = h_lk·d_lk and V = h_lv·d_lv:
    q, k [K, d] each + v [V, d] + their convolution [2·K + V, 1, k_c] + output gate [V, d]
    + rate and decay [h_lv, d] each + dt_bias and A_log h_lv each + norm d_lv + out [d, V]
    = d·(2·K + 3·V + 2·h_lv) + k_c·(2·K + V) + 2·h_lv + d_lv

    Returns: the tensors, the norm under its own role.
    Source: Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, sec. 3.4 and fig. 1; more value heads
    than key heads are Qwen3-Next's.
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(gated_delta_weights(2048, n_linear_k_heads=16, n_linear_v_heads=32,
    ...                               linear_k_head_dim=128, linear_v_head_dim=128,
    ...                               conv_kernel=4))  # Qwen3-Next-80B-A3B
    33718464
    """
    key, value = n_linear_k_heads * linear_k_head_dim, n_linear_v_heads * linear_v_head_dim
    return (
        _weight("q_proj", key, d_model, rows=TOKENS),
        _weight("k_proj", key, d_model, rows=TOKENS),
        _weight("v_proj", value, d_model, rows=TOKENS),
        _weight("a_proj", n_linear_v_heads, d_model, rows=TOKENS),
        _weight("b_proj", n_linear_v_heads, d_model, rows=TOKENS),
        _weight("g_proj", value, d_model, rows=TOKENS),
        *convolution_weights(2 * key + value, conv_kernel, bias=False),
        _weight("dt_bias", n_linear_v_heads),
        _weight("A_log", n_linear_v_heads),
        Weight(role="norm", name="o_norm", shape=(linear_v_head_dim,)),
        _weight("o_proj", d_model, value, rows=TOKENS),
    )


def _weight(name: str, *shape: Dim, rows: str = "") -> Weight:
    return Weight(role=ROLE, name=name, shape=shape, rows=rows)


def gated_delta_products(
    *,
    n_linear_v_heads: Dim,
    linear_k_head_dim: Dim,
    linear_v_head_dim: Dim,
    linear_chunk_size: Dim,
) -> tuple[Product, ...]:
    """List the products of activations of the delta rule in chunks; a decoded token has none.

    per chunk and value head, the triangle (I + A)⁻¹ solved against values and keys:
    k·kᵀ and q·kᵀ          2·c_l²·d_lk
    solved triangle        c_l·(c_l - 1)/2·(d_lk + d_lv)
    from and to the state  3·c_l·d_lk·d_lv: what keys and queries read, what is written
    inside the chunk       c_l²·d_lv

    The recurrence, which runs when one token is decoded, is computed element by element.

    Returns: the products.
    Source: Yang et al. 2024, arXiv:2412.06464, sec. 3.3; arXiv:2406.06484, sec. 3 (the
    triangle), which transformers solves rather than inverts.
    Not counted: decays, masks, norms of queries and keys, β.

    >>> run = gated_delta_run(1, 4096, conv_kernel=4, linear_chunk_size=64)
    >>> flops_of(gated_delta_products(n_linear_v_heads=32, linear_k_head_dim=128,
    ...                               linear_v_head_dim=128, linear_chunk_size=64),
    ...          run)  # Qwen3-Next-80B-A3B, 4096 tokens
    21441282048
    """
    heads, chunk = n_linear_v_heads, linear_chunk_size
    square, state = heads * chunk * chunk, heads * linear_k_head_dim * linear_v_head_dim
    triangle = heads * exact_div(chunk * (chunk - 1), 2)
    widths = {
        "k @ k": square * linear_k_head_dim,
        "q @ k": square * linear_k_head_dim,
        "triangle solved for v": triangle * linear_v_head_dim,
        "triangle solved for k": triangle * linear_k_head_dim,
        "k @ state": chunk * state,
        "q @ state": chunk * state,
        "scores @ v": square * linear_v_head_dim,
        "k @ v": chunk * state,
    }
    return tuple(Product(role=ROLE, name=n, width=w, per=CHUNKS) for n, w in widths.items())


def gated_delta_run(
    batch_size: Dim,
    seq_len: Dim,
    *,
    conv_kernel: Dim,
    linear_chunk_size: Dim,
    continued: bool = False,
) -> dict[str, Dim]:
    """Count what the mixer's own tags (`rows`, `per`) stand for in one forward.

    from nothing:  B·⌈S/c_l⌉ chunks
    continued:     one token a sequence, by the recurrence, no chunk

    Returns: convolved positions, chunks.
    Source: arXiv:2412.06464, sec. 3.3; `convolution.convolved_positions`.

    >>> gated_delta_run(1, 4097, conv_kernel=4, linear_chunk_size=64)
    {'convolved positions': 4100, 'chunks': 65}
    """
    positions = convolved_positions(batch_size, seq_len, conv_kernel, continued=continued)
    chunks = 0 if continued else batch_size * ceil_div(seq_len, linear_chunk_size)
    return {CONVOLVED: positions, CHUNKS: chunks}


def gated_delta_states(
    *,
    n_linear_k_heads: Dim,
    n_linear_v_heads: Dim,
    linear_k_head_dim: Dim,
    linear_v_head_dim: Dim,
    conv_kernel: Dim,
) -> tuple[State, ...]:
    """List the states that one mixer keeps of one sequence, however long the sequence is.

    recurrent  h_lv·d_lk·d_lv, in float32 whatever the model's dtype
    conv       k_c·(2·h_lk·d_lk + h_lv·d_lv), the inputs of the last k_c positions; the next token
               needs k_c - 1 of them

    Returns: the states, by the names of the cache.
    Source: Yang et al. 2024, arXiv:2412.06464, eq. 10: a state of d_k by d_v for each head; the
    convolution's as in transformers' caches.

    >>> [state.size for state in gated_delta_states(
    ...     n_linear_k_heads=16, n_linear_v_heads=32, linear_k_head_dim=128,
    ...     linear_v_head_dim=128, conv_kernel=4)]  # Qwen3-Next-80B-A3B
    [32768, 524288]
    """
    channels = 2 * n_linear_k_heads * linear_k_head_dim + n_linear_v_heads * linear_v_head_dim
    state = (n_linear_v_heads, linear_k_head_dim, linear_v_head_dim)
    return (
        State(name="conv", shape=(channels, conv_kernel)),
        State(name="recurrent", shape=state, bytes_per_value=4),
    )


def gated_delta_scan_flops(
    n_tokens: Dim,
    *,
    n_linear_v_heads: Dim,
    linear_k_head_dim: Dim,
    linear_v_head_dim: Dim,
    linear_chunk_size: Dim,
    recurrent: bool = False,
) -> Dim:
    """Count the FLOPs of the delta rule over one sequence, in one of two equivalent forms.

    recurrent:  per token and head, 2 FLOPs per multiply-add × 3 over the state: the key reads it,
                the correction is written, the query reads it = 6·n·h_lv·d_lk·d_lv
    chunked:    the products of `gated_delta_products` over ⌈n/c_l⌉ chunks, the last one filled up

    Returns: FLOPs of the forward, exact.
    Source: Yang et al. 2024, arXiv:2412.06464, eq. 10 (recurrent) and sec. 3.3 (chunked).
    Not counted: decays, in either form; β, norms of queries and keys.

    >>> sizes = {"n_linear_v_heads": 32, "linear_k_head_dim": 128, "linear_v_head_dim": 128,
    ...          "linear_chunk_size": 64}  # Qwen3-Next-80B-A3B, 4096 tokens
    >>> [gated_delta_scan_flops(4096, **sizes, recurrent=form) for form in (True, False)]
    [12884901888, 21441282048]
    """
    if recurrent:
        return 6 * n_tokens * n_linear_v_heads * linear_k_head_dim * linear_v_head_dim
    products = gated_delta_products(
        n_linear_v_heads=n_linear_v_heads,
        linear_k_head_dim=linear_k_head_dim,
        linear_v_head_dim=linear_v_head_dim,
        linear_chunk_size=linear_chunk_size,
    )
    return flops_of(products, {CHUNKS: ceil_div(n_tokens, linear_chunk_size)})
