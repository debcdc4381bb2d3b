"""The parts of a model whose attention and feed-forward are in blocks that many layers share."""

from __future__ import annotations

from metacount.formulas import attention, model, stack, sublayers
from metacount.formulas.dim import Dim
from metacount.formulas.terms import Product, Weight, flops_of, params_of
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.stack import SHARING


@frozen
class Counted:
    """Stored blocks, or what uses have of their own: one of it, how many, the FLOPs of all."""

    one: Dim
    copies: Dim
    flops: Dim


def shared_parts(spec: ModelSpec, *, batch_size: Dim, seq_len: Dim) -> tuple[Counted, Counted]:
    """The stored blocks without their norms, with the products of attention; and their uses.

    Source: `stack.shared_weights`, `sublayers.attention_products`, `sublayers.shared_use_weights`.
    """
    last = spec.last_stack
    assert last.shared is not None  # who asks has asked
    run = model.forward_run(spec, batch_size=batch_size, seq_len=seq_len)
    uses = attention.lettered_layers(last.n_layers, last.mixer_pattern, SHARING)
    stored = [one for one in stack.shared_weights(spec, last.n_layers) if one.role != "norm"]
    one = [each for each in sublayers.shared_block_weights(spec) if each.role != "norm"]
    products = (each.repeated(uses) for each in sublayers.attention_products(spec, absorbed=False))
    terms: tuple[Weight | Product, ...] = (*stored, *products)
    own = sublayers.shared_use_weights(spec)
    return (
        Counted(one=params_of(one), copies=last.shared.n_blocks, flops=flops_of(terms, run)),
        Counted(one=params_of(own), copies=uses, flops=uses * flops_of(own, run)),
    )
