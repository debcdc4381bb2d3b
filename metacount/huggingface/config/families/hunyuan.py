"""Hunyuan: QK-norm after RoPE in the first generation, sigmoid routing in the third."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import (
    LLAMA,
    block,
)
from metacount.huggingface.config.families.mixtures import sparse_layers
from metacount.huggingface.config.families.routing import (
    all_experts,
    routed,
    with_experts,
)
from metacount.huggingface.config.keys import Keys, is_number
from metacount.huggingface.config.parts import biases, rope

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def hunyuan_rope(keys: Keys, head_dim: int) -> Json:
    """Read a RoPE whose base `alpha` raises once and for all, unless its `type` is yarn."""
    for name in ("rope_scaling", "rope_parameters"):
        found = keys.data.get(name)
        if isinstance(found, dict) and found.get("alpha") and found.get("type") != "yarn":
            alpha, theta = found["alpha"], found.get("rope_theta", keys.number("rope_theta"))
            if not is_number(alpha) or not is_number(theta) or not 0 < alpha < 1e12:
                raise SpecError(name, "must have a positive alpha", alpha, "remove it")
            raised = float(theta * alpha ** (head_dim / (head_dim - 2)))
            keys.data[name] = {"rope_type": "default", "rope_theta": raised}
    return rope(keys, head_dim)


def hunyuan(keys: Keys) -> Json:
    """Read a config of Hunyuan's dense models: QK-norm after RoPE."""
    fields = block(keys)
    bias = keys.flag("attention_bias")
    keys.differs("Hunyuan norms queries and keys after RoPE, not before")
    return {
        **fields,
        **biases(bias, bias),
        "qk_norm": "head",
        **hunyuan_rope(keys, fields["head_dim"]),
    }


def hunyuan_v1_moe(keys: Keys) -> Json:
    """Read a config of Hunyuan-A13B: a shared expert as wide as the others; QK-norm after RoPE."""
    fields = block(keys)
    bias = keys.flag("attention_bias")
    keys.differs("Hunyuan norms queries and keys after RoPE, not before")
    fields |= {
        **biases(bias, bias),
        "qk_norm": "head",
        **hunyuan_rope(keys, fields["head_dim"]),
    }
    for name in ("num_experts", "moe_topk"):
        if isinstance(keys.data.get(name), list):
            several = set(map(str, keys.data[name]))
            if len(several) != 1 or len(keys.data[name]) != fields["n_layers"]:
                keys.unmapped(name, keys.data[name], "every layer must have the same")
            keys.data[name] = keys.data[name][0]
    experts = {
        "n_experts": keys.size("num_experts"),
        "top_k": keys.size("moe_topk"),
        "router": "softmax_renorm",
        "n_shared_experts": 1,
    }
    return all_experts(fields, experts)


def hy_v3(keys: Keys) -> Json:
    """Read a config of Hunyuan 3: QK-norm, one dense layer,
    sigmoid routing with a bias for the choice.
    """
    fields = block(keys)
    bias = keys.flag("attention_bias")
    fields |= {
        **biases(bias, bias),
        "ffn_bias": keys.flag("mlp_bias"),
        "qk_norm": "head",
        **rope(keys, fields["head_dim"]),
    }
    layout = sparse_layers(keys, fields["n_layers"], 1)
    experts = {
        **routed(keys, "num_experts", "sigmoid_renorm"),
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("num_shared_experts"),
        "selection_bias": True,
        "routed_scale": keys.number("router_scaling_factor"),
    }
    return with_experts(fields, layout, experts)


FAMILIES = {
    "hunyuan_v1_dense": decoder(
        "HunYuanDenseV1",
        hunyuan,
        {
            **LLAMA,
            "vocab_size": 290943,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
        },
        ignored="eod_token_id",
    ),
    "hunyuan_v1_moe": decoder(
        "HunYuanMoEV1",
        hunyuan_v1_moe,
        {
            **LLAMA,
            "vocab_size": 290943,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "num_experts": 1,
            "moe_topk": 1,
        },
        aliases={"num_local_experts": "num_experts", "num_experts_per_tok": "moe_topk"},
        ignored="eod_token_id",
    ),
    "hy_v3": decoder(
        "HYV3",
        hy_v3,
        {
            **LLAMA,
            "vocab_size": 120832,
            "intermediate_size": 13312,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 11158840.0,
            "attention_bias": False,
            "mlp_bias": False,
            "num_experts": 192,
            "num_experts_per_tok": 8,
            "num_shared_experts": 1,
            "moe_intermediate_size": 1536,
            "router_scaling_factor": 2.826,
        },
        aliases={"num_local_experts": "num_experts"},
        ignored="enable_moe_fp32_combine",
    ),
}
