"""Absorbed latent attention and ALiBi have the logits of transformers, to 1e-10 in float64.

Every type and structure is compared in `test_computes_the_same`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from helpers.beside_transformers import odd
from helpers.in_float64 import build_in_float64, run
from torch import Tensor

from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.weights import load_weights
from metacount.modules import Model
from metacount.modules.build import build

torch.set_num_threads(1)

TOLERANCE = 1e-10
PREFILL, TOTAL = 9, 17  # tokens read at once, and in all: the windows below are smaller
VOCAB = 101

V3: dict[str, Any] = {**odd("deepseek_v3"), "kv_lora_rank": 14}
# Heads and latents of even width: view_as_complex in DeepSeek-V2 takes no other.
V2 = {**odd("deepseek_v2"), "kv_lora_rank": 14, "qk_nope_head_dim": 6}
LIMITED = {"topk_method": "group_limited_greedy", "n_routed_experts": 10}
DECODERS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**V2, **LIMITED, "n_group": 5, "topk_group": 2},
    "deepseek_v2, queries not compressed": {**V2, "q_lora_rank": None},
    "deepseek_v3": V3,
    "deepseek_v3, halves rotated": {**V3, "rope_interleave": False},
    "longcat_flash": odd("longcat_flash"),
    "kimi_linear": odd("kimi_linear"),
}


def loaded(config: dict[str, Any], theirs: Any) -> Model:
    """Our model of a config with the weights of theirs."""
    mapped = spec_from_config(config)
    ours = build(mapped.spec, device="cpu", dtype="fp64", seed=1)
    load_weights(ours, theirs.state_dict(), mapped)
    return ours


def tokens(seed: int, length: int = TOTAL) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (2, length), generator=generator)


@cache
def case(name: str) -> tuple[Any, Model, Tensor]:
    """Their model, ours, and the logits of theirs over all tokens."""
    config = DECODERS[name]
    theirs = build_in_float64(config)
    return theirs, loaded(config, theirs), run(theirs, input_ids=tokens(2)).logits


def distance(ours: Tensor | None, theirs: Tensor) -> float:
    assert ours is not None
    assert ours.dtype == theirs.dtype == torch.float64
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1
    return (ours - theirs).abs().max().item()


def decode(ours: Model, ids: Tensor, **options: Any) -> Tensor:
    """Logits of a prefill, then of one token after the other, through our cache."""
    cache_ = ours.new_cache()
    parts = [ids[:, :PREFILL], *ids[:, PREFILL:].split(1, dim=1)]
    steps = [ours(part, cache=cache_, **options).logits_BSV for part in parts]
    return torch.cat([step for step in steps if step is not None], dim=1)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_absorbed_latent_attention_has_the_logits_of_transformers(name: str) -> None:
    _, ours, expected = case(name)
    assert distance(ours(tokens(2), absorbed=True).logits_BSV, expected) < TOLERANCE
    assert distance(decode(ours, tokens(2), absorbed=True), expected) < TOLERANCE


@torch.no_grad()
def test_the_alibi_of_falcon_is_divided_by_the_root_of_its_heads_width() -> None:
    config = {
        **odd("falcon"),
        "hidden_size": 48,
        "num_attention_heads": 6,
        "alibi": True,
        "multi_query": False,
        "parallel_attn": False,
    }
    theirs = build_in_float64(config, attention="sdpa")
    ours, expected = loaded(config, theirs), run(theirs, input_ids=tokens(2)).logits
    assert ours.spec.alibi_scale == 8**-0.5  # head_dim = 48 / 6
    assert distance(ours(tokens(2)).logits_BSV, expected) < TOLERANCE
    assert distance(decode(ours, tokens(2)), expected) < TOLERANCE
    # transformers' eager attention adds it twice, in the mask and beside it
    eager = build_in_float64(config)
    assert distance(ours(tokens(2)).logits_BSV, run(eager, input_ids=tokens(2)).logits) > 1e-3


# ---- these tests can fail ----
