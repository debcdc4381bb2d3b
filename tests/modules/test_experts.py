"""Experts as on meta; zero experts; experts beside a feed-forward; clamps, loss, 2/3 by hand.

What they compute is transformers' in `tests/huggingface/module/test_computes_the_same.py`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, randomised
from helpers.small_specs import OF_LATENTS, small

from metacount.modules import MixtureOfExperts, Model, Visibility, gated_d_ff, load_balancing_loss
from metacount.modules import moe as moe_file
from metacount.modules.build import build
from metacount.modules.ffn import gate
from metacount.modules.moe import Routing
from metacount.spec.ffn import FeedForward, Mixture, ZeroExperts

D, E, ZERO = 5, 11, 9


def make(*, gated: bool = True, bias: bool = False, rows: bool | None = None) -> MixtureOfExperts:
    like = FeedForward(gated=gated, activation="silu" if gated else "relu", bias=bias)
    zero = None if rows is None else ZeroExperts(n_experts=ZERO, rows=rows)
    part = Mixture(n_experts=E, top_k=3, d_ff=7, router="softmax", bias=bias, zero=zero)
    return randomised(MixtureOfExperts(part, D, like))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("gated", "bias"), [(True, False), (False, True)])
def test_one_product_per_row_gives_the_same(
    gated: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on meta, where nobody knows an expert's rows."""
    module, x = make(gated=gated, bias=bias), torch.randn(2, 9, D, dtype=torch.float64)
    expected, real = module(x), moe_file.apply_rows
    monkeypatch.setattr(moe_file, "apply_rows", lambda x, w, e, _: real(x, w, e, []))
    assert_near(module(x), expected)


def test_nobody_reads_the_rows_of_zero_experts() -> None:
    module, x = make(bias=True, rows=True), torch.randn(2, 9, D, dtype=torch.float64)
    shapes = {name: tuple(p.shape) for name, p in module.experts.named_parameters()}
    assert shapes["gate_up_proj"] == (E + ZERO, 14, D) and shapes["down_proj"] == (E, D, 7)
    before = module(x)
    with torch.no_grad():
        module.experts.gate_up_proj[E:] = torch.nan
    assert torch.equal(module(x), before)


# ---- beside a feed-forward

EXPERTS: dict[str, Any] = {"n_experts": 7, "top_k": 3, "d_ff_expert": 11, "router": "softmax"}
BESIDE: dict[str, dict[str, Any]] = {
    "as LongCat-Flash": {**OF_LATENTS, "n_layers": 4, "ffn_pattern": "BF", "n_zero_experts": 5,
                         "scaled_latents": True},
    "one after the other": {"n_layers": 3, "ffn_pattern": "BBF", "residual_scale": 0.5},
    "added after a layer without a feed-forward": {"n_layers": 4, "ffn_pattern": "BN"},
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_experts_give_is_added_one_layer_later(name: str) -> None:
    spec = small().replace(**{"d_ff": 17, **EXPERTS, **BESIDE[name]})
    model: Model = randomised(build(spec, device="cpu", dtype="fp64", seed=3))
    stack, x = model.last_stack, torch.randn(2, 6, 13, dtype=torch.float64)
    sees, expected, later = Visibility(n_queries=6, n_keys=6), x, torch.zeros_like(x)
    scale = spec.residual_scale
    for index in range(spec.n_layers):
        block = stack.layers[index]
        expected = expected + scale * block.self_attn(block.input_layernorm(expected), sees)
        given, letter = torch.zeros_like(x), spec.last_stack.ffn_of(index)
        if letter != "N":
            normed = block.post_attention_layernorm(expected)
            expected = expected + scale * block.mlp(normed)
            given = scale * block.moe(normed) if letter == "B" else given
        expected, later = expected + later, given
    assert_near(stack(x), stack.norm(expected))


# ---- by hand


def test_clamped_swiglu_by_hand() -> None:
    given = torch.tensor([[10.0, -10.0, 0.0], [-9.0, 9.0, 3.0]], dtype=torch.float64)
    # gate 10 -> 7, up -9 -> -7: 7 · sigmoid(1.702·7) · (-7 + 1); the gate is limited from above
    # alone; up 9 -> 7
    expected = [7 / (1 + math.exp(-11.914)) * -6, -10 / (1 + math.exp(17.02)) * 8, 0.0]
    assert_near(gate(*given, "clamped_swiglu", 1.0), expected)


def test_balancing_loss_by_hand() -> None:
    # 2 tokens, 2 experts, k = 1, both to expert 0: 2 · (1 · (0.75 + 0.5)/2 + 0 · …)
    probs, ones = torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.ones(2, 1)
    routing = Routing(probs_NE=probs, chosen_Nk=torch.tensor([[0], [0]]), weights_Nk=ones)
    assert load_balancing_loss(routing).item() == 1.25


def test_gated_d_ff() -> None:
    for d_model, multiplier, multiple_of, d_ff in (
        *((4096, "1", 256, 11008), (5120, "1", 256, 13824)),  # LLaMA 7B, 13B
        *((8192, "1.3", 4096, 28672), (4096, "1.3", 1024, 14336)),  # Llama 2 70B, Llama 3 8B
        *((96, "1", 256, 256), (97, "1", 256, 512)),  # 2/3 · 384 is a multiple already, 258 is not
    ):
        assert gated_d_ff(d_model, multiplier=multiplier, multiple_of=multiple_of) == d_ff
