"""Feed-forward networks: activations, gates, the 8/3 rule, and that every token is alone."""

from __future__ import annotations

from fractions import Fraction

from metacount.formulas import sublayers
from metacount.formulas.feed_forward import gated_d_ff
from metacount.lessons.answers import closed
from metacount.lessons.executed import feed_forward
from metacount.lessons.here import matrix, rows, shown
from metacount.lessons.page import Exercise

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.lessons.here import Here, Rows, Values
    from metacount.spec import ModelSpec

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
    return lambda here: dict(feed_forward.who_changes())[name]


def _point(i: int) -> Callable[[Here], str]:
    return lambda here: feed_forward.points()[i]


def _gelu_equation(here: Here) -> str:
    feed_forward.tanh_gap()
    return f"GELU(x) ≈ {0.5}·x·(1 + tanh(√(2/π)·(x + {feed_forward.TANH}·x³)))"


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
    "activations": lambda here: feed_forward.activations(),
    "tanh_equation": _gelu_equation,
    "tanh_gap": lambda here: feed_forward.tanh_gap(),
    "silu_lowest": lambda here: min(feed_forward.silu(i / 1000) for i in range(-3000, 1)),
    "half": lambda here: feed_forward.slope_of_straight_swish(),
    "swish": lambda here: feed_forward.swish(),
    **{f"x_{i}": _point(i) for i in range(len(feed_forward.POINTS))},
    "family": lambda here: feed_forward.family(),
    "W_1": lambda here: matrix(feed_forward.GATE),
    "W_2": lambda here: matrix(feed_forward.DOWN),
    "W_3": lambda here: matrix(feed_forward.UP),
    "walk": lambda here: feed_forward.walk(),
    "shapes": shapes,
    "width": lambda here: width(here.spec),
    "wider": lambda here: WIDER,
    "changed": lambda here: feed_forward.CHANGED,
    "length": lambda here: feed_forward.LENGTH,
    "ffn_changes": _who("feed_forward"),
    "causal_changes": _who("causal"),
    "both_changes": _who("both ways"),
    "small_d": lambda here: len(feed_forward.X),
    "small_m": lambda here: len(feed_forward.GATE),
    "factor": lambda here: feed_forward.FACTOR,
    "widths": widths,
    "two_thirds": lambda here: str(
        Fraction(sublayers.plain_params(1, 1), sublayers.glu_params(1, 1))
    ),
    "plain_matrices": lambda here: sublayers.plain_params(1, 1),
    "gated_matrices": lambda here: sublayers.glu_params(1, 1),
    "rule": lambda here: f"{Fraction(2 * WIDER, 3)}·d",
    "multiple_of": lambda here: MULTIPLE_OF,
    "own_to_plain": lambda here: Fraction(_own(here.spec), plain_4d(here.spec)),
    "gated": lambda here: here.spec.gated,
    "bias": lambda here: has_bias(here.spec),
    "bias_params": lambda here: bias_params(here.spec),
    "experts": lambda here: here.spec.d_ff is None,
    "answer": _flipped,
}
