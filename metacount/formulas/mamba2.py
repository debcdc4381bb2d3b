"""Mamba-2: state space duality. One decay a head, so that chunks are matrix products.

The paper's letters: P is our ssm_head_dim (p_s), N our ssm_state_dim (d_s), Q our ssm_chunk_size
(c_s), H our n_ssm_heads (h_s), G our n_ssm_groups (g_s). d_i = h_s·p_s channels.
"""

from __future__ import annotations

from metacount.formulas.convolution import CONVOLVED, convolution_weights, convolved_positions
from metacount.formulas.dim import Dim, ceil_div
from metacount.formulas.terms import TOKENS, Product, Weight, flops_of

ROLE = "recurrent"
# What a product of activations is computed for, over all sequences.
CHUNKS = "chunks"  # each chunk, the last one filled up
CHUNK_PAIRS = "pairs of chunk states"  # each pair of the states before and after chunks
STEPS = "recurrent steps"  # each token of a decode


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
    """Tensors of one Mamba-2 mixer.

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
    """Products of activations of the scan: in chunks, and for a decoded token.

    per chunk and head  C·Bᵀ                [c_s, d_s] @ [d_s, c_s]   c_s²·d_s
                        scores @ x          [c_s, c_s] @ [c_s, p_s]   c_s²·p_s
                        Bᵀ @ x              [d_s, c_s] @ [c_s, p_s]   c_s·d_s·p_s, its state
                        C @ state           [c_s, d_s] @ [d_s, p_s]   c_s·d_s·p_s
    per pair of chunk states and head, the state handed on            d_s·p_s
    per decoded token and head, the state read with C                 d_s·p_s

    B and C are repeated for every head first: the groups save nothing here.

    Returns: the products.
    Source: Dao, Gu 2024, arXiv:2405.21060, listing 1 and eq. 2 (decode).
    Not counted: decays and masks, and the update of the state in decode, element by element.

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
        Product(role=ROLE, name="state @ C", width=state, per=STEPS),
    )


def mamba2_run(
    batch_size: Dim,
    seq_len: Dim,
    *,
    conv_kernel: Dim,
    ssm_chunk_size: Dim,
    continued: bool = False,
) -> dict[str, Dim]:
    """The numbers behind the tags of Mamba-2's terms, in one forward.

    from nothing:  B·⌈S/c_s⌉ chunks; each chunk's state reaches those after it by one product over
                   all states before and after chunks, B·(⌈S/c_s⌉ + 1)² pairs, masked or not
    continued:     one token a sequence, B recurrent steps

    Returns: convolved positions, chunks, pairs of chunk states, recurrent steps.
    Source: Dao, Gu 2024, arXiv:2405.21060, listing 1; `convolution.convolved_positions`.

    >>> mamba2_run(1, 2049, conv_kernel=4, ssm_chunk_size=256)
    {'convolved positions': 2052, 'chunks': 9, 'pairs of chunk states': 100, 'recurrent steps': 0}
    """
    positions = convolved_positions(batch_size, seq_len, conv_kernel, continued=continued)
    if continued:
        return {CONVOLVED: positions, CHUNKS: 0, CHUNK_PAIRS: 0, STEPS: batch_size * seq_len}
    chunks = ceil_div(seq_len, ssm_chunk_size)
    pairs = batch_size * (chunks + 1) * (chunks + 1)
    return {CONVOLVED: positions, CHUNKS: batch_size * chunks, CHUNK_PAIRS: pairs, STEPS: 0}


def mamba2_state_values(n_ssm_heads: Dim, ssm_head_dim: Dim, ssm_state_dim: Dim) -> Dim:
    """Values of the recurrent state of one sequence in one layer, however long it is.

    h_s·p_s·d_s, in float32 whatever the model's dtype

    Returns: values, not bytes.
    Source: Dao, Gu 2024, arXiv:2405.21060, sec. 7.2: a state (N, P) for each head.

    >>> mamba2_state_values(80, 64, 128)  # Mamba-2 2.7B
    655360
    """
    return n_ssm_heads * ssm_head_dim * ssm_state_dim


def mamba2_conv_values(
    n_ssm_heads: Dim,
    ssm_head_dim: Dim,
    n_ssm_groups: Dim,
    ssm_state_dim: Dim,
    conv_kernel: Dim,
) -> Dim:
    """Values of the convolution's state of one sequence in one layer.

    k_c·(h_s·p_s + 2·g_s·d_s), the inputs of the last k_c positions; the next token needs k_c - 1

    Returns: values, not bytes.
    Source: `conv_state` of state-spaces/mamba's `mamba2.py` and of transformers' caches.

    >>> mamba2_conv_values(80, 64, 1, 128, 4)  # Mamba-2 2.7B
    21504
    """
    return conv_kernel * (n_ssm_heads * ssm_head_dim + 2 * n_ssm_groups * ssm_state_dim)


def mamba2_scan_flops(
    n_tokens: Dim,
    *,
    n_ssm_heads: Dim,
    ssm_head_dim: Dim,
    ssm_state_dim: Dim,
    ssm_chunk_size: Dim,
    form: str = "chunked",
) -> Dim:
    """FLOPs of the scan of one sequence of n tokens, in one of two forms of the same function.

    recurrent:  per token, 2 FLOPs per multiply-add × 3 over the state: it decays, the input is
                added, C reads it = 6·n·h_s·p_s·d_s
    chunked:    the five products of `mamba2_products` over ⌈n/c_s⌉ chunks, the last one filled up

    Returns: FLOPs of the forward, exact.
    Source: Dao, Gu 2024, arXiv:2405.21060, eq. 2 (recurrent), listing 1 and sec. 6.3 (chunked).
    Not counted: decays and masks of the chunked form, the softplus of Δ, D·x, the gate.

    >>> sizes = {"n_ssm_heads": 80, "ssm_head_dim": 64, "ssm_state_dim": 128,
    ...          "ssm_chunk_size": 256}  # Mamba-2 2.7B, 2048 tokens
    >>> [mamba2_scan_flops(2048, **sizes, form=form) for form in ("recurrent", "chunked")]
    [8053063680, 21581004800]
    """
    if form == "recurrent":
        return 6 * n_tokens * mamba2_state_values(n_ssm_heads, ssm_head_dim, ssm_state_dim)
    products = mamba2_products(
        n_ssm_heads=n_ssm_heads,
        ssm_head_dim=ssm_head_dim,
        ssm_state_dim=ssm_state_dim,
        ssm_chunk_size=ssm_chunk_size,
    )
    return flops_of(products, mamba2_run(1, n_tokens, conv_kernel=1, ssm_chunk_size=ssm_chunk_size))
