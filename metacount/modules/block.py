"""One transformer block: attention, feed-forward or experts, and where the norms stand."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from metacount.modules.attention import Attention, Visibility
from metacount.modules.cache import LayerCache
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.linear import Linear
from metacount.modules.mla import LatentAttention
from metacount.modules.moe import Experts, MixtureOfExperts, Router
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.position_parts import QueryGrowth, RopeScaling
from metacount.spec import ModelSpec

# sublayer -> names of the norm before it and of the norm after it
NORMS: dict[str, dict[str, tuple[str | None, str | None]]] = {
    "pre": {
        "self_attn": ("input_layernorm", None),
        "cross_attn": ("cross_attention_layernorm", None),
        "mlp": ("post_attention_layernorm", None),
    },
    "post": {
        "self_attn": (None, "self_attention_layernorm"),
        "cross_attn": (None, "cross_attention_layernorm"),
        "mlp": (None, "feedforward_layernorm"),
    },
    "sandwich": {
        "self_attn": ("input_layernorm", "post_attention_layernorm"),
        "cross_attn": ("pre_cross_attention_layernorm", "post_cross_attention_layernorm"),
        "mlp": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    },
    "post_branch": {
        "self_attn": (None, "post_attention_layernorm"),
        "cross_attn": (None, "post_cross_attention_layernorm"),
        "mlp": (None, "post_feedforward_layernorm"),
    },
    "parallel": {"self_attn": ("input_layernorm", None), "mlp": (None, None)},
    "parallel_two": {
        "self_attn": ("input_layernorm", None),
        "mlp": ("post_attention_layernorm", None),
    },
}
NORMS["deep"] = NORMS["post"]


def make_norm(spec: ModelSpec, width: int) -> LayerNorm | RMSNorm:
    """The spec's norm over `width` values."""
    if spec.norm == "layernorm":
        return LayerNorm(width, bias=spec.norm_bias, affine=spec.norm_affine, eps=spec.norm_eps)
    return RMSNorm(
        width, affine=spec.norm_affine, unit_offset=spec.norm_unit_offset, eps=spec.norm_eps
    )


def make_attention(spec: ModelSpec, index: int) -> Attention | LatentAttention:
    """Self-attention of block `index`."""
    rotates = spec.has_rope_layer(index)
    theta, scaling = spec.rope_theta, spec.rope_scaling
    if spec.is_windowed_layer(index) and spec.rope_theta_windowed is not None:
        theta, scaling = spec.rope_theta_windowed, spec.rope_scaling_windowed
    growth = spec.query_growth
    if growth is not None and growth.nope_only and rotates:
        growth = None
    if spec.attention == "mla":
        assert spec.kv_lora_rank and spec.qk_nope_head_dim  # the spec requires them
        assert spec.qk_rope_head_dim and spec.v_head_dim
        return LatentAttention(
            d_model=spec.d_model,
            n_heads=spec.n_heads,
            q_lora_rank=spec.q_lora_rank,
            kv_lora_rank=spec.kv_lora_rank,
            qk_nope_head_dim=spec.qk_nope_head_dim,
            qk_rope_head_dim=spec.qk_rope_head_dim,
            v_head_dim=spec.v_head_dim,
            bias=spec.mla_bias,
            norm_eps=spec.norm_eps,
            scale=spec.attention_scale,
            softcap=spec.attention_softcap,
            rope_theta=theta,
            rope_style=spec.rope_style,
            rope_scaling=scaling,
            latent_eps=spec.latent_norm_eps,
        )
    # Llama 4 norms only the queries and keys that it rotated
    qk_norm = "none" if spec.qk_norm == "l2" and not rotates else spec.qk_norm
    return make_gqa(
        spec,
        qk_norm=qk_norm,
        sinks=spec.attention_sinks,
        rotary_dim=(spec.rotary_dim or spec.head_dim) if rotates else None,
        rope_theta=theta,
        rope_scaling=scaling if rotates else None,
        query_growth=growth,
        relative=spec.position == "transformer_xl",
    )


def make_gqa(
    spec: ModelSpec,
    *,
    qk_norm: str = "none",
    sinks: bool = False,
    rotary_dim: int | None = None,
    rope_theta: float = 10000.0,
    rope_scaling: RopeScaling | None = None,
    query_growth: QueryGrowth | None = None,
    relative: bool = False,
) -> Attention:
    """The spec's heads and biases; as it stands, a cross-attention: no positions, no QK-norm."""
    assert spec.n_kv_heads and spec.head_dim
    return Attention(
        d_model=spec.d_model,
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        q_bias=spec.q_bias,
        k_bias=spec.k_bias,
        v_bias=spec.v_bias,
        o_bias=spec.o_bias,
        qk_norm=qk_norm,
        norm_eps=spec.norm_eps,
        norm_unit_offset=spec.norm_unit_offset,
        scale=spec.attention_scale,
        softcap=spec.attention_softcap,
        sinks=sinks,
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
        rope_style=spec.rope_style,
        rope_scaling=rope_scaling,
        query_growth=query_growth,
        relative=relative,
    )


def make_ffn(spec: ModelSpec, d_ff: int) -> FeedForward | GatedFeedForward:
    """The spec's feed-forward of width `d_ff`."""
    kind = GatedFeedForward if spec.gated else FeedForward
    return kind(
        spec.d_model,
        d_ff,
        activation=spec.activation,
        bias=spec.ffn_bias,
        swish_beta=spec.swish_beta,
    )


def make_moe(spec: ModelSpec) -> MixtureOfExperts:
    """The spec's MoE layer."""
    assert spec.n_experts and spec.top_k and spec.d_ff_expert
    width = spec.n_shared_experts * (spec.d_ff_shared or spec.d_ff_expert)
    return MixtureOfExperts(
        router=Router(
            d_model=spec.d_model,
            n_experts=spec.n_experts,
            top_k=spec.top_k,
            scoring=spec.router,
            bias=spec.router_bias,
            selection_bias=spec.selection_bias,
            n_groups=spec.n_groups,
            top_groups=spec.top_groups,
            group_score=spec.group_score,
            routed_scale=spec.routed_scale,
            mixer_jitter=spec.mixer_jitter,
        ),
        experts=Experts(
            d_model=spec.d_model,
            d_ff=spec.d_ff_expert,
            n_experts=spec.n_experts,
            top_k=spec.top_k,
            activation=spec.activation,
            gated=spec.gated,
            bias=spec.expert_bias,
            swish_beta=spec.swish_beta,
            weigh_input=spec.router_scales_input,
        ),
        shared=make_ffn(spec, width) if width else None,
        shared_gate=Linear(spec.d_model, 1, bias=False) if spec.shared_expert_gate else None,
    )


def deep_alpha(spec: ModelSpec, cross: bool) -> float:
    """DeepNorm's weight of the residual: Wang et al. 2022, arXiv:2203.00555, figure 2.

    (2N)^1/4 in a single stack; with N encoder and M decoder layers 0.81·(N⁴·M)^1/16 in the encoder
    and (3M)^1/4 in the decoder (whose blocks are those with cross-attention).
    """
    if cross:
        return (3 * spec.n_layers) ** 0.25  # int ** float is Any
    if spec.has_encoder:
        return 0.81 * (spec.n_encoder_layers**4 * spec.n_layers) ** 0.0625
    return (2 * spec.n_layers) ** 0.25


class Block(nn.Module):
    """x -> x + attention -> + feed-forward, with the norms of the spec's placement.

    pre          x + f(norm(x))                   (GPT-2, LLaMA)
    post         norm(x + f(x))                   (the original Transformer, BERT)
    sandwich     x + norm(f(norm(x)))             (Gemma 2; CogView, arXiv:2105.13290)
    deep         norm(α·x + f(x)), see `deep_alpha`
    post_branch  x + norm(f(x))                   (OLMo 2, arXiv:2501.00656)
    parallel     x + attn(norm(x)) + ffn(norm(x)), one norm or two (PaLM, GPT-NeoX)

    `residual_scale` multiplies what is added to x, after any norm of the branch.

    `kind` says what distinguishes the block from others of its stack: blocks of equal kind have
    the same structure and cost.
    """

    def __init__(self, spec: ModelSpec, index: int, *, cross: bool = False) -> None:
        super().__init__()
        self.parallel = spec.norm_placement.startswith("parallel")
        self.residual_scale = spec.residual_scale
        self.alpha = deep_alpha(spec, cross) if spec.norm_placement == "deep" else 1.0
        self.window = spec.window if spec.is_windowed_layer(index) else None
        self.kind = (
            f"moe={spec.is_moe_layer(index)} window={self.window} "
            f"rope={spec.has_rope_layer(index)} cross={cross}"
        )
        self.norms = NORMS[spec.norm_placement]
        sublayers: dict[str, Callable[[], nn.Module]] = {
            "self_attn": lambda: make_attention(spec, index),
            "cross_attn": lambda: make_gqa(spec),
            "mlp": lambda: make_moe(spec) if spec.is_moe_layer(index) else make_dense(spec),
        }
        self.sublayers = [name for name in sublayers if cross or name != "cross_attn"]
        for name in self.sublayers:
            before, after = self.norms[name]
            if before and not (index == 0 and name == "self_attn" and not spec.first_norm):
                self.add_module(before, make_norm(spec, spec.d_model))
            self.add_module(name, sublayers[name]())
            if after:
                self.add_module(after, make_norm(spec, spec.d_model))

    def forward(
        self,
        x_BSD: Tensor,
        visibility: Visibility,
        *,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
        query_BSD: Tensor | None = None,
        source_BTD: Tensor | None = None,
        source_visibility: Visibility | None = None,
        cross_cache: LayerCache | None = None,
        absorbed: bool = False,
    ) -> Tensor:
        """[B, S, D] -> [B, S, D]. See `Attention` for the arguments that are passed on to it."""

        def self_attn(x: Tensor) -> Tensor:
            attention = self.get_submodule("self_attn")
            if isinstance(attention, LatentAttention):
                return attention(x, visibility, cache=cache, absorbed=absorbed)
            return attention(x, visibility, bias=bias, cache=cache, query_BSD=query_BSD)

        def cross_attn(x: Tensor) -> Tensor:
            return self.get_submodule("cross_attn")(
                x, source_visibility, source_BTD=source_BTD, cache=cross_cache
            )

        run: dict[str, Callable[[Tensor], Tensor]]
        run = {"self_attn": self_attn, "cross_attn": cross_attn, "mlp": self.get_submodule("mlp")}
        if self.parallel:
            return self._parallel(x_BSD, self_attn)
        for name in self.sublayers:
            before, after = self.norms[name]
            norm = self._modules.get(before) if before else None
            y = run[name](x_BSD if norm is None else norm(x_BSD))
            x_BSD = self._join(x_BSD, y, after)
        return x_BSD

    def _parallel(self, x_BSD: Tensor, self_attn: Callable[[Tensor], Tensor]) -> Tensor:
        normed = self.get_submodule("input_layernorm")(x_BSD)
        second = self.norms["mlp"][0]
        for_mlp = normed if second is None else self.get_submodule(second)(x_BSD)
        y = self_attn(normed) + self.get_submodule("mlp")(for_mlp)
        return x_BSD + y * self.residual_scale

    def _join(self, x: Tensor, y: Tensor, after: str | None) -> Tensor:
        norm = None if after is None else self.get_submodule(after)
        if norm is not None and self.norms is not NORMS["post"]:
            y = norm(y)  # before the scale, which it would undo
        y = y if self.residual_scale == 1.0 else y * self.residual_scale
        if norm is not None and self.norms is NORMS["post"]:
            return norm(x * self.alpha + y)
        return x + y


def make_dense(spec: ModelSpec) -> FeedForward | GatedFeedForward:
    """The feed-forward of a dense block."""
    assert spec.d_ff
    return make_ffn(spec, spec.d_ff)
