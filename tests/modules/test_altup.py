"""What Gemma 3n puts around and beside its blocks: borrowed keys, one token after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from metacount.modules import Model
from metacount.modules.build import build
from metacount.spec import ModelSpec

SPEC: dict[str, Any] = {
    "kind": "decoder",
    "d_model": 13,
    "n_layers": 6,
    "vocab_size": 101,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 10,
    "qk_norm": "head",
    "v_norm": True,
    "n_kv_shared_layers": 2,
    "window": 4,
    "window_pattern": "LLG",
    "d_ff": 17,
    "activation": "gelu_tanh",
    "gated": True,
    "norm": "rmsnorm",
    "norm_placement": "sandwich",
    "position": "rope",
}
EACH: dict[str, dict[str, Any]] = {
    "borrowed": {},
    "copies": {"n_altup_inputs": 3, "altup_active": 2},
    "laurel": {"laurel_rank": 5},
    "embeddings": {"d_per_layer": 11, "vocab_size_per_layer": 50},
    "sparse": {"activation_sparsity": 0.7, "sparsity_pattern": "TF"},
    "widths": {"d_ff_second": 19, "d_ff_pattern": "MW"},
}
EACH["all"] = {key: value for one in EACH.values() for key, value in one.items()}


def model(**changes: Any) -> Model:
    made = build(ModelSpec.from_dict({**SPEC, **changes}), device="cpu", dtype="fp64", seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():  # norms begin as ones
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def tokens(length: int) -> Tensor:
    return torch.randint(0, 101, (2, length), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", EACH)
@torch.no_grad()
def test_one_token_after_the_other_gives_the_logits_of_all_at_once(name: str) -> None:
    made, ids = model(**EACH[name]), tokens(11)
    whole, cache = made(ids).logits_BSV, made.new_cache()
    cut = (3, 1, 1, 4, 1, 1)
    steps = [made(part, cache=cache).logits_BSV for part in ids.split(cut, dim=1)]
    assert whole is not None
    assert (torch.cat([s for s in steps if s is not None], dim=1) - whole).abs().max() < 1e-10
    assert [len(layer.tensors) for layer in cache.layers] == [2, 2, 2, 2, 0, 0]
