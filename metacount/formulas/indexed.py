"""The block indexer of each block that has one: `indexer`'s functions fed from a `ModelSpec`.

>>> from metacount.catalog import entry
>>> indexed_layers(entry("llama-7b").spec(), 32), index_weights(entry("llama-7b").spec())
(0, ())
"""

from __future__ import annotations

from metacount.formulas import attention, indexer
from metacount.formulas.dim import Dim
from metacount.formulas.terms import Product, State, Weight
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.indexer import BlockIndexer


def block_index(spec: ModelSpec) -> BlockIndexer | None:
    """Return the block indexer beside the attention of some blocks; None where there is none."""
    mixer = spec.last_stack.attention
    return mixer.indexer if isinstance(mixer, Attention) else None


def indexed_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks with a block indexer in a stack of n_layers.

    Source: `attention.lettered_layers`.
    """
    index = block_index(spec)
    return 0 if index is None else attention.lettered_layers(n_layers, index.pattern, "I")


def index_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors of the block indexer of one block that has one; none where no block has.

    Source: `indexer.block_indexer_weights`.
    """
    index = block_index(spec)
    if index is None:
        return ()
    return indexer.block_indexer_weights(
        spec.d_model, n_index_heads=index.n_heads, index_head_dim=index.head_dim
    )


def index_products(spec: ModelSpec) -> tuple[Product, ...]:
    """List the products of the block indexer of one block that has one; none where no block has.

    Source: `indexer.block_indexer_products`.
    """
    index = block_index(spec)
    return () if index is None else indexer.block_indexer_products(index.n_heads, index.head_dim)


def index_cache(spec: ModelSpec) -> tuple[State, ...]:
    """List what one token leaves in a block's cache for its block indexer, beside keys and values.

    Source: `indexer.indexer_cache_values`.
    """
    index = block_index(spec)
    if index is None:
        return ()
    values = indexer.indexer_cache_values(index.head_dim)
    return (State(name="keys of the index", shape=(values,)),)


def index_cache_values(spec: ModelSpec) -> Dim:
    """Count the values that one token leaves in the caches of all block indexers.

    Source: `index_cache`.
    """
    one = sum(tensor.size for tensor in index_cache(spec))
    return indexed_layers(spec, spec.last_stack.n_layers) * one
