"""Claims about behaviour: beside plain torch, transformers, arithmetic, other modules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers.changed_claims import ALL, verdict_on
from torch import Tensor

from metacount.teaching.claims import judge_claim, needs_torch
from metacount.teaching.texts import CONDITIONAL, RIGHT, WRONG

D, E, N = 5, 4, 3


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_gradient_of_a_weight_is_an_inner_product() -> None:
    pairs = [it for it in verdict_on("router-gradient").computation if it.startswith("token")]
    assert len(pairs) == 6
    for line in pairs:
        gradient, product = line.partition("gradient ")[2].split(", product ")
        assert gradient == product


def test_a_mixture_is_a_weighted_sum() -> None:
    lines = verdict_on("moe-output-sum").computation[1:]
    assert len(lines) == 3
    for line in lines:
        terms, _, total = line.partition("first value: ")[2].partition(" = ")
        pairs = [[float(n) for n in term.split("·")] for term in terms.split(" + ")]
        assert float(total) == pytest.approx(sum(a * b for a, b in pairs), abs=3e-6)
        assert sum(weight for weight, _ in pairs) == pytest.approx(1, abs=2e-6)


# what a computation has to show of what was run
SHOWN = {
    "softmax-only-two-places": ("softmax in ScaledDotProduct 2", "Router"),
    "deepnorm": ("norms in the block: 2, stated 2", f"= {math.sqrt(2):.4f}; with α = 1"),  # (2·2)^¼
    "sandwich-norm": ("norms in the block: 4, stated 4",),
    "post-norm": ("norms in the block: 2, stated 2", "against x + Sublayer(Norm(x))"),
    "pre-norm": ("norms in the block: 2, stated 2", "against Norm(x + Sublayer(x))"),
    "rope-no-params": ("rope: ", "(+0)"),
    "causal-mask": (
        "a whole decoder: token 0 changes 0, 1, 2, 3, 4; token 1 changes 1, 2, 3, 4; token 2 "
        "changes 2, 3, 4; token 3 changes 3, 4; token 4 changes 4",
        "attention without a mask: token 0 changes 0, 1, 2, 3, 4; token 1 changes 0, 1",
    ),
    "ffn-position-wise": (
        "feed-forward: token 0 changes 0; token 1 changes 1; token 2 changes 2; token 3 "
        "changes 3; token 4 changes 4",
    ),
    # Switch keeps the probability (its eq. 2); Mixtral takes a softmax over the top 2 (sec. 2.1)
    "gate-softmax-order-a": ("switch-base-8",),
    "gate-softmax-order-b": ("mixtral-8x7b",),
}


@pytest.mark.parametrize("id", SHOWN)
def test_a_computation_shows_what_was_run(id: str) -> None:
    text = "\n".join(verdict_on(id).computation)
    assert [part for part in SHOWN[id] if part not in text] == []


def test_scores_of_one_distance_are_one_score() -> None:
    lines = [line for line in verdict_on("rope-relative").computation if line.startswith("i - j")]
    scores = [{*line.partition(": ")[2].split(", ")} for line in lines]
    assert [len(each) for each in scores[:3]] == [1, 1, 1]
    # float32 does not hold positions near 100,000 that exactly
    assert "float32" in lines[3] and len(scores[3]) > 1


def test_as_many_experts_get_a_gradient_as_are_chosen() -> None:
    for line in verdict_on("k-experts-get-gradient").computation[1:]:
        k = int(line.partition("k = ")[2].partition(",")[0])
        for token in line.partition(": ")[2].split("; "):
            assert len(token.partition(": ")[2].split(", ")) == k


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


def test_swish_and_relu() -> None:
    # x·σ(x) at -2, 0.5 and 2, with σ by its definition
    lines = verdict_on("swish-silu").computation
    for x in (-2.0, 0.5, 2.0):
        assert f"at x = {x:g}: {x / (1 + math.exp(-x)):.6f}" in lines
    lines = verdict_on("relu-max").computation
    assert {"at x = -2: 0.000000", "at x = 0.5: 0.500000", "at x = 2: 2.000000"} <= {*lines}


def test_sinusoids_by_hand() -> None:
    # columns 2 and 3 have 10000^(2/16) as their wavelength over 2π
    lines = verdict_on("sinusoidal-formula").computation
    for at in (0, 1, 50, 1000):
        angles = (at, at / 10000 ** (2 / 16))
        told = ", ".join(f"{wave(angle):.6f}" for angle in angles for wave in (math.sin, math.cos))
        assert f"position {at}, columns 0 to 3: {told}" in lines


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


@pytest.mark.parametrize("id", [id for id, claim in ALL.items() if needs_torch(claim)])
def test_no_claim_draws_from_the_readers_generator(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.random.get_rng_state()
    for name in ("manual_seed", "set_rng_state", "seed"):
        monkeypatch.setattr(torch.random, name, None)
        monkeypatch.setattr(torch, name, None)
    judge_claim(id)
    assert torch.equal(before, torch.random.get_rng_state())
