"""Norms: what each kind computes, where a block has them, and what the residual stream becomes."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import nn

from metacount.formulas import model, sublayers
from metacount.modules import LayerNorm, RMSNorm, Visibility
from metacount.modules.block import deep_alpha
from metacount.modules.build import build
from metacount.teaching.experiments import normal, placed, small
from metacount.teaching.page import after, allowed, rows, same
from metacount.teaching.parts import models
from metacount.teaching.texts import shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.modules.model import Stack
    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

SUCH_AS = ("llama-7b", "bert-base", "gemma2-2b", "glm-130b", "olmo2-7b")
NEEDS = "a block with attention whose norms may stand elsewhere"
X = (3.0, -1.0, 2.0, 0.0)  # the vector that is normed by hand
EPS = 1e-5
DEPTHS = (1, 4, 16)  # blocks after which the stream is looked at
EQUATIONS = {
    "post": "x ← Norm(x + f(x))",
    "pre": "x ← x + f(Norm(x))",
    "sandwich": "x ← x + Norm(f(Norm(x)))",
    "post_branch": "x ← x + Norm(f(x))",
    "deep": "x ← Norm(α·x + f(x))",
    "parallel": "x ← x + attn(Norm(x)) + ffn(Norm(x))",
}


def fits(spec: ModelSpec) -> bool:
    """Tell whether a block's norms may stand elsewhere, as not beside experts of the same input."""
    return bool(spec.attention != "none" and _elsewhere(spec))


def by_hand() -> dict[str, list[float]]:
    """Compute norms of X in plain arithmetic;
    LayerNorm and RMSNorm are compared with their modules.
    """
    d = len(X)
    mean = sum(X) / d
    variance = sum((x - mean) ** 2 for x in X) / d
    squares = sum(x * x for x in X)
    found = {
        "LayerNorm": [(x - mean) / math.sqrt(variance + EPS) for x in X],
        "RMSNorm": [x / math.sqrt(squares / d + EPS) for x in X],
    }
    x = torch.tensor(X, dtype=torch.float64)
    modules: dict[str, nn.Module] = {
        "LayerNorm": LayerNorm(d, bias=True, eps=EPS).double(),
        "RMSNorm": RMSNorm(d, eps=EPS).double(),
    }
    for name, values in found.items():
        run = modules[name](x).tolist()
        found[name] = [same(hand, ran, name) for hand, ran in zip(values, run, strict=True)]
    return {**found, "sum": [x / math.sqrt(squares + EPS) for x in X]}


def kinds(here: Here) -> Rows:
    """List X and its norms, value by value, with mean and root of the mean square."""
    found = by_hand()
    named = {
        "x": list(X),
        "LayerNorm": found["LayerNorm"],
        "RMSNorm": found["RMSNorm"],
        here.say("RMSNorm with a sum"): found["sum"],
    }
    return [
        (
            name,
            *(shown(v, "fixed") for v in values),
            shown(sum(values) / len(values), "fixed"),
            shown(_rms(values), "fixed"),
        )
        for name, values in named.items()
    ]


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


@cache
def _tiny(placement: str, n_layers: int = 2) -> Stack:
    spec = small(
        "llama-7b", n_kv_heads=3, head_dim=8, d_ff=16, norm_placement=placement, n_layers=n_layers
    )
    return build(spec, device="cpu", dtype="fp64", seed=0).last_stack


@cache
def checked(placement: str) -> str:
    """Return the equation of a placement,
    after a check that a block that has it gives the same output.
    """
    stack = _tiny(placement)
    one, x, sees = stack.blocks[0], normal(1, 5, 24), Visibility(n_queries=5, n_keys=5)
    with torch.no_grad():
        for n, parameter in enumerate(one.parameters()):
            if parameter.dim() == 1:
                parameter.add_(normal(*parameter.shape, seed=n) / 4)
        run, ours = one(x, sees), placed(placement, one, x, deep_alpha(stack.spec, False))
    for hand, ran in zip(ours.flatten().tolist(), run.flatten().tolist(), strict=True):
        same(hand, ran, placement)
    return EQUATIONS[placement]


def placements(here: Here) -> Rows:
    """List each placement: its equation, its norms, their parameters in a block of this width."""
    each = sublayers.width_norm_params(here.spec)
    found = []
    for placement in EQUATIONS:
        n = sublayers.norms_per_block(placement)
        found.append((placement, checked(placement), n, n * each, _users(placement)))
    return rows(found)


@cache
def _users(placement: str) -> int:
    return sum(spec.norm_placement == placement for _, spec in models())


@cache
def stream() -> Rows:
    """Measure the root mean square of the residual stream after so many blocks, freshly
    initialised.
    """
    found = []
    for placement in ("post", "pre", "sandwich"):
        stack = _tiny(placement, max(DEPTHS))
        x, sees, seen = normal(1, 5, 24), Visibility(n_queries=5, n_keys=5), []
        with torch.no_grad():
            for one in stack.blocks:
                x = one(x, sees)
                seen.append(float(x.square().mean().sqrt()))
        found.append((placement, *(shown(seen[n - 1], "fixed") for n in DEPTHS)))
    return found


def all_norms(spec: ModelSpec) -> int:
    """Count every parameter of a norm in the model."""
    return int(model.params_by_role(spec)["norm"])


VALUES: Values = {
    "layernorm_params": lambda here: sublayers.norm_params(here.spec.d_model, bias=True),
    "rmsnorm_params": lambda here: sublayers.norm_params(here.spec.d_model),
    "kinds": kinds,
    "width": len(X),
    "root_width": lambda here: math.sqrt(len(X)),
    "at_start": lambda here: _swapped_at_start(),
    "kind": lambda here: {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[here.spec.norm],
    "placement": lambda here: here.spec.norm_placement,
    "per_block": lambda here: sublayers.norms_per_block(here.spec.norm_placement),
    "one_norm": lambda here: sublayers.width_norm_params(here.spec),
    "qk_norm": lambda here: (
        sublayers.params_of_role(sublayers.attention_tape(here.spec), "norm") > 0
    ),
    "qk_params": lambda here: sublayers.params_of_role(sublayers.attention_tape(here.spec), "norm"),
    "norm_params": lambda here: all_norms(here.spec),
    "placements": placements,
    "alpha": lambda here: float((2 * here.spec.n_layers) ** 0.25),
    "stream": lambda here: stream(),
    "first": DEPTHS[0],
    "then": DEPTHS[1],
    "last": DEPTHS[2],
    "answer": lambda here: after(here.spec, _elsewhere(here.spec)),
}


def _elsewhere(spec: ModelSpec) -> dict[str, object]:
    placement = "pre" if spec.norm_placement == "sandwich" else "sandwich"
    return allowed(spec, {"norm_placement": placement})


def _swapped_at_start() -> float:
    """Compute what a new LayerNorm gives where weight
    and bias have changed places: the same everywhere.
    """
    made = LayerNorm(len(X), bias=True, eps=EPS).double()
    assert made.weight is not None and made.bias is not None
    plain = made(torch.tensor(X, dtype=torch.float64)).detach()
    swapped = plain * made.bias.detach() + made.weight.detach()
    first = float(swapped[0])
    for value in swapped.tolist():
        same(first, value, "weight and bias swapped")
    return first
