"""Indexers: small scorers that pick what attention reads, position by position or in blocks.

DeepSeek-V3.2's lightning indexer: a query's score of a position is Σ_j w_j·relu(q_j·k) over h_i
small heads with one key for all of them; attention then runs over the k_i best positions only.
MiniMax-M3's: a query's score of a block of b_i positions is the best q_j·k in it, for each head
apart; attention then runs over the k_b best blocks. Three counts, each under its name: attention
over every pair (dense), over the pairs that are left (selected), and the index itself.
"""

from __future__ import annotations

from metacount.formulas.attention import causal_pairs, chunked_pairs
from metacount.formulas.dim import Dim, floor_div, smaller
from metacount.formulas.terms import PAIRS, TOKENS, Product, Weight, flops_of, matrix

BLOCK = "self_attn.indexer"


def indexer_weights(
    d_model: Dim, *, q_lora_rank: Dim, n_index_heads: Dim, index_head_dim: Dim
) -> tuple[Weight, ...]:
    """List the tensors of one indexer.

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
    """List the products of the index for each pair that it scores.

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
    """Count the FLOPs of the index itself over n new tokens that score n_pairs pairs.

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
    """Count the pairs that attention reads after the selection: Σ_t min(t, k_i) over t = 1 … S.

    As many as a sliding window of k_i keeps, though they may be anywhere.

    Returns: pairs of one sequence, exact.
    Source: DeepSeek-V3.2, arXiv:2512.02556, eq. 2.

    >>> selected_pairs(131072, 2048), causal_pairs(131072)  # DeepSeek-V3.2 at 128k, and dense
    (266339328, 8590000128)
    """
    return causal_pairs(seq_len, index_top_k)


def selected_positions(kv_len: Dim, index_top_k: Dim) -> Dim:
    """Count the positions the newest of `kv_len` tokens attends to after selection: min(T, k_i).

    The index has scored all T.

    Returns: positions.
    Source: DeepSeek-V3.2, arXiv:2512.02556, eq. 2.

    >>> selected_positions(131072, 2048)  # DeepSeek-V3.2
    2048
    """
    return smaller(kv_len, index_top_k)


def indexer_cache_values(index_head_dim: Dim) -> Dim:
    """Count the values that one token leaves in one layer's cache for the index: its key.

    d_i, beside what attention keeps; nothing of attention's own cache can be dropped, since any
    position may be chosen later

    Returns: values, not bytes.
    Source: DeepSeek-V3.2, arXiv:2512.02556, sec. 2.1; kept in 8 bits there, as wide as the rest
    in transformers.

    >>> indexer_cache_values(128)  # DeepSeek-V3.2: beside the 576 of MLA
    128
    """
    return index_head_dim


def block_indexer_weights(
    d_model: Dim, *, n_index_heads: Dim, index_head_dim: Dim
) -> tuple[Weight, ...]:
    """List the tensors of one block indexer.

    q [h_i·d_I, d] + k [d_I, d], and an RMSNorm over each, 2·d_I

    Returns: the tensors.
    Source: MiniMax-M3 in transformers 5.23, `MiniMaxM3VLIndexer`.
    Not counted: nothing.

    >>> from metacount.formulas.terms import params_of
    >>> params_of(block_indexer_weights(6144, n_index_heads=4, index_head_dim=128))
    3932416
    """
    found: list[Weight] = []
    for name, rows in (("q_proj", n_index_heads * index_head_dim), ("k_proj", index_head_dim)):
        found += matrix(f"{BLOCK}.{name}", "attention", (rows, d_model), TOKENS)
    for norm in ("q_norm", "k_norm"):
        name = f"{BLOCK}.{norm}.weight"
        found.append(Weight(role="norm", name=name, shape=(index_head_dim,)))
    return tuple(found)


def block_indexer_products(
    n_index_heads: Dim, index_head_dim: Dim, *, per: str = PAIRS
) -> tuple[Product, ...]:
    """List the product of a block indexer for each pair that it scores.

    h_i·d_I for the heads' products with the key; the best of a block is a comparison

    Returns: the product, per scored pair.
    Source: as `block_indexer_weights`.

    >>> [product.width for product in block_indexer_products(4, 128)]
    [512]
    """
    width = n_index_heads * index_head_dim
    return (Product(role="attention", name="index scores", width=width, per=per),)


def block_index_flops(
    n_tokens: Dim, n_pairs: Dim, d_model: Dim, *, n_index_heads: Dim, index_head_dim: Dim
) -> Dim:
    """Count the FLOPs of a block indexer itself over n new tokens that score n_pairs pairs.

    2 FLOPs per multiply-add × (n·d·d_I·(h_i + 1) + pairs·h_i·d_I)

    The pairs are not selected, and blocks make them no fewer: every position before a token is
    scored for it.

    Returns: FLOPs of the forward of one layer, exact.
    Source: as `block_indexer_weights`.
    Not counted: norms, rotary embedding, the best of each block, the choice of the best blocks.

    >>> block_index_flops(128, 128 * 128, 6144, n_index_heads=4, index_head_dim=128)
    1023410176
    """
    sizes = {"n_index_heads": n_index_heads, "index_head_dim": index_head_dim}
    weights, products = block_indexer_weights(d_model, **sizes), block_indexer_products(**sizes)
    return flops_of((*weights, *products), {TOKENS: n_tokens, PAIRS: n_pairs})


def selected_block_pairs(seq_len: Dim, index_block_len: Dim, index_top_blocks: Dim) -> Dim:
    """Count the pairs that attention reads after a selection of blocks, for each of its heads.

    Token t = 0 … S-1 is in block j = ⌊t/b_i⌋. It reads t mod b_i + 1 positions of that block, which
    is always among the chosen ones, and all b_i of min(j, k_b - 1) blocks before it:
    Σ_t (t mod b_i + 1) + b_i·Σ_t min(⌊t/b_i⌋, k_b - 1). With Q = ⌊S/b_i⌋ whole blocks and r
    positions left, the last sum is b_i·(Σ min(q, k_b) over q = 1 … Q, less Q) + r·min(Q, k_b - 1).

    Up to k_b·b_i tokens these are all causal pairs. Which blocks are chosen does not matter, nor
    how many of them are local; that a token's own block is chosen does.

    Returns: pairs of one sequence, exact.
    Source: MiniMax-M3 in transformers 5.23, `MiniMaxM3VLIndexer`; the sum is ours.

    >>> selected_block_pairs(2048, 128, 16) == causal_pairs(2048)
    True
    >>> selected_block_pairs(131072, 128, 16), causal_pairs(131072)  # at 128k, and dense
    (258146304, 8590000128)
    """
    whole = floor_div(seq_len, index_block_len)
    rest = seq_len - whole * index_block_len
    blocks = index_block_len * (causal_pairs(whole, index_top_blocks) - whole)
    before = blocks + rest * smaller(whole, index_top_blocks - 1)
    return chunked_pairs(seq_len, index_block_len) + index_block_len * before


def selected_block_positions(kv_len: Dim, index_block_len: Dim, index_top_blocks: Dim) -> Dim:
    """Count the positions the newest of `kv_len` tokens attends to after a selection of blocks.

    (T - 1) mod b_i + 1 of its own block, and b_i of each of min(⌊(T - 1)/b_i⌋, k_b - 1) before it:
    k_b·b_i where its block is full, b_i - 1 fewer where it has just begun. The index has scored all
    T.

    Returns: positions.
    Source: as `selected_block_pairs`.

    >>> selected_block_positions(131072, 128, 16), selected_block_positions(131073, 128, 16)
    (2048, 1921)
    """
    before = floor_div(kv_len - 1, index_block_len)
    own = kv_len - before * index_block_len
    return own + index_block_len * smaller(before, index_top_blocks - 1)
