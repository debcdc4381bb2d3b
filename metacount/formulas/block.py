"""One block: its tensors and products, the topics' functions fed from a `ModelSpec`.

>>> from metacount.spec import ModelSpec
>>> mixtral = ModelSpec(
...     kind="decoder", d_model=4096, n_layers=32, vocab_size=32000, n_heads=32, n_kv_heads=8,
...     head_dim=128, activation="silu", gated=True, n_experts=8, top_k=2, d_ff_expert=14336,
...     norm="rmsnorm", position="rope")
>>> block_params(mixtral, moe=True)
{'position': 0, 'attention': 41943040, 'norm': 8192, 'moe': 1409318912}
>>> block_params(mixtral, moe=True, active=True)["moe"]
352354304
>>> self_attention_flops(mixtral, batch_size=1, n_queries=128, n_keys=128, n_pairs=128 * 128,
...                      absorbed=False)
{'position': 0, 'attention': 11005853696}
>>> feed_forward_flops(mixtral, n_tokens=128, moe=True)
{'moe': 90202701824}
"""

from __future__ import annotations

from metacount.formulas import norm
from metacount.formulas.around import around_weights
from metacount.formulas.dim import Dim
from metacount.formulas.indexed import index_weights
from metacount.formulas.sublayers import attention_products as attention_products
from metacount.formulas.sublayers import attention_weights as attention_weights
from metacount.formulas.sublayers import cross_attention_products as cross_attention_products
from metacount.formulas.sublayers import cross_attention_weights as cross_attention_weights
from metacount.formulas.sublayers import dense_weights as dense_weights
from metacount.formulas.sublayers import kv_cache_values as kv_cache_values
from metacount.formulas.sublayers import mixture_weights as mixture_weights
from metacount.formulas.sublayers import recurrent_weights as recurrent_weights
from metacount.formulas.sublayers import shared_use_weights as shared_use_weights
from metacount.formulas.sublayers import width_norm_weights as width_norm_weights
from metacount.formulas.terms import (
    CACHED,
    CROSS_PAIRS,
    PAIRS,
    POSITIONS,
    SOURCE,
    TOKENS,
    Product,
    Weight,
    active_params_of,
    by_role,
    params_of,
)
from metacount.spec import ModelSpec
from metacount.spec.stack import SHARING, WITH_DENSE, WITH_EXPERTS, WITH_STATE


def block_weights(
    spec: ModelSpec,
    *,
    mixer: str = "A",
    ffn: str = "F",
    cross: bool = False,
    indexed: bool = False,
    borrows: bool = False,
    second: bool = False,
) -> tuple[Weight, ...]:
    """List the tensors of one block, `mixer` and `ffn` its letters in the patterns of its stack.

    `cross`: it has cross-attention (a decoder block of an encoder-decoder). `indexed`: it has a
    block indexer. `borrows`: its attention makes no keys and values. `second`: its feed-forward has
    the second width.
    """
    found: list[Weight] = []
    if mixer in "AP":
        found += attention_weights(spec, borrows=borrows)
    if indexed:
        found += index_weights(spec)
    if mixer in WITH_STATE:
        found += recurrent_weights(spec)
    if mixer == SHARING:
        found += shared_use_weights(spec)
    if cross:
        found += cross_attention_weights(spec)
    if ffn in WITH_DENSE:
        found += dense_weights(spec, second=second)
    if ffn in WITH_EXPERTS:
        found += mixture_weights(spec)
    n_norms = norm.norms_per_block(
        spec.last_stack.norms.placement, cross=cross, mixer=mixer != "N", ffn=ffn != "N"
    )
    found += (weight.repeated(n_norms) for weight in width_norm_weights(spec))
    return (*found, *around_weights(spec))


def block_params(
    spec: ModelSpec, *, moe: bool, cross: bool = False, active: bool = False
) -> dict[str, Dim]:
    """Count by role the parameters of one block with attention, or if `active` those a token uses.

    `moe` says which feed-forward it has, `cross` whether it has cross-attention.

    Returns: parameters, exact.
    Source: `block_weights`.
    """
    weights = block_weights(spec, ffn="E" if moe else "F", cross=cross)
    roles = ("position", "attention", "norm", "moe" if moe else "ffn")
    return by_role(weights, lambda one: one.active if active else one.params, roles)


def width_norm_params(spec: ModelSpec) -> Dim:
    """Count the parameters of one norm of the residual stream.

    Source: `norm.norm_params`.
    """
    return params_of(width_norm_weights(spec))


def self_attention_params(spec: ModelSpec) -> Dim:
    """Count the parameters of one block's self-attention, without norms and relative positions.

    Source: `attention.attention_params`, `mla.mla_params`.
    """
    return _of_role(attention_weights(spec), "attention")


def gqa_params(spec: ModelSpec, *, sinks: bool) -> Dim:
    """Count the parameters of attention with key/value heads; without `sinks`, of cross-attention.

    Source: `attention.attention_params`.
    """
    weights = attention_weights(spec) if sinks else cross_attention_weights(spec)
    return _of_role(weights, "attention")


def attention_norm_params(spec: ModelSpec) -> Dim:
    """Count the parameters of the norms inside the self-attention of one block.

    Source: `norm.latent_norm_params`, `norm.qk_norm_params`.
    """
    return _of_role(attention_weights(spec), "norm")


def dense_ffn_params(spec: ModelSpec) -> Dim:
    """Count the parameters of a dense block's feed-forward; 0 where every block is MoE (no d_ff).

    Source: `ffn.ffn_params`.
    """
    return params_of(dense_weights(spec))


def moe_layer_params(spec: ModelSpec, *, active: bool) -> Dim:
    """Count the parameters of the feed-forward of one MoE block, all or those that one token uses.

    Source: `moe.moe_params`, `moe.moe_active_params`.
    """
    weights = mixture_weights(spec)
    return active_params_of(weights) if active else params_of(weights)


def self_attention_flops(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    n_queries: Dim,
    n_keys: Dim,
    n_pairs: Dim,
    absorbed: bool,
) -> dict[str, Dim]:
    """Count the FLOPs of one block's self-attention, Transformer-XL's share under `position`.

    Per sequence, n_queries new tokens attend to n_keys positions over n_pairs pairs.
    `absorbed` chooses the form of MLA.

    Returns: FLOPs of the forward, exact.
    Source: `attention_weights`, `attention_products`.
    Not counted: softmax, norms, rotary embedding, biases, mask.
    """
    run = {
        TOKENS: batch_size * n_queries,
        CACHED: batch_size * (n_queries if absorbed else n_keys),
        PAIRS: batch_size * n_pairs,
        POSITIONS: n_keys,
    }
    weights = (one for one in attention_weights(spec) if one.role != "norm")
    terms: tuple[Weight | Product, ...] = (*weights, *attention_products(spec, absorbed=absorbed))
    return by_role(terms, lambda term: term.flops(run), ("position", "attention"))


def cross_attention_flops(
    spec: ModelSpec, *, batch_size: Dim, n_queries: Dim, source_len: Dim, cached: bool
) -> dict[str, Dim]:
    """Count the FLOPs of a decoder block's cross-attention; `cached`: keys and values are there.

    Every query attends to all source_len positions.

    Returns: FLOPs of the forward, exact.
    Source: `cross_attention_weights`, `cross_attention_products`.
    Not counted: softmax, norms, biases.
    """
    run = {
        TOKENS: batch_size * n_queries,
        SOURCE: 0 if cached else batch_size * source_len,
        CROSS_PAIRS: batch_size * n_queries * source_len,
    }
    terms: tuple[Weight | Product, ...] = (
        *cross_attention_weights(spec),
        *cross_attention_products(spec),
    )
    return by_role(terms, lambda term: term.flops(run))


def feed_forward_flops(spec: ModelSpec, *, n_tokens: Dim, moe: bool) -> dict[str, Dim]:
    """Count the FLOPs of the feed-forward of one block, dense (0 where there is no d_ff) or MoE.

    Returns: FLOPs of the forward, exact.
    Source: `dense_weights`, `mixture_weights`.
    Not counted: activations, biases, the choice of experts, dispatch and weighting.
    """
    weights = mixture_weights(spec) if moe else dense_weights(spec)
    return by_role(weights, lambda one: one.flops({TOKENS: n_tokens}), ("moe" if moe else "ffn",))


def _of_role(weights: tuple[Weight, ...], role: str) -> Dim:
    return params_of(weight for weight in weights if weight.role == role)
