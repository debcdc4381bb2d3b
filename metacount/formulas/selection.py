"""What an indexer saves and costs in attention: three FLOPs of a model, each under its name.

>>> from metacount.catalog import entry
>>> spec = entry("deepseek-v3.2").spec()
>>> attention_by_selection(spec, batch_size=1, seq_len=131072)  # doctest: +NORMALIZE_WHITESPACE
{'dense_attention_flops': 42925261439631360, 'selected_attention_flops': 1330929582735360,
 'index_flops': 8875341049233408}
"""

from __future__ import annotations

from metacount.formulas import indexer, mla
from metacount.formulas.attention import causal_pairs
from metacount.formulas.dim import Dim
from metacount.formulas.terms import PAIRS, flops_of
from metacount.spec import ModelSpec
from metacount.spec.mla import LatentAttention


def attention_by_selection(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, decode: bool = False
) -> dict[str, Dim]:
    """FLOPs between positions of all layers, dense and selected, and those of the index itself.

    dense_attention_flops     attention's products over every position that a token may see
    selected_attention_flops  the same over the k_i positions at most that the index leaves
    index_flops               the index's projections, and its scores of every such position

    A forward over seq_len tokens (MLA expanded), or with `decode` one more token at seq_len
    positions, itself included (absorbed). Attention's own projections are in none of the three.

    Returns: FLOPs by name; nothing for a model without an indexer.
    Source: `mla.mla_products`, `indexer.selected_pairs`, `indexer.index_flops`.
    Not counted: softmax, norms, rotary embedding, the choice of the best.
    """
    part = spec.last_stack.attention
    if not isinstance(part, LatentAttention) or part.indexer is None:
        return {}
    index = part.indexer
    if decode:
        n_new, seen = batch_size, batch_size * seq_len
        chosen = batch_size * indexer.selected_positions(seq_len, index.top_k)
    else:
        n_new, seen = batch_size * seq_len, batch_size * causal_pairs(seq_len)
        chosen = batch_size * indexer.selected_pairs(seq_len, index.top_k)
    products = mla.mla_products(
        part.n_heads,
        kv_lora_rank=part.kv_lora_rank,
        qk_nope_head_dim=part.qk_nope_head_dim,
        qk_rope_head_dim=part.qk_rope_head_dim,
        v_head_dim=part.v_head_dim,
        absorbed=decode,
    )
    n_layers = spec.last_stack.n_layers
    return {
        "dense_attention_flops": n_layers * flops_of(products, {PAIRS: seen}),
        "selected_attention_flops": n_layers * flops_of(products, {PAIRS: chosen}),
        "index_flops": n_layers
        * indexer.index_flops(
            n_new,
            seen,
            spec.d_model,
            q_lora_rank=part.q_lora_rank,
            n_index_heads=index.n_heads,
            index_head_dim=index.head_dim,
        ),
    }
