"""Kimi delta attention (KDA): gated DeltaNet whose state decays channel by channel of the keys.

The paper's letters: H heads are our n_linear_heads (h_l), d_k = d_v our linear_head_dim (d_l), C
our linear_chunk_size (c_l). W = h_l·d_l channels.
"""

from __future__ import annotations

from metacount.formulas.convolution import convolution_weights
from metacount.formulas.dim import Dim, ceil_div, exact_div
from metacount.formulas.gated_delta import CHUNKS, ROLE, gated_delta_run
from metacount.formulas.terms import TOKENS, Product, State, Weight, flops_of


def kimi_delta_weights(
    d_model: Dim, *, n_linear_heads: Dim, linear_head_dim: Dim, conv_kernel: Dim
) -> tuple[Weight, ...]:
    """List the tensors of one Kimi delta attention mixer.

    q, k, v [W, d] each + their convolution [3·W, 1, k_c] + decay [d_l, d], [W, d_l], dt_bias W,
    A_log h_l + rate [h_l, d] + output gate [d_l, d], [W, d_l] + norm d_l + out [d, W]
    = d·(4·W + 2·d_l + h_l) + W·(3·k_c + 2·d_l + 1) + h_l + d_l

    Returns: the tensors, the norm under its own role.
    Source: Kimi Team 2025, arXiv:2510.26692, sec. 4 and fig. 3; the ranks of decay and output gate
    are the width of a head.
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(kimi_delta_weights(2304, n_linear_heads=32, linear_head_dim=128,
    ...                              conv_kernel=4))  # Kimi-Linear-48B-A3B
    39514272
    """
    width = n_linear_heads * linear_head_dim
    return (
        *(_weight(name, width, d_model, rows=TOKENS) for name in ("q_proj", "k_proj", "v_proj")),
        *convolution_weights(3 * width, conv_kernel, bias=False),
        _weight("f_a_proj", linear_head_dim, d_model, rows=TOKENS),
        _weight("f_b_proj", width, linear_head_dim, rows=TOKENS),
        _weight("dt_bias", width),
        _weight("A_log", 1, 1, n_linear_heads, 1),
        _weight("b_proj", n_linear_heads, d_model, rows=TOKENS),
        _weight("g_a_proj", linear_head_dim, d_model, rows=TOKENS),
        _weight("g_b_proj", width, linear_head_dim, rows=TOKENS),
        Weight(role="norm", name="o_norm", shape=(linear_head_dim,)),
        _weight("o_proj", d_model, width, rows=TOKENS),
    )


def _weight(name: str, *shape: Dim, rows: str = "") -> Weight:
    return Weight(role=ROLE, name=name, shape=shape, rows=rows)


def kimi_delta_products(
    *, n_linear_heads: Dim, linear_head_dim: Dim, linear_chunk_size: Dim
) -> tuple[Product, ...]:
    """List the products of activations of the delta rule in chunks; a decoded token has none.

    per chunk and head, with the inverse M of the triangle:
    M·v and M·k            2·c_l²·d_l
    from and to the state  3·c_l·d_l²: what keys and queries read, what is written
    inside the chunk       c_l²·d_l

    k·kᵀ and q·kᵀ, whose every channel has a decay of its own, and M itself are computed element by
    element in transformers' code, and so is the recurrence.

    Returns: the products.
    Source: Kimi Team 2025, arXiv:2510.26692, sec. 3; transformers' `modeling_kimi_linear.py`.
    Not counted: decays, masks, norms of queries and keys, β, and what is said above.

    >>> run = kimi_delta_run(1, 4096, conv_kernel=4, linear_chunk_size=64)
    >>> flops_of(kimi_delta_products(n_linear_heads=32, linear_head_dim=128,
    ...                              linear_chunk_size=64), run)  # Kimi-Linear-48B-A3B
    19327352832
    """
    heads, chunk = n_linear_heads, linear_chunk_size
    square = heads * chunk * chunk * linear_head_dim
    state = heads * chunk * linear_head_dim * linear_head_dim
    widths = {
        "inverse @ v": square,
        "inverse @ k": square,
        "k @ state": state,
        "q @ state": state,
        "scores @ v": square,
        "k @ v": state,
    }
    return tuple(Product(role=ROLE, name=n, width=w, per=CHUNKS) for n, w in widths.items())


def kimi_delta_run(
    batch_size: Dim,
    seq_len: Dim,
    *,
    conv_kernel: Dim,
    linear_chunk_size: Dim,
    continued: bool = False,
) -> dict[str, Dim]:
    """Count what the mixer's own tags stand for in one forward, which are those of gated DeltaNet.

    Returns: convolved positions, chunks.
    Source: `gated_delta.gated_delta_run`.

    >>> kimi_delta_run(1, 1, conv_kernel=4, linear_chunk_size=64, continued=True)
    {'convolved positions': 2, 'chunks': 0}
    """
    return gated_delta_run(
        batch_size,
        seq_len,
        conv_kernel=conv_kernel,
        linear_chunk_size=linear_chunk_size,
        continued=continued,
    )


def kimi_delta_states(
    *, n_linear_heads: Dim, linear_head_dim: Dim, conv_kernel: Dim
) -> tuple[State, ...]:
    """List the states that one mixer keeps of one sequence, however long the sequence is.

    recurrent  h_l·d_l², in float32 whatever the model's dtype
    conv       3·k_c·h_l·d_l, the inputs of the last k_c positions; the next token needs k_c - 1

    Returns: the states, by the names of the cache.
    Source: Kimi Team 2025, arXiv:2510.26692, eq. 1: a state of d_k by d_v for each head; the
    convolution's as in transformers' caches.

    >>> [state.size for state in kimi_delta_states(
    ...     n_linear_heads=32, linear_head_dim=128, conv_kernel=4)]  # Kimi-Linear-48B-A3B
    [49152, 524288]
    """
    state = (n_linear_heads, linear_head_dim, linear_head_dim)
    return (
        State(name="conv", shape=(3 * n_linear_heads * linear_head_dim, conv_kernel)),
        State(name="recurrent", shape=state, bytes_per_value=4),
    )


def kimi_delta_scan_flops(
    n_tokens: Dim,
    *,
    n_linear_heads: Dim,
    linear_head_dim: Dim,
    linear_chunk_size: Dim,
    recurrent: bool = False,
) -> Dim:
    """Count the FLOPs of the delta rule over one sequence, in one of two equivalent forms.

    recurrent:  per token and head, 2 FLOPs per multiply-add × 3 over the state: the key reads it,
                the correction is written, the query reads it = 6·n·h_l·d_l²
    chunked:    over ⌈n/c_l⌉ chunks, the last one filled up, the products of `kimi_delta_products`
                + per head 2·c_l²·d_l multiply-adds for k·kᵀ and q·kᵀ
                + c_l·(c_l - 1)·(c_l - 2)/6 for the inverse of the triangle, row by row

    Returns: FLOPs of the forward, exact.
    Source: Kimi Team 2025, arXiv:2510.26692, eq. 1 (recurrent) and sec. 3 (chunked).
    Not counted: decays, in either form; β, norms of queries and keys.

    >>> sizes = {"n_linear_heads": 32, "linear_head_dim": 128, "linear_chunk_size": 64}
    >>> [kimi_delta_scan_flops(4096, **sizes, recurrent=form)
    ...  for form in (True, False)]  # Kimi-Linear-48B-A3B, 4096 tokens
    [12884901888, 23792975872]
    """
    if recurrent:
        return 6 * n_tokens * n_linear_heads * linear_head_dim * linear_head_dim
    products = kimi_delta_products(
        n_linear_heads=n_linear_heads,
        linear_head_dim=linear_head_dim,
        linear_chunk_size=linear_chunk_size,
    )
    chunk = linear_chunk_size
    run = {CHUNKS: ceil_div(n_tokens, chunk)}
    # entry (i, j) below the diagonal sums over the i - j - 1 rows between the two
    inverse = exact_div(chunk * (chunk - 1) * (chunk - 2), 6)
    compared = 2 * chunk * chunk * linear_head_dim
    return flops_of(products, run) + 2 * run[CHUNKS] * n_linear_heads * (compared + inverse)
