"""What an indexer saves and costs in attention: three FLOPs of a model, each under its name.

>>> from metacount.catalog import entry
>>> spec = entry("deepseek-v3.2").spec()
>>> attention_by_selection(spec, batch_size=1, seq_len=131072)  # doctest: +NORMALIZE_WHITESPACE
{'dense_attention_flops': 42925261439631360, 'selected_attention_flops': 1330929582735360,
 'index_flops': 8875341049233408}
"""

from __future__ import annotations

from metacount.formulas import attention, indexer, mla
from metacount.formulas.attention import causal_pairs
from metacount.formulas.dim import Dim
from metacount.formulas.indexed import indexed_layers
from metacount.formulas.terms import PAIRS, Product, flops_of
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, NoAttention
from metacount.spec.indexer import BlockIndexer, Indexer
from metacount.spec.mla import LatentAttention


def attention_by_selection(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, decode: bool = False
) -> dict[str, Dim]:
    """Count the FLOPs between positions of all layers, dense and selected, and those of the index.

    dense_attention_flops     attention's products over every position that a token may see
    selected_attention_flops  the same over the positions that the index leaves, in layers with one:
                              the k_i best at most, or the visible ones of the k_b best blocks
    index_flops               the index's projections, and its scores of every such position

    A forward over seq_len tokens (MLA expanded), or with `decode` one more token at seq_len
    positions, itself included (absorbed). Attention's own projections are in none of the three.

    Returns: FLOPs by name; nothing for a model without an indexer.
    Source: `mla.mla_products`, `attention.attention_products`, `indexer.selected_pairs`,
    `indexer.selected_block_pairs`, `indexer.index_flops`, `indexer.block_index_flops`.
    Not counted: softmax, norms, rotary embedding, the choice of the best.
    """
    part = spec.last_stack.attention
    if isinstance(part, NoAttention) or part.indexer is None:
        return {}
    n_layers, indexed = spec.last_stack.n_layers, spec.last_stack.n_layers
    if decode:
        n_new, one = batch_size, seq_len
    else:
        n_new, one = batch_size * seq_len, causal_pairs(seq_len)
    seen = batch_size * one
    if isinstance(part, LatentAttention):
        chosen = _chosen(part.indexer, seq_len, decode=decode)
        index = indexer.index_flops(
            n_new,
            seen,
            spec.d_model,
            q_lora_rank=part.q_lora_rank,
            n_index_heads=part.indexer.n_heads,
            index_head_dim=part.indexer.head_dim,
        )
    else:
        indexed = indexed_layers(spec, n_layers)
        chosen = _chosen_in_blocks(part.indexer, seq_len, decode=decode)
        index = indexer.block_index_flops(
            n_new,
            seen,
            spec.d_model,
            n_index_heads=part.indexer.n_heads,
            index_head_dim=part.indexer.head_dim,
        )
    products = _products(part, decode=decode)
    pairs = batch_size * (indexed * chosen + (n_layers - indexed) * one)
    return {
        "dense_attention_flops": n_layers * flops_of(products, {PAIRS: seen}),
        "selected_attention_flops": flops_of(products, {PAIRS: pairs}),
        "index_flops": indexed * index,
    }


def _chosen(index: Indexer, seq_len: Dim, *, decode: bool) -> Dim:
    """Count the pairs that an index leaves of a sequence, or if `decode` of its last token."""
    each = indexer.selected_positions if decode else indexer.selected_pairs
    return each(seq_len, index.top_k)


def _chosen_in_blocks(index: BlockIndexer, seq_len: Dim, *, decode: bool) -> Dim:
    """Count the pairs that a block index leaves of a sequence, or if `decode` of its last token."""
    each = indexer.selected_block_positions if decode else indexer.selected_block_pairs
    return each(seq_len, index.block_len, index.top_blocks)


def _products(part: Attention | LatentAttention, *, decode: bool) -> tuple[Product, ...]:
    """List the products of attention itself in one layer, without those of its index."""
    if isinstance(part, Attention):
        return attention.attention_products(part.n_heads, part.head_dim)
    return mla.mla_products(
        part.n_heads,
        kv_lora_rank=part.kv_lora_rank,
        qk_nope_head_dim=part.qk_nope_head_dim,
        qk_rope_head_dim=part.qk_rope_head_dim,
        v_head_dim=part.v_head_dim,
        absorbed=decode,
    )
