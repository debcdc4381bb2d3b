"""DeepSeek-V3.2's lightning indexer: which positions attention reads."""

from __future__ import annotations

from metacount.spec.field import MAX_TOKENS, part, size


@part
class Indexer:
    """A small scorer beside MLA; a query attends to the `top_k` positions it scores best."""

    needed = "by an indexer"

    top_k: int = size(
        "index_top_k",
        "k_i",
        "positions that an indexer leaves a query",
        "positions",
        "index_topk",
        most=MAX_TOKENS,
    )
    n_heads: int = size("n_index_heads", "h_i", "heads of an indexer", "heads", "index_n_heads")
    head_dim: int = size("index_head_dim", "d_I", "width of an indexer's head", "values")
