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


def block_params(
    spec: ModelSpec, *, moe: bool, cross: bool = False, active: bool = False
) -> dict[str, Dim]:
    """Parameters of one block by role, or with `active` those that one token uses.

    `moe` says which feed-forward it has, `cross` whether it has cross-attention (a decoder block
    of an encoder-decoder).

    Returns: parameters, exact.
    Source: the functions of each topic.
    """
    norms = norm.norms_per_block(spec.norm_placement, cross=cross) * width_norm_params(spec)
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
    return norm.norm_params(spec.d_model, bias=spec.norm_bias, affine=spec.norm_affine)


def self_attention_params(spec: ModelSpec) -> Dim:
    """Parameters of the self-attention of one block, without its norms.

    Source: `attention.attention_params`, `mla.mla_params`.
    """
    if spec.attention == "mla":
        return mla.mla_params(
            spec.d_model,
            spec.n_heads,
            q_lora_rank=spec.q_lora_rank,
            kv_lora_rank=spec.kv_lora_rank,
            qk_nope_head_dim=spec.qk_nope_head_dim,
            qk_rope_head_dim=spec.qk_rope_head_dim,
            v_head_dim=spec.v_head_dim,
            bias=spec.mla_bias,
        )
    return gqa_params(spec, sinks=spec.attention_sinks)


def gqa_params(spec: ModelSpec, *, sinks: bool) -> Dim:
    """Parameters of an attention with key/value heads; a cross-attention is one without sinks.

    Source: `attention.attention_params`.
    """
    return attention.attention_params(
        spec.d_model,
        spec.n_heads,
        spec.n_kv_heads,
        spec.head_dim,
        q_bias=spec.q_bias,
        k_bias=spec.k_bias,
        v_bias=spec.v_bias,
        o_bias=spec.o_bias,
        sinks=sinks,
    )


def attention_norm_params(spec: ModelSpec) -> Dim:
    """Parameters of the norms inside the self-attention of one block.

    Source: `norm.latent_norm_params`, `norm.qk_norm_params`.
    """
    if spec.attention == "mla":
        return norm.latent_norm_params(spec.q_lora_rank, spec.kv_lora_rank)
    return norm.qk_norm_params(spec.qk_norm, spec.n_heads, spec.n_kv_heads, spec.head_dim)


def position_params(spec: ModelSpec) -> Dim:
    """Parameters of the position information inside one block.

    Source: `position.transformer_xl_params`.
    """
    if spec.position != "transformer_xl":
        return 0
    return position.transformer_xl_params(spec.d_model, spec.n_heads, spec.head_dim)


def dense_ffn_params(spec: ModelSpec) -> Dim:
    """Parameters of the feed-forward of one dense block; 0 where every block is MoE (no d_ff).

    Source: `ffn.ffn_params`.
    """
    if spec.d_ff is None:
        return 0
    return ffn.ffn_params(spec.d_model, spec.d_ff, gated=spec.gated, bias=spec.ffn_bias)


def moe_layer_params(spec: ModelSpec, *, active: bool) -> Dim:
    """Parameters of the feed-forward of one MoE block, all or those that one token uses.

    Source: `moe.moe_active_params`; with top_k = n_experts, all.
    """
    return experts.moe_active_params(
        spec.d_model,
        spec.d_ff_expert,
        spec.n_experts,
        spec.top_k if active else spec.n_experts,
        gated=spec.gated,
        router_bias=spec.router_bias,
        expert_bias=spec.expert_bias,
        n_shared_experts=spec.n_shared_experts,
        d_ff_shared=spec.d_ff_shared,
        shared_bias=spec.ffn_bias,
        shared_gate=spec.shared_expert_gate,
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
    if spec.attention == "mla":
        flops = mla.mla_matmul_flops(
            n_tokens,
            all_pairs,
            spec.d_model,
            spec.n_heads,
            q_lora_rank=spec.q_lora_rank,
            kv_lora_rank=spec.kv_lora_rank,
            qk_nope_head_dim=spec.qk_nope_head_dim,
            qk_rope_head_dim=spec.qk_rope_head_dim,
            v_head_dim=spec.v_head_dim,
            absorbed=absorbed,
            n_kv_tokens=batch_size * n_keys,
        )
        return {"position": 0, "attention": flops}
    heads = (spec.n_heads, spec.head_dim)
    relative = 0
    if spec.position == "transformer_xl":
        relative = position.transformer_xl_projection_flops(n_keys, spec.d_model, *heads)
        relative += position.transformer_xl_score_flops(all_pairs, *heads)
    projections = attention.attention_projection_flops(
        n_tokens, spec.d_model, spec.n_heads, spec.n_kv_heads, spec.head_dim
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
    projections = attention.attention_projection_flops(
        n_tokens,
        spec.d_model,
        spec.n_heads,
        spec.n_kv_heads,
        spec.head_dim,
        n_kv_tokens=0 if cached else batch_size * source_len,
    )
    pairs = attention.attention_pair_flops(n_tokens * source_len, spec.n_heads, spec.head_dim)
    return {"attention": projections + pairs}


def feed_forward_flops(spec: ModelSpec, *, n_tokens: Dim, moe: bool) -> dict[str, Dim]:
    """FLOPs of the feed-forward of one block, dense (0 where there is no d_ff) or MoE.

    Returns: FLOPs of the forward, exact.
    Source: `ffn.ffn_matmul_flops`, `moe.moe_matmul_flops`.
    Not counted: activations, biases, the choice of experts, dispatch and weighting.
    """
    if moe:
        flops = experts.moe_matmul_flops(
            n_tokens,
            spec.d_model,
            spec.d_ff_expert,
            spec.n_experts,
            spec.top_k,
            gated=spec.gated,
            n_shared_experts=spec.n_shared_experts,
            d_ff_shared=spec.d_ff_shared,
            shared_gate=spec.shared_expert_gate,
        )
        return {"moe": flops}
    if spec.d_ff is None:
        return {"ffn": 0}
    return {"ffn": ffn.ffn_matmul_flops(n_tokens, spec.d_model, spec.d_ff, gated=spec.gated)}


def kv_cache_values(spec: ModelSpec) -> Dim:
    """Values that one token leaves in the cache of one block's self-attention.

    Source: `attention.kv_cache_values`, `mla.mla_kv_cache_values`.
    """
    if spec.attention == "mla":
        return mla.mla_kv_cache_values(spec.kv_lora_rank, spec.qk_rope_head_dim)
    return attention.kv_cache_values(spec.n_kv_heads, spec.head_dim)
