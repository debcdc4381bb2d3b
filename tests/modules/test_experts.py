"""Experts one token at a time; zero experts; beside a feed-forward; groups, loss, 2/3 by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.module_loops import assert_near, randomised
from helpers.module_parts import make_mixture, make_router
from helpers.module_specs import MLA, small
from torch import Tensor

from metacount.modules import MixtureOfExperts, Model, Visibility, gated_d_ff, load_balancing_loss
from metacount.modules import moe as moe_file
from metacount.modules.build import build
from metacount.modules.ffn import XIelu, gate
from metacount.modules.moe import Routing
from metacount.spec.ffn import SharedExperts, ZeroExperts

D, M, E, K, SHARED, ZERO = 5, 7, 11, 3, 13, 9


def make(
    *, gated: bool = True, activation: str = "silu", bias: bool = False, shared: bool = False,
    gate: bool = False, scoring: str = "softmax_renorm", zero: bool = False, rows: bool = False,
    **router: Any,
) -> MixtureOfExperts:  # fmt: skip
    how: dict[str, Any] = {"activation": activation, "bias": bias, "gated": gated}
    sizes: dict[str, Any] = {"n_experts": E, "top_k": K, "d_ff": M, "bias": bias}
    sizes["shared"] = SharedExperts(n_experts=1, d_ff=SHARED, gate=gate) if shared else None
    if zero:
        sizes["zero"] = ZeroExperts(n_experts=ZERO, rows=rows)
    return randomised(make_mixture(D, made=how, scoring=scoring, **sizes, **router))  # type: ignore[no-any-return]


def hidden(up: Tensor, gated: bool, name: str) -> Tensor:
    """What goes into the last matrix of an expert, of [gate, up] where it is gated."""
    act = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}.get(name)
    if act is not None and not gated:
        return act(up)
    gate, up = up.chunk(2, -1)
    if act is not None:
        return act(gate) * up
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)  # gpt-oss
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def of_token(module: MixtureOfExperts, x: Tensor) -> Tensor:
    """What a layer gives of one token, expert after expert; a zero expert gives the token back."""
    router, experts, scoring = module.gate, module.experts, module.gate.scoring
    logits = router.proj(x)
    scores = logits.sigmoid() if scoring.startswith("sigmoid") else logits.softmax(-1)
    bias = 0 if router.e_score_correction_bias is None else router.e_score_correction_bias
    chosen = sorted(range(len(logits)), key=lambda e: -(scores + bias)[e].item())[:K]
    weights = (logits[chosen].softmax(-1) if scoring == "topk_softmax" else scores[chosen]).clone()
    weights = weights / weights.sum() if scoring.endswith("_renorm") else weights
    y = torch.zeros_like(x)
    for e, weight in zip(chosen, weights * router.routed_scale, strict=True):
        given = x
        if e < E:
            up, down = experts.get_parameter(experts.up_name)[e], experts.down_proj[e]
            biases = [getattr(experts, f"{n}_bias") for n in (experts.up_name, "down_proj")]
            first, last = (0 if b is None else b[e] for b in biases)
            given = down @ hidden(up @ x + first, experts.gated, experts.activation) + last
        y = y + weight * given
    if module.shared_experts is None:
        return y
    shared: Tensor = module.shared_experts(x)
    return y + (shared if module.shared_expert_gate is None else
                shared * module.shared_expert_gate(x).sigmoid())  # fmt: skip


V3: dict[str, Any] = {"shared": True, "scoring": "sigmoid_renorm", "routed_scale": 2.5}
LONGCAT: dict[str, Any] = {"zero": True, "scoring": "softmax", "routed_scale": 2.5}
CASES: dict[str, dict[str, Any]] = {
    "gated": {},
    "plain": {"gated": False, "activation": "relu"},
    "plain with biases": {"gated": False, "activation": "gelu", "bias": True},
    "clamped": {"activation": "clamped_swiglu", "bias": True, "scoring": "topk_softmax"},
    "shared behind a gate": {"shared": True, "bias": True, "gate": True},
    "deepseek": {**V3, "selection_bias": True},
    "llama4": {"shared": True, "scoring": "sigmoid"},
    "zero experts": LONGCAT,
    "zero experts with rows": {**LONGCAT, "rows": True, "bias": True, "selection_bias": True},
}


@pytest.mark.parametrize("name", CASES)
def test_layer_is_a_loop_over_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as on meta, where nobody knows an expert's rows: one product per row."""
    module, x = make(**CASES[name]), torch.randn(2, 9, D, dtype=torch.float64)
    expected = torch.stack([torch.stack([of_token(module, row) for row in rows]) for rows in x])
    assert_near(module(x), expected)
    if not CASES[name].get("zero"):
        real = moe_file.apply_rows
        monkeypatch.setattr(moe_file, "apply_rows", lambda x, w, e, _: real(x, w, e, []))
        assert_near(module(x), expected)


def test_nobody_reads_the_rows_of_zero_experts() -> None:
    module, x = make(**LONGCAT, rows=True), torch.randn(2, 9, D, dtype=torch.float64)
    shapes = {name: tuple(p.shape) for name, p in module.experts.named_parameters()}
    assert shapes == {"gate_up_proj": (E + ZERO, 2 * M, D), "down_proj": (E, D, M)}
    before = module(x)
    with torch.no_grad():
        module.experts.gate_up_proj[E:] = torch.nan
    assert torch.equal(module(x), before)


# ---- beside a feed-forward

EXPERTS: dict[str, Any] = {"n_experts": 7, "top_k": 3, "d_ff_expert": 11, "router": "softmax"}
BESIDE: dict[str, dict[str, Any]] = {
    "as LongCat-Flash": {
        **MLA, "n_layers": 4, "ffn_pattern": "BF", "n_zero_experts": 5, "scaled_latents": True},
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


def test_groups_by_hand() -> None:
    # the router is the identity: logits are the token; 3 groups of 2 experts, one is open
    logits = torch.tensor([[5.0, 0.0, 4.0, 3.0, 4.5, 1.0]], dtype=torch.float64)
    options = {"d_model": 6, "n_experts": 6, "top_k": 2, "n_groups": 3, "top_groups": 1}
    chosen = {}
    for group_score in ("max", "top2_sum"):
        router = randomised(make_router(scoring="sigmoid", **options, group_score=group_score))
        router.proj.weight = torch.nn.Parameter(torch.eye(6, dtype=torch.float64))
        chosen[group_score] = router(logits).chosen_Nk.tolist()
    # max: 5 wins. top2_sum: sigmoid(4) + sigmoid(3) = 1.935, before 1.721 and 1.493
    assert chosen == {"max": [[0, 1]], "top2_sum": [[2, 3]]}


def test_xielu_by_hand() -> None:
    """Both α are 0.8 at first: 0.8·x² + x/2 above 0, 0.8·(e^x - 1 - x) + x/2 below."""
    x = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    expected = torch.tensor([3.2 + 1, 0.8 / math.e - 0.5, 0.0], dtype=torch.float64)
    assert (XIelu().double()(x) - expected).abs().max() < 1e-6  # e^x near 0


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


@pytest.mark.parametrize(
    ("d_model", "multiplier", "multiple_of", "d_ff"),
    [
        (4096, "1", 256, 11008),  # LLaMA 7B
        (5120, "1", 256, 13824),  # 13B
        (6656, "1", 256, 17920),  # 33B
        (8192, "1", 256, 22016),  # 65B
        (8192, "1.3", 4096, 28672),  # Llama 2 70B
        (4096, "1.3", 1024, 14336),  # Llama 3 8B
        (96, "1", 256, 256),  # 2/3 · 384 is a multiple already
        (97, "1", 256, 512),  # 258 is not
    ],
)
def test_gated_d_ff(d_model: int, multiplier: str, multiple_of: int, d_ff: int) -> None:
    assert gated_d_ff(d_model, multiplier=multiplier, multiple_of=multiple_of) == d_ff
