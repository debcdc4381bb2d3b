"""Small valid models as fields, and what is said of one that is not valid."""

from __future__ import annotations

from typing import Any

import pytest

from metacount.errors import SpecError
from metacount.spec import ModelSpec

DENSE: dict[str, Any] = {
    "kind": "decoder",
    "d_model": 13,
    "n_layers": 3,
    "vocab_size": 101,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 10,
    "d_ff": 17,
    "activation": "silu",
    "gated": True,
    "norm": "rmsnorm",
    "position": "rope",
}
MOE = {**DENSE, "n_experts": 12, "top_k": 2, "d_ff_expert": 7, "n_dense_layers": 1}
MLA: dict[str, Any] = {
    **{k: v for k, v in DENSE.items() if k not in ("n_kv_heads", "head_dim")},
    "attention": "mla",
    "q_lora_rank": 11,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
}


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
