"""DeepSeek-V3.2's lightning indexer: a small scorer that picks the positions attention reads.

A query's score of a position is Σ_j w_j·relu(q_j·k) over h_i small heads with one key for all of
them; attention then runs over the k_i best positions only. Three counts, each under its name:
attention over every pair (dense), over the pairs that are left (selected), and the index itself.
"""

from __future__ import annotations

from metacount.formulas.attention import causal_pairs
from metacount.formulas.dim import Dim, smaller
from metacount.formulas.terms import PAIRS, TOKENS, Product, Weight, flops_of, matrix

BLOCK = "self_attn.indexer"


def indexer_weights(
    d_model: Dim, *, q_lora_rank: Dim, n_index_heads: Dim, index_head_dim: Dim
) -> tuple[Weight, ...]:
    """Tensors of one indexer.

    q [h_i·d_i, r_q] + k [d_i, d] + weights [h_i, d], and a LayerNorm with bias over keys, 2·d_i

    Returns: the tensors.
    Source: DeepSeek-V3.2, arXiv:2512.02556, sec. 2.1, eq. 1; their H^I is our h_i, d^I our d_i.
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(indexer_weights(7168, q_lora_rank=1536, n_index_heads=64,
    ...                           index_head_dim=128))  # DeepSeek-V3.2
    13959424
    """
    q_width = n_index_heads * index_head_dim
    shapes = {
        "wq_b": (q_width, q_lora_rank),
        "wk": (index_head_dim, d_model),
        "weights_proj": (n_index_heads, d_model),
    }
    found: list[Weight] = []
    for name, shape in shapes.items():
        found += matrix(f"{BLOCK}.{name}", "attention", shape, TOKENS)
    for leaf in ("weight", "bias"):
        name = f"{BLOCK}.k_norm.{leaf}"
        found.append(Weight(role="norm", name=name, shape=(index_head_dim,)))
    return tuple(found)


def indexer_products(
    n_index_heads: Dim, index_head_dim: Dim, *, per: str = PAIRS
) -> tuple[Product, ...]:
    """What the index multiplies for each pair that it scores.

    h_i·d_i for the heads' products with the key, h_i for their weighted sum

    Returns: the products, per scored pair.
    Source: DeepSeek-V3.2, arXiv:2512.02556, eq. 1.

    >>> sum(product.width for product in indexer_products(64, 128))  # DeepSeek-V3.2
    8256
    """
    widths = {"index scores": n_index_heads * index_head_dim, "index weights": n_index_heads}
    return tuple(
        Product(role="attention", name=name, width=width, per=per) for name, width in widths.items()
    )


def index_flops(
    n_tokens: Dim,
    n_pairs: Dim,
    d_model: Dim,
    *,
    q_lora_rank: Dim,
    n_index_heads: Dim,
    index_head_dim: Dim,
) -> Dim:
    """FLOPs of the index itself over n new tokens that score n_pairs pairs.

    2 FLOPs per multiply-add × (n·(r_q·h_i·d_i + d·d_i + d·h_i) + pairs·h_i·(d_i + 1))

    The pairs are not selected: every position before a token is scored for it.

    Returns: FLOPs of the forward of one layer, exact.
    Source: DeepSeek-V3.2, arXiv:2512.02556, eq. 1.
    Not counted: norm, rotary embedding, ReLU, the choice of the best.

    >>> index_flops(128, 128 * 128, 7168, q_lora_rank=1536, n_index_heads=64,
    ...             index_head_dim=128)  # DeepSeek-V3.2, 128 tokens
    3844079616
    """
    weights = indexer_weights(
        d_model, q_lora_rank=q_lora_rank, n_index_heads=n_index_heads, index_head_dim=index_head_dim
    )
    products = indexer_products(n_index_heads, index_head_dim)
    return flops_of((*weights, *products), {TOKENS: n_tokens, PAIRS: n_pairs})


def selected_pairs(seq_len: Dim, index_top_k: Dim) -> Dim:
    """Pairs that attention reads after the selection: Σ_t min(t, k_i) over t = 1 … S.

    As many as a sliding window of k_i keeps, though they may be anywhere.

    Returns: pairs of one sequence, exact.
    Source: DeepSeek-V3.2, arXiv:2512.02556, eq. 2.

    >>> selected_pairs(131072, 2048), causal_pairs(131072)  # DeepSeek-V3.2 at 128k, and dense
    (266339328, 8590000128)
    """
    return causal_pairs(seq_len, index_top_k)


def selected_positions(kv_len: Dim, index_top_k: Dim) -> Dim:
    """Positions that the newest of `kv_len` tokens attends to after the selection: min(T, k_i).

    The index has scored all T.

    Returns: positions.
    Source: DeepSeek-V3.2, arXiv:2512.02556, eq. 2.

    >>> selected_positions(131072, 2048)  # DeepSeek-V3.2
    2048
    """
    return smaller(kv_len, index_top_k)


def indexer_cache_values(index_head_dim: Dim) -> Dim:
    """Values that one token leaves in the cache of one layer for the index: its key.

    d_i, beside what attention keeps; nothing of attention's own cache can be dropped, since any
    position may be chosen later

    Returns: values, not bytes.
    Source: DeepSeek-V3.2, arXiv:2512.02556, sec. 2.1; kept in 8 bits there, as wide as the rest
    in transformers.

    >>> indexer_cache_values(128)  # DeepSeek-V3.2: beside the 576 of MLA
    128
    """
    return index_head_dim
