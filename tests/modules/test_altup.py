"""What Gemma 3n puts around and beside its blocks: borrowed keys, one token after the other."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

from metacount.modules import Model
from metacount.modules.build import build
from metacount.modules.ffn import top_values
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


@torch.no_grad()
def test_a_layer_borrows_of_the_last_one_that_sees_as_far() -> None:
    """Four layers make keys and values, LLGL; the last two, L and G, read those of 3 and of 2."""
    ids = tokens(9)
    before = model()(ids).logits_BSV
    assert before is not None
    moved = {}
    for index in range(4):
        made = model()
        weights = {name.removeprefix("decoder.layers."): p for name, p in made.named_parameters()}
        # what only the borrowing layers would notice: cut their own attention off
        for other in range(4):
            weights[f"{other}.self_attn.o_proj.weight"].zero_()
        plain = made(ids).logits_BSV
        weights[f"{index}.self_attn.v_proj.weight"].mul_(-1)
        turned = made(ids).logits_BSV
        assert plain is not None and turned is not None
        moved[index] = bool((plain - turned).abs().max() > 1e-6)
    assert moved == {0: False, 1: False, 2: True, 3: True}


def test_top_values_are_those_above_a_normal_quantile() -> None:
    torch.manual_seed(1)
    x = 3 + 2 * torch.randn(4, 20_001, dtype=torch.float64)
    kept = top_values(x, 0.9)
    for row, there in zip(x, kept, strict=True):
        mean, spread = float(row.mean()), float(row.std(unbiased=False))
        cut = mean + spread * NormalDist().inv_cdf(0.9)
        torch.testing.assert_close(there, (row - cut).clamp(min=0))
        assert abs(int((there > 0).sum()) / 20_001 - 0.1) < 0.01
