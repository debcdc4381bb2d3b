"""Kimi Linear: Kimi delta attention beside latent attention without positions, and experts."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.latent import LATENT_EPS
from metacount.huggingface.config.families.linear_attention import (
    CHUNK,
    hybrid,
    mixed,
    plain_silu,
)
from metacount.huggingface.config.families.routing import with_experts
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import moe_layout

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def kimi_linear(keys: Keys) -> Json:
    """Read a config of Kimi Linear (arXiv:2510.26692):
    Kimi delta attention, MLA without positions, experts.
    """
    inside = linear_attn_config(keys)
    fields = latent_without_positions(keys)
    plain_silu(keys)
    n_layers = fields["n_layers"]
    linear = inside.get("linear", [not (i and i % 4 == 0) for i in range(n_layers)])
    letters = mixed(keys, fields, linear)
    mla = {name: fields.pop(name) for name in MLA}
    recurrent = {
        "recurrent": "kimi_delta",
        "n_linear_heads": keys.size("linear_num_heads"),
        "linear_head_dim": keys.size("linear_head_dim"),
        "conv_kernel": keys.size("linear_conv_kernel_dim"),
        "linear_chunk_size": CHUNK,
    }
    fields = hybrid(fields, letters, mla, recurrent)
    experts = {
        "n_experts": keys.size("num_experts"),
        "top_k": keys.size("num_experts_per_token"),
        "router": "sigmoid_renorm" if keys.flag("moe_renormalize") else "sigmoid",
        "d_ff_expert": keys.size("moe_intermediate_size"),
        "n_shared_experts": keys.size("num_shared_experts"),
        "selection_bias": True,
        "routed_scale": keys.number("routed_scaling_factor"),
    }
    n_groups, top_groups = keys.size("num_expert_group"), keys.size("topk_group")
    if n_groups > 1:
        experts |= {"n_groups": n_groups, "top_groups": top_groups, "group_score": "top2_sum"}
    return with_experts(fields, sparse_layers(keys, n_layers), experts)


MLA = (
    "attention",
    "n_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "mla_bias",
    "latent_norm_eps",
)


def latent_without_positions(keys: Keys) -> Json:
    """Read sizes, MLA whose shared key is not rotated, gated FFN and RMSNorm."""
    n_heads, eps = keys.size("num_attention_heads"), keys.number("rms_norm_eps")
    keys.only("num_key_value_heads", None, n_heads, why="every head has a key and a value")
    keys.fixed("mla_use_nope", True)
    return {
        "kind": "decoder",
        "d_model": keys.size("hidden_size"),
        "n_layers": keys.layers("num_hidden_layers"),
        "vocab_size": keys.size("vocab_size"),
        "tie_embeddings": keys.only("tie_word_embeddings", False, why="transformers never ties it"),
        "attention": "mla",
        "n_heads": n_heads,
        "q_lora_rank": keys.optional_size("q_lora_rank"),
        "kv_lora_rank": keys.size("kv_lora_rank"),
        "qk_nope_head_dim": keys.size("qk_nope_head_dim"),
        "qk_rope_head_dim": keys.size("qk_rope_head_dim"),
        "v_head_dim": keys.size("v_head_dim"),
        "mla_bias": keys.flag("attention_bias"),
        "latent_norm_eps": None if eps == LATENT_EPS else LATENT_EPS,
        "d_ff": keys.size("intermediate_size"),
        **keys.activation("hidden_act", gated=True),
        "norm": "rmsnorm",
        "norm_eps": eps,
        "position": "none",
    }


def linear_attn_config(keys: Keys) -> Json:
    """Read Kimi's `linear_attn_config`: its sizes go before the keys beside it;
    its layers count from 1.
    """
    inside = keys.given("linear_attn_config")
    if inside is None:
        return {}
    if not isinstance(inside, dict):
        raise SpecError("linear_attn_config", "must be an object", inside, "remove it")
    sizes = {
        "head_dim": "linear_head_dim",
        "num_heads": "linear_num_heads",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }
    lists = ("full_attn_layers", "kda_layers")
    for name, value in inside.items():
        if name in sizes:
            keys.data[sizes[name]] = value
        elif name not in lists:
            keys.unmapped("linear_attn_config", {name: value}, "remove it")
    if not all(isinstance(inside.get(name), list) for name in lists):
        return {}
    full, linear = (inside[name] for name in lists)
    n_layers = keys.layers("num_hidden_layers")
    if sorted([*full, *linear]) != list(range(1, n_layers + 1)):
        keys.unmapped(
            "linear_attn_config",
            {"full_attn_layers": full, "kda_layers": linear},
            f"they must name each layer from 1 to {n_layers} once",
        )
    return {"linear": [i + 1 in linear for i in range(n_layers)]}


def sparse_layers(keys: Keys, n_layers: int) -> Json | None:
    """Read the layers with experts: by `mlp_layer_types`, or all after the first dense ones."""
    first = keys.size("first_k_dense_replace", lowest=0)
    types = keys.given("mlp_layer_types")
    if types is None:
        types = ["dense" if i < first else "sparse" for i in range(n_layers)]
    if not isinstance(types, list) or len(types) != n_layers:
        raise SpecError(
            "mlp_layer_types", f"must have one item a layer: {n_layers}", types, "remove it"
        )
    for item in types:
        if item not in ("dense", "sparse"):
            keys.unmapped("mlp_layer_types", item, "choose dense or sparse")
    return moe_layout(keys, "mlp_layer_types", [[t == "sparse" for t in types]], first=first)


FAMILIES = {
    "kimi_linear": decoder(
        "KimiLinear",
        kimi_linear,
        {
            "vocab_size": 163840,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "moe_intermediate_size": 1024,
            "num_hidden_layers": 27,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "num_shared_experts": 1,
            "routed_scaling_factor": 2.446,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "qk_nope_head_dim": 128,
            "num_expert_group": 1,
            "topk_group": 1,
            "num_experts_per_token": 8,
            "moe_renormalize": True,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "num_experts": 256,
            "linear_head_dim": 128,
            "linear_num_heads": 32,
            "linear_conv_kernel_dim": 4,
            "first_k_dense_replace": 1,
        },
        aliases={
            "n_group": "num_expert_group",
            "num_local_experts": "num_experts",
            "num_experts_per_tok": "num_experts_per_token",
            "n_shared_experts": "num_shared_experts",
            "norm_topk_prob": "moe_renormalize",
            "max_position_embeddings": "model_max_length",
        },
        ignored="model_max_length head_dim qk_head_dim rope_theta rope_scaling rope_parameters",
    ),
}
