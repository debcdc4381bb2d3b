"""Small valid models as fields: sizes are distinct primes wherever the rules allow."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.miniatures import TINY
from metacount.errors import SpecError
from metacount.spec import ModelSpec

DENSE: dict[str, Any] = {**TINY, "head_dim": 10}
MOE = {**DENSE, "n_experts": 12, "top_k": 2, "d_ff_expert": 7, "n_dense_layers": 1}
LATENT: dict[str, Any] = {
    **{"attention": "mla", "q_lora_rank": 11, "kv_lora_rank": 5, "qk_nope_head_dim": 3},
    **{"qk_rope_head_dim": 4, "v_head_dim": 7},
}
MLA = {k: v for k, v in DENSE.items() if k not in ("n_kv_heads", "head_dim")} | LATENT

# changes for `small`
ROPE: dict[str, Any] = {"position": "rope", "head_dim": 10}
OF_LATENTS = {**LATENT, "n_kv_heads": None, "head_dim": None, "position": "rope"}
OF_LATENTS["rope_style"] = "interleaved"
OF_EXPERTS: dict[str, Any] = {"n_experts": 7, "top_k": 3, "d_ff_expert": 11}
OF_EXPERTS["router"] = "softmax_renorm"
ENCODER_DECODER: dict[str, Any] = {"kind": "encoder-decoder", "n_encoder_layers": 2}
ENCODER_DECODER |= {"position": "t5", "n_buckets": 8, "max_distance": 20}
LAYER_NORM = {"position": "learned", "n_positions": 23, "norm": "layernorm", "norm_bias": True}
LAYER_NORM |= {"n_kv_heads": 6, "gated": False, "ffn_bias": True}
GPT2: dict[str, Any] = {**LAYER_NORM, "activation": "gelu_tanh", "tie_embeddings": True}
GPT2 |= dict.fromkeys(("q_bias", "k_bias", "v_bias", "o_bias"), True)
BERT: dict[str, Any] = {**LAYER_NORM, "kind": "encoder", "norm_placement": "post"}
BERT |= {"final_norm": False, "activation": "gelu", "n_token_types": 3}
BERT |= {"embedding_norm": True, "pooler": True}


def small(*groups: dict[str, Any], **changes: Any) -> ModelSpec:
    """A decoder of three layers without positions, changed by `groups` and then by `changes`."""
    values = {**TINY, "head_dim": 5, "position": "none"}
    for group in (*groups, changes):
        values |= group
    if values.get("n_dense_layers", 0) == 0 and values.get("moe_every", 1) == 1:
        values["d_ff"] = None if "n_experts" in values else values["d_ff"]
    return ModelSpec.from_dict(values)


def refusal(base: dict[str, Any], changes: dict[str, Any]) -> SpecError:
    with pytest.raises(SpecError, match="; ") as caught:
        ModelSpec.from_dict({**base, **changes})
    return caught.value


# DeepSeek-V4: a window, entries of two sizes, several streams, experts by token
COMPRESSED: dict[str, Any] = {
    "kind": "decoder", "d_model": 40, "n_layers": 5, "vocab_size": 101, "attention": "compressed",
    "n_heads": 6, "head_dim": 14, "q_lora_rank": 18, "o_groups": 3, "o_lora_rank": 7,
    "compression_pattern": "LSHSH", "sparse_ratio": 4, "heavy_ratio": 6, "index_top_k": 2,
    "n_index_heads": 3, "index_head_dim": 10, "window": 8, "position": "rope",
    "rope_style": "interleaved", "rotary_dim": 6, "rope_theta": 160000.0,
    "rope_theta_windowed": 10000.0, "activation": "silu", "gated": True, "gate_limit": 10.0,
    "norm": "rmsnorm", "norm_eps": 1e-6, "n_experts": 8, "top_k": 3, "d_ff_expert": 11,
    "n_shared_experts": 1, "router": "sqrtsoftplus_renorm", "selection_bias": True,
    "n_hash_layers": 2, "routed_scale": 1.5, "n_streams": 4, "n_sinkhorn_rounds": 20,
}  # fmt: skip
