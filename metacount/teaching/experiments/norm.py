"""Norms: what each kind computes, where a block has them, and what the residual stream becomes."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import torch

from metacount.modules import LayerNorm, RMSNorm, Visibility
from metacount.modules.block import deep_alpha
from metacount.teaching.experiments.modules import HEADS, each_same, made, normal, placed, small

if TYPE_CHECKING:
    from metacount.modules.model import Stack

X = (3.0, -1.0, 2.0, 0.0)  # the vector that is normed by hand
EPS = 1e-5
EQUATIONS = {
    "post": "x ← Norm(x + f(x))",
    "pre": "x ← x + f(Norm(x))",
    "sandwich": "x ← x + Norm(f(Norm(x)))",
    "post_branch": "x ← x + Norm(f(x))",
    "deep": "x ← Norm(α·x + f(x))",
    "parallel": "x ← x + attn(Norm(x)) + ffn(Norm(x))",
}


def normed() -> dict[str, list[float]]:
    """Compute X and its norms by hand, compared with their modules, each with mean and RMS."""
    d, mean, squares = len(X), sum(X) / len(X), sum(x * x for x in X)
    variance = sum((x - mean) ** 2 for x in X) / d
    layernorm = [(x - mean) / math.sqrt(variance + EPS) for x in X]
    rmsnorm = [x / math.sqrt(squares / d + EPS) for x in X]
    x = torch.tensor(X, dtype=torch.float64)
    vectors = {
        "x": list(X),
        "layernorm": each_same(
            layernorm, LayerNorm(d, bias=True, eps=EPS).double()(x), "LayerNorm"
        ),
        "rmsnorm": each_same(rmsnorm, RMSNorm(d, eps=EPS).double()(x), "RMSNorm"),
        "with_sum": [x / math.sqrt(squares + EPS) for x in X],
    }
    return {
        name: [*values, sum(values) / d, math.sqrt(sum(v * v for v in values) / d)]
        for name, values in vectors.items()
    }


@cache
def _tiny(placement: str, n_layers: int = 2) -> Stack:
    spec = small("llama-7b", **HEADS, d_ff=16, norm_placement=placement, n_layers=n_layers)
    return made(spec).last_stack


@cache
def checked(placement: str) -> str:
    """Return the equation of a placement, which a block that has it was found to compute."""
    stack = _tiny(placement)
    block, x, sees = stack.blocks[0], normal(1, 5, 24), Visibility(n_queries=5, n_keys=5)
    with torch.no_grad():
        for n, parameter in enumerate(block.parameters()):
            if parameter.dim() == 1:
                parameter.add_(normal(*parameter.shape, seed=n) / 4)
        ours = placed(placement, block, x, deep_alpha(stack.spec, False))
        each_same(ours.flatten().tolist(), block(x, sees), placement)
    return EQUATIONS[placement]


def placements() -> list[dict[str, str]]:
    """List each placement with its equation."""
    return [{"name": name, "equation": checked(name)} for name in EQUATIONS]


def stream(placement: str, depths: list[int]) -> list[float]:
    """Measure the RMS of the residual stream after so many blocks, freshly initialised."""
    x, sees, seen = normal(1, 5, 24), Visibility(n_queries=5, n_keys=5), []
    with torch.no_grad():
        for block in _tiny(placement, max(depths)).blocks:
            x = block(x, sees)
            seen.append(float(x.square().mean().sqrt()))
    return [seen[n - 1] for n in depths]


def swapped_at_start() -> float:
    """Compute what a new LayerNorm gives with weight and bias in each other's place."""
    made = LayerNorm(len(X), bias=True, eps=EPS).double()
    assert made.weight is not None and made.bias is not None
    plain = made(torch.tensor(X, dtype=torch.float64))
    swapped = (plain * made.bias + made.weight).detach()
    return each_same([float(swapped[0])] * len(X), swapped, "weight and bias swapped")[0]
