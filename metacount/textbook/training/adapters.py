"""Adapters that are stored and never trained: those beside layers that the loss does not see."""

from __future__ import annotations

from metacount.formulas import ends, indexer, stack
from metacount.formulas.dim import Dim
from metacount.formulas.optimizer import ALL_LINEAR
from metacount.formulas.trained import NOT_SEEN
from metacount.spec import ModelSpec


def untrained_adapters(spec: ModelSpec, rank: Dim, targets: tuple[str, ...]) -> Dim:
    """Count the values of adapters beside the linear layers of an indexer or a pooler.

    [r, in] and [out, r] of each among the targets: an indexer's choice passes no gradient, and the
    loss is not of what a pooler gives.

    >>> from metacount.catalog import entry
    >>> 61 * ((8192 + 1536) + (128 + 7168) + (64 + 7168))  # wq_b, wk, weights_proj of each layer
    1479616
    >>> untrained_adapters(entry("deepseek-v3.2").spec(), 1, ("all-linear",))
    1479616
    >>> untrained_adapters(entry("llama-7b").spec(), 8, ("all-linear",))
    0
    """
    weights = [
        weight
        for n_layers, cross in stack.stacks(spec)
        for weight in stack.stack_weights(spec, n_layers, cross=cross)
    ]
    found: Dim = 0
    for weight in (*weights, *ends.end_weights(spec)):
        name = weight.name.removesuffix(".weight")
        unseen = name.startswith((f"{indexer.BLOCK}.", NOT_SEEN)) and len(weight.shape) == 2
        if unseen and (ALL_LINEAR in targets or name.rpartition(".")[2] in targets):
            found += weight.times * rank * (weight.shape[0] + weight.shape[1])
    return found
