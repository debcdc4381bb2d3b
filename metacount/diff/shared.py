"""The parts of a model whose attention and feed-forward are in blocks that many layers share."""

from __future__ import annotations

from metacount.diff.described import attention_described, times_d
from metacount.diff.part import Part, part
from metacount.formulas import attention, model, stack, sublayers
from metacount.formulas.dim import Dim
from metacount.formulas.terms import Product, Weight, flops_of, params_of
from metacount.notation import activated
from metacount.spec import ModelSpec
from metacount.spec.stack import SHARING


def shared_parts(
    spec: ModelSpec, plain: ModelSpec, name: str, cache: Dim, *, batch_size: Dim, seq_len: Dim
) -> list[Part]:
    """List the stored blocks without their norms, and what each use of one has of its own.

    `plain` has numbers where `spec` may have symbols; `name` is the stack's, `cache` the bytes that
    all uses keep together.

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
        part(
            "shared blocks",
            "shared",
            f"{attention_described(plain)}, {act}, {width}",
            params_of(one),
            "decoder.attention decoder.feed_forward decoder.shared.n_blocks",
            stack=name,
            copies=last.shared.n_blocks,
            flops=flops_of(terms, run),
            cache=cache,
        ),
        part(
            "uses of shared blocks",
            "shared",
            f"a linear layer{rank}",
            params_of(own),
            "decoder.shared decoder.mixer_pattern",
            stack=name,
            copies=uses,
            flops=uses * flops_of(own, run),
        ),
    ]
