"""Zero experts, and experts beside a feed-forward whose output is added one layer later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.module_loops import assert_near, moe, randomised, route
from helpers.module_parts import make_mixture
from helpers.module_specs import MLA, small, tokens
from helpers.release import daily
from torch import Tensor

from metacount.formulas import model as formulas
from metacount.measure.ours import measure_forward, measure_params, reference_counter
from metacount.measure.tree import found, whole_tree
from metacount.modules import MixtureOfExperts, Model, Visibility
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.spec.ffn import ZeroExperts

torch.set_num_threads(1)

D, M, E, ZERO, K = 5, 7, 4, 6, 3


def mixture(*, rows: bool = False, bias: bool = False, **router: Any) -> MixtureOfExperts:
    zero = ZeroExperts(n_experts=ZERO, rows=rows)
    sizes = {"n_experts": E, "top_k": K, "d_ff": M, "bias": bias, "zero": zero}
    how = {"gated": True, "activation": "silu"}
    return make_mixture(D, made=how, scoring="softmax", routed_scale=2.5, **sizes, **router)


def inputs() -> Tensor:
    return torch.randn(2, 9, D, dtype=torch.float64)


def flops_of(module: MixtureOfExperts, x: Tensor) -> int:
    with torch.no_grad(), reference_counter().watching(module) as counter:
        module(x)
    return counter.report().by_role["moe"]


@pytest.mark.parametrize("case", [{}, {"rows": True, "bias": True}, {"selection_bias": True}])
def test_a_zero_expert_gives_back_its_token(case: dict[str, Any]) -> None:
    module, x = randomised(mixture(**case)), inputs()
    chosen = {e for rows in x.tolist() for row in rows for e in route(module.gate, row)}
    assert min(chosen) < E <= max(chosen)  # of both kinds
    assert_near(module(x), [[moe(module, row) for row in rows] for rows in x.tolist()])


def test_the_weight_of_an_expert_s_input_is_not_taken_twice() -> None:
    module, x = randomised(mixture(router_scales_input=True)), inputs()[0]
    chosen, weights = torch.full((9, K), E), torch.rand(9, K, dtype=torch.float64)
    assert_near(module.experts(x, chosen, weights), x * weights.sum(-1, keepdim=True))


def test_nobody_reads_the_rows_of_zero_experts() -> None:
    module, x = randomised(mixture(rows=True)), inputs()
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


def test_flops_are_of_as_many_experts_as_compute() -> None:
    """On meta, where nobody can know, of all that a token chooses: the most."""
    router, one = 2 * 18 * D * (E + ZERO), 3 * 2 * D * M
    with torch.device("meta"):
        assert flops_of(mixture(), torch.empty(2, 9, D)) == router + 18 * K * one
    module, x = randomised(mixture(selection_bias=True)), inputs()
    computed = sum(e < E for rows in x.tolist() for row in rows for e in route(module.gate, row))
    assert 0 < computed < 18 * K
    assert flops_of(module, x) == router + computed * one
    module.gate.e_score_correction_bias[E:] = 100.0
    assert flops_of(module, x) == router
    module.gate.e_score_correction_bias[E:] = -100.0
    assert flops_of(module, x) == router + 18 * K * one


# ---- beside a feed-forward

EXPERTS: dict[str, Any] = {"n_experts": 7, "top_k": 3, "d_ff_expert": 11, "router": "softmax"}
CASES: dict[str, dict[str, Any]] = {
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
    values = {"d_ff": 17, **EXPERTS, **CASES[name]}
    return small().replace(**values)


@pytest.mark.parametrize("name", CASES)
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


@pytest.mark.parametrize("name", CASES)
def test_decoding_goes_on_where_a_prefill_ended(name: str) -> None:
    model: Model = randomised(build(spec_of(name), device="cpu", dtype="fp64", seed=3))
    ids, cache = tokens(9), model.new_cache()
    absorbed = model.spec.attention == "mla"
    with torch.no_grad():
        whole = model(ids).logits_BSV
        parts = [ids[:, :5], *ids[:, 5:].split(1, dim=1)]
        steps = [model(part, cache=cache, absorbed=absorbed).logits_BSV for part in parts]
    assert whole is not None
    assert_near(torch.cat([step for step in steps if step is not None], dim=1), whole)


@daily(3)
@pytest.mark.parametrize("name", CASES)
def test_counts_are_those_of_the_formulas(name: str) -> None:
    spec, run = spec_of(name), Workload(batch_size=2, seq_len=7)
    module = build(spec)
    params, ran = measure_params(module), measure_forward(module, run)
    assert params.by_role == formulas.params_by_role(spec)
    assert params.active_by_role == formulas.active_params_by_role(spec)
    sizes = {"batch_size": 2, "seq_len": 7}
    assert ran.prefill.by_role == formulas.matmul_flops_by_role(spec, **sizes)
    assert ran.prefill.causal_by_role == formulas.causal_matmul_flops_by_role(spec, **sizes)
    assert ran.decode is not None
    assert ran.decode.by_role == formulas.decode_matmul_flops_by_role(spec, batch_size=2, kv_len=7)
    cached = formulas.kv_cache_bytes(spec, **sizes, bytes_per_value=2)
    assert ran.cache.kv_bytes == cached


def test_a_tree_says_so() -> None:
    tree = whole_tree(build(spec_of("as LongCat-Flash")))
    assert found(tree, "decoder.layers.0").computes == "x + f(norm(x)), moe added a layer later"
    assert found(tree, "decoder.layers.1").computes == "x + f(norm(x))"
    assert found(tree, "layers.0.moe.experts").computes.startswith("3 of 7 + 5 zero per token, ")
