"""One block, summed by role: the topics' functions fed from a `ModelSpec`.

Every function is a dict from role to count, so that `model.py` only multiplies and adds.

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
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention
from metacount.spec.moe import Mixture, SharedExperts
from metacount.spec.position import TransformerXL

NO_SHARED = SharedExperts()


def block_params(
    spec: ModelSpec, *, moe: bool, cross: bool = False, active: bool = False
) -> dict[str, Dim]:
    """Parameters of one block by role, or with `active` those that one token uses.

    `moe` says which feed-forward it has, `cross` whether it has cross-attention (a decoder block
    of an encoder-decoder).

    Returns: parameters, exact.
    Source: the functions of each topic.
    """
    placement = spec.last_stack.norms.placement
    norms = norm.norms_per_block(placement, cross=cross) * width_norm_params(spec)
    attention_params = self_attention_params(spec)
    if cross:
        attention_params += gqa_params(spec, sinks=False)
    parts = {
        "position": position_params(spec),
        "attention": attention_params,
        "norm": norms + attention_norm_params(spec),
    }
    if moe:
        parts["moe"] = moe_layer_params(spec, active=active)
    else:
        parts["ffn"] = dense_ffn_params(spec)
    return parts


def width_norm_params(spec: ModelSpec) -> Dim:
    """Parameters of one norm of the residual stream.

    Source: `norm.norm_params`.
    """
    norms = spec.last_stack.norms
    return norm.norm_params(spec.d_model, bias=norms.bias, affine=norms.affine)


def self_attention_params(spec: ModelSpec) -> Dim:
    """Parameters of the self-attention of one block, without its norms.

    Source: `attention.attention_params`, `mla.mla_params`.
    """
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        return mla.mla_params(
            spec.d_model,
            mixer.n_heads,
            q_lora_rank=mixer.q_lora_rank,
            kv_lora_rank=mixer.kv_lora_rank,
            qk_nope_head_dim=mixer.qk_nope_head_dim,
            qk_rope_head_dim=mixer.qk_rope_head_dim,
            v_head_dim=mixer.v_head_dim,
            bias=mixer.bias,
        )
    return gqa_params(spec, sinks=mixer.sinks)


def gqa_params(spec: ModelSpec, *, sinks: bool) -> Dim:
    """Parameters of an attention with key/value heads; a cross-attention is one without sinks.

    Source: `attention.attention_params`.
    """
    mixer = _grouped(spec)
    return attention.attention_params(
        spec.d_model,
        mixer.n_heads,
        mixer.n_kv_heads,
        mixer.head_dim,
        q_bias=mixer.q_bias,
        k_bias=mixer.k_bias,
        v_bias=mixer.v_bias,
        o_bias=mixer.o_bias,
        sinks=sinks,
    )


def attention_norm_params(spec: ModelSpec) -> Dim:
    """Parameters of the norms inside the self-attention of one block.

    Source: `norm.latent_norm_params`, `norm.qk_norm_params`.
    """
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        return norm.latent_norm_params(mixer.q_lora_rank, mixer.kv_lora_rank)
    return norm.qk_norm_params(mixer.qk_norm, mixer.n_heads, mixer.n_kv_heads, mixer.head_dim)


def position_params(spec: ModelSpec) -> Dim:
    """Parameters of the position information inside one block.

    Source: `position.transformer_xl_params`.
    """
    if not isinstance(spec.positions, TransformerXL):
        return 0
    mixer = _grouped(spec)
    return position.transformer_xl_params(spec.d_model, mixer.n_heads, mixer.head_dim)


def dense_ffn_params(spec: ModelSpec) -> Dim:
    """Parameters of the feed-forward of one dense block; 0 where every block is MoE (no d_ff).

    Source: `ffn.ffn_params`.
    """
    dense = spec.last_stack.feed_forward
    if dense.d_ff is None:
        return 0
    return ffn.ffn_params(spec.d_model, dense.d_ff, gated=dense.gated, bias=dense.bias)


def moe_layer_params(spec: ModelSpec, *, active: bool) -> Dim:
    """Parameters of the feed-forward of one MoE block, all or those that one token uses.

    Source: `moe.moe_active_params`; with top_k = n_experts, all.
    """
    dense, mixture = spec.last_stack.feed_forward, _mixture(spec)
    shared = mixture.shared or NO_SHARED
    return experts.moe_active_params(
        spec.d_model,
        mixture.d_ff,
        mixture.n_experts,
        mixture.top_k if active else mixture.n_experts,
        gated=dense.gated,
        router_bias=mixture.router_bias,
        expert_bias=mixture.bias,
        n_shared_experts=shared.n_experts,
        d_ff_shared=shared.d_ff,
        shared_bias=dense.bias,
        shared_gate=shared.gate,
    )


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
    Source: `attention.attention_projection_flops`, `attention.attention_pair_flops`,
    `mla.mla_matmul_flops`, `position.transformer_xl_projection_flops` and `_score_flops`.
    Not counted: softmax, norms, rotary embedding, biases, mask.
    """
    n_tokens = batch_size * n_queries
    all_pairs = batch_size * n_pairs
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        flops = mla.mla_matmul_flops(
            n_tokens,
            all_pairs,
            spec.d_model,
            mixer.n_heads,
            q_lora_rank=mixer.q_lora_rank,
            kv_lora_rank=mixer.kv_lora_rank,
            qk_nope_head_dim=mixer.qk_nope_head_dim,
            qk_rope_head_dim=mixer.qk_rope_head_dim,
            v_head_dim=mixer.v_head_dim,
            absorbed=absorbed,
            n_kv_tokens=batch_size * n_keys,
        )
        return {"position": 0, "attention": flops}
    heads = (mixer.n_heads, mixer.head_dim)
    relative = 0
    if isinstance(spec.positions, TransformerXL):
        relative = position.transformer_xl_projection_flops(n_keys, spec.d_model, *heads)
        relative += position.transformer_xl_score_flops(all_pairs, *heads)
    projections = attention.attention_projection_flops(
        n_tokens, spec.d_model, mixer.n_heads, mixer.n_kv_heads, mixer.head_dim
    )
    pairs = attention.attention_pair_flops(all_pairs, *heads)
    return {"position": relative, "attention": projections + pairs}


def cross_attention_flops(
    spec: ModelSpec, *, batch_size: Dim, n_queries: Dim, source_len: Dim, cached: bool
) -> dict[str, Dim]:
    """FLOPs of the cross-attention of one decoder block; `cached`: keys and values are there.

    Every query attends to all source_len positions.

    Returns: FLOPs of the forward, exact.
    Source: `attention.attention_projection_flops`, `attention.attention_pair_flops`.
    Not counted: softmax, norms, biases.
    """
    n_tokens = batch_size * n_queries
    mixer = _grouped(spec)
    projections = attention.attention_projection_flops(
        n_tokens,
        spec.d_model,
        mixer.n_heads,
        mixer.n_kv_heads,
        mixer.head_dim,
        n_kv_tokens=0 if cached else batch_size * source_len,
    )
    pairs = attention.attention_pair_flops(n_tokens * source_len, mixer.n_heads, mixer.head_dim)
    return {"attention": projections + pairs}


def feed_forward_flops(spec: ModelSpec, *, n_tokens: Dim, moe: bool) -> dict[str, Dim]:
    """FLOPs of the feed-forward of one block, dense (0 where there is no d_ff) or MoE.

    Returns: FLOPs of the forward, exact.
    Source: `ffn.ffn_matmul_flops`, `moe.moe_matmul_flops`.
    Not counted: activations, biases, the choice of experts, dispatch and weighting.
    """
    dense = spec.last_stack.feed_forward
    if moe:
        mixture = _mixture(spec)
        shared = mixture.shared or NO_SHARED
        flops = experts.moe_matmul_flops(
            n_tokens,
            spec.d_model,
            mixture.d_ff,
            mixture.n_experts,
            mixture.top_k,
            gated=dense.gated,
            n_shared_experts=shared.n_experts,
            d_ff_shared=shared.d_ff,
            shared_gate=shared.gate,
        )
        return {"moe": flops}
    if dense.d_ff is None:
        return {"ffn": 0}
    return {"ffn": ffn.ffn_matmul_flops(n_tokens, spec.d_model, dense.d_ff, gated=dense.gated)}


def kv_cache_values(spec: ModelSpec) -> Dim:
    """Values that one token leaves in the cache of one block's self-attention.

    Source: `attention.kv_cache_values`, `mla.mla_kv_cache_values`.
    """
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        return mla.mla_kv_cache_values(mixer.kv_lora_rank, mixer.qk_rope_head_dim)
    return attention.kv_cache_values(mixer.n_kv_heads, mixer.head_dim)


def _grouped(spec: ModelSpec) -> Attention:
    """The attention with key/value heads; every cross-attention is one."""
    mixer = spec.last_stack.attention
    assert isinstance(mixer, Attention)  # who asks has asked, or has an encoder
    return mixer


def _mixture(spec: ModelSpec) -> Mixture:
    mixture = spec.last_stack.mixture
    assert mixture is not None  # who asks has asked whether a layer is MoE
    return mixture
