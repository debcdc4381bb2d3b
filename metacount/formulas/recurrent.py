"""Mixers that keep a state: which functions count each of them, by the word of its part."""

from __future__ import annotations

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
    `decode_products` says so. `states` are what it keeps of one sequence.
    """

    weights: Callable[[Any, Dim], tuple[Weight, ...]]
    states: Callable[[Any], tuple[State, ...]]
    products: Callable[[Any], tuple[Product, ...]] = lambda part: ()
    decode_products: Callable[[Any], tuple[Product, ...]] = lambda part: ()
    run: Callable[[Any, Dim, Dim], dict[str, Dim]] = lambda part, batch_size, n_tokens: {}
    decode_run: Callable[[Any, Dim], dict[str, Dim]] = lambda part, batch_size: {}


MIXERS: dict[str, Mixer] = {}


def mixer_of(part: Any) -> Mixer | None:
    """The functions for a part; None for the part that says that there is no such mixer."""
    word: str = vars(type(part))["word"]
    return None if word == "none" else MIXERS[word]
