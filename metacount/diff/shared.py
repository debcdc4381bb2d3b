"""The parts of a model whose attention and feed-forward are in blocks that many layers share."""

from __future__ import annotations

from metacount.diff.described import attention_described, times_d
from metacount.formulas import attention, model, stack, sublayers
from metacount.formulas.dim import Dim
from metacount.formulas.terms import Product, Weight, flops_of, params_of
from metacount.notation import activated
from metacount.spec import ModelSpec
from metacount.spec.stack import SHARING

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any


def shared_parts(
    spec: ModelSpec, plain: ModelSpec, *, batch_size: Dim, seq_len: Dim
) -> list[dict[str, Any]]:
    """The stored blocks without their norms, and what each use of one has of its own.

    `plain` has numbers where `spec` may have symbols. `cache`: 1 for the part that has it.

    Source: `stack.shared_weights`, `sublayers.attention_products`, `sublayers.shared_use_weights`.
    """
    last, said, like = spec.last_stack, plain.last_stack.shared, plain.last_stack.feed_forward
    if last.shared is None or said is None or like is None:
        return []
    run = model.forward_run(spec, batch_size=batch_size, seq_len=seq_len)
    uses = attention.lettered_layers(last.n_layers, last.mixer_pattern, SHARING)
    stored = [one for one in stack.shared_weights(spec, last.n_layers) if one.role != "norm"]
    one = [each for each in sublayers.shared_block_weights(spec) if each.role != "norm"]
    products = (each.repeated(uses) for each in sublayers.attention_products(spec, absorbed=False))
    terms: tuple[Weight | Product, ...] = (*stored, *products)
    own = sublayers.shared_use_weights(spec)
    act = activated(like.activation, like.swish_beta, gated=like.gated)
    rank = "" if said.adapter_rank is None else f", adapters of rank {said.adapter_rank}"
    width = f"m = {like.d_ff} = {times_d(like.d_ff or 0, plain)}"
    return [
        {
            "name": "shared blocks",
            "kind": "shared",
            "described": f"{attention_described(plain)}, {act}, {width}",
            "params": params_of(one),
            "fields": "decoder.attention decoder.feed_forward decoder.shared.n_blocks",
            "copies": last.shared.n_blocks,
            "flops": flops_of(terms, run),
            "cache": 1,
        },
        {
            "name": "uses of shared blocks",
            "kind": "shared",
            "described": f"a linear layer{rank}",
            "params": params_of(own),
            "fields": "decoder.shared decoder.mixer_pattern",
            "copies": uses,
            "flops": uses * flops_of(own, run),
            "cache": 0,
        },
    ]
