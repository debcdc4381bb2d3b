"""Mixtures of experts: one followed by hand, who learns, orders of softmax and top-k, balance."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch

from metacount.modules import Experts, Router, load_balancing_loss
from metacount.modules.moe import Routing
from metacount.spec.ffn import FeedForward, Mixture
from metacount.teaching.experiments.modules import (
    ROUNDING,
    each_same,
    gradient,
    largest,
    loss_of,
    normal,
    same,
    seeded,
)
from metacount.teaching.texts import matrix, shown, vector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

# the mixture that is followed by hand: one token of 2 values, 2 experts of width 1 with ReLU
X, TARGET = (1.0, 2.0), (1.0, 1.0)
ROUTER = ((0.5, 0.0), (0.0, 0.5))
UP = ((1.0, 0.5), (-0.5, 1.0))
DOWN = ((1.0, -0.5), (0.5, 1.0))
SEVERAL, WIDTH = 4, 6  # experts and width of the mixture that shows who learns
LOGITS = (2.0, 1.0, 0.0, -1.0)  # of the table of orders
# probabilities of three tokens for two experts: shares and probabilities lean to different sides
LEANING = ((0.51, 0.49), (0.51, 0.49), (0.0, 1.0))
ORDERS = ("softmax", "softmax_renorm", "topk_softmax")
# of the mixture by hand: label and equation of each value
FORWARD = {
    "z": ("z", "W_r·x"),
    "alpha": ("α", "softmax(z)"),
    "f1": ("f₁", "D₁·ReLU(U₁·x)"),
    "f2": ("f₂", "D₂·ReLU(U₂·x)"),
    "y": ("y", "α₁·f₁ + α₂·f₂"),
    "loss": ("L", "|y − t|²/2"),
}
BACKWARD = {
    "dy": ("∂L/∂y", "y − t"),
    "dalpha": ("∂L/∂α", "⟨∂L/∂y, f_e⟩"),
    "dz": ("∂L/∂z", "α_e·(∂L/∂α_e − ⟨α, ∂L/∂α⟩)"),
    "drouter": ("∂L/∂W_r", "∂L/∂z ⊗ x"),
    "ddown1": ("∂L/∂D₁", "α₁·∂L/∂y·h₁,  h₁ = ReLU(U₁·x)"),
    "ddown2": ("∂L/∂D₂", "α₂·∂L/∂y·h₂,  h₂ = ReLU(U₂·x)"),
}


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


@cache
def by_hand() -> dict[str, tuple[float, ...]]:
    """Compute forward and backward of the small mixture in plain arithmetic."""
    z = tuple(_dot(row, X) for row in ROUTER)
    powers = [math.exp(v) for v in z]
    alpha = tuple(p / sum(powers) for p in powers)
    hidden = tuple(max(_dot(row, X), 0.0) for row in UP)
    experts = [tuple(w * h for w in down) for down, h in zip(DOWN, hidden, strict=True)]
    y = tuple(sum(a * f[c] for a, f in zip(alpha, experts, strict=True)) for c in range(2))
    dy = tuple(a - t for a, t in zip(y, TARGET, strict=True))
    dalpha = tuple(_dot(dy, f) for f in experts)
    mean = _dot(alpha, dalpha)
    dz = tuple(a * (g - mean) for a, g in zip(alpha, dalpha, strict=True))
    return {
        "z": z,
        "alpha": alpha,
        "f1": experts[0],
        "f2": experts[1],
        "y": y,
        "loss": (_dot(dy, dy) / 2,),
        "dy": dy,
        "dalpha": dalpha,
        "dz": dz,
        "drouter": tuple(g * x for g in dz for x in X),
        "ddown1": tuple(alpha[0] * g * hidden[0] for g in dy),
        "ddown2": tuple(alpha[1] * g * hidden[1] for g in dy),
    }


@cache
def by_autograd() -> dict[str, Tensor]:
    """Compute forward and backward of the small mixture by the reference modules and autograd."""
    part = Mixture(n_experts=2, top_k=2, d_ff=1, router="softmax")
    with seeded():
        router = Router(part, 2).double()
        experts = Experts(part, 2, FeedForward(activation="relu", gated=False)).double()
    with torch.no_grad():
        router.proj.weight.copy_(torch.tensor(ROUTER))
        experts.get_parameter("up_proj").copy_(torch.tensor(UP)[:, None, :])
        experts.get_parameter("down_proj").copy_(torch.tensor(DOWN)[:, :, None])
    x, target = torch.tensor([X], dtype=torch.float64), torch.tensor([TARGET])
    routing = router(x)
    routing.weights_Nk.retain_grad()
    y = experts(x, routing.chosen_Nk, routing.weights_Nk)
    y.retain_grad()
    loss = (y - target).square().sum() / 2
    loss.backward()
    down = gradient(experts.get_parameter("down_proj"))
    return {
        "alpha": routing.probs_NE[0],
        "y": y[0],
        "loss": loss,
        "dy": gradient(y)[0],
        "dalpha": gradient(routing.weights_Nk)[0][routing.chosen_Nk[0].argsort()],
        "drouter": gradient(router.proj.weight),
        "ddown1": down[0],
        "ddown2": down[1],
    }


def steps(direction: str) -> list[list[str]]:
    """List steps of the small mixture: name, equation, value; autograd's too where it has one."""
    hand, run, rows = by_hand(), by_autograd(), []
    for name, (label, equation) in {"forward": FORWARD, "backward": BACKWARD}[direction].items():
        if name in run:
            each_same(hand[name], run[name], name)
        values = hand[name]
        text = vector(values, "four") if len(values) > 1 else shown(values[0], "four")
        rows.append([label, equation, text])
    return rows


def given() -> dict[str, object]:
    """Return what the small mixtures are given."""

    def numbered(name: str, weights: Sequence[Sequence[float]]) -> str:
        return ",  ".join(f"{name}{i} = {vector(w)}" for i, w in zip("₁₂", weights, strict=True))

    vectors = {"x": vector(X), "t": vector(TARGET), "logits": vector(LOGITS)}
    vectors |= {"W_r": matrix(ROUTER), "U": numbered("U", UP), "D": numbered("D", DOWN)}
    leaning = ", ".join(f"({a:g}, {b:g})" for a, b in LEANING)
    return {**vectors, "n": len(ROUTER), "several": SEVERAL, "leaning": leaning}


@cache
def who_learns() -> list[list[str]]:
    """List the experts: probability, and largest gradients of down projection and router row."""
    columns = []
    for top_k, order in ((1, "softmax"), (2, "softmax_renorm"), (SEVERAL, "softmax")):
        part = Mixture(n_experts=SEVERAL, top_k=top_k, d_ff=3, router=order)
        with seeded():
            router = Router(part, WIDTH).double()
            experts = Experts(part, WIDTH, FeedForward(activation="silu", gated=True)).double()
        x = normal(1, WIDTH)
        routing = router(x)
        loss_of(experts(x, routing.chosen_Nk, routing.weights_Nk)).backward()
        for parameter in (experts.get_parameter("down_proj"), router.proj.weight):
            columns.append([_gradient(largest(g)) for g in gradient(parameter)])
    probabilities = [shown(p, "four") for p in routing.probs_NE[0].tolist()]
    rows = zip(probabilities, *columns, strict=True)
    return [[str(e + 1), *row] for e, row in enumerate(rows)]


def _gradient(value: float) -> str:
    if value == 0:
        return "0"
    return "≈0" if value < ROUNDING else shown(value, "four")


@cache
def orders() -> list[list[str]]:
    """Weigh the same logits in each order, for k of one and of two; by hand and by the router."""
    rows = []
    powers = [math.exp(z) for z in LOGITS]  # in falling order
    for order in ORDERS:
        row = [order]
        for top_k in (1, 2):
            part = Mixture(n_experts=len(LOGITS), top_k=top_k, d_ff=1, router=order)
            with seeded():
                router = Router(part, len(LOGITS)).double()
            with torch.no_grad():
                router.proj.weight.copy_(torch.eye(len(LOGITS)))
            run = router(torch.tensor([LOGITS], dtype=torch.float64)).weights_Nk[0]
            chosen = powers[:top_k]
            hand = [p / sum(powers if order == "softmax" else chosen) for p in chosen]
            row.append(", ".join(shown(v, "four") for v in each_same(hand, run, order)))
        rows.append(row)
    return rows


@cache
def balance() -> dict[str, float]:
    """Compute the balancing loss of even tokens, of all at one expert, and of `LEANING`."""
    n, tokens = SEVERAL, 2 * SEVERAL
    even = _balance([[1 / n] * n] * tokens, [e % n for e in range(tokens)])
    single = _balance([[1.0] + [0.0] * (n - 1)] * tokens, [0] * tokens)
    chosen = [row.index(max(row)) for row in LEANING]
    mean = [sum(row[e] for row in LEANING) / len(LEANING) for e in range(2)]
    below = 2 * sum(p * chosen.count(e) / len(LEANING) for e, p in enumerate(mean))
    # E · Σ p_e·c_e by hand: E·E·(1/E)·(1/E), and E·1·1
    return {
        "even": same(1.0, even, "balance, even"),
        "single": same(float(n), single, "balance, one expert"),
        "below": same(below, _balance(LEANING, chosen), "balance, leaning"),
    }


def _balance(probabilities: Sequence[Sequence[float]], chosen: Sequence[int]) -> float:
    routing = Routing(
        probs_NE=torch.tensor(probabilities, dtype=torch.float64),
        chosen_Nk=torch.tensor(chosen)[:, None],
        weights_Nk=torch.ones(len(chosen), 1, dtype=torch.float64),
    )
    return float(load_balancing_loss(routing))
