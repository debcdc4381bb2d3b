"""Feed-forwards: activations, gates, what a gate makes of an output, and who sees whom."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from metacount.modules import FeedForward, GatedFeedForward
from metacount.modules.ffn import activate, feed_forward
from metacount.spec.ffn import FeedForward as Part
from metacount.teaching.experiments.modules import (
    D_FF,
    D_MODEL,
    N_TOKENS,
    ROUNDING,
    draw,
    each_same,
    gelu,
    largest,
    moved,
    normal,
    reaching,
    seeded,
    sigmoid,
    unequal,
)
from metacount.teaching.experiments.modules import swish as times_sigmoid
from metacount.teaching.texts import Values, matrix, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


POINTS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0)
TANH = 0.044715
# the gated family: name -> activation of the gate, and how it is written
FAMILY = {
    "GLU": ("sigmoid", "σ(W₁·x)"),
    "bilinear": ("identity", "(W₁·x)"),
    "ReGLU": ("relu", "ReLU(W₁·x)"),
    "GeGLU": ("gelu", "GELU(W₁·x)"),
    "SwiGLU": ("silu", "Swish(W₁·x)"),
}
# a feed-forward that can be followed by hand
X = (1.0, 2.0, -1.0)
GATE = ((1.0, 0.0, -1.0), (0.0, 1.0, 1.0))
UP = ((1.0, 1.0, 0.0), (0.0, -1.0, 1.0))
DOWN = ((1.0, 0.0), (0.0, 1.0), (1.0, -1.0))


def _phi(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# the functions and their derivatives, by hand
HAND: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "relu": (lambda x: max(x, 0.0), lambda x: float(x > 0)),
    "gelu": (
        lambda x: x * _phi(x),
        lambda x: _phi(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    ),
    "silu": (
        lambda x: x * _sigmoid(x),
        lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    ),
}


@cache
def activations() -> list[list[float]]:
    """Compute values and slopes of the activations at `POINTS`, by hand and by autograd."""
    columns = [list(POINTS)]
    for name, (function, slope) in HAND.items():
        x = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
        y = activate(x, name, 1.0)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        columns.append(each_same(map(function, POINTS), y, name))
        columns.append(each_same(map(slope, POINTS), gradient, name))
    return [list(row) for row in zip(*columns, strict=True)]


@cache
def swish(beta: int) -> list[float]:
    """Compute Swish at `POINTS`, by hand and from the module."""
    run = activate(torch.tensor(POINTS, dtype=torch.float64), "silu", float(beta))
    return each_same((x * _sigmoid(beta * x) for x in POINTS), run, "Swish")


def points() -> list[str]:
    """Write the points at which activations are looked at."""
    return [shown(x) for x in POINTS]


def straight_slope() -> float:
    """Compute the slope of Swish with β of zero, by autograd the same everywhere."""
    x = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activate(x, "silu", 0.0).sum(), x)
    return each_same([_sigmoid(0.0)] * len(POINTS), slope, "slope of Swish")[0]


def silu_lowest() -> float:
    """Find the lowest value of SiLU."""
    return min(HAND["silu"][0](i / 1000) for i in range(-3000, 1))


@cache
def tanh_gap() -> float:
    """Find the largest difference between GELU and its tanh form, by hand and in the module."""
    grid = [i / 100 for i in range(-600, 601)]
    near = [0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + TANH * x**3))) for x in grid]
    each_same(near, activate(torch.tensor(grid, dtype=torch.float64), "gelu_tanh", 1.0), "GELU")
    return max(abs(a - HAND["gelu"][0](x)) for a, x in zip(near, grid, strict=True))


def tanh_equation() -> str:
    """Write the tanh form of GELU, as it was compared with the module."""
    tanh_gap()
    return f"GELU(x) ≈ {0.5}·x·(1 + tanh(√(2/π)·(x + {TANH}·x³)))"


def _run(activation: str, factor: float, *, gated: bool) -> torch.Tensor:
    part = Part(d_ff=len(GATE), activation=activation, gated=gated)
    weights = {"gate_proj": GATE, "up_proj": UP} if gated else {"up_proj": GATE}
    with seeded():
        made = (GatedFeedForward if gated else FeedForward)(part, len(X)).double()
    for name, rows in {**weights, "down_proj": DOWN}.items():
        made.get_parameter(f"{name}.weight").data.copy_(torch.tensor(rows))
    with torch.no_grad():
        y: torch.Tensor = made(torch.tensor([[X]], dtype=torch.float64) * factor)[0, 0]
    return y


def _times(matrix: Sequence[Sequence[float]], x: Sequence[float]) -> list[float]:
    return [sum(w * v for w, v in zip(row, x, strict=True)) for row in matrix]


def walk(activation: str = "silu") -> dict[str, list[float]]:
    """Compute u, v, h and y of the small feed-forward by hand; y is also the module's."""
    acts = {name: function for name, (function, _) in HAND.items()}
    acts |= {"sigmoid": _sigmoid, "identity": lambda x: x}
    u, v = _times(GATE, X), _times(UP, X)
    h = [acts[activation](a) * b for a, b in zip(u, v, strict=True)]
    y = each_same(_times(DOWN, h), _run(activation, 1.0, gated=True), activation)
    return {"x": list(X), "u": u, "v": v, "h": h, "y": y}


def family(factor: int) -> list[dict[str, object]]:
    """Run each of the gated family with the hand's weights, compared with the hand's arithmetic.

    Beside it what its output is multiplied by when its input is.
    """
    plain = {"name": "ReLU", "equation": "W₂·ReLU(W₁·x)", "grows": _growth("relu", factor, False)}
    rows: list[dict[str, object]] = [plain]
    for name, (activation, written) in FAMILY.items():
        walk(activation)
        row = {"name": name, "equation": f"W₂·({written} ⊙ W₃·x)"}
        rows.append({**row, "grows": _growth(activation, factor, True)})
    return rows


def _growth(activation: str, factor: int, gated: bool) -> float:
    once, more = (_run(activation, float(f), gated=gated) for f in (1, factor))
    return float(more[0] / once[0])


def changes(kind: str, changed: int, length: int) -> list[int]:
    """Find which tokens' outputs change when one token's input does, by running the layer."""
    moves = moved(reaching()[kind], normal(length, 24), normal(length, 24, seed=1), changed - 1)
    return [i for i, by in enumerate(moves.tolist(), 1) if by > ROUNDING]


def weights() -> dict[str, str]:
    """Write the matrices of the small feed-forward."""
    return {"W_1": matrix(GATE), "W_2": matrix(DOWN), "W_3": matrix(UP)}


def sizes_by_hand() -> dict[str, int]:
    """Return width and hidden width of the small feed-forward."""
    return {"d": len(X), "m": len(GATE)}


# Claims: equations of modules, written out in plain torch, and which outputs a token reaches.

# hidden vector from u = W1·x (+ b) and, with a gate, v = W3·x (+ c)
HIDDEN: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "GELU": ("GELU({u})", lambda u, _: gelu(u)),
    "ReLU": ("max(0, {u})", lambda u, _: u.clamp(min=0)),
    "GLU": ("σ({u}) ⊙ {v}", lambda u, v: sigmoid(u) * v),
    "Swish": ("Swish({u}) ⊙ {v}", lambda u, v: times_sigmoid(u) * v),
    "SwiGLU": ("SwiGLU({u}) ⊙ {v}", lambda u, v: times_sigmoid(u) * u * v),
}


def equation(stated: str, activation: str, *, gated: bool, bias: bool) -> Values:
    """Lay a feed-forward beside `HIDDEN`: its hidden vector beside each, its output beside one.

    The hidden vector is what goes into the module's last matrix. SwiGLU takes two vectors; where an
    equation gives it one, it stands for both.
    """
    part = Part(activation=activation, gated=gated, d_ff=D_FF, bias=bias)
    with seeded():
        module = draw(feed_forward(part, D_MODEL))
    seen: list[Tensor] = []
    down = module.get_submodule("down_proj")
    down.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        x_ND = normal(N_TOKENS, D_MODEL)
        y_ND, (h_NM,) = module(x_ND), seen
        u_NM, v_NM = (
            module.get_submodule(name)(x_ND)
            for name in ("gate_proj" if gated else "up_proj", "up_proj")
        )
        # those with a gate beside those with one
        hidden = {
            name: form(u_NM, v_NM)
            for name, (text, form) in HIDDEN.items()
            if name == stated or ("{v}" in text) is gated
        }
        off = {name: unequal(h_NM, each) for name, each in hidden.items()}
        out = unequal(y_ND, down(hidden[stated]))
        acted = float(activate(u_NM, activation, part.swish_beta)[0, 0])
    u, v, last = ("W1·x + b", "(W3·x + c)", " + b2") if bias else ("W1·x", "W3·x", "")
    text = {name: HIDDEN[name][0].format(u=u, v=v) for name in hidden}
    fits = [name for name in off if off[name] < ROUNDING]
    brackets = {name: f"({form})" if "⊙" in form else form for name, form in text.items()}
    return {
        "d": D_MODEL,
        "m": D_FF,
        "n_tokens": N_TOKENS,
        "out": out,
        "is_stated": stated in fits and out < ROUNDING,
        "fitting": [f"y = W2·{brackets[name]}{last}" for name in fits],
        "shapes": [
            f"{name.removesuffix('.weight')} {list(weight.shape)}"
            for name, weight in module.named_parameters()
            if weight.dim() > 1
        ],
        "equations": [{"equation": text[name], "off": by} for name, by in off.items()],
        # how the first hidden value of the first token comes about
        "act": activation,
        "gated": gated,
        "u_0": float(u_NM[0, 0]),
        "v_0": float(v_NM[0, 0]),
        "h_0": float(h_NM[0, 0]),
        "acted": acted,
        "doubled": stated == "SwiGLU",
        "swish_fits": "Swish" in fits,
    }


FORMS: dict[str, tuple[str, str, float, Callable[[Tensor], Tensor]]] = {
    "relu": ("max(0, x)", "relu", 1.0, lambda x: (x + x.abs()) / 2),
    "silu": ("x·σ(x)", "silu", 1.0, times_sigmoid),
    "swish": ("x·σ(1.702·x)", "silu", 1.702, lambda x: times_sigmoid(x, 1.702)),
    "half": ("x·σ(0.5·x)", "silu", 0.5, lambda x: times_sigmoid(x, 0.5)),
}


def _grid() -> Tensor:
    return torch.arange(-6000, 6001, dtype=torch.float64) / 1000


def activation_forms(forms: Sequence[str]) -> Values:
    """Lay activations of the modules beside their formulas."""
    x, rows = _grid(), list[dict[str, Any]]()
    at = torch.tensor((-2.0, 0.5, 2.0), dtype=torch.float64)
    for text, name, beta, form in map(FORMS.__getitem__, forms):
        shown_as = name if name != "silu" else f"silu, β = {beta:g}"
        off = unequal(activate(x, name, beta), form(x))
        pairs = zip(at.tolist(), activate(at, name, beta).tolist(), strict=True)
        values = [{"x": a, "y": y} for a, y in pairs]
        rows.append({"formula": text, "activation": shown_as, "off": off, "values": values})
    most = max(row["off"] for row in rows)
    is_silu = unequal(activate(x, "silu", 1.0), nn.functional.silu(x)) == 0
    return {"forms": rows, "most": most, "equal": most < ROUNDING, "is_silu": is_silu}


def gelu_forms() -> Values:
    """Lay GELU beside x·Φ(x), and its tanh form beside GELU."""
    x = _grid()
    exact, near = activate(x, "gelu", 1.0), activate(x, "gelu_tanh", 1.0)
    off, gap = largest(exact - gelu(x)), (near - exact).abs()
    return {
        "off": off,
        "gap": largest(gap),
        "is_near": off < ROUNDING and 0 < largest(gap) < 1e-3,
        "widest": float(x[gap.argmax()]),
        "exact_1": float(exact[7000]),
        "near_1": float(near[7000]),
    }


N_PLACES = 5


def reach(of: str, reaches: str) -> Values:
    """Change each token in turn, and find whose outputs change: of every part, beside what is said.

    `of` is the part that is spoken of, and `reaches` "itself" or "itself and later".
    """
    before_SD, other_SD = normal(N_PLACES, 24), normal(N_PLACES, 24, seed=1)
    changed: dict[str, list[list[int]]] = {}
    least: dict[str, float] = {}
    for name, run in reaching().items():
        moves = [moved(run, before_SD, other_SD, t).tolist() for t in range(N_PLACES)]
        changed[name] = [[s for s, by in enumerate(move) if by > ROUNDING] for move in moves]
        least[name] = max([by for move in moves for by in move if by <= ROUNDING] or [0.0])
    places = range(N_PLACES)
    kinds = {"itself": [[t] for t in places], "itself and later": [[*places[t:]] for t in places]}
    return {
        "n": N_PLACES,
        "least": least[of],
        "as_stated": changed[of] == kinds[reaches],
        "does": next((kind for kind, tokens in kinds.items() if changed[of] == tokens), "others"),
        "runs": [
            {
                "part": name,
                "moves": [
                    {"t": t, "outputs": ", ".join(map(str, each))} for t, each in enumerate(tokens)
                ],
            }
            for name, tokens in changed.items()
        ],
        "causal_later": changed["causal"] == kinds["itself and later"],
        "open_all": changed["open"] == [[*places]] * N_PLACES,
    }
