"""DeepSeek-V3.2: DeepSeek-V3 with an indexer that picks the positions attention reads."""

from __future__ import annotations

from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.latent import DEEPSEEK, latent
from metacount.huggingface.config.families.mixtures import EXPERTS, NOAUX, noaux, sparse_layers
from metacount.huggingface.config.families.routing import prediction, with_experts
from metacount.huggingface.config.keys import Keys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def deepseek_v32(keys: Keys) -> Json:
    """DeepSeek-V3.2 (arXiv:2512.02556): every layer has an indexer."""
    fields = latent(keys, "interleaved")
    fields["v_head_dim"] = keys.size("v_head_dim")
    n_layers, types = fields["n_layers"], keys.given("layer_types")
    if types is not None and types != ["indexed_attention"] * n_layers:
        keys.unmapped("layer_types", types, "every layer is indexed_attention: remove it")
    keys.only("mlp_bias", False)
    for name, value in (
        ("scoring_func", "sigmoid"),
        ("topk_method", "noaux_tc"),
        ("moe_layer_freq", 1),
        ("rope_interleave", True),
    ):
        keys.fixed(name, value)
    index = {
        "index_top_k": keys.size("index_topk"),
        "n_index_heads": keys.size("index_n_heads"),
        "index_head_dim": keys.size("index_head_dim"),
    }
    layout = sparse_layers(keys, n_layers, keys.size("first_k_dense_replace", lowest=0))
    experts = noaux(keys, "n_routed_experts", "n_shared_experts")
    return {**with_experts(fields, layout, experts), **index, **prediction(keys)}


FAMILIES = {
    "deepseek_v32": decoder(
        "DeepseekV32",
        deepseek_v32,
        {
            **DEEPSEEK,
            **NOAUX,
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "n_routed_experts": 256,
            "routed_scaling_factor": 2.5,
            "n_group": 8,
            "topk_group": 4,
            "index_topk": 2048,
            "index_head_dim": 128,
            "index_n_heads": 64,
            "mlp_bias": False,
            "first_k_dense_replace": 3,
        },
        aliases={**EXPERTS, "num_experts": "n_routed_experts"},
        ignored="head_dim qk_head_dim ep_size",
    ),
}
