"""Claims about behaviour, done again in plain torch: none of the reference modules is used."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers.changed_claims import ALL, verdict_on
from torch import Tensor

from metacount.teaching.claim import CONDITIONAL, RIGHT, WRONG
from metacount.teaching.claims import judge_claim

D, E, N = 5, 4, 3


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Plain:
    """Experts that are one matrix each, and a router, as plain tensors."""

    def __init__(self) -> None:
        self.x_ND = values(N, D, seed=1)
        self.router_ED = values(E, D, seed=2).requires_grad_()
        self.experts = [values(D, D, seed=3 + e).requires_grad_() for e in range(E)]

    def output(self, n: int, e: int) -> Tensor:
        return torch.tanh(self.experts[e] @ self.x_ND[n])

    def logits(self) -> Tensor:
        return self.x_ND @ self.router_ED.T


def test_one_expert_renormalised_is_unweighted_and_teaches_the_router_nothing() -> None:
    plain = Plain()
    best = plain.logits().max(-1)
    weights = best.values[:, None].softmax(-1)[:, 0]  # over the one that was chosen
    y = sum((weights[n] * plain.output(n, int(best.indices[n]))).square().sum() for n in range(N))
    assert isinstance(y, Tensor)
    y.backward()
    assert weights.tolist() == [1.0] * N
    assert plain.router_ED.grad is not None
    assert float(plain.router_ED.grad.abs().max()) == 0


def test_one_expert_with_its_probability_teaches_the_router() -> None:
    plain = Plain()
    probs = plain.logits().softmax(-1)
    best = probs.max(-1)
    y = sum(
        (best.values[n] * plain.output(n, int(best.indices[n]))).square().sum() for n in range(N)
    )
    assert isinstance(y, Tensor)
    y.backward()
    assert plain.router_ED.grad is not None
    assert float(plain.router_ED.grad.abs().max()) > 1e-3
    assert float(best.values.detach().max()) < 1
    assert verdict_on("k1-output-unweighted").verdict == WRONG


def test_an_expert_that_nobody_chose_has_no_gradient() -> None:
    plain = Plain()
    chosen = plain.logits().argmax(-1).tolist()
    assert len(set(chosen)) < E
    probs = plain.logits().softmax(-1)
    y = sum((probs[n, e] * plain.output(n, e)).square().sum() for n, e in enumerate(chosen))
    assert isinstance(y, Tensor)
    y.backward()
    for e, matrix in enumerate(plain.experts):
        # autograd never reached it, which an optimizer takes for zero
        assert (matrix.grad is None) == (e not in chosen)
    assert plain.router_ED.grad is not None
    assert bool((plain.router_ED.grad != 0).all())  # the router's rows have one all the same
    judged = verdict_on("unselected-expert-gradient")
    assert (judged.verdict, judged.correct) == (RIGHT, "exactly 0")


def test_the_gradient_of_a_weight_is_an_inner_product() -> None:
    plain = Plain()
    # y = Σ w_e·f_e, so dL/dw_e = Σ_i dL/dy_i · f_e,i; by central differences, without autograd
    outputs = [plain.output(0, e).detach() for e in range(2)]
    weights, target = torch.tensor([0.3, 0.7], dtype=torch.float64), values(D, seed=9)

    def loss(w: Tensor) -> Tensor:
        return (w[0] * outputs[0] + w[1] * outputs[1] - target).pow(4).sum()

    slope = 4 * (weights[0] * outputs[0] + weights[1] * outputs[1] - target).pow(3)
    for e in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[e] = 1e-5
        numeric = (loss(weights + step) - loss(weights - step)) / 2e-5
        assert float(numeric) == pytest.approx(float(slope @ outputs[e]), rel=1e-6)
    judged = verdict_on("router-gradient")
    assert judged.verdict == RIGHT
    pairs = [line for line in judged.computation if line.startswith("token")]
    assert len(pairs) == 6
    for line in pairs:
        gradient, product = line.partition("gradient ")[2].split(", product ")
        assert gradient == product


def test_the_weight_on_the_input_has_another_gradient() -> None:
    plain = Plain()
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    torch.tanh(plain.experts[0] @ (weight * plain.x_ND[0])).sum().backward()
    assert weight.grad is not None
    assert abs(float(weight.grad) - float(plain.output(0, 0).sum().detach())) > 1e-3


def test_the_balancing_loss_by_hand() -> None:
    # two experts, four tokens, three of them to expert 0: 2·(0.6·0.75 + 0.4·0.25)
    probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    shares = F.one_hot(probs.argmax(-1), 2).double().mean(0)
    assert float(2 * (probs.mean(0) * shares).sum()) == pytest.approx(1.1, rel=1e-12)
    judged = verdict_on("balance-loss")
    assert judged.verdict == CONDITIONAL and judged.condition is not None
    assert judged.condition.startswith("k = 1, ")
    one, two, _ = (line for line in judged.computation if line.startswith("k ="))
    stated, module = (float(text.split()[-1]) for text in one.split(",")[:2])
    assert stated == module
    stated, module = (float(text.split()[-1]) for text in two.split(",")[:2])
    assert stated == pytest.approx(2 * module, rel=1e-5)  # printed to six decimals


def test_both_orders_choose_alike_and_agree_after_renormalising() -> None:
    logits = values(20, 7)
    first = logits.softmax(-1).topk(3)
    second = logits.topk(3)
    assert torch.equal(first.indices, second.indices)
    as_they_are, over_chosen = first.values, second.values.softmax(-1)
    assert bool((as_they_are.sum(-1) < 1 - 1e-6).all())
    renormalised = as_they_are / as_they_are.sum(-1, keepdim=True)
    torch.testing.assert_close(renormalised, over_chosen, rtol=1e-12, atol=0)
    one, other = (verdict_on(f"gate-softmax-order-{order}") for order in "ab")
    assert (one.verdict, other.verdict) == (CONDITIONAL, CONDITIONAL)
    # Switch keeps the probability (its eq. 2); Mixtral takes a softmax over the top 2 (sec. 2.1)
    assert "switch-base-8" in one.correct.partition("; not")[0]
    assert "mixtral-8x7b" in other.correct.partition("; not")[0]
    # DeepSeek-V3 and Llama 4 take sigmoids: neither
    for judged in (one, other):
        assert "deepseek-v3" in judged.correct.partition("; not")[2]
        assert "llama4-scout-text" in judged.correct.partition("; not")[2]
        # SparseMixer takes a softmax over what it has not masked, one expert after another: neither
        assert "phi3.5-moe" in judged.correct.partition("; not")[2]


def test_the_routers_of_transformers_take_the_orders_that_ours_were_found_to_take() -> None:
    from types import SimpleNamespace

    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
    from transformers.models.granitemoehybrid.modeling_granitemoehybrid import (
        GraniteMoeHybridTopKRouter,
    )
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    sizes = {"hidden_size": D, "num_experts_per_tok": 2, "num_local_experts": 8, "num_experts": 8}
    config = SimpleNamespace(**sizes, norm_topk_prob=True)
    x_ND = values(30, D, seed=21).float()
    kinds = (GptOssTopKRouter, GraniteMoeHybridTopKRouter, MixtralTopKRouter, Qwen3MoeTopKRouter)
    for kind in kinds:
        router = kind(config)
        with torch.no_grad():
            router.weight.copy_(values(8, D, seed=22))
            _, weights, chosen = router(x_ND)
        largest = (x_ND @ router.weight.detach().T).topk(2)
        assert torch.equal(chosen, largest.indices)
        # softmax over the two chosen: order b
        torch.testing.assert_close(weights, largest.values.softmax(-1), rtol=1e-5, atol=1e-6)
    told = verdict_on("gate-softmax-order-b").correct.partition("; not")[0]
    granite = "granite-4.0-h-small, granite-4.0-h-tiny"
    same = "mixtral-8x7b, qwen3-235b-a22b, qwen3-30b-a3b, qwen3-next-80b-a3b, qwen3.5-35b-a3b-text"
    assert told == f"gpt-oss-20b, {granite}, minimax-text-01, {same}"


def test_the_balancing_loss_of_transformers_is_the_stated_one_for_every_k() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = values(12, E, seed=31)
    for k in (1, 2):
        probs = logits.softmax(-1)
        chosen = probs.topk(k).indices
        share = F.one_hot(chosen, E).double().sum(1).mean(0)  # of tokens: adds up to k
        stated = E * (probs.mean(0) * share).sum()
        theirs = load_balancing_loss_func((logits,), num_experts=E, top_k=k)
        assert float(theirs) == pytest.approx(float(stated), rel=1e-5)  # theirs is in float32


def test_softmax_runs_in_the_router_too() -> None:
    dense, mixture, sigmoid = verdict_on("softmax-only-two-places").computation
    assert dense.endswith("softmax in ScaledDotProduct 2")
    assert "Router" in mixture and "Router" not in sigmoid


def test_rmsnorm_takes_the_mean() -> None:
    x = values(1, 16)
    norm = torch.nn.RMSNorm(16, eps=1e-5, dtype=torch.float64)
    y = norm(x).detach()
    # 4 = √16: each value has a square of 1 on average; with the sum it would be 1
    assert float(y.norm()) == pytest.approx(4, rel=1e-4)
    judged = verdict_on("rmsnorm-sum")
    assert judged.verdict == WRONG
    assert "a norm of 4.000 for d = 16" in judged.reason


def test_layer_norm_multiplies_by_gamma_and_adds_beta() -> None:
    # two values, 1 and 3: mean 2, deviation 1, so that they become -1 and 1
    norm = torch.nn.LayerNorm(2, eps=0.0, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([5.0, 7.0]))
        norm.bias.copy_(torch.tensor([11.0, 13.0]))
        y = norm(torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert y.tolist() == [-1 * 5 + 11, 1 * 7 + 13]
    judged = verdict_on("layernorm-gamma-beta")
    assert judged.verdict == WRONG
    # with β = 0 and γ = 1 at the start, x·β + γ is 1 whatever x is
    assert "A new module would give 1 for every input." in judged.reason


def test_deepnorm_and_sandwich_norm_have_their_norms() -> None:
    deep, sandwich = verdict_on("deepnorm"), verdict_on("sandwich-norm")
    assert "norms in the block: 2, stated 2" in deep.computation
    assert "norms in the block: 4, stated 4" in sandwich.computation
    # arXiv:2203.00555, figure 2: (2N)^¼ with N = 2 layers is √2
    assert any(f"= {math.sqrt(2):.4f}; with α = 1" in line for line in deep.computation)


def test_gelu_and_its_approximation() -> None:
    x = torch.linspace(-6, 6, 12001, dtype=torch.float64)
    exact = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    tanh = x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    assert f"{float((exact - tanh).abs().max()):.3e}" == "4.732e-04"
    assert any("4.732e-04" in line for line in verdict_on("gelu-erf").computation)


def test_positions_and_their_parameters() -> None:
    # 2 tables 31·24; 2 layers of 4·24·24 + 3·24·16 + 2·24; a last norm
    none = 2 * 31 * 24 + 2 * (4 * 24 * 24 + 3 * 24 * 16 + 2 * 24) + 24
    lines = verdict_on("alibi-no-params").computation
    for kind in ("none", "alibi", "rope", "sinusoidal"):
        assert f"{kind}: {none:,} (+0)" in lines
    assert f"learned: {none + 50 * 24:,} (+1,200)" in lines


def test_rotations_depend_on_the_distance() -> None:
    # pairs of columns as complex numbers: turned by i·θ and j·θ, their product by (i - j)·θ
    q, k = (torch.view_as_complex(values(4, 2, seed=seed)) for seed in (5, 6))
    theta = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)

    def score(i: int, j: int) -> float:
        a, b = q * torch.exp(1j * i * theta), k * torch.exp(1j * j * theta)
        return float((a * b.conj()).real.sum())

    assert score(8, 5) == pytest.approx(score(103, 100), rel=1e-10)
    assert abs(score(8, 5) - score(8, 4)) > 1e-3
    lines = [line for line in verdict_on("rope-relative").computation if line.startswith("i - j")]
    for line in lines[:3]:
        assert len({*line.partition(": ")[2].split(", ")}) == 1
    # float32 does not hold positions near 100,000 that exactly
    assert "float32" in lines[3]
    assert len({*lines[3].partition(": ")[2].split(", ")}) > 1


def test_rope_has_no_parameters() -> None:
    lines = verdict_on("rope-no-params").computation
    assert lines == verdict_on("alibi-no-params").computation
    assert sum(line.startswith("rope: ") and line.endswith("(+0)") for line in lines) == 1


def test_a_causal_mask_lets_nothing_come_from_later() -> None:
    # softmax over the scores of the keys up to the query; its Jacobian by autograd
    x_SD = values(4, D, seed=41)

    def attention(x: Tensor, masked: bool) -> Tensor:
        scores = (x @ values(D, D, seed=42)) @ (x @ values(D, D, seed=43)).T
        if masked:
            scores = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)
        return scores.softmax(-1) @ x

    for masked in (True, False):
        jacobian = torch.autograd.functional.jacobian(lambda x, m=masked: attention(x, m), x_SD)
        touched = jacobian.abs().amax((1, 3)) > 0  # [output, token]
        assert torch.equal(touched, torch.ones(4, 4).tril().bool() if masked else touched | True)
    told = verdict_on("causal-mask").computation
    assert (
        "a whole decoder: token 0 changes 0, 1, 2, 3, 4; token 1 changes 1, 2, 3, 4; token 2 "
        "changes 2, 3, 4; token 3 changes 3, 4; token 4 changes 4" in told
    )
    assert any(
        line.startswith(
            "attention without a mask: token 0 changes 0, 1, 2, 3, 4; token 1 changes 0, 1"
        )
        for line in told
    )


def test_a_feed_forward_takes_each_token_alone() -> None:
    w1, w2 = values(7, D, seed=44), values(D, 7, seed=45)
    x_SD = values(4, D, seed=46)
    jacobian = torch.autograd.functional.jacobian(lambda x: F.gelu(x @ w1.T) @ w2.T, x_SD)
    assert torch.equal(jacobian.abs().amax((1, 3)) > 0, torch.eye(4).bool())
    told = verdict_on("ffn-position-wise").computation
    assert (
        "feed-forward: token 0 changes 0; token 1 changes 1; token 2 changes 2; token 3 "
        "changes 3; token 4 changes 4" in told
    )


@pytest.mark.parametrize(
    ("id", "act"),
    [("ffn-gelu-equation", F.gelu), ("swiglu-equation", F.silu), ("glu-sigmoid", torch.sigmoid)],
)
def test_the_first_hidden_value_is_that_of_torch(id: str, act: Callable[[Tensor], Tensor]) -> None:
    line = verdict_on(id).computation[-1]
    steps = line.partition(": ")[2]
    u, v, h = re.fullmatch(r"\w+\((\S+)\)(?:·(\S+))? = (?:.* = )?(\S+)", steps).groups()  # type: ignore[union-attr]
    expected = float(act(torch.tensor(float(u)))) * float(v or 1)
    assert float(h) == pytest.approx(expected, abs=2e-5)  # printed to six decimals


def test_swiglu_in_place_of_swish_has_a_factor_too_many() -> None:
    x = values(D, seed=51)
    w1, w3 = values(6, D, seed=52), values(6, D, seed=53)
    hidden = F.silu(w1 @ x) * (w3 @ x)
    doubled = F.silu(w1 @ x) * (w1 @ x) * (w3 @ x)
    assert float((hidden - doubled).abs().max()) > 0.1
    judged = verdict_on("swiglu-inside-twice")
    assert judged.verdict == WRONG
    off = {
        line.partition(": off by ")[0]: float(line.partition(": off by ")[2])
        for line in judged.computation
        if line.startswith("hidden")
    }
    assert off["hidden vector against Swish(W1·x) ⊙ W3·x"] < 1e-12
    assert off["hidden vector against SwiGLU(W1·x) ⊙ W3·x"] > 0.1


def test_swish_and_relu() -> None:
    # x·σ(x) at -2, 0.5 and 2, with σ by its definition
    lines = verdict_on("swish-silu").computation
    for x in (-2.0, 0.5, 2.0):
        assert f"at x = {x:g}: {x / (1 + math.exp(-x)):.6f}" in lines
    lines = verdict_on("relu-max").computation
    assert {"at x = -2: 0.000000", "at x = 0.5: 0.500000", "at x = 2: 2.000000"} <= {*lines}


def test_pre_norm_and_post_norm_are_not_each_other() -> None:
    x = values(1, D, seed=61)
    w = values(D, D, seed=62)
    post, pre = F.layer_norm(x + x @ w, (D,)), x + F.layer_norm(x, (D,)) @ w
    assert float((post - pre).abs().max()) > 0.1
    for id, other in (
        ("post-norm", "x + Sublayer(Norm(x))"),
        ("pre-norm", "Norm(x + Sublayer(x))"),
    ):
        judged = verdict_on(id)
        line = next(line for line in judged.computation if line.startswith(f"against {other}"))
        assert float(line.rpartition(" ")[2]) > 0.1
        assert "norms in the block: 2, stated 2" in judged.computation


def test_sinusoids_by_hand() -> None:
    # columns 2 and 3 have 10000^(2/16) as their wavelength over 2π
    lines = verdict_on("sinusoidal-formula").computation
    for at in (0, 1, 50, 1000):
        angles = (at, at / 10000 ** (2 / 16))
        told = ", ".join(f"{wave(angle):.6f}" for angle in angles for wave in (math.sin, math.cos))
        assert f"position {at}, columns 0 to 3: {told}" in lines


def test_a_mixture_is_a_weighted_sum() -> None:
    lines = verdict_on("moe-output-sum").computation[1:]
    assert len(lines) == 3
    for line in lines:
        terms, _, total = line.partition("first value: ")[2].partition(" = ")
        pairs = [[float(n) for n in term.split("·")] for term in terms.split(" + ")]
        assert len(pairs) == 2
        assert float(total) == pytest.approx(sum(a * b for a, b in pairs), abs=3e-6)
        assert sum(weight for weight, _ in pairs) == pytest.approx(1, abs=2e-6)


def test_as_many_experts_get_a_gradient_as_are_chosen() -> None:
    plain = Plain()
    probs = plain.logits().softmax(-1)
    for k in range(1, E + 1):
        chosen = probs[0].topk(k).indices.tolist()
        y = sum(probs[0, e] * plain.output(0, e) for e in chosen)
        assert isinstance(y, Tensor)
        grads = torch.autograd.grad(
            y.square().sum(), plain.experts, retain_graph=True, allow_unused=True
        )
        assert sum(g is not None and bool((g != 0).any()) for g in grads) == k
    lines = verdict_on("k-experts-get-gradient").computation
    for line in lines[1:]:
        k = int(line.partition("k = ")[2].partition(",")[0])
        for token in line.partition(": ")[2].split("; "):
            assert len(token.partition(": ")[2].split(", ")) == k


def test_the_claims_that_run_modules_are_all_here() -> None:
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    from metacount.teaching.claims import needs_torch

    running = [id for id, claim in ALL.items() if claim.judge not in ("gate_order",)]
    missing = [id for id in running if needs_torch(ALL[id]) and f'"{id}"' not in text]
    assert missing == []


def test_other_modules_get_another_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    from metacount.teaching.judges import executed

    mixture, activate, sinusoid = executed.mixture, executed.activate, executed.sinusoid
    # experts whose input is weighted, activations of twice the value, waves a position late
    monkeypatch.setattr(executed, "mixture", lambda how, k: mixture(how, k, weigh_input=True))
    monkeypatch.setattr(executed, "activate", lambda x, *how: 2 * activate(x, *how))
    monkeypatch.setattr(executed, "sinusoid", lambda at, d, style: sinusoid(at + 1, d, style=style))
    for id in ("moe-output-sum", "swish-silu", "relu-max", "sinusoidal-formula"):
        judged = judge_claim(id)
        assert judged.verdict == WRONG
        assert "not that" in judged.reason
    assert judge_claim("k-experts-get-gradient").verdict == RIGHT  # whatever the weight multiplies
