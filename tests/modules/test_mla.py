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


def test_which_form_runs() -> None:
    """Equal values cannot tell: expanded makes keys and values, absorbed never does."""
    module, x = make("compressed queries"), torch.randn(2, 6, 13, dtype=torch.float64)
    widths: list[tuple[int, int, int]] = []

    def note(_: Any, args: tuple[Any, ...]) -> None:
        q, k, v = args[:3]
        widths.append((k.shape[1], q.shape[-1], v.shape[-1]))

    calls: list[str] = []
    module.core.register_forward_pre_hook(note)
    module.kv_b_proj.register_forward_hook(lambda *_: calls.append("kv_b_proj"))
    sees = Visibility(n_queries=6, n_keys=6)
    module(x, sees, absorbed=False)
    # three key/value heads, 7 + 4 wide, values 5 wide
    assert (widths, calls) == ([(3, 11, 5)], ["kv_b_proj"])
    module(x, sees, absorbed=True)
    # one shared key/value head: the latent of 11 with its rotated key of 4
    assert (widths[1:], calls) == ([(1, 15, 11)], ["kv_b_proj"])
    module(x, sees)
    assert len(calls) == 2  # expanded unless asked
