"""Mixers that keep a state: which functions count each of them, by the word of its part."""

from __future__ import annotations

from metacount.formulas import (
    gated_delta,
    kimi_delta,
    lightning,
    mamba,
    mamba2,
    rg_lru,
    short_conv,
)
from metacount.formulas.convolution import CONVOLVED
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
        d_model, conv_kernel=part.conv_kernel, conv_bias=part.conv_bias
    ),
    wide_states=lambda part, d_model: short_conv.short_conv_states(d_model, part.conv_kernel),
    run=lambda part, batch, n: short_conv.short_conv_run(batch, n, conv_kernel=part.conv_kernel),
    decode_run=lambda part, batch: short_conv.short_conv_run(
        batch, 1, conv_kernel=part.conv_kernel, continued=True
    ),
)

RG_LRU = Mixer(
    weights=lambda part, d_model: rg_lru.rg_lru_weights(
        d_model,
        lru_width=part.lru_width,
        n_lru_blocks=part.n_lru_blocks,
        conv_kernel=part.conv_kernel,
    ),
    states=lambda part: rg_lru.rg_lru_states(part.lru_width, part.conv_kernel),
    run=lambda part, batch, n: rg_lru.rg_lru_run(batch, n, conv_kernel=part.conv_kernel),
    decode_run=lambda part, batch: {CONVOLVED: 0},
)


def _rule(part: Any) -> dict[str, Dim]:
    return {
        "n_linear_v_heads": part.n_v_heads,
        "linear_k_head_dim": part.k_head_dim,
        "linear_v_head_dim": part.v_head_dim,
    }


def _delta(part: Any) -> dict[str, Dim]:
    return {**_rule(part), "n_linear_k_heads": part.n_k_heads, "conv_kernel": part.conv_kernel}


def _linear(part: Any) -> dict[str, Dim]:
    return {"n_linear_heads": part.n_heads, "linear_head_dim": part.head_dim}


def _chunks(part: Any) -> dict[str, Dim]:
    return {"conv_kernel": part.conv_kernel, "linear_chunk_size": part.chunk_size}


GATED_DELTA = Mixer(
    weights=lambda part, d_model: gated_delta.gated_delta_weights(d_model, **_delta(part)),
    states=lambda part: gated_delta.gated_delta_states(**_delta(part)),
    products=lambda part: gated_delta.gated_delta_products(
        **_rule(part), linear_chunk_size=part.chunk_size
    ),
    run=lambda part, batch, n: gated_delta.gated_delta_run(batch, n, **_chunks(part)),
    decode_run=lambda part, batch: gated_delta.gated_delta_run(
        batch, 1, **_chunks(part), continued=True
    ),
)

KIMI_DELTA = Mixer(
    weights=lambda part, d_model: kimi_delta.kimi_delta_weights(
        d_model, **_linear(part), conv_kernel=part.conv_kernel
    ),
    states=lambda part: kimi_delta.kimi_delta_states(**_linear(part), conv_kernel=part.conv_kernel),
    products=lambda part: kimi_delta.kimi_delta_products(
        **_linear(part), linear_chunk_size=part.chunk_size
    ),
    run=lambda part, batch, n: kimi_delta.kimi_delta_run(batch, n, **_chunks(part)),
    decode_run=lambda part, batch: kimi_delta.kimi_delta_run(
        batch, 1, **_chunks(part), continued=True
    ),
)

LIGHTNING = Mixer(
    weights=lambda part, d_model: lightning.lightning_weights(d_model, **_linear(part)),
    states=lambda part: lightning.lightning_states(**_linear(part)),
    products=lambda part: lightning.lightning_products(**_linear(part)),
    decode_products=lambda part: lightning.lightning_products(**_linear(part)),
    run=lambda part, batch, n: lightning.lightning_run(batch, n, linear_chunk_size=part.chunk_size),
    decode_run=lambda part, batch: lightning.lightning_run(
        batch, 1, linear_chunk_size=part.chunk_size, continued=True
    ),
)


def _mamba(part: Any) -> dict[str, Dim]:
    return {"d_ssm": part.d_ssm, "ssm_state_dim": part.state_dim}


def _biases(part: Any) -> dict[str, bool]:
    return {"conv_bias": part.conv_bias, "in_bias": part.in_bias, "out_bias": part.out_bias}


MAMBA = Mixer(
    weights=lambda part, d_model: mamba.mamba_weights(
        d_model,
        **_mamba(part),
        **_biases(part),
        dt_rank=part.dt_rank,
        conv_kernel=part.conv_kernel,
        norms=part.norms == "affine",
    ),
    states=lambda part: mamba.mamba_states(**_mamba(part), conv_kernel=part.conv_kernel),
    products=lambda part: mamba.mamba_products(**_mamba(part)),
    decode_products=lambda part: mamba.mamba_products(**_mamba(part)),
    run=lambda part, batch, n: mamba.mamba_run(batch, n, conv_kernel=part.conv_kernel),
    decode_run=lambda part, batch: mamba.mamba_run(
        batch, 1, conv_kernel=part.conv_kernel, continued=True
    ),
)


def _heads(part: Any) -> dict[str, Dim]:
    return {
        "n_ssm_heads": part.n_heads,
        "ssm_head_dim": part.head_dim,
        "ssm_state_dim": part.state_dim,
    }


def _convolved(part: Any) -> dict[str, Dim]:
    return {"n_ssm_groups": part.n_groups, "conv_kernel": part.conv_kernel}


MAMBA2 = Mixer(
    weights=lambda part, d_model: mamba2.mamba2_weights(
        d_model, **_heads(part), **_convolved(part), **_biases(part), norm=part.norm != "none"
    ),
    states=lambda part: mamba2.mamba2_states(**_heads(part), **_convolved(part)),
    products=lambda part: mamba2.mamba2_products(**_heads(part), ssm_chunk_size=part.chunk_size),
    decode_products=lambda part: mamba2.mamba2_decode_products(**_heads(part)),
    run=lambda part, batch, n: mamba2.mamba2_run(
        batch, n, conv_kernel=part.conv_kernel, ssm_chunk_size=part.chunk_size
    ),
    decode_run=lambda part, batch: mamba2.mamba2_decode_run(batch),
)

MIXERS: dict[str, Mixer] = {
    "mamba": MAMBA,
    "mamba2": MAMBA2,
    "gated_delta": GATED_DELTA,
    "kimi_delta": KIMI_DELTA,
    "lightning": LIGHTNING,
    "short_conv": SHORT_CONV,
    "rg_lru": RG_LRU,
}
