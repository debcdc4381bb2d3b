"""The parts that Gemma 3n has in and around its blocks: borrowed keys, AltUp and others."""

from __future__ import annotations

from metacount.diff.described import attention_described, times_d
from metacount.diff.part import Part, part
from metacount.formulas import around, attention, model, stack, sublayers
from metacount.formulas.dim import Dim
from metacount.formulas.terms import Product, Weight, flops_of, params_of
from metacount.notation import activated
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention


def around_parts(
    spec: ModelSpec, plain: ModelSpec, name: str, *, batch_size: Dim, seq_len: Dim
) -> list[Part]:
    """List the parts that Gemma 3n has beside those of others, without norms; of most models none.

    `plain` has numbers where `spec` may have symbols; `name` is the stack's.

    Source: `sublayers.attention_weights`, `sublayers.dense_weights`, `around.around_weights`,
    `around.end_weights`.
    """
    run = model.forward_run(spec, batch_size=batch_size, seq_len=seq_len)
    return [
        *_borrowing(spec, plain, name, run),
        *_second(spec, plain, name, run),
        *_streams(spec, plain, name, run),
    ]


def _borrowing(spec: ModelSpec, plain: ModelSpec, name: str, run: dict[str, Dim]) -> list[Part]:
    """List the attention of the layers that read the keys and values of others."""
    mixer = plain.last_stack.attention
    if not isinstance(mixer, Attention) or not mixer.n_kv_shared_layers:
        return []
    weights = _without_norms(sublayers.attention_weights(spec, borrows=True))
    products = sublayers.attention_products(spec, absorbed=False)
    terms: tuple[Weight | Product, ...] = (*weights, *products)
    copies = stack.borrowing_layers(spec)
    return [
        part(
            "borrowing attention",
            "heads",
            f"{attention_described(plain)}, keys and values of earlier layers",
            params_of(weights),
            "decoder.attention.n_kv_shared_layers",
            stack=name,
            copies=copies,
            flops=copies * flops_of(terms, run),
        )
    ]


def _second(spec: ModelSpec, plain: ModelSpec, name: str, run: dict[str, Dim]) -> list[Part]:
    """List the feed-forwards of the second width."""
    like = plain.last_stack.feed_forward
    if like is None or like.second is None:
        return []
    weights = sublayers.dense_weights(spec, second=True)
    copies = attention.lettered_layers(spec.last_stack.n_layers, like.second_pattern, "W")
    act = activated(like.activation, like.swish_beta, gated=like.gated)
    return [
        part(
            "second feed-forward",
            "gated" if like.gated else "plain",
            f"{act}, m_2 = {like.second} = {times_d(like.second, plain)}",
            params_of(weights),
            "decoder.feed_forward.second decoder.feed_forward.second_pattern",
            stack=name,
            copies=copies,
            flops=copies * flops_of(weights, run),
        )
    ]


def _streams(spec: ModelSpec, plain: ModelSpec, name: str, run: dict[str, Dim]) -> list[Part]:
    """List AltUp, LAuReL and each layer's own embedding:
    in every block, and before and after them.
    """
    last, n_layers = plain.last_stack, spec.last_stack.n_layers
    has = {
        "AltUp": last.altup and f"AltUp of {last.altup.n_inputs} copies",
        "LAuReL": last.laurel and f"LAuReL of rank {last.laurel.rank}",
        "embeddings": last.layer_inputs and f"a layer's embedding of {last.layer_inputs.width}",
    }
    described = ", ".join(words for words in has.values() if words)
    inside = _without_norms(around.around_weights(spec))
    terms: tuple[Weight | Product, ...] = (*inside, *around.around_products(spec))
    outside = _without_norms(around.end_weights(spec))
    found = []
    if inside:
        found.append(
            part(
                "beside the branches",
                "around",
                described,
                params_of(inside),
                "decoder.altup decoder.laurel decoder.layer_inputs.width",
                stack=name,
                copies=n_layers,
                flops=n_layers * flops_of(terms, run),
            )
        )
    if outside:
        found.append(
            part(
                "around the blocks",
                "around",
                ", ".join(words for key, words in has.items() if words and key != "LAuReL"),
                params_of(outside),
                "decoder.layer_inputs.vocab_size",
                stack=name,
                flops=flops_of(outside, run),
            )
        )
    return found


def _without_norms(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
    return tuple(weight for weight in weights if weight.role != "norm")
