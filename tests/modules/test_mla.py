"""Latent attention: expanded and absorbed against each other; its cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import (
    assert_near,
    randomised,
)
from helpers.module_parts import make_mla

from metacount.modules import LatentAttention, Visibility

SIZES = {
    "d_model": 13,
    "n_heads": 3,
    "kv_lora_rank": 11,
    "qk_nope_head_dim": 7,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
CASES: dict[str, dict[str, Any]] = {
    "compressed queries": {"q_lora_rank": 17},
    "whole queries": {"q_lora_rank": None},
    "biases": {"q_lora_rank": 17, "bias": True},
    "biases, whole queries": {"q_lora_rank": None, "bias": True},
    "scale and softcap": {"q_lora_rank": 17, "scale": 0.7, "softcap": 1.5},
    "half rope": {"q_lora_rank": None, "rope_style": "half", "rope_theta": 50.0},
    "eps": {"q_lora_rank": 17, "norm_eps": 0.2},
    "scaled latents": {"q_lora_rank": 17, "scaled": True},
    "scaled latent, whole queries": {"q_lora_rank": None, "scaled": True},
}


def make(name: str) -> LatentAttention:
    return randomised(make_mla(**SIZES, **CASES[name]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_both_forms_give_the_same(name: str, window: int | None) -> None:
    """The expanded one is transformers' (`tests/huggingface/module`)."""
    module, x = make(name), torch.randn(2, 6, 13, dtype=torch.float64)
    sees = Visibility(n_queries=6, n_keys=6, window=window)
    assert_near(module(x, sees, absorbed=True), module(x, sees, absorbed=False))
