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

from metacount.formulas import attention, ffn, mla, norm, position
from metacount.formulas import moe as experts
from metacount.formulas.dim import Dim
from metacount.formulas.recurrent import mixer_of
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
from metacount.spec.attention import Attention
from metacount.spec.ffn import FeedForward
from metacount.spec.mla import LatentAttention
from metacount.spec.moe import Mixture, SharedExperts
from metacount.spec.position import TransformerXL

NO_SHARED = SharedExperts()


def attention_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """Tensors of the self-attention of one block, norms and relative positions inside included.

    Source: `attention.attention_weights`, `mla.mla_weights`, `norm.qk_norm_weights`,
    `norm.latent_norm_weights`, `position.transformer_xl_weights`.
    """
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        weights = mla.mla_weights(
            spec.d_model,
            mixer.n_heads,
            q_lora_rank=mixer.q_lora_rank,
            kv_lora_rank=mixer.kv_lora_rank,
            qk_nope_head_dim=mixer.qk_nope_head_dim,
            qk_rope_head_dim=mixer.qk_rope_head_dim,
            v_head_dim=mixer.v_head_dim,
            bias=mixer.bias,
        )
        return (*weights, *norm.latent_norm_weights(mixer.q_lora_rank, mixer.kv_lora_rank))
    mixer = _grouped(spec)
    heads = (mixer.n_heads, mixer.n_kv_heads, mixer.head_dim)
    found = (*_grouped_weights(spec), *norm.qk_norm_weights(mixer.qk_norm, *heads))
    if isinstance(spec.positions, TransformerXL):
        relative = position.transformer_xl_weights(spec.d_model, mixer.n_heads, mixer.head_dim)
        return (*found, *relative)
    return found


def cross_attention_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """Tensors of the cross-attention of one block, which has neither sinks nor norms inside.

    Source: `attention.attention_weights`.
    """
    return _grouped_weights(spec, cross=True)


def _grouped_weights(spec: ModelSpec, *, cross: bool = False) -> tuple[Weight, ...]:
    mixer = _grouped(spec)
    return attention.attention_weights(
        spec.d_model,
        mixer.n_heads,
        mixer.n_kv_heads,
        mixer.head_dim,
        q_bias=mixer.q_bias,
        k_bias=mixer.k_bias,
        v_bias=mixer.v_bias,
        o_bias=mixer.o_bias,
        sinks=mixer.sinks and not cross,
        cross=cross,
    )


def attention_products(
    spec: ModelSpec, *, absorbed: bool, pairs: str = PAIRS, positions: str = POSITIONS
) -> tuple[Product, ...]:
    """Products of the self-attention of one block, `pairs` and `positions` naming what it attends.

    Source: `attention.attention_products`, `mla.mla_products`, `position.transformer_xl_products`.
    """
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        return mla.mla_products(
            mixer.n_heads,
            kv_lora_rank=mixer.kv_lora_rank,
            qk_nope_head_dim=mixer.qk_nope_head_dim,
            qk_rope_head_dim=mixer.qk_rope_head_dim,
            v_head_dim=mixer.v_head_dim,
            absorbed=absorbed,
            per=pairs,
        )
    mixer = _grouped(spec)
    heads = (mixer.n_heads, mixer.head_dim)
    found = attention.attention_products(*heads, per=pairs)
    if isinstance(spec.positions, TransformerXL):
        relative = position.transformer_xl_products(
            spec.d_model, *heads, pairs=pairs, positions=positions
        )
        return (*relative, *found)
    return found


def recurrent_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """Tensors of the mixer of one block that keeps a state; none where no block has one.

    Source: the functions of the mixer's topic, see `recurrent.MIXERS`.
    """
    part = spec.last_stack.recurrent
    mixer = mixer_of(part)
    return () if mixer is None else mixer.weights(part, spec.d_model)


def dense_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """Tensors of the feed-forward of one dense block; none where every block is MoE (no d_ff).

    Source: `ffn.ffn_weights`.
    """
    dense = spec.last_stack.feed_forward
    if dense is None or dense.d_ff is None:
        return ()
    return ffn.ffn_weights(spec.d_model, dense.d_ff, gated=dense.gated, bias=dense.bias)


def mixture_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """Tensors of the feed-forward of one MoE block.

    Source: `moe.moe_weights`.
    """
    dense, mixture = spec.last_stack.feed_forward, _mixture(spec)
    assert isinstance(dense, FeedForward)  # experts are made like it
    shared = mixture.shared or NO_SHARED
    return experts.moe_weights(
        spec.d_model,
        mixture.d_ff,
        mixture.n_experts,
        mixture.top_k,
        gated=dense.gated,
        router_bias=mixture.router_bias,
        expert_bias=mixture.bias,
        n_shared_experts=shared.n_experts,
        d_ff_shared=shared.d_ff,
        shared_bias=dense.bias,
        shared_gate=shared.gate,
    )


def width_norm_weights(spec: ModelSpec, name: str = "layernorm") -> tuple[Weight, ...]:
    """Tensors of one norm of the residual stream.

    Source: `norm.norm_weights`.
    """
    norms = spec.last_stack.norms
    return norm.norm_weights(name, spec.d_model, bias=norms.bias, affine=norms.affine)


def block_weights(
    spec: ModelSpec, *, mixer: str = "A", ffn: str = "F", cross: bool = False
) -> tuple[Weight, ...]:
    """Tensors of one block: `mixer` and `ffn` are its letters in the patterns of its stack.

    `cross`: it has cross-attention (a decoder block of an encoder-decoder).
    """
    found: list[Weight] = []
    if mixer in "AP":
        found += attention_weights(spec)
    if mixer in "RP":
        found += recurrent_weights(spec)
    if cross:
        found += cross_attention_weights(spec)
    if ffn == "F":
        found += dense_weights(spec)
    if ffn == "E":
        found += mixture_weights(spec)
    n_norms = norm.norms_per_block(
        spec.last_stack.norms.placement, cross=cross, mixer=mixer != "N", ffn=ffn != "N"
    )
    found += (weight.repeated(n_norms) for weight in width_norm_weights(spec))
    return tuple(found)


def block_params(
    spec: ModelSpec, *, moe: bool, cross: bool = False, active: bool = False
) -> dict[str, Dim]:
    """Parameters of one block with attention by role, or with `active` those that one token uses.

    `moe` says which feed-forward it has, `cross` whether it has cross-attention.

    Returns: parameters, exact.
    Source: `block_weights`.
    """
    weights = block_weights(spec, ffn="E" if moe else "F", cross=cross)
    roles = ("position", "attention", "norm", "moe" if moe else "ffn")
    return by_role(weights, lambda one: one.active if active else one.params, roles)


def width_norm_params(spec: ModelSpec) -> Dim:
    """Parameters of one norm of the residual stream.

    Source: `norm.norm_params`.
    """
    return params_of(width_norm_weights(spec))


def self_attention_params(spec: ModelSpec) -> Dim:
    """Parameters of the self-attention of one block, without its norms and relative positions.

    Source: `attention.attention_params`, `mla.mla_params`.
    """
    return _of_role(attention_weights(spec), "attention")


def gqa_params(spec: ModelSpec, *, sinks: bool) -> Dim:
    """Parameters of an attention with key/value heads; a cross-attention is one without sinks.

    Source: `attention.attention_params`.
    """
    return _of_role(_grouped_weights(spec, cross=not sinks), "attention")


def attention_norm_params(spec: ModelSpec) -> Dim:
    """Parameters of the norms inside the self-attention of one block.

    Source: `norm.latent_norm_params`, `norm.qk_norm_params`.
    """
    return _of_role(attention_weights(spec), "norm")


def position_params(spec: ModelSpec) -> Dim:
    """Parameters of the position information inside one block.

    Source: `position.transformer_xl_params`.
    """
    return _of_role(attention_weights(spec), "position")


def dense_ffn_params(spec: ModelSpec) -> Dim:
    """Parameters of the feed-forward of one dense block; 0 where every block is MoE (no d_ff).

    Source: `ffn.ffn_params`.
    """
    return params_of(dense_weights(spec))


def moe_layer_params(spec: ModelSpec, *, active: bool) -> Dim:
    """Parameters of the feed-forward of one MoE block, all or those that one token uses.

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
    """FLOPs of the self-attention of one block, with Transformer-XL's share under `position`.

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
    terms = (*weights, *attention_products(spec, absorbed=absorbed))
    return by_role(terms, lambda term: term.flops(run), ("position", "attention"))


def cross_attention_flops(
    spec: ModelSpec, *, batch_size: Dim, n_queries: Dim, source_len: Dim, cached: bool
) -> dict[str, Dim]:
    """FLOPs of the cross-attention of one decoder block; `cached`: keys and values are there.

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
    terms = (*cross_attention_weights(spec), *cross_attention_products(spec))
    return by_role(terms, lambda term: term.flops(run))


def cross_attention_products(spec: ModelSpec) -> tuple[Product, ...]:
    """Products of the cross-attention of one block.

    Source: `attention.attention_products`.
    """
    mixer = _grouped(spec)
    return attention.attention_products(mixer.n_heads, mixer.head_dim, per=CROSS_PAIRS)


def feed_forward_flops(spec: ModelSpec, *, n_tokens: Dim, moe: bool) -> dict[str, Dim]:
    """FLOPs of the feed-forward of one block, dense (0 where there is no d_ff) or MoE.

    Returns: FLOPs of the forward, exact.
    Source: `dense_weights`, `mixture_weights`.
    Not counted: activations, biases, the choice of experts, dispatch and weighting.
    """
    weights = mixture_weights(spec) if moe else dense_weights(spec)
    return by_role(weights, lambda one: one.flops({TOKENS: n_tokens}), ("moe" if moe else "ffn",))


def kv_cache_values(spec: ModelSpec) -> Dim:
    """Values that one token leaves in the cache of one block's self-attention.

    Source: `attention.kv_cache_values`, `mla.mla_kv_cache_values`.
    """
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        return mla.mla_kv_cache_values(mixer.kv_lora_rank, mixer.qk_rope_head_dim)
    if not isinstance(mixer, Attention):
        return 0
    return attention.kv_cache_values(mixer.n_kv_heads, mixer.head_dim)


def _of_role(weights: tuple[Weight, ...], role: str) -> Dim:
    return params_of(weight for weight in weights if weight.role == role)


def _grouped(spec: ModelSpec) -> Attention:
    """The attention with key/value heads; every cross-attention is one."""
    mixer = spec.last_stack.attention
    assert isinstance(mixer, Attention)  # who asks has asked, or has an encoder
    return mixer


def _mixture(spec: ModelSpec) -> Mixture:
    mixture = spec.last_stack.mixture
    assert mixture is not None  # who asks has asked whether a layer is MoE
    return mixture
