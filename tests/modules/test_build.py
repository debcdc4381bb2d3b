"""`build`: nothing is allocated on meta; elsewhere a seed fixes every weight."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from helpers.small_specs import BERT, ENCODER_DECODER, OF_EXPERTS, OF_LATENTS, ROPE, small
from torch import Tensor, nn

from metacount import catalog
from metacount.errors import SpecError
from metacount.modules.build import build
from metacount.spec import ModelSpec

SPECS: dict[str, ModelSpec] = {
    "decoder": small(ROPE, tie_embeddings=True),
    "mla moe": small(
        OF_LATENTS, OF_EXPERTS, n_dense_layers=1, n_shared_experts=2, selection_bias=True
    ),
    "encoder-decoder": small(ENCODER_DECODER),
    "transformer-xl": small(position="transformer_xl"),
    "gpt-oss": small(ROPE, OF_EXPERTS, expert_bias=True, router_bias=True, attention_sinks=True),
    "bert": small(BERT),
}


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def test_meta_of_the_largest_costs_no_memory() -> None:
    # DeepSeek-V3: 671 billion parameters, 1.3 TB in bf16
    spec = catalog.entry("deepseek-v3").spec()
    tracemalloc.start()
    try:
        model = build(spec)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = tensors(model)
    assert all(t.is_meta for t in found.values())
    assert sum(p.numel() for p in model.parameters()) == 671_026_404_352
    assert all(t.untyped_storage().device.type == "meta" for t in found.values())
    assert peak < 50e6  # Python's own objects for some thousand modules


def test_meta_draws_no_random_numbers_and_holds_no_value() -> None:
    """By default in bf16, with the tensors that a CPU has."""
    before = torch.get_rng_state()
    models = [build(spec) for spec in SPECS.values()]
    assert torch.equal(torch.get_rng_state(), before)
    for model, spec in zip(models, SPECS.values(), strict=True):
        assert not model.training
        real = tensors(build(spec, device="cpu", dtype="bf16"))
        assert tensors(model).keys() == real.keys()
        for key, value in tensors(model).items():
            assert (value.is_meta, value.dtype) == (True, torch.bfloat16)
            assert value.shape == real[key].shape


@pytest.mark.parametrize("name", SPECS)
def test_a_seed_fixes_every_weight(name: str) -> None:
    first, again, other = (
        tensors(build(SPECS[name], device="cpu", dtype="fp32", seed=s)) for s in (3, 3, 4)
    )
    assert list(first) == list(again)
    for key, value in first.items():
        assert torch.equal(value, again[key]), key
        assert value.isfinite().all(), key
    # biases of norms and the like start at a constant; what is random depends on the seed
    for key, value in first.items():
        if value.dim() >= 2 and not key.endswith(("content_bias", "position_bias", "proj_bias")):
            assert not torch.equal(value, other[key]), key


@pytest.mark.parametrize(
    ("sizes", "how", "said"),
    [
        ({"n_layers": 4097}, {}, "n_layers"),
        ({**ENCODER_DECODER, "n_layers": 4000, "n_encoder_layers": 97}, {}, "n_layers"),
        ({}, {"dtype": "fp8"}, "dtype"),
    ],
)
def test_what_is_refused(sizes: dict[str, Any], how: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        build(small(sizes), **how)
