"""Experts against a loop over tokens; the meta path against the real one, in values and FLOPs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, expert, moe, randomised, route
from helpers.module_parts import like, make_mixture
from torch import Tensor

from metacount.measure.ours import reference_counter
from metacount.modules import GatedFeedForward, MixtureOfExperts
from metacount.modules import moe as moe_file
from metacount.spec.ffn import SharedExperts

D, M, E, K, SHARED = 5, 7, 11, 3, 13


def make(
    *,
    gated: bool = True,
    activation: str = "silu",
    bias: bool = False,
    shared: bool = False,
    gate: bool = False,
    scoring: str = "softmax_renorm",
    swish_beta: float = 1.0,
    **router: Any,
) -> MixtureOfExperts:
    how: dict[str, Any] = {"activation": activation, "bias": bias, "swish_beta": swish_beta}
    one = SharedExperts(n_experts=1, d_ff=SHARED, gate=gate) if shared else None
    sizes = {"n_experts": E, "top_k": K, "d_ff": M, "bias": bias, "shared": one}
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


@pytest.mark.parametrize("name", CASES)
def test_layer_is_a_loop_over_tokens(name: str) -> None:
    module, x = randomised(make(**CASES[name])), inputs()
    assert_near(module(x), by_loop(module, x))


@pytest.mark.parametrize("name", CASES)
def test_meta_dispatch_gives_the_same_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On meta nobody knows an expert's rows: one product per row, which is right on CPU too."""
    module, x = randomised(make(**CASES[name])), inputs()
    real, calls = moe_file.apply_rows, []

    def without_counts(x_RD: Tensor, weight: Tensor, expert_R: Tensor, counts: list[int]) -> Tensor:
        calls.append(counts)
        return real(x_RD, weight, expert_R, [])

    monkeypatch.setattr(moe_file, "apply_rows", without_counts)
    y = module(x)
    assert [sum(counts) for counts in calls] == [2 * 9 * K] * 2
    assert_near(y, by_loop(module, x))


def matmul_flops(module: MixtureOfExperts, x: Tensor) -> dict[str, int]:
    with torch.no_grad(), reference_counter().watching(module) as counter:
        module(x)
    return counter.report().by_role


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_exactly_top_k_experts(name: str) -> None:
    case = CASES[name]
    n, matrices = 18, 3 if case.get("gated", True) else 2
    # 2 per multiply-add: the router over all experts, k experts per token
    expected = 2 * n * D * E + K * n * matrices * 2 * D * M
    if case.get("shared"):
        expected += n * matrices * 2 * D * SHARED
    if case.get("gate"):
        expected += 2 * n * D
    real = randomised(make(**case))
    with torch.device("meta"):
        meta, x = make(**case), torch.empty(2, 9, D)
    assert matmul_flops(real, inputs())["moe"] == expected
    assert matmul_flops(meta, x)["moe"] == expected
    assert sum(matmul_flops(meta, x).values()) == expected
    # nobody's expert or everybody's: as many products, however unevenly they fall
    torch.nn.init.zeros_(real.gate.proj.weight)
    assert matmul_flops(real, inputs())["moe"] == expected


def test_output_on_meta_has_the_shape_and_dtype_of_its_input() -> None:
    with torch.device("meta"):
        y = make(shared=True)(torch.empty(2, 9, D))
    assert y.is_meta
    assert (y.shape, y.dtype) == ((2, 9, D), torch.float32)


@pytest.mark.parametrize(("gated", "bias"), list(product([False, True], repeat=2)))
def test_shapes_of_the_fused_tensors(gated: bool, bias: bool) -> None:
    experts = make(gated=gated, activation="silu", bias=bias).experts
    up, rows = ("gate_up_proj", 2 * M) if gated else ("up_proj", M)
    shapes = {up: (E, rows, D), "down_proj": (E, D, M)}
    if bias:
        shapes |= {f"{up}_bias": (E, rows), "down_proj_bias": (E, D)}
    assert {name: tuple(p.shape) for name, p in experts.named_parameters()} == shapes


@pytest.mark.parametrize("gated", [False, True])
def test_experts_start_like_linear_layers(gated: bool) -> None:
    experts = make(gated=gated, bias=True).experts
    for name, width in (("gate_up_proj" if gated else "up_proj", D), ("down_proj", M)):
        values, bound = experts.get_parameter(name).detach(), width**-0.5
        assert bound * 0.9 < values.max() <= bound
        assert -bound <= values.min() < -bound * 0.9
        assert not experts.get_parameter(f"{name}_bias").any()


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


def test_gradients_reach_the_router_and_the_input() -> None:
    module, x = randomised(make(shared=True, gate=True)), inputs().requires_grad_()
    module(x).square().sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().sum(-1) > 0).all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-6, name


def test_gradient_is_the_same_through_either_dispatch() -> None:
    module, x = randomised(make(bias=True)), inputs()[0]
    chosen, weights = torch.randint(0, E, (9, K)), torch.rand(9, K).double()
    sums = []
    for counts_known in (True, False):
        module.zero_grad()
        if counts_known:
            y = module.experts(x, chosen, weights)
        else:
            w_up, w_down = module.experts.gate_up_proj, module.experts.down_proj
            rows = x.repeat_interleave(K, 0)
            both = moe_file.apply_rows(rows, w_up, chosen.flatten(), [])
            both = both + module.experts.gate_up_proj_bias[chosen.flatten()]
            hidden = torch.nn.functional.silu(both[:, :M]) * both[:, M:]
            down = moe_file.apply_rows(hidden, w_down, chosen.flatten(), [])
            down = down + module.experts.down_proj_bias[chosen.flatten()]
            y = (down * weights.flatten()[:, None]).unflatten(0, (9, K)).sum(1)
        y.square().sum().backward()
        sums.append(module.experts.down_proj.grad.clone())
    assert_near(sums[0], sums[1])


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


def test_all_experts_of_one_is_a_dense_layer() -> None:
    """E = k = 1: the routed weight is 1 and the layer is its only expert."""
    sizes: dict[str, Any] = {"d_ff": M, "n_experts": 1, "top_k": 1}
    module = randomised(make_mixture(D, made={}, scoring="softmax", **sizes))
    dense = GatedFeedForward(like(d_ff=M), D).double()
    dense.gate_proj.weight.data, dense.up_proj.weight.data = module.experts.gate_up_proj.data[
        0
    ].chunk(2)
    dense.down_proj.weight.data = module.experts.down_proj.data[0]
    x = inputs()
    assert_near(module(x), dense(x))
