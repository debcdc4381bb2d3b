"""Small experts, models and values that the judges run, and how far apart two tensors are."""

from __future__ import annotations

import torch
from torch import Tensor

from metacount import catalog
from metacount.claims.text import say
from metacount.modules.moe import Experts, Router
from metacount.spec import ModelSpec
from metacount.spec.ffn import FeedForward, Mixture

WITNESS = say("reference modules, run")
STEPS = say("x from -6 to 6 in steps of 0.001, float64")
D_MODEL, D_FF, N_EXPERTS, N_TOKENS = 7, 5, 6, 3
SIZES = say(
    "d_model {d}, {n} experts of width {width}, {tokens} tokens, float64, seed 0",
    d=D_MODEL,
    n=N_EXPERTS,
    width=D_FF,
    tokens=N_TOKENS,
)
SMALL = {"n_layers": 2, "d_model": 24, "n_heads": 3, "vocab_size": 31}
ROUNDING = 1e-12


def made(scoring: str, top_k: int, *, weigh_input: bool = False) -> tuple[Router, Experts, Tensor]:
    """Build a router, its experts and some tokens [N, D], the same for the same sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixture = Mixture(
            n_experts=N_EXPERTS,
            top_k=top_k,
            d_ff=D_FF,
            router=scoring,
            router_scales_input=weigh_input,
        )
        router = Router(mixture, D_MODEL)
        experts = Experts(mixture, D_MODEL, FeedForward(activation="silu", gated=True))
        x_ND = torch.randn(N_TOKENS, D_MODEL, dtype=torch.float64)
    return router.double(), experts.double(), x_ND


def loss_of(y: Tensor) -> Tensor:
    """Compute some loss whose gradient differs from place to place:
    half the squared distance to 1.
    """
    return (y - 1).square().sum() / 2


def gradient(parameter: Tensor) -> Tensor:
    """Return the gradient that autograd left, which must be there."""
    assert parameter.grad is not None
    return parameter.grad


def largest(x: Tensor) -> float:
    """Return the largest absolute value."""
    return float(x.detach().abs().max())


def unequal(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    return largest(one - other) / max(largest(one), largest(other))


def small(id: str, **sizes: object) -> ModelSpec:
    """Return a model of the catalog with small sizes."""
    return catalog.entry(id).spec().replace(**{**SMALL, **sizes})


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Draw normally distributed values in float64, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
