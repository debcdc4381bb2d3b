"""Each sublayer of a block: its tensors and products, the topics' functions fed from a `ModelSpec`.

>>> from metacount.catalog import entry
>>> [weight.name for weight in dense_weights(entry("llama-7b").spec())]
['mlp.gate_proj.weight', 'mlp.up_proj.weight', 'mlp.down_proj.weight']
"""

from __future__ import annotations

from metacount.formulas import attention, ffn, indexer, mla, norm, position, shared_block
from metacount.formulas import moe as experts
from metacount.formulas.dim import Dim
from metacount.formulas.recurrent import mixer_of
from metacount.formulas.terms import (
    CROSS_PAIRS,
    PAIRS,
    POSITIONS,
    Product,
    State,
    Weight,
)
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.ffn import FeedForward
from metacount.spec.mla import LatentAttention
from metacount.spec.moe import Mixture, SharedExperts, ZeroExperts
from metacount.spec.position import TransformerXL
from metacount.spec.stack import BESIDE

NO_SHARED, NO_ZERO = SharedExperts(), ZeroExperts()


def attention_weights(spec: ModelSpec, *, borrows: bool = False) -> tuple[Weight, ...]:
    """List the tensors of one block's self-attention, norms and relative positions included.

    `borrows`: it has no projections and no norm of keys and values, which another block made.

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
        norms = norm.latent_norm_weights(mixer.q_lora_rank, mixer.kv_lora_rank)
        return (*weights, *norms, *_index_weights(spec, mixer))
    mixer = _grouped(spec)
    heads = (mixer.n_heads, mixer.n_kv_heads, mixer.head_dim)
    found = (
        *_grouped_weights(spec, borrows=borrows),
        *norm.qk_norm_weights(mixer.qk_norm, *heads, borrows=borrows),
    )
    if isinstance(spec.positions, TransformerXL):
        relative = position.transformer_xl_weights(spec.d_model, mixer.n_heads, mixer.head_dim)
        return (*found, *relative)
    return found


def _index_weights(spec: ModelSpec, mixer: LatentAttention) -> tuple[Weight, ...]:
    if mixer.indexer is None:
        return ()
    return indexer.indexer_weights(
        spec.d_model,
        q_lora_rank=mixer.q_lora_rank,
        n_index_heads=mixer.indexer.n_heads,
        index_head_dim=mixer.indexer.head_dim,
    )


def cross_attention_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors of one block's cross-attention, which has neither sinks nor norms inside.

    Source: `attention.attention_weights`.
    """
    return _grouped_weights(spec, cross=True)


def _grouped_weights(
    spec: ModelSpec, *, cross: bool = False, borrows: bool = False
) -> tuple[Weight, ...]:
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
        output_gate=mixer.output_gate and not cross,
        cross=cross,
        borrows=borrows,
    )


def attention_products(
    spec: ModelSpec, *, absorbed: bool, pairs: str = PAIRS, positions: str = POSITIONS
) -> tuple[Product, ...]:
    """List one block's self-attention products; `pairs` and `positions` name what it attends to.

    Source: `attention.attention_products`, `mla.mla_products`, `position.transformer_xl_products`.
    """
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        products = mla.mla_products(
            mixer.n_heads,
            kv_lora_rank=mixer.kv_lora_rank,
            qk_nope_head_dim=mixer.qk_nope_head_dim,
            qk_rope_head_dim=mixer.qk_rope_head_dim,
            v_head_dim=mixer.v_head_dim,
            absorbed=absorbed,
            per=pairs,
        )
        index = mixer.indexer
        if index is None:
            return products
        return (*products, *indexer.indexer_products(index.n_heads, index.head_dim, per=pairs))
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
    """List the tensors of the mixer of one block that keeps a state; none where no block has one.

    Source: the functions of the mixer's topic, see `recurrent.MIXERS`.
    """
    part = spec.last_stack.recurrent
    mixer = mixer_of(part)
    return () if mixer is None else mixer.weights(part, spec.d_model)


def shared_block_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors of one stored block that many layers use.

    Source: `shared_block.shared_block_weights`.
    """
    mixer, dense, norms = _grouped(spec), _dense(spec), spec.last_stack.norms
    return shared_block.shared_block_weights(
        spec.d_model,
        dense.d_ff,
        mixer.n_heads,
        mixer.n_kv_heads,
        mixer.head_dim,
        gated=dense.gated,
        ffn_bias=dense.bias,
        norm_bias=norms.bias,
        norm_affine=norms.affine,
        attention_biases=(mixer.q_bias, mixer.k_bias, mixer.v_bias, mixer.o_bias),
    )


def shared_use_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors that one layer has of its own to use a stored block.

    Source: `shared_block.shared_use_weights`.
    """
    mixer, dense, shared = _grouped(spec), _dense(spec), spec.last_stack.shared
    assert shared is not None  # who asks has asked
    return shared_block.shared_use_weights(
        spec.d_model,
        dense.d_ff,
        mixer.n_heads,
        mixer.n_kv_heads,
        mixer.head_dim,
        gated=dense.gated,
        adapter_rank=shared.adapter_rank,
        attention_adapters=shared.attention_adapters,
    )


def dense_weights(spec: ModelSpec, *, second: bool = False) -> tuple[Weight, ...]:
    """List the tensors of a dense block's feed-forward; none where every block is MoE (no d_ff).

    `second`: of one that has the second width.

    Source: `ffn.ffn_weights`.
    """
    dense = spec.last_stack.feed_forward
    if dense is None or dense.d_ff is None:
        return ()
    width = dense.second if second else dense.d_ff
    return ffn.ffn_weights(spec.d_model, width, gated=dense.gated, bias=dense.bias)


def mixture_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors of the experts of one MoE block, in place of a feed-forward or beside one.

    Source: `moe.moe_weights`.
    """
    dense, mixture = _dense(spec), _mixture(spec)
    shared, zero = mixture.shared or NO_SHARED, mixture.zero or NO_ZERO
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
        n_zero_experts=zero.n_experts,
        zero_expert_rows=zero.rows,
        name="moe" if BESIDE in spec.last_stack.ffn_pattern else "mlp",
    )


def width_norm_weights(spec: ModelSpec, name: str = "layernorm") -> tuple[Weight, ...]:
    """List the tensors of one norm of the residual stream.

    Source: `norm.norm_weights`.
    """
    norms = spec.last_stack.norms
    return norm.norm_weights(name, spec.d_model, bias=norms.bias, affine=norms.affine)


def cross_attention_products(spec: ModelSpec) -> tuple[Product, ...]:
    """List the products of the cross-attention of one block.

    Source: `attention.attention_products`.
    """
    mixer = _grouped(spec)
    return attention.attention_products(mixer.n_heads, mixer.head_dim, per=CROSS_PAIRS)


def cached_tensors(spec: ModelSpec) -> tuple[State, ...]:
    """List what one token leaves in the cache of one block's self-attention, tensor by tensor.

    Source: as `attention.kv_cache_values`, `mla.mla_kv_cache_values`.
    """
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        rotated = State(name="rotated keys", shape=(mixer.qk_rope_head_dim,))
        kept = (State(name="latents", shape=(mixer.kv_lora_rank,)), rotated)
        if mixer.indexer is None:
            return kept
        return (*kept, State(name="keys of the index", shape=(mixer.indexer.head_dim,)))
    if not isinstance(mixer, Attention):
        return ()
    shape = (mixer.n_kv_heads, mixer.head_dim)
    return State(name="keys", shape=shape), State(name="values", shape=shape)


def kv_cache_values(spec: ModelSpec) -> Dim:
    """Count the values that one token leaves in the cache of one block's self-attention.

    Without those of a block indexer, which not every block has: see `indexed.index_cache`.

    Source: `attention.kv_cache_values`, `mla.mla_kv_cache_values`, `indexer_cache_values`.
    """
    return sum(tensor.size for tensor in cached_tensors(spec))


def _grouped(spec: ModelSpec) -> Attention:
    """Return the model's attention, which has key/value heads, as every cross-attention has."""
    mixer = spec.last_stack.attention
    assert isinstance(mixer, Attention)  # who asks has asked, or has an encoder
    return mixer


def _dense(spec: ModelSpec) -> FeedForward:
    """Return the model's feed-forward, whose form experts and shared blocks have as well."""
    dense = spec.last_stack.feed_forward
    assert isinstance(dense, FeedForward)
    return dense


def _mixture(spec: ModelSpec) -> Mixture:
    mixture = spec.last_stack.mixture
    assert mixture is not None  # who asks has asked whether a layer is MoE
    return mixture
