"""Decoders with multi-head latent attention: DeepSeek-V2, DeepSeek-V3, MiniCPM3."""

from __future__ import annotations

from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.routing import (
    deepseek_experts,
    dense_first,
    routed,
    with_experts,
)
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import rope, rope_object
from metacount.huggingface.config.rope import latent_scale

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

LATENT_EPS = 1e-6  # of the norms over the latents, whatever rms_norm_eps says


def latent(
    keys: Keys,
    style: str,
    *,
    layers: str = "num_hidden_layers",
    width: str = "intermediate_size",
) -> Json:
    """Read sizes, MLA, gated FFN and RMSNorm; `layers` and `width` are the keys of these sizes."""
    n_heads, eps = keys.size("num_attention_heads"), keys.number("rms_norm_eps")
    keys.only("num_key_value_heads", None, n_heads, why="every head has a key and a value")
    rope_dim, nope_dim = keys.size("qk_rope_head_dim"), keys.size("qk_nope_head_dim")
    if keys.given("head_dim") is not None:
        keys.size("head_dim")  # written by transformers, and read for RoPE alone
    turned = rope(keys, rope_dim, style=style)
    return {
        "kind": "decoder",
        "d_model": keys.size("hidden_size"),
        "n_layers": keys.layers(layers),
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
        "attention": "mla",
        "n_heads": n_heads,
        "q_lora_rank": keys.optional_size("q_lora_rank"),
        "kv_lora_rank": keys.size("kv_lora_rank"),
        "qk_nope_head_dim": nope_dim,
        "latent_norm_eps": None if eps == LATENT_EPS else LATENT_EPS,
        "attention_scale": latent_scale(keys, rope_object(keys), nope_dim + rope_dim),
        "qk_rope_head_dim": rope_dim,
        "mla_bias": keys.flag("attention_bias"),
        "d_ff": keys.size(width),
        **keys.activation("hidden_act", gated=True),
        "norm": "rmsnorm",
        "norm_eps": eps,
        **turned,
    }


def deepseek_v2(keys: Keys) -> Json:
    """Read a config of DeepSeek-V2 (arXiv:2405.04434): softmax scores;
    a group scores its best expert.
    """
    fields = latent(keys, "interleaved")
    layout = dense_first(keys, fields["n_layers"])
    fields |= {"v_head_dim": keys.size("v_head_dim"), "ffn_bias": keys.flag("mlp_bias")}
    keys.fixed("scoring_func", "softmax")
    keys.only("norm_topk_prob", False, why="transformers does not divide by the sum here")
    method = keys.only("topk_method", "greedy", "group_limited_greedy")
    groups: Json = {}
    keys.raw("n_group"), keys.raw("topk_group")
    if method == "group_limited_greedy":
        n_groups, top_groups = keys.size("n_group"), keys.size("topk_group")
        if n_groups > 1:
            groups = {"n_groups": n_groups, "top_groups": top_groups, "group_score": "max"}
    experts = {
        **routed(keys, "n_routed_experts", "softmax"),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("n_shared_experts", lowest=0),
        "routed_scale": keys.number("routed_scaling_factor"),
        **groups,
    }
    return with_experts(fields, layout, experts)


def deepseek_v3(keys: Keys) -> Json:
    """Read a config of DeepSeek-V3 (arXiv:2412.19437)."""
    fields = latent(keys, "interleaved" if keys.flag("rope_interleave") else "half")
    keys.fixed("scoring_func", "sigmoid")
    keys.fixed("topk_method", "noaux_tc")
    fields["v_head_dim"] = keys.size("v_head_dim")
    return deepseek_experts(keys, fields, "sigmoid")


def minicpm3(keys: Keys) -> Json:
    """Read a config of MiniCPM3: dense, with the multipliers of μP (arXiv:2404.06395)."""
    fields = latent(keys, "half")
    value_dim, base = keys.optional_size("v_head_dim"), keys.optional_size("dim_model_base")
    depth, d_model = keys.optional_number("scale_depth"), fields["d_model"]
    return {
        **fields,
        "v_head_dim": d_model // fields["n_heads"] if value_dim is None else value_dim,
        "ffn_bias": keys.flag("mlp_bias"),
        "embedding_scale": keys.number("scale_emb"),
        "residual_scale": 1.0 if depth is None else depth / fields["n_layers"] ** 0.5,
        "logit_scale": 1.0 if base is None else base / d_model,
    }


DEEPSEEK: Json = {
    "num_key_value_heads": None,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}

FAMILIES = {
    "deepseek_v2": decoder("DeepseekV2", deepseek_v2, {
        **DEEPSEEK, "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "mlp_bias": False,
        "first_k_dense_replace": 0, "n_group": None, "topk_group": None,
        "topk_method": "greedy", "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": None, "moe_intermediate_size": 1407, "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    }, aliases={"num_experts": "n_routed_experts"}, ignored="head_dim qk_head_dim ep_size"),
    "deepseek_v3": decoder("DeepseekV3", deepseek_v3, {
        **DEEPSEEK, "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "rope_interleave": True, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
    }, aliases={"num_local_experts": "n_routed_experts",
                "num_mtp_layers": "num_nextn_predict_layers"},
        ignored="head_dim qk_head_dim ep_size"),
    "minicpm3": decoder("MiniCPM3", minicpm3, {
        **DEEPSEEK, "vocab_size": 73448, "hidden_size": 2560, "intermediate_size": 6400,
        "num_hidden_layers": 62, "num_attention_heads": 40, "num_key_value_heads": 40,
        "kv_lora_rank": 256,
        "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": None,
        "rms_norm_eps": 1e-5, "mlp_bias": False, "scale_emb": 12, "scale_depth": 1.4,
        "dim_model_base": 256, "tie_word_embeddings": True,
    }, ignored="head_dim qk_head_dim"),
}  # fmt: skip
