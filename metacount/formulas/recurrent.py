"""Mixers that keep a state: which functions count each of them, by the word of its part."""

from __future__ import annotations

from metacount.formulas import rg_lru, short_conv
from metacount.formulas.dim import Dim
from metacount.formulas.terms import Product, State, Weight
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


@frozen
class Mixer:
    """The functions of one mixer; each takes its part (`spec.recurrent`).

    `weights` also takes d_model. `products` are those of a forward, `run` the numbers of its own
    words (batch_size, n_tokens); a decode step has no products beside its weights unless
    `decode_products` says so. `states` are what it keeps of one sequence, `wide_states` those
    that are as wide as the model (d_model).
    """

    weights: Callable[[Any, Dim], tuple[Weight, ...]]
    states: Callable[[Any], tuple[State, ...]] = lambda part: ()
    wide_states: Callable[[Any, Dim], tuple[State, ...]] = lambda part, d_model: ()
    products: Callable[[Any], tuple[Product, ...]] = lambda part: ()
    decode_products: Callable[[Any], tuple[Product, ...]] = lambda part: ()
    run: Callable[[Any, Dim, Dim], dict[str, Dim]] = lambda part, batch_size, n_tokens: {}
    decode_run: Callable[[Any, Dim], dict[str, Dim]] = lambda part, batch_size: {}


SHORT_CONV = Mixer(
    weights=lambda part, d_model: short_conv.short_conv_weights(
        d_model, conv_kernel=part.conv_kernel, conv_bias=part.conv_bias),
    wide_states=lambda part, d_model: short_conv.short_conv_states(d_model, part.conv_kernel),
    run=lambda part, batch, n: short_conv.short_conv_run(batch, n, conv_kernel=part.conv_kernel),
    decode_run=lambda part, batch: short_conv.short_conv_run(
        batch, 1, conv_kernel=part.conv_kernel, continued=True),
)  # fmt: skip

RG_LRU = Mixer(
    weights=lambda part, d_model: rg_lru.rg_lru_weights(
        d_model, lru_width=part.lru_width, n_lru_blocks=part.n_lru_blocks,
        conv_kernel=part.conv_kernel),
    states=lambda part: rg_lru.rg_lru_states(part.lru_width, part.conv_kernel),
    run=lambda part, batch, n: rg_lru.rg_lru_run(batch, n, conv_kernel=part.conv_kernel),
    decode_run=lambda part, batch: rg_lru.rg_lru_run(
        batch, 1, conv_kernel=part.conv_kernel, continued=True),
)  # fmt: skip

MIXERS: dict[str, Mixer] = {
    "short_conv": SHORT_CONV,
    "rg_lru": RG_LRU,
}


def mixer_of(part: Any) -> Mixer | None:
    """The functions for a part; None for the part that says that there is no such mixer."""
    word: str = vars(type(part))["word"]
    return None if word == "none" else MIXERS[word]
