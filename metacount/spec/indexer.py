"""Indexers: small scorers that pick what attention reads, position by position or in blocks."""

from __future__ import annotations

from metacount.spec.field import MAX_TOKENS, part, pattern, size
from metacount.spec.law import Law


@part
class IndexHeads:
    """What every indexer has: a few narrow query heads, and one key for all of them."""

    n_heads: int = size("n_index_heads", "h_i", "heads of an indexer", "heads", "index_n_heads")
    head_dim: int = size("index_head_dim", "d_I", "width of an indexer's head", "values")


@part
class Indexer(IndexHeads):
    """DeepSeek-V3.2's, beside MLA; a query attends to the `top_k` positions it scores best."""

    needed = "by an indexer"

    top_k: int = size(
        "index_top_k",
        "k_i",
        "positions that an indexer leaves a query",
        "positions",
        "index_topk",
        most=MAX_TOKENS,
    )


@part
class BlockIndexer(IndexHeads):
    """MiniMax-M3's, in the layers that `law` names: a query attends to whole blocks of positions.

    A block scores what its best position scores. Among the `top_blocks` that a query reads are
    always its own and those before it, `local_blocks` in all.
    """

    needed = "by a block indexer"

    block_len: int = size(
        "index_block_len",
        "b_i",
        "positions of one block that a block indexer scores",
        "positions",
        "index_block_size sparse_block_size",
        most=MAX_TOKENS,
    )
    top_blocks: int = size(
        "index_top_blocks",
        "k_b",
        "blocks that a block indexer leaves a query, the local ones included",
        "blocks",
        "index_topk_blocks sparse_topk_blocks",
        most=MAX_TOKENS,
    )
    local_blocks: int = size(
        "index_local_blocks",
        "l_b",
        "blocks that a query always reads: its own and those before it",
        "blocks",
        "sparse_local_block",
        most=MAX_TOKENS,
    )
    pattern: str = pattern(
        "index_pattern",
        "I with a block indexer, G without, repeated over the layers: GGGI",
        "I with a block indexer, G without",
        "GGGI",
        default="I",
    )

    @property
    def law(self) -> Law:
        """Which layers have an indexer."""
        return Law(letters=self.pattern, letter="I")
