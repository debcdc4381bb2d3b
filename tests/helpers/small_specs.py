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
