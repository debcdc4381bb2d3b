"""Small specs for whole blocks and models: sizes are distinct primes wherever the rules allow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metacount.spec import ModelSpec

DECODER: dict[str, Any] = {
    "kind": "decoder",
    "d_model": 13,
    "n_layers": 3,
    "vocab_size": 101,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 5,
    "d_ff": 17,
    "activation": "silu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "none",
}

ROPE: dict[str, Any] = {"position": "rope", "head_dim": 10}

MLA: dict[str, Any] = {
    "attention": "mla",
    "n_kv_heads": None,
    "head_dim": None,
    "q_lora_rank": 19,
    "kv_lora_rank": 11,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "position": "rope",
    "rope_style": "interleaved",
}

MOE: dict[str, Any] = {"n_experts": 7, "top_k": 3, "d_ff_expert": 11, "router": "softmax_renorm"}

ENCODER_DECODER: dict[str, Any] = {
    "kind": "encoder-decoder",
    "n_encoder_layers": 2,
    "position": "t5",
    "n_buckets": 8,
    "max_distance": 20,
}


GPT2: dict[str, Any] = {
    "position": "learned",
    "n_positions": 23,
    "norm": "layernorm",
    "norm_bias": True,
    "n_kv_heads": 6,
    "activation": "gelu_tanh",
    "gated": False,
    "ffn_bias": True,
    "tie_embeddings": True,
    "q_bias": True,
    "k_bias": True,
    "v_bias": True,
    "o_bias": True,
}

BERT: dict[str, Any] = {
    "kind": "encoder",
    "position": "learned",
    "n_positions": 23,
    "norm": "layernorm",
    "norm_bias": True,
    "norm_placement": "post",
    "final_norm": False,
    "n_kv_heads": 6,
    "activation": "gelu",
    "gated": False,
    "ffn_bias": True,
    "n_token_types": 3,
    "embedding_norm": True,
    "pooler": True,
}


def small(*groups: dict[str, Any], **changes: Any) -> ModelSpec:
    """A decoder of three layers, changed by `groups` and then by `changes`."""
    values = dict(DECODER)
    for group in (*groups, changes):
        values |= group
    if values.get("n_dense_layers", 0) == 0 and values.get("moe_every", 1) == 1:
        values["d_ff"] = None if "n_experts" in values else values["d_ff"]
    return ModelSpec.from_dict(values)


def tokens(length: int = 7, batch: int = 2) -> Tensor:
    """Random token ids, [batch, length]."""
    return torch.randint(0, 101, (batch, length))
