"""Absorbed latent attention and ALiBi have the logits of transformers, to 1e-10 in float64.

Every type and structure is compared in `test_computes_the_same`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.beside_transformers import PREFILL, odd, tokens
from helpers.in_float64 import build_in_float64, run
from torch import Tensor

from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.weights import load_weights
from metacount.modules import Model
from metacount.modules.build import build

torch.set_num_threads(1)

TOLERANCE = 1e-10
# Heads and latents of even width: view_as_complex in DeepSeek-V2 takes no other.
V2 = {**odd("deepseek_v2"), "kv_lora_rank": 14, "qk_nope_head_dim": 6}
LIMITED = {"topk_method": "group_limited_greedy", "n_routed_experts": 10}
DECODERS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**V2, **LIMITED, "n_group": 5, "topk_group": 2},
    "deepseek_v2, queries not compressed": {**V2, "q_lora_rank": None},
    "deepseek_v3, halves rotated": {**odd("deepseek_v3"), "rope_interleave": False},
    "longcat_flash": odd("longcat_flash"),
    "kimi_linear": odd("kimi_linear"),
}


def loaded(config: dict[str, Any], theirs: Any) -> Model:
    """Our model of a config with the weights of theirs."""
    mapped = spec_from_config(config)
    ours = build(mapped.spec, device="cpu", dtype="fp64", seed=1)
    load_weights(ours, theirs.state_dict(), mapped)
    return ours


def distances(ours: Model, expected: Tensor, **options: Any) -> list[float]:
    """Of all tokens at once, and of a prefill and then one token after the other."""
    assert expected.dtype == torch.float64 and expected.abs().max() > 0.1
    ids, cache = tokens(2), ours.new_cache()
    parts = [ids[:, :PREFILL], *ids[:, PREFILL:].split(1, dim=1)]
    steps = [ours(part, cache=cache, **options).logits_BSV for part in parts]
    decoded = torch.cat([step for step in steps if step is not None], dim=1)
    whole = ours(ids, **options).logits_BSV
    assert whole is not None
    return [(each - expected).abs().max().item() for each in (whole, decoded)]


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_absorbed_latent_attention_has_the_logits_of_transformers(name: str) -> None:
    theirs = build_in_float64(DECODERS[name])
    expected = run(theirs, input_ids=tokens(2)).logits
    assert max(distances(loaded(DECODERS[name], theirs), expected, absorbed=True)) < TOLERANCE


@torch.no_grad()
def test_the_alibi_of_falcon_is_divided_by_the_root_of_its_heads_width() -> None:
    config = {**odd("falcon"), "hidden_size": 48, "num_attention_heads": 6, "alibi": True,
              "multi_query": False, "parallel_attn": False}  # fmt: skip
    theirs = build_in_float64(config, attention="sdpa")
    ours = loaded(config, theirs)
    assert ours.spec.alibi_scale == 8**-0.5  # head_dim = 48 / 6
    assert max(distances(ours, run(theirs, input_ids=tokens(2)).logits)) < TOLERANCE
    # transformers' eager attention adds it twice, in the mask and beside it
    eager = build_in_float64(config)
    assert min(distances(ours, run(eager, input_ids=tokens(2)).logits)) > 1e-3
