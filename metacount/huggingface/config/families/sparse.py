"""Attention that reads what an indexer picks: positions (DeepSeek-V3.2) or blocks (MiniMax-M3)."""

from __future__ import annotations

from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.latent import DEEPSEEK, latent
from metacount.huggingface.config.families.mixtures import EXPERTS, NOAUX, noaux, sparse_layers
from metacount.huggingface.config.families.routing import prediction, routed, with_experts
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import (
    layer_types,
    named_layers,
    rope,
    shortest_period,
    sizes,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


def deepseek_v32(keys: Keys) -> Json:
    """Read a config of DeepSeek-V3.2 (arXiv:2512.02556): every layer has an indexer."""
    fields = latent(keys, "interleaved")
    fields["v_head_dim"] = keys.size("v_head_dim")
    n_layers, types = fields["n_layers"], named_layers(keys)
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


def minimax_m3(keys: Keys) -> Json:
    """Read a config of MiniMax-M3's text model:
    gpt-oss' gate, DeepSeek-V3's choice, an index in some layers.

    The class reads neither hidden_act nor rotary_dim: its gate is written out, and what it rotates
    of a head is partial_rotary_factor alone.
    """
    for name, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        keys.only(name, value)
    fields = {
        **sizes(keys),
        "d_ff": keys.size("dense_intermediate_size"),
        "activation": "clamped_swiglu",
        "gated": True,
        "norm": "rmsnorm",
        "norm_unit_offset": True,
        "norm_eps": keys.number("rms_norm_eps"),
        "qk_norm": "head",
    }
    head_dim, n_layers = fields["head_dim"], fields["n_layers"]
    fields |= rope(keys, head_dim)
    rotated, said = fields.get("rotary_dim") or head_dim, keys.given("rotary_dim")
    if said is not None and said != rotated:
        keys.notes.append(
            f"rotary_dim {said} is not read by transformers, which rotates {rotated} of {head_dim} "
            "values of a head, by partial_rotary_factor"
        )
    letters = layer_types(keys, n_layers, [FULL_OR_INDEXED[0]] * n_layers, FULL_OR_INDEXED)
    index = {
        "index_block_len": keys.size("index_block_size"),
        "index_top_blocks": keys.size("index_topk_blocks"),
        "index_local_blocks": keys.size("index_local_blocks", lowest=0),
        "n_index_heads": keys.size("index_n_heads"),
        "index_head_dim": keys.size("index_head_dim"),
    }
    if "L" in letters:
        _check_index(keys, index, rotated)
        fields |= index
        fields["index_pattern"] = shortest_period(letters.replace("L", "I"))
    experts = {
        **routed(keys, "num_local_experts", "sigmoid_renorm"),
        "d_ff_expert": keys.size("intermediate_size"),
        "n_shared_experts": 1,
        "d_ff_shared": keys.size("shared_intermediate_size"),
        "selection_bias": True,
        "routed_scale": keys.number("routed_scaling_factor"),
    }
    return with_experts(fields, sparse_layers(keys, n_layers, 0), experts)


def _check_index(keys: Keys, index: Json, rotated: int) -> None:
    """Raise `UnmappedKey` for an index that transformers runs and no spec says."""
    if index["index_local_blocks"] == 0:
        why = "without a local block what a query reads depends on its scores: choose 1 or more"
        keys.unmapped("index_local_blocks", 0, why)
    if index["index_local_blocks"] > index["index_top_blocks"]:
        most = index["index_top_blocks"]
        why = f"which of them a query reads is open: choose at most index_topk_blocks = {most}"
        keys.unmapped("index_local_blocks", index["index_local_blocks"], why)
    if index["index_head_dim"] < rotated:
        why = f"transformers cuts the angles of {rotated} values: choose {rotated} or more"
        keys.unmapped("index_head_dim", index["index_head_dim"], why)


FULL_OR_INDEXED = ("full_attention", "minimax_m3_sparse")

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
    "minimax_m3_vl_text": decoder(
        "MiniMaxM3VL",
        minimax_m3,
        {
            "vocab_size": 200064,
            "hidden_size": 6144,
            "intermediate_size": 3072,
            "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072,
            "num_hidden_layers": 60,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "rope_theta": 5000000.0,
            "partial_rotary_factor": 1.0,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "routed_scaling_factor": 2.0,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "index_n_heads": 4,
            "index_head_dim": 128,
            "index_block_size": 128,
            "index_topk_blocks": 16,
            "index_local_blocks": 1,
        },
        aliases={"num_experts": "num_local_experts"},
        ignored="hidden_act",
        body="MiniMaxM3VLTextModel",
    ),
}
