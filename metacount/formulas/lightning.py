"""Lightning attention: a state S of keys by values for each head, S ← λ·S + k·vᵀ, read as Sᵀ·q.

The paper's letters: h heads of width d_h are our n_linear_heads and linear_head_dim (h_l, d_l), B
our linear_chunk_size (c_l); λ is fixed. W = h_l·d_l channels.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, floor_div
from metacount.formulas.terms import TOKENS, Product, State, Weight, flops_of

ROLE = "recurrent"
CHUNK_PAIRS = "pairs of positions in a chunk"  # of all sequences, masked or not


def lightning_weights(
    d_model: Dim, *, n_linear_heads: Dim, linear_head_dim: Dim
) -> tuple[Weight, ...]:
    """List the tensors of one lightning attention mixer.

    q, k, v [3·W, d] + norm W + output gate [W, d] + out [d, W] = 5·d·W + W

    Returns: the tensors, the norm under its own role.
    Source: MiniMax 2025, arXiv:2501.08313, sec. 2.2 and fig. 3.
    Not counted: nothing; the decays are fixed.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(lightning_weights(6144, n_linear_heads=64,
    ...                             linear_head_dim=128))  # MiniMax-Text-01
    251666432
    """
    width = n_linear_heads * linear_head_dim
    return (
        _weight("qkv_proj", 3 * width, d_model),
        Weight(role="norm", name="o_norm", shape=(width,)),
        _weight("output_gate", width, d_model),
        _weight("o_proj", d_model, width),
    )


def _weight(name: str, *shape: Dim) -> Weight:
    return Weight(role=ROLE, name=name, shape=shape, rows=TOKENS)


def lightning_products(*, n_linear_heads: Dim, linear_head_dim: Dim) -> tuple[Product, ...]:
    """List the products of activations in chunks; the recurrence has those per token alone.

    per pair of positions in a chunk, and head:  q·kᵀ and scores·v          2·d_l
    per token and head:                          q·S and k·vᵀ               2·d_l²

    Returns: the products.
    Source: Qin et al. 2024, arXiv:2401.04658, algorithm 1; MiniMax 2025, arXiv:2501.08313,
    algorithm 1.
    Not counted: decays, masks, activations, the norm.

    >>> run = lightning_run(1, 4096, linear_chunk_size=256)
    >>> flops_of(lightning_products(n_linear_heads=64, linear_head_dim=128),
    ...          {TOKENS: 4096, **run})  # MiniMax-Text-01, 4096 tokens
    51539607552
    """
    pair = n_linear_heads * linear_head_dim
    state = pair * linear_head_dim
    return (
        Product(role=ROLE, name="q @ k", width=pair, per=CHUNK_PAIRS),
        Product(role=ROLE, name="scores @ v", width=pair, per=CHUNK_PAIRS),
        Product(role=ROLE, name="q @ state", width=state, per=TOKENS),
        Product(role=ROLE, name="k @ v", width=state, per=TOKENS),
    )


def lightning_run(
    batch_size: Dim, seq_len: Dim, *, linear_chunk_size: Dim, continued: bool = False
) -> dict[str, Dim]:
    """Count what the mixer's own tag (`per`) stands for in one forward.

    from nothing:  per sequence S // c_l chunks of c_l² pairs, and (S % c_l)² in the last one
    continued:     step by step, no pairs

    Returns: pairs of positions in a chunk.
    Source: MiniMax 2025, arXiv:2501.08313, algorithm 1; transformers' code does not fill up the
    last chunk.

    >>> lightning_run(1, 4097, linear_chunk_size=256)
    {'pairs of positions in a chunk': 1048577}
    """
    if continued:
        return {CHUNK_PAIRS: 0}
    chunks = floor_div(seq_len, linear_chunk_size)
    rest = seq_len - chunks * linear_chunk_size
    whole = chunks * linear_chunk_size * linear_chunk_size
    return {CHUNK_PAIRS: batch_size * (whole + rest * rest)}


def lightning_states(*, n_linear_heads: Dim, linear_head_dim: Dim) -> tuple[State, ...]:
    """List the state that one mixer keeps of one sequence, however long the sequence is.

    recurrent  h_l·d_l², in the model's dtype, as transformers keeps it

    Returns: the state, by the name of the cache.
    Source: MiniMax 2025, arXiv:2501.08313, sec. 2.2: KV of d by d for each head.

    >>> [state.size for state in lightning_states(
    ...     n_linear_heads=64, linear_head_dim=128)]  # MiniMax-Text-01
    [1048576]
    """
    return (State(name="recurrent", shape=(n_linear_heads, linear_head_dim, linear_head_dim)),)


def lightning_scan_flops(
    n_tokens: Dim,
    *,
    n_linear_heads: Dim,
    linear_head_dim: Dim,
    linear_chunk_size: Dim,
    recurrent: bool = False,
) -> Dim:
    """Count the FLOPs of the scan over one sequence, in one of two equivalent forms.

    recurrent:  per token and head, 2 FLOPs per multiply-add × 2 over the state: k·vᵀ is written,
                the query reads it = 4·n·h_l·d_l²
    chunked:    the same, and q·kᵀ and scores·v inside the chunks, masked or not

    Returns: FLOPs of the forward, exact.
    Source: Qin et al. 2024, arXiv:2401.04658, sec. 3; MiniMax 2025, arXiv:2501.08313, sec. 2.2.
    Not counted: decays, in either form.

    >>> sizes = {"n_linear_heads": 64, "linear_head_dim": 128, "linear_chunk_size": 256}
    >>> [lightning_scan_flops(4096, **sizes, recurrent=form)
    ...  for form in (True, False)]  # MiniMax-Text-01, 4096 tokens
    [17179869184, 51539607552]
    """
    products = lightning_products(n_linear_heads=n_linear_heads, linear_head_dim=linear_head_dim)
    run = lightning_run(1, n_tokens, linear_chunk_size=linear_chunk_size, continued=recurrent)
    return flops_of(products, {TOKENS: n_tokens, **run})
