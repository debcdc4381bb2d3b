"""Mixtures of experts: one followed by hand, who learns, what is stored and what is used."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import torch

from metacount.formulas import model, sublayers
from metacount.modules import Experts, Router, load_balancing_loss
from metacount.modules.moe import Routing
from metacount.spec import DTYPE_BYTES
from metacount.spec.ffn import FeedForward, Mixture
from metacount.spec.stack import BESIDE
from metacount.teaching.experiments import normal
from metacount.teaching.page import Exercise, asked, matrix, rows, same, vector
from metacount.teaching.parts import models
from metacount.teaching.texts import shown
from metacount.units import short

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

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


SUCH_AS = ("mixtral-8x7b", "deepseek-v3", "qwen3-235b-a22b", "gpt-oss-20b", "switch-base-8")
NEEDS = "a model with experts in the place of a feed-forward"


def fits(spec: ModelSpec) -> bool:
    """Tell whether a model is a mixture whose dense twin has a feed-forward
    in place of its experts.
    """
    return bool(spec.is_moe and BESIDE not in spec.ffn_pattern and not spec.n_zero_experts)


def expert(spec: ModelSpec) -> int:
    """Count the parameters of one routed expert."""
    return int(
        sublayers.ffn_params(
            spec.d_model, spec.d_ff_expert, gated=spec.gated, bias=spec.expert_bias
        )
    )


def layer(spec: ModelSpec, *, active: bool) -> int:
    """Count the parameters of one mixture, all or those of one token."""
    from metacount.formulas.sublayers import moe_layer_params

    return int(moe_layer_params(spec, active=active))


def dense_twin(spec: ModelSpec) -> ModelSpec:
    """Return the model with one dense feed-forward, as wide as an expert,
    in place of every mixture.
    """
    flat = spec.to_dict()
    from metacount.spec import FIELDS

    for name in EXPERT_FIELDS:
        flat[name] = FIELDS[name].absent
    flat["ffn_pattern"] = spec.ffn_pattern.replace("E", "F")
    return type(spec).from_dict({**flat, "d_ff": spec.d_ff_expert})


EXPERT_FIELDS = (
    "n_experts",
    "top_k",
    "d_ff_expert",
    "n_dense_layers",
    "moe_every",
    "moe_offset",
    "n_shared_experts",
    "d_ff_shared",
    "shared_expert_gate",
    "router",
    "router_bias",
    "selection_bias",
    "n_groups",
    "top_groups",
    "group_score",
    "routed_scale",
    "mixer_jitter",
    "router_scales_input",
    "expert_bias",
)


def parts(here: Here) -> Rows:
    """Count what one mixture of the model stores, and what a token uses of it."""
    spec = here.spec
    router = sublayers.router_params(spec.d_model, spec.n_experts, bias=spec.router_bias)
    one = expert(spec)
    experts = (spec.n_experts * one, spec.top_k * one)
    shared = layer(spec, active=False) - router - experts[0]
    found = [
        ("router and bias" if spec.router_bias else "router", router, router),
        ("experts", *experts),
        ("shared", shared, shared),
    ]
    lines = [(here.say(f"moe {name}"), a, b) for name, a, b in found if a]
    whole = layer(spec, active=False), layer(spec, active=True)
    return rows([*lines, (here.say("moe layer"), *whole)])


ORDER_OF = {
    "softmax": "softmax, top-k",
    "softmax_renorm": "softmax, top-k, α/Σα",
    "topk_softmax": "top-k, softmax",
    "sigmoid": "σ, top-k",
    "sigmoid_renorm": "σ, top-k, α/Σα",
}


def shapes(here: Here) -> Rows:
    """List what becomes of one token, step by step."""
    spec = here.spec
    b_1, b_2, b_3 = (" + b₁", " + b₂", " + b₃") if spec.expert_bias else ("", "", "")
    x = "α_e·x" if spec.router_scales_input else "x"
    up = f"W₃·{x}{b_3}" + (" + 1" if spec.activation == "clamped_swiglu" else "")
    hidden = f"act(W₁·{x}{b_1})"
    if spec.gated:
        hidden += f" ⊙ ({up})" if "+" in up else f" ⊙ {up}"
    order = ORDER_OF[spec.router] if spec.mixer_jitter is None else "SparseMixer(z)"
    if spec.selection_bias:
        order = order.replace("top-k", "top-k(α + b)")
    if spec.routed_scale != 1.0:
        order += f", {spec.routed_scale:g}·α"
    return [
        ("x", "[d]", f"[{spec.d_model}]"),
        (f"z = W_r·x{' + b_r' if spec.router_bias else ''}", "[E]", f"[{spec.n_experts}]"),
        (f"α = {order}", "[k]", f"[{spec.top_k}]"),
        (f"h_e = {hidden}", "[k, m_e]", f"[{spec.top_k}, {spec.d_ff_expert}]"),
        (f"f_e = W₂·h_e{b_2}", "[k, d]", f"[{spec.top_k}, {spec.d_model}]"),
        (f"y = Σ {'f_e' if spec.router_scales_input else 'α_e·f_e'}", "[d]", f"[{spec.d_model}]"),
    ]


@cache
def catalog_rows() -> Rows:
    """List the mixtures of the catalog by size, without those of the Switch family."""
    found = [
        (
            model.params(spec),
            entry.id,
            spec.n_experts,
            spec.n_shared_experts,
            spec.top_k,
            spec.router,
            short(int(model.params(spec))),
            short(int(model.active_params(spec))),
        )
        for entry, spec in models()
        if spec.is_moe and not entry.id.startswith("switch")
    ]
    return rows(line[1:] for line in sorted(found))


def flops(spec: ModelSpec) -> int:
    """Count the FLOPs of one token in one"""
    from metacount.formulas.sublayers import mixture_flops

    return int(mixture_flops(spec, 1))


def _of_experts(name: str, weights: tuple[tuple[float, ...], ...]) -> str:
    numbered = zip("₁₂", weights, strict=True)
    return ",  ".join(f"{name}{index} = {vector(each)}" for index, each in numbered)


def _answer_active(here: Here) -> Exercise:
    return asked(here.spec, "active_params")


def _bytes(count: int) -> int:
    return count * DTYPE_BYTES["bf16"]


VALUES: Values = {
    "router_kind": lambda here: here.spec.router,
    "shapes": shapes,
    "scales_input": lambda here: here.spec.router_scales_input,
    "groups": lambda here: here.spec.n_groups is not None,
    "sigmoid": lambda here: here.spec.router.startswith("sigmoid"),
    "W_r": matrix(ROUTER),
    "U": lambda here: _of_experts("U", UP),
    "D": lambda here: _of_experts("D", DOWN),
    "forward": lambda here: followed(FORWARD),
    "backward": lambda here: followed(BACKWARD),
    "x": vector(X),
    "t": vector(TARGET),
    "n_small": len(ROUTER),
    "who_learns": lambda here: who_learns(),
    "several": SEVERAL,
    "logits": vector(LOGITS),
    "orders": lambda here: orders(),
    "even": lambda here: balance()["even"],
    "single": lambda here: balance()["single"],
    "below": lambda here: balance()["below"],
    "leaning": lambda here: ", ".join(f"({a:g}, {b:g})" for a, b in LEANING),
    "parts": parts,
    "expert": lambda here: expert(here.spec),
    "params": lambda here: model.params(here.spec),
    "active": lambda here: model.active_params(here.spec),
    "active_share": lambda here: Fraction(
        int(model.active_params(here.spec)), int(model.params(here.spec))
    ),
    "twin": lambda here: model.params(dense_twin(here.spec)),
    "twins": lambda here: here.spec.n_experts * int(model.params(dense_twin(here.spec))),
    "bytes": lambda here: _bytes(int(model.params(here.spec))),
    "active_bytes": lambda here: _bytes(int(model.active_params(here.spec))),
    "router_flops": lambda here: (
        2 * sublayers.router_params(here.spec.d_model, here.spec.n_experts)
    ),
    "flops_to_expert": lambda here: Fraction(
        flops(here.spec),
        int(
            sublayers.ffn_matmul_flops(
                1, here.spec.d_model, here.spec.d_ff_expert, gated=here.spec.gated
            )
        ),
    ),
    "shared": lambda here: here.spec.n_shared_experts > 0,
    "n_shared": lambda here: here.spec.n_shared_experts,
    "with_shared": lambda here: here.spec.n_experts + here.spec.n_shared_experts,
    "catalog": lambda here: catalog_rows(),
    "answer": _answer_active,
    "two": 2,
}
