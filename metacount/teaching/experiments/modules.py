"""Experiments: modules that run with small sizes in float64 and a fixed seed, as plain values.

"Equal" of two real numbers means equal but for rounding, a relative difference below `ROUNDING`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metacount import catalog
from metacount.modules import Block, Visibility, apply_rope
from metacount.modules.attention import Attention
from metacount.modules.build import build
from metacount.modules.ffn import feed_forward
from metacount.modules.moe import Experts, Router, Routing
from metacount.spec.ffn import FeedForward, Mixture
from metacount.tensors import FunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from metacount.modules.model import Model
    from metacount.spec import ModelSpec
    from metacount.spec.position import RopeScaling

ROUNDING = 1e-12
DRAWING = ("uniform_", "normal_", "kaiming_uniform_", "randn")
# of the small mixture of experts
D_MODEL, D_FF, N_EXPERTS, N_TOKENS = 7, 5, 6, 3
SMALL = {"n_layers": 2, "d_model": 24, "n_heads": 3, "vocab_size": 31}
HEADS = {"n_kv_heads": 3, "head_dim": 8}


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Draw normally distributed values in float64, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class seeded(FunctionMode):
    """Draw what modules start with from a generator of their own, the same each time."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def run_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give a function that draws the generator."""
        if getattr(func, "__name__", "") in DRAWING and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)


def made(spec: ModelSpec) -> Model:
    """Build a model in float64 on the CPU, with the same weights each time."""
    with seeded():
        return build(spec, device="cpu", dtype="fp64")


def largest(x: Tensor) -> float:
    """Return the largest absolute value."""
    return float(x.detach().abs().max())


def unequal(left: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    return largest(left - other) / max(largest(left), largest(other))


def loss_of(y: Tensor) -> Tensor:
    """Compute a loss whose gradient differs from place to place: half the squared distance to 1."""
    return (y - 1).square().sum() / 2


def gradient(parameter: Tensor) -> Tensor:
    """Return the gradient that autograd left, which must be there."""
    assert parameter.grad is not None
    return parameter.grad


def small(id: str, **sizes: object) -> ModelSpec:
    """Return a model of the catalog with small sizes."""
    return catalog.entry(id).spec().replace(**{**SMALL, **sizes})


def draw(module: nn.Module) -> nn.Module:
    """Fill the parameters of a module with normally distributed values, in float64."""
    module = module.double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + 1))
    return module


# Activations and the hidden vector of a feed-forward, written out in plain torch.


def sigmoid(x: Tensor) -> Tensor:
    """Compute σ(x)."""
    return 1 / (1 + torch.exp(-x))


def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    """Compute x·σ(β·x)."""
    return x * sigmoid(beta * x)


def gelu(x: Tensor) -> Tensor:
    """Compute x·Φ(x)."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def mixture(
    scoring: str, top_k: int, *, weigh_input: bool = False
) -> tuple[Router, Experts, Tensor, Routing]:
    """Build a router, its experts, some tokens [N, D] and their routing, the same each time."""
    with seeded():
        part = Mixture(
            n_experts=N_EXPERTS,
            top_k=top_k,
            d_ff=D_FF,
            router=scoring,
            router_scales_input=weigh_input,
        )
        router = Router(part, D_MODEL)
        experts = Experts(part, D_MODEL, FeedForward(activation="silu", gated=True))
        x_ND = torch.randn(N_TOKENS, D_MODEL, dtype=torch.float64)
    router = router.double()
    return router, experts.double(), x_ND, router(x_ND)


# Norms in a block: what each placement makes of x, its norms, a sublayer and α.
PLACEMENTS: dict[str, Callable[..., Tensor]] = {
    "post": lambda norms, f, x, _: norms[0](x + f(x)),
    "pre": lambda norms, f, x, _: x + f(norms[0](x)),
    "sandwich": lambda norms, f, x, _: x + norms[1](f(norms[0](x))),
    "post_branch": lambda norms, f, x, _: x + norms[0](f(x)),
    "deep": lambda norms, f, x, alpha: norms[0](alpha * x + f(x)),
}


def norms_of(block: Block) -> list[nn.Module]:
    """List the norms of a block in order."""
    return [m for name, m in block.named_children() if name.endswith("layernorm")]


def placed(placement: str, block: Block, x: Tensor, alpha: float = 1.0) -> Tensor:
    """Compute the equation of a placement with the parts of a block, attention and then FFN.

    A norm that the equation has and the block has not changes nothing.
    """
    sees = Visibility(n_queries=x.shape[1], n_keys=x.shape[1])
    attention, ffn = block.get_submodule("self_attn"), block.get_submodule("mlp")
    norms = norms_of(block)
    if placement == "parallel":
        added: Tensor = attention(norms[0](x), sees) + ffn(norms[0](x))
        return x + added
    half = len(norms) // 2
    first, second = ([*own, nn.Identity()] for own in (norms[:half], norms[half:]))
    x = PLACEMENTS[placement](first, lambda z: attention(z, sees), x, alpha)
    return PLACEMENTS[placement](second, ffn, x, alpha)


# Positions.


def sinusoid_by_hand(positions: Sequence[int], d: int, base: int = 10000) -> list[list[float]]:
    """Compute sin and cos of pos/base^(2i/d), in turn."""
    return [
        [(math.sin, math.cos)[c % 2](p / base ** (2 * (c // 2) / d)) for c in range(d)]
        for p in positions
    ]


def rotated_score(
    q: Tensor,
    k: Tensor,
    i: int,
    j: int,
    theta: float = 10000.0,
    scaling: RopeScaling | None = None,
) -> float:
    """Compute the score of a query at position i with a key at position j, both rotated."""
    rotary_dim = q.shape[-1]
    turned = [
        apply_rope(
            x,
            torch.tensor([at]),
            rotary_dim=rotary_dim,
            theta=theta,
            style="half",
            scaling=scaling,
        )
        for x, at in ((q, i), (k, j))
    ]
    return float((turned[0] * turned[1]).sum())


# Which tokens an output depends on.


@lru_cache
def decoder() -> Model:
    """Build a small LLaMA."""
    return made(small("llama-7b", **HEADS, d_ff=16))


def attention_of(attention: Attention, kind: str) -> Callable[[Tensor], Tensor]:
    """Return a function that runs attention over vectors [S, D] with a mask of that kind."""

    def run(x_SD: Tensor) -> Tensor:
        y_SD: Tensor = attention(
            x_SD[None], Visibility(n_queries=len(x_SD), n_keys=len(x_SD), kind=kind)
        )[0]
        return y_SD

    return run


def _model_outputs(x_SD: Tensor) -> Tensor:
    model, tokens = decoder(), torch.arange(len(x_SD))
    assert model.embed_tokens is not None
    model.embed_tokens.weight[tokens] = x_SD
    y_SV: Tensor = model(tokens[None]).logits_BSV[0]
    return y_SV


def reaching() -> dict[str, Callable[[Tensor], Tensor]]:
    """Return what is run to see which outputs a token reaches: vectors [S, D] to outputs."""
    attention = decoder().last_stack.blocks[0].get_submodule("self_attn")
    assert isinstance(attention, Attention)
    with seeded():
        ffn = draw(feed_forward(FeedForward(activation="silu", gated=True, d_ff=16), 24))
    return {
        "ffn": ffn,
        "causal": attention_of(attention, "causal"),
        "open": attention_of(attention, "bidirectional"),
        "model": _model_outputs,
    }


def moved(run: Callable[[Tensor], Tensor], x_SD: Tensor, other_SD: Tensor, t: int) -> Tensor:
    """Measure how far each output moves, of the largest, when token t becomes another one."""
    changed_SD = x_SD.clone()
    changed_SD[t] = other_SD[t]
    with torch.no_grad():
        y_SD = run(x_SD)
        return (run(changed_SD) - y_SD).abs().amax(-1) / y_SD.abs().max()


def same(hand: float, run: float, what: str) -> float:
    """Return `run`, which must be what was computed by hand; else the lesson ends with an error.

    >>> same(0.1 + 0.2, 0.3, "a sum")
    0.3
    >>> same(1.0, 1.1, "a sum")
    Traceback (most recent call last):
    AssertionError: a sum: by hand 1.0, run 1.1
    """
    if abs(hand - run) > 1e-9 * max(1.0, abs(hand)):
        raise AssertionError(f"{what}: by hand {hand}, run {run}")
    return run


def each_same(hand: Iterable[float], run: Tensor, what: str) -> list[float]:
    """Return the values that were run, which must be those computed by hand."""
    values = run.detach().flatten().tolist()
    return [same(h, r, what) for h, r in zip(hand, values, strict=True)]
