"""Decoders with experts: who routes how, which layers, shared experts."""

from __future__ import annotations

from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import (
    FULL_OR_SLIDING,
    LLAMA,
    all_windows,
    block,
    checked_windows,
    granite_scales,
)
from metacount.huggingface.config.families.routing import (
    all_experts,
    deepseek_experts,
    qwen_experts,
    routed,
    sigmoid_or_softmax,
)
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    biases,
    layer_types,
    rope,
    rope_object,
    windows,
)
from metacount.huggingface.config.rope import kind_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def mixtral(keys: Keys) -> Json:
    """Read a config of Mixtral (arXiv:2401.04088): softmax, top-k, divided by its sum."""
    fields = {**block(keys), **all_windows(keys)}
    experts = routed(keys, "num_local_experts", "softmax_renorm")
    return all_experts({**fields, **rope(keys, fields["head_dim"])}, experts)


def qwen2_moe(keys: Keys) -> Json:
    """Read a config of Qwen1.5-MoE or Qwen2-57B-A14B: one shared expert behind a gate."""
    fields = block(keys)
    n_layers, first = fields["n_layers"], keys.size("max_window_layers", lowest=0)
    window = keys.optional_size("sliding_window", lowest=0)
    window = window if keys.flag("use_sliding_window") else None
    default = [
        FULL_OR_SLIDING[window is not None and i % 2 == 0 and i < first] for i in range(n_layers)
    ]
    letters = layer_types(keys, n_layers, default, FULL_OR_SLIDING)
    fields |= {
        **biases(keys.flag("qkv_bias"), False),
        **checked_windows(keys, letters, window),
        **rope(keys, fields["head_dim"]),
    }
    shared = keys.size("shared_expert_intermediate_size")
    fields = qwen_experts(keys, fields, "num_experts")
    if "n_experts" not in fields:
        return fields
    return {**fields, "n_shared_experts": 1, "d_ff_shared": shared, "shared_expert_gate": True}


def qwen3_moe(keys: Keys) -> Json:
    """Read a config of Qwen3-MoE (arXiv:2505.09388): no shared expert, QK-norm."""
    fields = block(keys)
    bias = keys.flag("attention_bias")
    window = keys.optional_size("sliding_window", lowest=0)
    used = keys.flag("use_sliding_window") and window is not None
    keys.given("max_window_layers")
    fields |= {
        **biases(bias, bias),
        "qk_norm": "head",
        **(windows("L", window) if used else {}),
        **rope(keys, fields["head_dim"]),
    }
    return qwen_experts(keys, fields, "num_local_experts")


def olmoe(keys: Keys) -> Json:
    """Read a config of OLMoE (arXiv:2409.02060): QK-norm over all heads."""
    fields = block(keys)
    bias = keys.flag("attention_bias")
    keys.only("clip_qkv", None)
    fields |= {**biases(bias, bias), "qk_norm": "full", **rope(keys, fields["head_dim"])}
    return all_experts(fields, routed(keys, "num_experts", sigmoid_or_softmax(keys, "softmax")))


def phimoe(keys: Keys) -> Json:
    """Read a config of Phi-3.5-MoE (arXiv:2404.14219): LayerNorm;
    its router samples one expert after the other.
    """
    fields = block(keys)
    bias = keys.flag("attention_bias")
    if kind_of(rope_object(keys)) != "default":
        keys.differs("Phi-MoE in transformers takes RoPE's short factors at any length")
    fields |= {
        "norm": "layernorm",
        "norm_bias": True,
        "head_bias": keys.flag("lm_head_bias"),
        **biases(bias, bias),
        **all_windows(keys),
        **rope(keys, fields["head_dim"]),
    }
    keys.fixed("num_experts_per_tok", 2)  # SparseMixer takes two
    experts = routed(keys, "num_local_experts", "softmax")
    return all_experts(fields, {**experts, "mixer_jitter": keys.number("router_jitter_noise")})


def granitemoe(keys: Keys) -> Json:
    """Read a config of Granite 3 MoE: softmax over the chosen logits, Granite's multipliers."""
    keys.fixed("position_embedding_type", "rope")
    fields = {**block(keys), **granite_scales(keys)}
    bias = keys.flag("attention_bias")
    fields |= {**biases(bias, bias), **rope(keys, fields["head_dim"])}
    return all_experts(fields, routed(keys, "num_local_experts", "topk_softmax"))


def gpt_oss(keys: Keys) -> Json:
    """Read a config of gpt-oss (arXiv:2508.10925):
    sinks, biases everywhere, a clamped gate, windows.
    """
    fields = block(keys)
    keys.only("hidden_act", "silu")
    keys.only("swiglu_limit", 7.0)
    keys.only("swiglu_alpha", 1.702)
    bias, n_layers = keys.flag("attention_bias"), fields["n_layers"]
    default = [FULL_OR_SLIDING[i % 2 == 0] for i in range(n_layers)]
    letters = layer_types(keys, n_layers, default, FULL_OR_SLIDING)
    if not keys.data.get("rope_scaling") and keys.data.get("rope_parameters") is None:
        keys.data["rope_parameters"] = dict(GPT_OSS_ROPE)
    fields |= {
        **biases(bias, bias),
        "attention_sinks": True,
        "activation": "clamped_swiglu",
        **windows(letters, keys.size("sliding_window")),
        **rope(keys, fields["head_dim"]),
    }
    experts = routed(keys, "num_local_experts", "topk_softmax")
    keys.fixed("experts_per_token", experts["top_k"])
    return all_experts(fields, {**experts, "router_bias": True, "expert_bias": True})


def minimax_m2(keys: Keys) -> Json:
    """Read a config of MiniMax-M2: sigmoid scores, QK-norm over all heads,
    RoPE on a part of each head.
    """
    fields = block(keys)
    rotary_dim = keys.given("rotary_dim")
    if rotary_dim is not None and "partial_rotary_factor" not in keys.data:
        keys.defaults["partial_rotary_factor"] = keys.size("rotary_dim") / fields["head_dim"]
    for name, value in (
        ("use_qk_norm", True),
        ("qk_norm_type", "per_layer"),
        ("scoring_func", "sigmoid"),
        ("use_routing_bias", True),
        ("shared_intermediate_size", 0),
    ):
        keys.fixed(name, value)
    fields |= {"qk_norm": "full", **rope(keys, fields["head_dim"])}
    experts = routed(keys, "num_local_experts", "sigmoid_renorm")
    return all_experts(fields, {**experts, "selection_bias": True})


def glm4_moe(keys: Keys) -> Json:
    """Read a config of GLM-4.5 (arXiv:2508.06471):
    DeepSeek-V3's routing with ordinary attention.
    """
    fields = block(keys)
    fields |= {
        **biases(keys.flag("attention_bias"), False),
        "qk_norm": "head" if keys.flag("use_qk_norm") else "none",
        **rope(keys, fields["head_dim"]),
    }
    return deepseek_experts(keys, fields, "sigmoid")


GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
MIXTRAL: Json = {
    **LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
QWEN_MOE: Json = {
    **LLAMA,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "use_sliding_window": False,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "mlp_only_layers": None,
}
LOCAL = {"num_experts": "num_local_experts"}

FAMILIES = {
    "mixtral": decoder("Mixtral", mixtral, MIXTRAL, aliases=LOCAL),
    "qwen2_moe": decoder("Qwen2Moe", qwen2_moe, {
        **QWEN_MOE, "intermediate_size": 5632, "num_attention_heads": 16,
        "num_key_value_heads": 16, "sliding_window": 4096, "max_window_layers": 28,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4, "num_experts": 60, "qkv_bias": True,
    }),
    "qwen3_moe": decoder("Qwen3Moe", qwen3_moe, {
        **QWEN_MOE, "intermediate_size": 6144, "num_attention_heads": 32,
        "num_key_value_heads": 4, "sliding_window": 4096, "attention_bias": False,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_local_experts": 128,
    }, aliases=LOCAL),
    "olmoe": decoder("Olmoe", olmoe, {
        **{k: v for k, v in LLAMA.items() if k != "head_dim"}, "vocab_size": 50304,
        "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "rms_norm_eps": 1e-5, "attention_bias": False,
        "clip_qkv": None, "num_experts_per_tok": 8, "num_experts": 64, "norm_topk_prob": False,
    }, aliases={"num_local_experts": "num_experts"}),
    "phimoe": decoder("Phimoe", phimoe, {
        **MIXTRAL, "vocab_size": 32064, "intermediate_size": 6400, "num_local_experts": 16,
        "attention_bias": False, "lm_head_bias": False, "router_jitter_noise": 0.01,
    }, ignored="original_max_position_embeddings"),
    "granitemoe": decoder("GraniteMoe", granitemoe, {
        **LLAMA, "attention_bias": False, "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0,
        "num_experts_per_tok": 2, "num_local_experts": 8,
    }),
    "gpt_oss": decoder("GptOss", gpt_oss, {
        **LLAMA, "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "sliding_window": 128,
        "attention_bias": True, "num_local_experts": 128, "num_experts_per_tok": 4,
        "swiglu_limit": 7.0, "swiglu_alpha": 1.702,
    }, aliases=LOCAL, ignored="initial_context_length"),
    "minimax_m2": decoder("MiniMaxM2", minimax_m2, {
        **LLAMA, "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
        "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
        "head_dim": 128, "rope_theta": 5000000.0, "num_experts_per_tok": 8,
        "num_local_experts": 256, "partial_rotary_factor": 1.0,
    }, aliases=LOCAL, ignored="use_mtp num_mtp_modules mtp_transformer_layers"),
    "glm4_moe": decoder("Glm4Moe", glm4_moe, {
        **LLAMA, "vocab_size": 151552, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "attention_bias": False, "use_qk_norm": False, "partial_rotary_factor": 0.5,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 1,
    }, aliases={"num_local_experts": "n_routed_experts",
                "num_mtp_layers": "num_nextn_predict_layers"}),
}  # fmt: skip
