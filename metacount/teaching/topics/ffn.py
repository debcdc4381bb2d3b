"""Feed-forward networks: activations, gates, the 8/3 rule, and that every token is alone."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from metacount.formulas import sublayers
from metacount.formulas.feed_forward import gated_d_ff
from metacount.modules import Attention, FeedForward, GatedFeedForward, Visibility
from metacount.modules.ffn import activate
from metacount.spec.attention import Attention as AttentionPart
from metacount.spec.ffn import FeedForward as Part
from metacount.teaching.experiments import normal
from metacount.teaching.page import Exercise, closed, matrix, rows, same
from metacount.teaching.texts import shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values


POINTS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0)
BETAS = (0.0, 1.0, 10.0)  # of Swish
TANH = 0.044715
CHANGED, LENGTH = 2, 5  # the token that is changed, of how many
FACTOR = 2  # of the input, to see how an output grows
# the gated family: name -> activation of the gate
FAMILY = {
    "GLU": "sigmoid",
    "bilinear": "identity",
    "ReGLU": "relu",
    "GeGLU": "gelu",
    "SwiGLU": "silu",
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


def silu(x: float) -> float:
    return x * _sigmoid(x)


# the functions and their derivatives, by hand
HAND: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "relu": (lambda x: max(x, 0.0), lambda x: float(x > 0)),
    "gelu": (
        lambda x: x * _phi(x),
        lambda x: _phi(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    ),
    "silu": (silu, lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
}


@cache
def activations() -> Rows:
    """Compute values and slopes of the activations, by hand and by autograd."""
    columns: list[list[float]] = [list(POINTS)]
    for name, (function, slope) in HAND.items():
        x = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
        y = activate(x, name, 1.0)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        for hand, run in ((function, y), (slope, gradient)):
            columns.append(
                [same(hand(at), ran, name) for at, ran in zip(POINTS, run.tolist(), strict=True)]
            )
    return [tuple(shown(v, "fixed") for v in row) for row in zip(*columns, strict=True)]


@cache
def swish() -> Rows:
    """Compute Swish at the points for several β, by hand and from the module."""
    found = []
    for beta in BETAS:
        run = activate(torch.tensor(POINTS, dtype=torch.float64), "silu", beta).tolist()
        hand = [x * _sigmoid(beta * x) for x in POINTS]
        values = [same(h, r, "Swish") for h, r in zip(hand, run, strict=True)]
        found.append((f"{beta:g}", *(shown(v, "fixed") for v in values)))
    return found


def slope_of_straight_swish() -> float:
    """Compute the slope of Swish with β of zero, by autograd."""
    x = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activate(x, "silu", 0.0).sum(), x)
    first = float(slope[0])
    for each in slope.tolist():
        same(_sigmoid(0.0), each, "slope of Swish")
    return first


def points() -> tuple[str, ...]:
    """Format the points as they head a table."""
    return tuple(shown(x) for x in POINTS)


@cache
def tanh_gap() -> float:
    """Find the largest difference between GELU and its tanh form, by hand and in the module."""
    grid = [i / 100 for i in range(-600, 601)]
    near = [0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + TANH * x**3))) for x in grid]
    run = activate(torch.tensor(grid, dtype=torch.float64), "gelu_tanh", 1.0).tolist()
    for hand, ran in zip(near, run, strict=True):
        same(hand, ran, "tanh form of GELU")
    return max(abs(a - HAND["gelu"][0](x)) for a, x in zip(near, grid, strict=True))


def family() -> Rows:
    """Run each of the gated family with the hand's weights,
    and compare it with the hand's arithmetic.

    Beside it what its output is multiplied by when its input is doubled.
    """
    found = []
    for name, activation in FAMILY.items():
        once, more = _gated(activation, 1.0), _gated(activation, float(FACTOR))
        by_hand = _by_hand(activation)["y"]
        for hand, ran in zip(by_hand, once, strict=True):
            same(hand, ran, name)
        found.append((name, f"W₂·({_act(activation, 'W₁·x')} ⊙ W₃·x)", _grew(once, more)))
    plain = [_plain("relu", f) for f in (1.0, float(FACTOR))]
    return [("ReLU", f"W₂·{_act('relu', 'W₁·x')}", _grew(*plain)), *found]


def _grew(once: list[float], more: list[float]) -> str:
    return shown(more[0] / once[0], "fixed") + " ×"


def _act(activation: str, inner: str) -> str:
    names = {"relu": "ReLU", "gelu": "GELU", "silu": "Swish", "sigmoid": "σ"}
    return f"({inner})" if activation == "identity" else f"{names[activation]}({inner})"


def _part(activation: str, *, gated: bool) -> Part:
    return Part(d_ff=len(GATE), activation=activation, gated=gated)


def _set(module: torch.nn.Module, **weights: tuple[tuple[float, ...], ...]) -> None:
    for name, rows_ in weights.items():
        module.get_parameter(f"{name}.weight").data.copy_(torch.tensor(rows_, dtype=torch.float64))


def _gated(activation: str, factor: float) -> list[float]:
    made = GatedFeedForward(_part(activation, gated=True), len(X)).double()
    _set(made, gate_proj=GATE, up_proj=UP, down_proj=DOWN)
    return _run(made, factor)


def _plain(activation: str, factor: float) -> list[float]:
    made = FeedForward(_part(activation, gated=False), len(X)).double()
    _set(made, up_proj=GATE, down_proj=DOWN)
    return _run(made, factor)


def _run(module: torch.nn.Module, factor: float) -> list[float]:
    x = torch.tensor([[X]], dtype=torch.float64) * factor
    values: list[float] = module(x)[0, 0].tolist()
    return values


def _times(matrix: tuple[tuple[float, ...], ...], x: list[float]) -> list[float]:
    return [sum(w * v for w, v in zip(row, x, strict=True)) for row in matrix]


def _by_hand(activation: str) -> dict[str, list[float]]:
    """Compute u, v, h and y of the small feed-forward, in plain arithmetic."""
    acts: dict[str, Callable[[float], float]] = {n: f for n, (f, _) in HAND.items()}
    acts |= {"sigmoid": _sigmoid, "identity": lambda x: x}
    u, v = _times(GATE, list(X)), _times(UP, list(X))
    h = [acts[activation](a) * b for a, b in zip(u, v, strict=True)]
    return {"x": list(X), "u": u, "v": v, "h": h, "y": _times(DOWN, h)}


def walk() -> Rows:
    """Follow SwiGLU step by step with the hand's weights; the last line is also the module's."""
    found = _by_hand("silu")
    for hand, ran in zip(found["y"], _gated("silu", 1.0), strict=True):
        same(hand, ran, "SwiGLU")
    equations = {"x": "", "u": "W₁·x", "v": "W₃·x", "h": "Swish(u) ⊙ v", "y": "W₂·h"}
    return [
        (name, equations[name], f"({', '.join(shown(v, 'fixed') for v in values)})")
        for name, values in found.items()
    ]


@cache
def who_changes() -> list[tuple[str, str]]:
    """Find which tokens' outputs change when one token's input does,
    module by module, by running them.
    """
    d = 8
    heads = AttentionPart(n_heads=2, n_kv_heads=2, head_dim=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        feed_forward = GatedFeedForward(Part(d_ff=6, activation="silu", gated=True), d).double()
        attention = Attention(heads, d).double()

    def attended(kind: str) -> Callable[[Tensor], Tensor]:
        sees = Visibility(n_queries=LENGTH, n_keys=LENGTH, kind=kind)
        return lambda x: attention(x, sees)

    run: dict[str, Callable[[Tensor], Tensor]] = {
        "feed_forward": feed_forward,
        "causal": attended("causal"),
        "both ways": attended("bidirectional"),
    }
    x = normal(1, LENGTH, d)
    other = x.clone()
    other[0, CHANGED - 1] += 1
    found = []
    for name, module in run.items():
        with torch.no_grad():
            moved = (module(x) != module(other)).any(-1)[0]
        changed = [i + 1 for i, flag in enumerate(moved.tolist()) if flag]
        found.append((name, ", ".join(map(str, changed))))
    return found


SUCH_AS = ("llama-7b", "gpt2-medium", "mixtral-8x7b")
NEEDS = "a feed-forward"
MULTIPLE_OF = 256
WIDER = 4  # a plain feed-forward, in widths of the residual stream


def fits(spec: ModelSpec) -> bool:
    """Tell whether a model has a feed-forward, dense or of experts."""
    return bool(spec.d_ff or spec.d_ff_expert)


def width(spec: ModelSpec) -> int:
    """Return the hidden width: of the dense feed-forward, or of an expert where there is none."""
    return int(spec.d_ff or spec.d_ff_expert)


def shapes(here: Here) -> Rows:
    """List the steps of a plain and a gated feed-forward
    beside each other, at this model's widths.
    """
    d, m = here.spec.d_model, width(here.spec)
    return [
        ("x", f"[{d}]", "x", f"[{d}]"),
        ("u = W₁·x", f"[{WIDER * d}]", "u = W₁·x", f"[{m}]"),
        ("", "", "v = W₃·x", f"[{m}]"),
        ("h = GELU(u)", f"[{WIDER * d}]", "h = Swish(u) ⊙ v", f"[{m}]"),
        ("y = W₂·h", f"[{d}]", "y = W₂·h", f"[{d}]"),
    ]


def plain_4d(spec: ModelSpec) -> int:
    """Count the parameters of a plain feed-forward that is 4·d wide."""
    return int(sublayers.plain_params(spec.d_model, WIDER * spec.d_model))


def widths(here: Here) -> Rows:
    """Compare a plain feed-forward, the gated one of equal size,
    that one rounded up, and this model's.
    """
    d, spec = here.spec.d_model, here.spec
    exact = Fraction(2 * WIDER * d, 3)
    rounded = gated_d_ff(d, multiple_of=MULTIPLE_OF)
    base = plain_4d(spec)
    found = [
        (f"{WIDER}·d", "GELU", WIDER * d, base, sublayers.plain_matmul_flops(1, d, WIDER * d)),
        (
            f"{Fraction(2 * WIDER, 3)}·d",
            "SwiGLU",
            shown(float(exact), "fixed"),
            3 * d * exact,
            2 * 3 * d * exact,
        ),
        (
            here.say("rounded up"),
            "SwiGLU",
            rounded,
            sublayers.glu_params(d, rounded),
            sublayers.glu_matmul_flops(1, d, rounded),
        ),
        (
            here.model.id,
            here.say("gated" if spec.gated else "plain"),
            width(spec),
            _own(spec),
            sublayers.ffn_matmul_flops(1, d, width(spec), gated=spec.gated),
        ),
    ]
    return rows(found)


def _own(spec: ModelSpec) -> int:
    m = width(spec)
    return int(sublayers.ffn_params(spec.d_model, m, gated=spec.gated, bias=has_bias(spec)))


def has_bias(spec: ModelSpec) -> bool:
    """Tell whether the dense feed-forward has biases, or an expert where there is none."""
    return bool(spec.ffn_bias if spec.d_ff else spec.expert_bias)


def _who(name: str) -> Callable[[Here], str]:
    return lambda here: dict(who_changes())[name]


def _point(i: int) -> Callable[[Here], str]:
    return lambda here: points()[i]


def _gelu_equation(here: Here) -> str:
    tanh_gap()
    return f"GELU(x) ≈ {0.5}·x·(1 + tanh(√(2/π)·(x + {TANH}·x³)))"


def bias_params(spec: ModelSpec) -> int:
    """Count what biases would add to a plain feed-forward of this width."""
    d, m = spec.d_model, width(spec)
    return int(sublayers.plain_params(d, m, bias=True) - sublayers.plain_params(d, m))


def _flipped(here: Here) -> Exercise:
    """Make the exercise: the other kind of feed-forward,
    at the width that it needs for as many parameters.
    """
    spec = here.spec
    field = "d_ff" if spec.d_ff else "d_ff_expert"
    m = width(spec) * 3 // 2 if spec.gated else width(spec) * 2 // 3
    changes: dict[str, object] = {field: m, "gated": not spec.gated}
    if spec.activation == "clamped_swiglu":  # there only is a gated one
        changes["activation"] = "silu"
    settings = tuple(f"{name}={str(value).lower()}" for name, value in changes.items())
    return Exercise(formula=closed(spec.replace(**changes), "params"), settings=settings)


VALUES: Values = {
    "activations": lambda here: activations(),
    "tanh_equation": _gelu_equation,
    "tanh_gap": lambda here: tanh_gap(),
    "silu_lowest": lambda here: min(silu(i / 1000) for i in range(-3000, 1)),
    "half": lambda here: slope_of_straight_swish(),
    "swish": lambda here: swish(),
    **{f"x_{i}": _point(i) for i in range(len(POINTS))},
    "family": lambda here: family(),
    "W_1": matrix(GATE),
    "W_2": matrix(DOWN),
    "W_3": matrix(UP),
    "walk": lambda here: walk(),
    "shapes": shapes,
    "width": lambda here: width(here.spec),
    "wider": WIDER,
    "changed": CHANGED,
    "length": LENGTH,
    "ffn_changes": _who("feed_forward"),
    "causal_changes": _who("causal"),
    "both_changes": _who("both ways"),
    "small_d": len(X),
    "small_m": len(GATE),
    "factor": FACTOR,
    "widths": widths,
    "two_thirds": lambda here: str(
        Fraction(sublayers.plain_params(1, 1), sublayers.glu_params(1, 1))
    ),
    "plain_matrices": lambda here: sublayers.plain_params(1, 1),
    "gated_matrices": lambda here: sublayers.glu_params(1, 1),
    "rule": lambda here: f"{Fraction(2 * WIDER, 3)}·d",
    "multiple_of": MULTIPLE_OF,
    "own_to_plain": lambda here: Fraction(_own(here.spec), plain_4d(here.spec)),
    "bias": lambda here: has_bias(here.spec),
    "bias_params": lambda here: bias_params(here.spec),
    "experts": lambda here: here.spec.d_ff is None,
    "answer": _flipped,
}
