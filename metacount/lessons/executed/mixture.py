"""A mixture of experts by hand, forward and backward, beside the modules and autograd."""

from __future__ import annotations

import math
from functools import cache

import torch

from metacount.lessons.here import same, shown
from metacount.modules import Experts, Router, load_balancing_loss
from metacount.modules.moe import Routing
from metacount.spec.ffn import FeedForward, Mixture
from metacount.teaching.experiments import normal

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.lessons.here import Rows

# the mixture that is followed by hand: one token of 2 values, 2 experts of width 1 with ReLU
X, TARGET = (1.0, 2.0), (1.0, 1.0)
ROUTER = ((0.5, 0.0), (0.0, 0.5))
UP = ((1.0, 0.5), (-0.5, 1.0))
DOWN = ((1.0, -0.5), (0.5, 1.0))
SEVERAL, WIDTH = 4, 6  # experts and width of the mixture that shows who learns
LOGITS = (2.0, 1.0, 0.0, -1.0)  # of the table of orders
ROUNDING = 1e-12
# probabilities of three tokens for two experts: shares and probabilities lean to different sides
LEANING = ((0.51, 0.49), (0.51, 0.49), (0.0, 1.0))
ORDERS = ("softmax", "softmax_renorm", "topk_softmax")


def _dot(a: tuple[float, ...], b: tuple[float, ...]) -> float:
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
def by_autograd() -> dict[str, tuple[float, ...]]:
    """Compute forward and backward of the small mixture by the reference modules and autograd."""
    part = Mixture(n_experts=2, top_k=2, d_ff=1, router="softmax")
    router = Router(part, 2).double()
    experts = Experts(part, 2, FeedForward(activation="relu", gated=False)).double()
    with torch.no_grad():
        router.proj.weight.copy_(torch.tensor(ROUTER))
        experts.get_parameter("up_proj").copy_(torch.tensor(UP)[:, None, :])
        experts.get_parameter("down_proj").copy_(torch.tensor(DOWN)[:, :, None])
    x = torch.tensor([X], dtype=torch.float64)
    routing = router(x)
    weights = routing.weights_Nk.detach().requires_grad_()
    order = routing.chosen_Nk[0].tolist()
    y = experts(x, routing.chosen_Nk, routing.weights_Nk)
    loss = (y - torch.tensor([TARGET])).square().sum() / 2
    y.retain_grad()
    loss.backward()
    apart = experts(x, routing.chosen_Nk, weights)
    (to_weights,) = torch.autograd.grad(
        (apart - torch.tensor([TARGET])).square().sum() / 2, weights
    )
    down = experts.get_parameter("down_proj").grad
    assert y.grad is not None and router.proj.weight.grad is not None and down is not None
    placed = [0.0, 0.0]
    for place, expert in enumerate(order):
        placed[expert] = float(to_weights[0, place])
    return {
        "alpha": tuple(routing.probs_NE[0].tolist()),
        "y": tuple(y[0].tolist()),
        "loss": (float(loss.detach()),),
        "dy": tuple(y.grad[0].tolist()),
        "dalpha": tuple(placed),
        "drouter": tuple(router.proj.weight.grad.flatten().tolist()),
        "ddown1": tuple(down[0].flatten().tolist()),
        "ddown2": tuple(down[1].flatten().tolist()),
    }


def followed(names: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """List steps of the small mixture: name, equation, value;
    checked where autograd has the value too.
    """
    hand, run = by_hand(), by_autograd()
    found = []
    for name in names:
        for one, other in zip(hand[name], run.get(name, hand[name]), strict=True):
            same(one, other, name)
        values = ", ".join(shown(v, "four") for v in hand[name])
        label, equation = STEPS[name]
        found.append((label, equation, f"({values})" if len(hand[name]) > 1 else values))
    return found


STEPS = {
    "z": ("z", "W_r·x"),
    "alpha": ("α", "softmax(z)"),
    "f1": ("f₁", "D₁·ReLU(U₁·x)"),
    "f2": ("f₂", "D₂·ReLU(U₂·x)"),
    "y": ("y", "α₁·f₁ + α₂·f₂"),
    "loss": ("L", "|y − t|²/2"),
    "dy": ("∂L/∂y", "y − t"),
    "dalpha": ("∂L/∂α", "⟨∂L/∂y, f_e⟩"),
    "dz": ("∂L/∂z", "α_e·(∂L/∂α_e − ⟨α, ∂L/∂α⟩)"),
    "drouter": ("∂L/∂W_r", "∂L/∂z ⊗ x"),
    "ddown1": ("∂L/∂D₁", "α₁·∂L/∂y·h₁,  h₁ = ReLU(U₁·x)"),
    "ddown2": ("∂L/∂D₂", "α₂·∂L/∂y·h₂,  h₂ = ReLU(U₂·x)"),
}
FORWARD = ("z", "alpha", "f1", "f2", "y", "loss")
BACKWARD = ("dy", "dalpha", "dz", "drouter", "ddown1", "ddown2")


@cache
def who_learns() -> Rows:
    """List the experts: probability, and largest gradients of down projection and router row."""
    columns = []
    probabilities: list[float] = []
    for top_k, order in ((1, "softmax"), (2, "softmax_renorm"), (SEVERAL, "softmax")):
        part = Mixture(n_experts=SEVERAL, top_k=top_k, d_ff=3, router=order)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            router = Router(part, WIDTH).double()
            experts = Experts(part, WIDTH, FeedForward(activation="silu", gated=True)).double()
        x = normal(1, WIDTH)
        routing = router(x)
        y = experts(x, routing.chosen_Nk, routing.weights_Nk)
        ((y - 1).square().sum() / 2).backward()
        down, rows_ = experts.get_parameter("down_proj").grad, router.proj.weight.grad
        assert down is not None and rows_ is not None
        columns += [[float(g.abs().max()) for g in down], [float(g.abs().max()) for g in rows_]]
        probabilities = routing.probs_NE[0].tolist()
    return [
        (str(e + 1), shown(probabilities[e], "four"), *(_gradient(c[e]) for c in columns))
        for e in range(SEVERAL)
    ]


def _gradient(value: float) -> str:
    if value == 0:
        return "0"
    return "≈0" if value < ROUNDING else shown(value, "four")


@cache
def orders() -> Rows:
    """Weigh the same logits in each order, for k of one and of two; by hand and by the router."""
    found = []
    for order in ORDERS:
        cells: list[str] = []
        for top_k in (1, 2):
            part = Mixture(n_experts=len(LOGITS), top_k=top_k, d_ff=1, router=order)
            router = Router(part, len(LOGITS)).double()
            with torch.no_grad():
                router.proj.weight.copy_(torch.eye(len(LOGITS)))
            run = router(torch.tensor([LOGITS], dtype=torch.float64)).weights_Nk[0].tolist()
            for hand, ran in zip(_weighed(order, top_k), run, strict=True):
                same(hand, ran, order)
            cells += [", ".join(shown(v, "four") for v in run)]
        found.append((order, *cells))
    return found


def _weighed(order: str, top_k: int) -> list[float]:
    powers = [math.exp(z) for z in LOGITS]
    chosen = powers[:top_k]  # the logits are in falling order
    return [p / sum(powers if order == "softmax" else chosen) for p in chosen]


@cache
def balance() -> dict[str, float]:
    """Compute the balancing loss of tokens spread evenly,
    of all tokens at one expert, and of `LEANING`.
    """
    n, tokens = SEVERAL, 8
    even = Routing(
        probs_NE=torch.full((tokens, n), 1 / n, dtype=torch.float64),
        chosen_Nk=torch.arange(tokens).remainder(n)[:, None],
        weights_Nk=torch.ones(tokens, 1, dtype=torch.float64),
    )
    sharp = torch.zeros(tokens, n, dtype=torch.float64)
    sharp[:, 0] = 1
    single = Routing(
        probs_NE=sharp,
        chosen_Nk=torch.zeros(tokens, 1, dtype=torch.long),
        weights_Nk=torch.ones(tokens, 1, dtype=torch.float64),
    )
    leaning = Routing(
        probs_NE=torch.tensor(LEANING, dtype=torch.float64),
        chosen_Nk=torch.tensor([[row.index(max(row))] for row in LEANING]),
        weights_Nk=torch.ones(len(LEANING), 1, dtype=torch.float64),
    )
    mean = [sum(row[e] for row in LEANING) / len(LEANING) for e in range(2)]
    chosen = [sum(row[e] == max(row) for row in LEANING) / len(LEANING) for e in range(2)]
    below = 2 * sum(p * c for p, c in zip(mean, chosen, strict=True))
    # E · Σ p_e·c_e by hand: E·E·(1/E)·(1/E), and E·1·1
    return {
        "even": same(1.0, float(load_balancing_loss(even)), "balance, even"),
        "single": same(float(n), float(load_balancing_loss(single)), "balance, one expert"),
        "below": same(below, float(load_balancing_loss(leaning)), "balance, leaning"),
    }
