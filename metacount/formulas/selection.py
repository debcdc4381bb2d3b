"""What an indexer saves and costs in attention: three FLOPs of a model, each under its name.

>>> from metacount.catalog import entry
>>> spec = entry("deepseek-v3.2").spec()
>>> attention_by_selection(spec, batch_size=1, seq_len=131072)  # doctest: +NORMALIZE_WHITESPACE
{'dense_attention_flops': 42925261439631360, 'selected_attention_flops': 1330929582735360,
 'index_flops': 8875341049233408}
"""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.layers import indexed_layers
from metacount.formulas.masks import causal_pairs
from metacount.formulas.sublayers import (
    attention_tape,
    selected_block_pairs,
    selected_block_positions,
    selected_pairs,
    selected_positions,
)
from metacount.formulas.terms import PAIRS, TOKENS, flops_of
from metacount.spec import ModelSpec
from metacount.spec.attention import Indexer, NoAttention


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
    Source: `attention.position_index`, `attention.block_index`, `selected_pairs`,
    `selected_block_pairs`.
    Not counted: softmax, norms, rotary embedding, the choice of the best.
    """
    part = spec.last_stack.attention
    if isinstance(part, NoAttention) or part.indexer is None:
        return {}
    n_layers = indexed = spec.last_stack.n_layers
    if decode:
        n_new, one = batch_size, seq_len
    else:
        n_new, one = batch_size * seq_len, causal_pairs(seq_len)
    index = part.indexer
    if isinstance(index, Indexer):
        chosen = (selected_positions if decode else selected_pairs)(seq_len, index.top_k)
    else:
        indexed = indexed_layers(spec, n_layers)
        of_blocks = selected_block_positions if decode else selected_block_pairs
        chosen = of_blocks(seq_len, index.block_len, index.top_blocks)
    tape = attention_tape(spec, indexed=True, decode=decode)
    of_index = [each for each in tape.products if each.name.startswith("index")]
    products = [each for each in tape.products if each not in of_index]
    scorers = [weight for weight in tape.weights if weight.name in tape.unseen]
    seen = batch_size * one
    pairs = batch_size * (indexed * chosen + (n_layers - indexed) * one)
    run = {TOKENS: n_new, PAIRS: seen}
    return {
        "dense_attention_flops": n_layers * flops_of(products, run),
        "selected_attention_flops": flops_of(products, {PAIRS: pairs}),
        "index_flops": indexed * flops_of([*scorers, *of_index], run),
    }
