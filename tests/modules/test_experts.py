"""Experts against a loop over tokens, on meta too; zero experts; experts beside a feed-forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, expert, moe, randomised, route
from helpers.module_parts import make_mixture
from helpers.module_specs import MLA, small
from torch import Tensor

from metacount.modules import MixtureOfExperts, Model, Visibility
from metacount.modules import moe as moe_file
from metacount.modules.build import build
from metacount.spec import ModelSpec
from metacount.spec.ffn import SharedExperts, ZeroExperts

D, M, E, K, SHARED, ZERO = 5, 7, 11, 3, 13, 9


def make(
    *,
    gated: bool = True,
    activation: str = "silu",
    bias: bool = False,
    shared: bool = False,
    gate: bool = False,
    scoring: str = "softmax_renorm",
    swish_beta: float = 1.0,
    zero: bool = False,
    rows: bool = False,
    **router: Any,
) -> MixtureOfExperts:
    how: dict[str, Any] = {"activation": activation, "bias": bias, "swish_beta": swish_beta}
    one = SharedExperts(n_experts=1, d_ff=SHARED, gate=gate) if shared else None
    sizes = {"n_experts": E, "top_k": K, "d_ff": M, "bias": bias, "shared": one}
    if zero:
        sizes["zero"] = ZeroExperts(n_experts=ZERO, rows=rows)
    return make_mixture(D, made={"gated": gated, **how}, scoring=scoring, **sizes, **router)


def inputs() -> Tensor:
    return torch.randn(2, 9, D, dtype=torch.float64)


def by_loop(module: MixtureOfExperts, x: Tensor) -> list[list[list[float]]]:
    return [[moe(module, row) for row in rows] for rows in x.tolist()]


CASES: dict[str, dict[str, Any]] = {
    "gated": {},
    "gated with biases": {"bias": True},
    "plain": {"gated": False, "activation": "relu"},
    "plain with biases": {"gated": False, "activation": "gelu", "bias": True},
    "clamped": {"activation": "clamped_swiglu", "bias": True, "scoring": "topk_softmax"},
    "swish": {"swish_beta": 1.702},
    "shared": {"shared": True, "scoring": "sigmoid_renorm", "routed_scale": 2.5},
    "shared with biases": {"shared": True, "bias": True},
    "shared behind a gate": {"shared": True, "gate": True},
    "deepseek": {
        "shared": True,
        "scoring": "sigmoid_renorm",
        "selection_bias": True,
        "routed_scale": 2.5,
    },
    "llama4": {"shared": True, "scoring": "sigmoid"},
    "switch": {"gated": False, "activation": "relu", "scoring": "softmax"},
}
LONGCAT: dict[str, Any] = {"zero": True, "scoring": "softmax", "routed_scale": 2.5}
WITH_ZERO: dict[str, dict[str, Any]] = {
    "zero experts": LONGCAT,
    "zero experts with rows": {**LONGCAT, "rows": True, "bias": True},
    "zero experts, a bias for the choice": {**LONGCAT, "selection_bias": True},
}


@pytest.mark.parametrize("name", [*CASES, *WITH_ZERO])
def test_layer_is_a_loop_over_tokens(name: str) -> None:
    """A zero expert gives back its token."""
    module, x = randomised(make(**(CASES | WITH_ZERO)[name])), inputs()
    assert_near(module(x), by_loop(module, x))
    if name in WITH_ZERO:
        chosen = {e for rows in x.tolist() for row in rows for e in route(module.gate, row)}
        assert min(chosen) < E <= max(chosen)  # of both kinds


@pytest.mark.parametrize("name", CASES)
def test_meta_dispatch_gives_the_same_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On meta nobody knows an expert's rows: one product per row, which is right on CPU too."""
    module, x = randomised(make(**CASES[name])), inputs()
    expected = module(x)
    real, calls = moe_file.apply_rows, []

    def without_counts(x_RD: Tensor, weight: Tensor, expert_R: Tensor, counts: list[int]) -> Tensor:
        calls.append(counts)
        return real(x_RD, weight, expert_R, [])

    monkeypatch.setattr(moe_file, "apply_rows", without_counts)
    y = module(x)
    assert [sum(counts) for counts in calls] == [2 * 9 * K] * 2
    assert_near(y, expected)


@pytest.mark.parametrize("bias", [False, True])
def test_unselected_experts_get_no_gradient(bias: bool) -> None:
    module = randomised(make(bias=bias))
    x = inputs()[:1, :1]
    chosen = set(route(module.gate, x[0, 0].tolist()))
    assert len(chosen) == K
    module(x).square().sum().backward()
    for name, parameter in module.experts.named_parameters():
        assert parameter.grad is not None, name
        for e in range(E):
            touched = bool((parameter.grad[e] != 0).any())
            assert touched == (e in chosen), f"{name} of expert {e}"


def test_a_token_may_choose_an_expert_alone_and_experts_may_be_idle() -> None:
    module, x = randomised(make(bias=True)), inputs()[0]
    chosen = torch.tensor([[10, 0, 3]] * 8 + [[7, 3, 0]])  # expert 7 has one row, most have none
    weights = torch.rand(9, 3, dtype=torch.float64)
    y = module.experts(x, chosen, weights)
    expected = []
    for row, ids, shares in zip(x.tolist(), chosen.tolist(), weights.tolist(), strict=True):
        outputs = [expert(module.experts, e, row) for e in ids]
        mixed = [sum(w * out[i] for w, out in zip(shares, outputs, strict=True)) for i in range(D)]
        expected.append(mixed)
    assert_near(y, expected)


def test_nobody_reads_the_rows_of_zero_experts() -> None:
    module, x = randomised(make(**LONGCAT, rows=True)), inputs()
    shapes = {name: tuple(p.shape) for name, p in module.experts.named_parameters()}
    assert shapes == {"gate_up_proj": (E + ZERO, 2 * M, D), "down_proj": (E, D, M)}
    before = module(x)
    with torch.no_grad():
        module.experts.gate_up_proj[E:] = torch.nan
    assert torch.equal(module(x), before)
    module(x).square().sum().backward()
    assert module.experts.gate_up_proj.grad is not None
    assert not module.experts.gate_up_proj.grad[E:].any()
    assert module.experts.gate_up_proj.grad[:E].any()


# --- beside a feed-forward ------------------------------------------------------------------------

EXPERTS: dict[str, Any] = {"n_experts": 7, "top_k": 3, "d_ff_expert": 11, "router": "softmax"}
BESIDE: dict[str, dict[str, Any]] = {
    "as LongCat-Flash": {
        **MLA,
        "n_layers": 4,
        "ffn_pattern": "BF",
        "n_zero_experts": 5,
        "scaled_latents": True,
    },
    "one after the other": {"n_layers": 3, "ffn_pattern": "BBF", "residual_scale": 0.5},
    "shared experts, biases": {
        "n_layers": 6,
        "ffn_pattern": "FBF",
        "n_shared_experts": 2,
        "d_ff_shared": 3,
        "expert_bias": True,
        "ffn_bias": True,
        "n_zero_experts": 2,
        "zero_expert_rows": True,
    },
    "added after a layer without a feed-forward": {"n_layers": 4, "ffn_pattern": "BN"},
}


def spec_of(name: str) -> ModelSpec:
    values = {"d_ff": 17, **EXPERTS, **BESIDE[name]}
    return small().replace(**values)


@pytest.mark.parametrize("name", BESIDE)
def test_what_experts_give_is_added_one_layer_later(name: str) -> None:
    spec = spec_of(name)
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
