"""Mamba-2: state space duality. One decay a head, so that chunks are matrix products.

The paper's letters: P is our ssm_head_dim (p_s), N our ssm_state_dim (d_s), Q our ssm_chunk_size
(c_s), H our n_ssm_heads (h_s), G our n_ssm_groups (g_s). d_i = h_s·p_s channels.
"""

from __future__ import annotations

from metacount.formulas.convolution import (
    CONVOLVED,
    continued_positions,
    convolution_weights,
    convolved_positions,
)
from metacount.formulas.dim import Dim, ceil_div
from metacount.formulas.terms import TOKENS, Product, State, Weight, flops_of

ROLE = "recurrent"
# What a product of activations is computed for, over all sequences.
CHUNKS = "chunks"  # each chunk, the last one filled up
CHUNK_PAIRS = "pairs of chunk states"  # each pair of the states before and after chunks


def mamba2_weights(
    d_model: Dim,
    *,
    n_ssm_heads: Dim,
    ssm_head_dim: Dim,
    n_ssm_groups: Dim,
    ssm_state_dim: Dim,
    conv_kernel: Dim,
    conv_bias: bool = True,
    in_bias: bool = False,
    out_bias: bool = False,
    norm: bool = True,
) -> tuple[Weight, ...]:
    """List the tensors of one Mamba-2 mixer.

    With d_i = h_s·p_s and w = d_i + 2·g_s·d_s convolved channels (x, B and C):
    in [d_i + w + h_s, d] + conv [w, 1, k_c] + dt_bias, A_log, D h_s each + out [d, d_i]
    + gated norm d_i
    (+ w with conv_bias, + d_i + w + h_s with in_bias, + d with out_bias, - d_i without the norm)

    Returns: the tensors, the norm under its own role.
    Source: Dao, Gu 2024, arXiv:2405.21060, sec. 7.1 and fig. 6 (parallel projections, norm),
    sec. 7.2 (heads; g_s groups share B and C, as key/value heads are shared).
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(mamba2_weights(2560, n_ssm_heads=80, ssm_head_dim=64, n_ssm_groups=1,
    ...                          ssm_state_dim=128, conv_kernel=4))  # Mamba-2 2.7B
    40214000
    """
    d_inner = n_ssm_heads * ssm_head_dim
    convolved = d_inner + 2 * n_ssm_groups * ssm_state_dim
    projected = d_inner + convolved + n_ssm_heads
    weights = [
        _weight("in_proj", projected, d_model, rows=TOKENS),
        *convolution_weights(convolved, conv_kernel, bias=conv_bias),
        *(_weight(name, n_ssm_heads) for name in ("dt_bias", "A_log", "D")),
        _weight("out_proj", d_model, d_inner, rows=TOKENS),
    ]
    if in_bias:
        weights.append(_weight("in_proj.bias", projected))
    if out_bias:
        weights.append(_weight("out_proj.bias", d_model))
    if norm:
        weights.append(Weight(role="norm", name="norm", shape=(d_inner,)))
    return tuple(weights)


def _weight(name: str, *shape: Dim, rows: str = "") -> Weight:
    return Weight(role=ROLE, name=name, shape=shape, rows=rows)


def mamba2_products(
    *, n_ssm_heads: Dim, ssm_head_dim: Dim, ssm_state_dim: Dim, ssm_chunk_size: Dim
) -> tuple[Product, ...]:
    """List the products of activations of the scan in chunks.

    per chunk and head  C·Bᵀ                [c_s, d_s] @ [d_s, c_s]   c_s²·d_s
                        scores @ x          [c_s, c_s] @ [c_s, p_s]   c_s²·p_s
                        Bᵀ @ x              [d_s, c_s] @ [c_s, p_s]   c_s·d_s·p_s, its state
                        C @ state           [c_s, d_s] @ [d_s, p_s]   c_s·d_s·p_s
    per pair of chunk states and head, the state handed on            d_s·p_s

    B and C are repeated for every head first: the groups save nothing here.

    Returns: the products.
    Source: Dao, Gu 2024, arXiv:2405.21060, listing 1.
    Not counted: decays and masks.

    >>> run = mamba2_run(1, 2048, conv_kernel=4, ssm_chunk_size=256)
    >>> flops_of(mamba2_products(n_ssm_heads=80, ssm_head_dim=64, ssm_state_dim=128,
    ...                          ssm_chunk_size=256), run)  # Mamba-2 2.7B, 2048 tokens
    21581004800
    """
    state = n_ssm_heads * ssm_head_dim * ssm_state_dim
    square = n_ssm_heads * ssm_chunk_size * ssm_chunk_size
    return (
        Product(role=ROLE, name="C @ B", width=square * ssm_state_dim, per=CHUNKS),
        Product(role=ROLE, name="scores @ x", width=square * ssm_head_dim, per=CHUNKS),
        Product(role=ROLE, name="B @ x", width=ssm_chunk_size * state, per=CHUNKS),
        Product(role=ROLE, name="C @ chunk state", width=ssm_chunk_size * state, per=CHUNKS),
        Product(role=ROLE, name="chunk states", width=state, per=CHUNK_PAIRS),
    )


def mamba2_decode_products(
    *, n_ssm_heads: Dim, ssm_head_dim: Dim, ssm_state_dim: Dim
) -> tuple[Product, ...]:
    """List the products of activations of one step of the recurrence: the state read with C.

    per token and head [p_s, d_s] @ [d_s, 1]

    Returns: the products.
    Source: Dao, Gu 2024, arXiv:2405.21060, eq. 2.
    Not counted: the update of the state, which is element by element, and what makes its factors.

    >>> flops_of(mamba2_decode_products(n_ssm_heads=80, ssm_head_dim=64, ssm_state_dim=128),
    ...          {TOKENS: 1})  # Mamba-2 2.7B
    1310720
    """
    width = n_ssm_heads * ssm_head_dim * ssm_state_dim
    return (Product(role=ROLE, name="state @ C", width=width, per=TOKENS),)


def mamba2_run(
    batch_size: Dim, seq_len: Dim, *, conv_kernel: Dim, ssm_chunk_size: Dim
) -> dict[str, Dim]:
    """Count what Mamba-2's own words (`rows`, `per`) stand for in a forward from nothing.

    B·⌈S/c_s⌉ chunks; each chunk's state reaches those after it by one product over all states
    before and after chunks, B·(⌈S/c_s⌉ + 1)² pairs, masked or not

    Returns: convolved positions, chunks, pairs of chunk states.
    Source: Dao, Gu 2024, arXiv:2405.21060, listing 1; `convolution.convolved_positions`.

    >>> mamba2_run(1, 2049, conv_kernel=4, ssm_chunk_size=256)
    {'convolved positions': 2052, 'chunks': 9, 'pairs of chunk states': 100}
    """
    positions = convolved_positions(batch_size, seq_len, conv_kernel)
    return {CONVOLVED: positions, **_chunks_of(batch_size, seq_len, ssm_chunk_size)}


def _chunks_of(batch_size: Dim, seq_len: Dim, ssm_chunk_size: Dim) -> dict[str, Dim]:
    chunks = ceil_div(seq_len, ssm_chunk_size)
    return {CHUNKS: batch_size * chunks, CHUNK_PAIRS: batch_size * (chunks + 1) * (chunks + 1)}


def mamba2_decode_run(batch_size: Dim) -> dict[str, Dim]:
    """Count what Mamba-2's own words stand for where one token a sequence is decoded.

    Returns: convolved positions.
    Source: `convolution.continued_positions`.

    >>> mamba2_decode_run(1)
    {'convolved positions': 2}
    """
    return {CONVOLVED: continued_positions(batch_size, 1)}


def mamba2_states(
    *,
    n_ssm_heads: Dim,
    ssm_head_dim: Dim,
    n_ssm_groups: Dim,
    ssm_state_dim: Dim,
    conv_kernel: Dim,
) -> tuple[State, ...]:
    """List the states that one mixer keeps of one sequence, however long the sequence is.

    recurrent  h_s·p_s·d_s, in float32 whatever the model's dtype
    conv       k_c·(h_s·p_s + 2·g_s·d_s), the inputs of the last k_c positions; the next token
               needs k_c - 1 of them

    Returns: the states, by the names of the cache.
    Source: Dao, Gu 2024, arXiv:2405.21060, sec. 7.2: a state (N, P) for each head; `conv_state` of
    state-spaces/mamba's `mamba2.py` and of transformers' caches.

    >>> [state.size for state in mamba2_states(n_ssm_heads=80, ssm_head_dim=64, n_ssm_groups=1,
    ...                                        ssm_state_dim=128, conv_kernel=4)]  # 2.7B
    [21504, 655360]
    """
    convolved = n_ssm_heads * ssm_head_dim + 2 * n_ssm_groups * ssm_state_dim
    shape = (n_ssm_heads, ssm_head_dim, ssm_state_dim)
    return (
        State(name="conv", shape=(convolved, conv_kernel)),
        State(name="recurrent", shape=shape, bytes_per_value=4),
    )


def mamba2_scan_flops(
    n_tokens: Dim,
    *,
    n_ssm_heads: Dim,
    ssm_head_dim: Dim,
    ssm_state_dim: Dim,
    ssm_chunk_size: Dim,
    recurrent: bool = False,
) -> Dim:
    """Count the FLOPs of the scan of a sequence of n tokens, in one of two equivalent forms.

    recurrent:  per token, 2 FLOPs per multiply-add × 2 over the state: the input is added, C
                reads it = 4·n·h_s·p_s·d_s
    chunked:    the five products of `mamba2_products` over ⌈n/c_s⌉ chunks, the last one filled up

    Returns: FLOPs of the forward, exact.
    Source: Dao, Gu 2024, arXiv:2405.21060, eq. 2 (recurrent), listing 1 and sec. 6.3 (chunked).
    Not counted: decays, in either form; masks, the softplus of Δ, D·x, the gate.

    >>> sizes = {"n_ssm_heads": 80, "ssm_head_dim": 64, "ssm_state_dim": 128,
    ...          "ssm_chunk_size": 256}  # Mamba-2 2.7B, 2048 tokens
    >>> [mamba2_scan_flops(2048, **sizes, recurrent=form) for form in (True, False)]
    [5368709120, 21581004800]
    """
    if recurrent:
        return 4 * n_tokens * n_ssm_heads * ssm_head_dim * ssm_state_dim
    products = mamba2_products(
        n_ssm_heads=n_ssm_heads,
        ssm_head_dim=ssm_head_dim,
        ssm_state_dim=ssm_state_dim,
        ssm_chunk_size=ssm_chunk_size,
    )
    return flops_of(products, _chunks_of(1, n_tokens, ssm_chunk_size))
