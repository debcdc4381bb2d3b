"""Mixers that keep a state: which functions count each of them, by the word of its part."""

from __future__ import annotations

from metacount.formulas import mamba, mamba2
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


def _mamba(part: Any) -> dict[str, Dim]:
    return {"d_ssm": part.d_ssm, "ssm_state_dim": part.state_dim}


def _biases(part: Any) -> dict[str, bool]:
    return {"conv_bias": part.conv_bias, "in_bias": part.in_bias, "out_bias": part.out_bias}


MAMBA = Mixer(
    weights=lambda part, d_model: mamba.mamba_weights(
        d_model, **_mamba(part), **_biases(part), dt_rank=part.dt_rank,
        conv_kernel=part.conv_kernel, norms=part.norms == "affine"),
    states=lambda part: mamba.mamba_states(**_mamba(part), conv_kernel=part.conv_kernel),
    products=lambda part: mamba.mamba_products(**_mamba(part)),
    decode_products=lambda part: mamba.mamba_products(**_mamba(part)),
    run=lambda part, batch, n: mamba.mamba_run(batch, n, conv_kernel=part.conv_kernel),
    decode_run=lambda part, batch: mamba.mamba_run(
        batch, 1, conv_kernel=part.conv_kernel, continued=True),
)  # fmt: skip


def _heads(part: Any) -> dict[str, Dim]:
    return {"n_ssm_heads": part.n_heads, "ssm_head_dim": part.head_dim,
            "ssm_state_dim": part.state_dim}  # fmt: skip


def _convolved(part: Any) -> dict[str, Dim]:
    return {"n_ssm_groups": part.n_groups, "conv_kernel": part.conv_kernel}


MAMBA2 = Mixer(
    weights=lambda part, d_model: mamba2.mamba2_weights(
        d_model, **_heads(part), **_convolved(part), **_biases(part), norm=part.norm != "none"),
    states=lambda part: mamba2.mamba2_states(**_heads(part), **_convolved(part)),
    products=lambda part: mamba2.mamba2_products(**_heads(part), ssm_chunk_size=part.chunk_size),
    decode_products=lambda part: mamba2.mamba2_decode_products(**_heads(part)),
    run=lambda part, batch, n: mamba2.mamba2_run(
        batch, n, conv_kernel=part.conv_kernel, ssm_chunk_size=part.chunk_size),
    decode_run=lambda part, batch: mamba2.mamba2_decode_run(batch),
)  # fmt: skip

MIXERS: dict[str, Mixer] = {"mamba": MAMBA, "mamba2": MAMBA2}


def mixer_of(part: Any) -> Mixer | None:
    """The functions for a part; None for the part that says that there is no such mixer."""
    word: str = vars(type(part))["word"]
    return None if word == "none" else MIXERS[word]
