"""Mixtures of experts: one followed by hand, routers and experts run, orders, balance."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metacount.modules import Experts, Router, load_balancing_loss
from metacount.modules.moe import Routing
from metacount.spec.ffn import FeedForward, Mixture
from metacount.spec.field import altered
from metacount.teaching.experiments.modules import (
    D_FF,
    D_MODEL,
    N_EXPERTS,
    N_TOKENS,
    ROUNDING,
    each_same,
    gradient,
    largest,
    loss_of,
    mixture,
    normal,
    same,
    seeded,
    unequal,
)
from metacount.teaching.parts import models
from metacount.teaching.texts import Values, matrix, shown, vector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.optim import Optimizer

    from metacount.spec import ModelSpec

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


# What claims say of the mixture of `modules`. "Exactly zero" means 0.0.

SIZES = {"d": D_MODEL, "all": N_EXPERTS, "width": D_FF, "tokens": N_TOKENS}


def gates() -> Values:
    """Run each gate with k = 1: is the output unweighted, and what does the router learn?"""
    rows = {}
    for scoring in ("topk_softmax", "softmax_renorm", "softmax"):
        router, experts, x_ND, routing = mixture(scoring, 1)
        y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
        alone_ND = experts(x_ND, routing.chosen_Nk, torch.ones_like(routing.weights_Nk))
        loss_of(y_ND).backward(retain_graph=True)
        learns = largest(gradient(router.proj.weight))
        load_balancing_loss(routing).backward()
        balanced = largest(gradient(router.proj.weight))
        rows[scoring] = {
            "scoring": scoring,
            "weights": ", ".join(f"{w:.4f}" for w in routing.weights_Nk.flatten().tolist()),
            "unweighted": unequal(y_ND, alone_ND) < ROUNDING,
            "learns": learns,
            "taught": learns > ROUNDING,  # a number divided by itself has a gradient of rounding
            "balanced": balanced,
            "is_balanced": balanced > ROUNDING,
        }
    return {**rows, "gates": list(rows.values()), **SIZES}


def unselected() -> Values:
    """Compute the gradients of experts that no token selected, and steps that optimizers take."""
    router, experts, x_ND, routing = mixture("softmax", 1)
    y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
    (loss_of(y_ND) + load_balancing_loss(routing)).backward()
    used = {*routing.chosen_Nk.flatten().tolist()}
    rows = [max(largest(gradient(w)[e]) for w in experts.parameters()) for e in range(N_EXPERTS)]
    unused = [e for e in range(N_EXPERTS) if e not in used]
    moves = {
        "decay": _step(experts, unused, torch.optim.AdamW, weight_decay=0.1),
        "plain": _step(experts, unused, torch.optim.SGD),
        "momentum": _step(experts, unused, torch.optim.SGD, momentum=0.9),
        "router_row": largest(gradient(router.proj.weight)[unused]),
    }
    return {
        **moves,
        **{f"{name}_moves": by > 0 for name, by in moves.items()},
        "n_used": len(used),
        "most": max(rows[e] for e in unused),
        "alive": all(rows[e] != 0 for e in used),
        "experts": [{"e": e, "selected": e in used, "n": n} for e, n in enumerate(rows)],
        **SIZES,
    }


def _step(
    experts: Experts, unused: list[int], kind: Callable[..., Optimizer], **options: float
) -> float:
    """Measure how far a step with the gradients at hand moves the unused experts.

    With momentum, a step in which every value had a gradient of 1 comes before.
    """
    copies = [nn.Parameter(w.detach().clone()) for w in experts.parameters()]
    optimizer = kind(copies, lr=0.1, **options)
    if "momentum" in options:
        for copy in copies:
            copy.grad = torch.ones_like(copy)
        optimizer.step()
    before = [copy.detach().clone() for copy in copies]
    for copy, weight in zip(copies, experts.parameters(), strict=True):
        copy.grad = gradient(weight).clone()
    optimizer.step()
    return max(
        largest((now - was).detach()[unused]) for now, was in zip(copies, before, strict=True)
    )


def weight_gradients() -> Values:
    """Lay each weight's gradient beside the inner product of dL/dy and the expert's output.

    And the same (`_in`) where the weight multiplies the expert's input.
    """
    runs = []
    for weigh_input in (False, True):
        _, experts, x_ND, routing = mixture("softmax_renorm", 2, weigh_input=weigh_input)
        chosen_Nk, weights_Nk = routing.chosen_Nk, routing.weights_Nk.detach().requires_grad_()
        y_ND = experts(x_ND, chosen_Nk, weights_Nk)
        y_ND.retain_grad()
        loss_of(y_ND).backward()
        ones = torch.ones_like(weights_Nk[:, :1])
        outputs = [experts(x_ND, chosen_Nk[:, i : i + 1], ones) for i in range(2)]
        # [n, d] · [n, d] for each of the two experts
        products = torch.stack([(gradient(y_ND) * f).sum(-1) for f in outputs], dim=-1).detach()
        runs.append((gradient(weights_Nk), products))
    (grads, products), (grads_in, products_in) = runs
    off, off_in = unequal(grads, products), unequal(grads_in, products_in)
    columns = (chosen_Nk.flatten(), grads.flatten(), products.flatten())
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {
        "n": grads.numel(),
        "off": off,
        "is_product": off < ROUNDING,
        "off_in": off_in,
        "input_differs": off_in > ROUNDING,
        "gradient": float(grads_in[0, 0]),
        "product": float(products_in[0, 0]),
        "weights": [
            {"token": i // 2, "e": e, "gradient": gradient, "product": product}
            for i, (e, gradient, product) in enumerate(rows)
        ],
        **SIZES,
    }


def balance_by_k() -> Values:
    """Lay E · Σ mean probability · share of tokens beside the balancing loss, for each k."""
    runs = []
    for top_k in (1, 2, 3):
        *_, routing = mixture("softmax", top_k)
        module = float(load_balancing_loss(routing).detach())
        # of tokens: each counts once for every expert that it chose
        share_E = routing.chosen_Nk.flatten().bincount(minlength=N_EXPERTS).double() / N_TOKENS
        stated = float((N_EXPERTS * (routing.probs_NE.mean(0) * share_E).sum()).detach())
        equal = abs(module - stated) <= ROUNDING * abs(stated)
        run = {"k": top_k, "stated": stated, "module": module, "times": stated / module}
        runs.append({**run, "sum": float(share_E.sum()), "equal": equal})
    by_k = all(abs(run["times"] - run["k"]) <= ROUNDING * run["k"] for run in runs)
    return {"runs": runs, "by_k": by_k, **SIZES}


GATE_TOKENS = 64


def gate_orders(order: str) -> Values:
    """Run the router of every mixture of the catalog, at its own numbers of experts.

    What it chooses and weighs is compared with the order that is stated, written out here.
    """
    routers = []
    for entry, spec in models():
        # a router that another one stands in for says nothing about the model
        if not spec.is_moe or any(text.startswith("router:") for text in entry.inferred):
            continue
        n_scored = (spec.n_experts or 0) + spec.n_zero_experts
        router, x_ND = _router(spec)
        routing = router(x_ND)
        chosen_Nk, weights_Nk = WEIGHED[order](router.proj(x_ND), int(spec.top_k or 0))
        alike = torch.equal(routing.chosen_Nk.sort(-1).values, chosen_Nk.sort(-1).values)
        theirs, stated = (
            # the weight of every expert for every token, 0 where it was not chosen
            w.detach().new_zeros(len(chosen), n_scored).scatter(-1, chosen, w.detach())
            for chosen, w in ((routing.chosen_Nk, routing.weights_Nk), (chosen_Nk, weights_Nk))
        )
        off = unequal(theirs, stated)
        mean = float(routing.weights_Nk.detach().sum(-1).mean())
        row = {"model": entry.id, "k": str(spec.top_k), "n": str(n_scored), "same": alike}
        routers.append({**row, "off": off, "mean": mean, "holds": alike and off < ROUNDING})
    return {"routers": routers, "gate_tokens": GATE_TOKENS, **_orders_agree(), **SIZES}


def _largest_first(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    chosen = logits_NE.topk(top_k, dim=-1)
    return chosen.indices, chosen.values.softmax(-1)


def _all_first(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    chosen = logits_NE.softmax(-1).topk(top_k, dim=-1)
    return chosen.indices, chosen.values


WEIGHED = {"as_they_are": _all_first, "over_chosen": _largest_first}


def _router(spec: ModelSpec) -> tuple[Router, Tensor]:
    with seeded():
        part = spec.last_stack.mixture
        assert part is not None  # the claim is about experts
        router = Router(altered(part, router_bias=False), D_MODEL)
        x_ND = torch.randn(GATE_TOKENS, D_MODEL, dtype=torch.float64)
    return router.double(), x_ND


def _orders_agree() -> dict[str, bool | float]:
    router, _, x_ND, _ = mixture("softmax", 2)
    logits_NE = router.proj(x_ND).detach()
    chosen, before = _all_first(logits_NE, 2)
    other, after = _largest_first(logits_NE, 2)
    sums = before.sum(-1)
    return {
        "same_choice": torch.equal(chosen, other),
        "agree_when_divided": unequal(before / before.sum(-1, keepdim=True), after) < ROUNDING,
        "less_than_one": bool((sums < 1).all()),
        "one": bool(((after.sum(-1) - 1).abs() < ROUNDING).all()),
        "sum": float(sums[0]),
    }


def learning_experts(experts: Mapping[str, int]) -> Values:
    """Find for each k which experts get a gradient of one token's loss; `experts` says how many."""
    runs = []
    for top_k in range(1, N_EXPERTS + 1):
        _, layer, x_ND, routing = mixture("softmax", top_k)
        by_token = []
        for n in range(N_TOKENS):
            row, weights = slice(n, n + 1), list(layer.parameters())
            y_ND = layer(x_ND[row], routing.chosen_Nk[row], routing.weights_Nk[row])
            grads = torch.autograd.grad(loss_of(y_ND), weights, retain_graph=True)
            by_token.append([e for e in range(N_EXPERTS) if any(largest(g[e]) > 0 for g in grads)])
        tokens = [{"token": n, "which": ", ".join(map(str, es))} for n, es in enumerate(by_token)]
        runs.append({"k": top_k, "counts": sorted({*map(len, by_token)}), "by_token": tokens})
    counts = {run["k"]: run["counts"] for run in runs}
    stated = [{"k": k, "holds": counts.get(int(k)) == [n]} for k, n in experts.items()]
    always_k = all(n == [k] for k, n in counts.items())
    return {"runs": runs, "stated": stated, "always_k": always_k, **SIZES}


def weighted_sum(top_k: int) -> Values:
    """Lay the layer's output beside the weighted sum of the chosen experts' outputs."""
    _, experts, x_ND, routing = mixture("topk_softmax", top_k)
    rows = []
    with torch.no_grad():
        y_ND = experts(x_ND, routing.chosen_Nk, routing.weights_Nk)
        gate_up, down = experts.get_parameter("gate_up_proj"), experts.get_parameter("down_proj")
        out = torch.zeros_like(y_ND)
        for n, x_D in enumerate(x_ND):
            chosen, terms = routing.chosen_Nk[n].tolist(), []
            for e, weight in zip(chosen, routing.weights_Nk[n].tolist(), strict=True):
                gate_M, up_M = (gate_up[e] @ x_D).chunk(2)
                out_D = down[e] @ (gate_M / (1 + torch.exp(-gate_M)) * up_M)
                out[n] += weight * out_D
                terms.append(f"{weight:.6f}·{float(out_D[0]):.6f}")
            steps = f"{' + '.join(terms)} = {float(y_ND[n, 0]):.6f}"
            rows.append({"token": n, "experts": ", ".join(map(str, chosen)), "steps": steps})
    off, sums = unequal(y_ND, out), routing.weights_Nk.detach().sum(-1)
    normalised = bool(((sums - 1).abs() < ROUNDING).all())
    return {
        "off": off,
        "is_sum": off < ROUNDING,
        "rows": rows,
        "one": normalised,
        "k": top_k,
        **SIZES,
    }
