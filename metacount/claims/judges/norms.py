"""Claims about norms: what they compute, and where a block has them; the reference modules run.

Small sizes, float64, fixed seed; equal means equal but for rounding, which is printed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from metacount.claims.finding import RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.routing import ROUNDING, largest, unequal
from metacount.claims.judges.running import WITNESS, normal, small
from metacount.modules import Block, LayerNorm, RMSNorm, Visibility
from metacount.modules.build import build

# norms that the formula of a sublayer names
NORMS_STATED = {"deep": 1, "sandwich": 2}


def rmsnorm_divisor(claim: Claim) -> Finding:
    """RMSNorm divides by the root of this plus eps. Options: `of`: sum or mean (of squares)."""
    d, eps = 16, 1e-5
    x = normal(1, d)
    y = RMSNorm(d, eps=eps).double()(x).detach()
    squares = x.square()
    by = {"mean": squares.mean(-1, keepdim=True), "sum": squares.sum(-1, keepdim=True)}
    made = {name: x / (divisor + eps).sqrt() for name, divisor in by.items()}
    off = {name: unequal(y, output) for name, output in made.items()}
    fits = [name for name in made if off[name] < ROUNDING]
    stated = claim.options["of"]
    lengths = {name: float(output.norm()) for name, output in made.items()}
    found = " and ".join(f"the {name}" for name in fits) or "neither"
    return Finding(
        verdict=RIGHT if stated in fits else WRONG,
        says=f"The module's output is that with {found}: "
        f"a norm of {float(y.norm()):.3f} for d = {d}; with the mean it is {lengths['mean']:.3f}, "
        f"with the sum {lengths['sum']:.3f}.",
        correct=f"x / sqrt({fits[0]} of squares + eps)" if fits else "something else",
        computation=(
            f"d = {d}, eps = {eps:g}, weight 1, float64, seed 0",
            f"mean of squares {float(by['mean']):.4f}, sum {float(by['sum']):.4f}",
            f"first value: x {float(x[0, 0]):.6f}, module {float(y[0, 0]):.6f}, "
            f"with mean {float(made['mean'][0, 0]):.6f}, with sum {float(made['sum'][0, 0]):.6f}",
            f"module against mean: off by {off['mean']:.2g}; against sum: off by {off['sum']:.2g}",
        ),
        values={"times": f"{lengths['mean'] / lengths['sum']:.3f}"},
        witness=WITNESS,
    )


def layernorm_roles(claim: Claim) -> Finding:
    """What a LayerNorm multiplies with and what it adds. Options: `scale` and `shift`.

    `weight` is what starts at one and is called gamma, `bias` what starts at zero: beta.
    """
    d, eps = 16, 1e-5
    x = normal(3, d)
    norm = LayerNorm(d, bias=True, eps=eps).double()
    vectors = {name: parameter.detach() for name, parameter in norm.named_parameters()}
    starts = {name: float(vector.mean()) for name, vector in vectors.items()}
    fresh, before = norm(x).detach(), {name: vector.clone() for name, vector in vectors.items()}
    for seed, vector in enumerate(vectors.values()):
        vector.copy_(normal(d, seed=seed + 1))
    y = norm(x).detach()
    torchs = nn.functional.layer_norm(x, (d,), vectors["weight"], vectors["bias"], eps)
    plain = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    ways = {(a, b): plain * vectors[a] + vectors[b] for a in vectors for b in vectors if a != b}
    off = {way: unequal(y, output) for way, output in ways.items()}
    stated = claim.options["scale"], claim.options["shift"]
    fits = [way for way in ways if off[way] < ROUNDING]
    at_start = plain * before[stated[0]] + before[stated[1]]
    told = {way: f"multiplies by its {way[0]} and adds its {way[1]}" for way in ways}
    return Finding(
        verdict=RIGHT if stated in fits else WRONG,
        says=f"The module {told[fits[0]] if fits else 'does something else'}; the stated formula "
        f"is off by {off[stated]:.2g} of the largest value.",
        correct=told[fits[0]] if fits else "something else",
        computation=(
            f"d = {d}, eps = {eps:g}, float64; weight and bias drawn at random",
            *(f"{told[way]}: off by {off[way]:.2g}" for way in ways),
            f"torch's layer_norm with the same weight and bias: off by {unequal(y, torchs):.2g}",
            f"a new module: weight {starts['weight']:g} on average, bias {starts['bias']:g}; the "
            f"stated formula then gives values up to {largest(at_start):.3f}, the module up to "
            f"{largest(fresh):.3f}",
        ),
        values={"constant_at_start": largest(at_start - at_start.mean()) < ROUNDING,
                "at_start": f"{float(at_start.mean()):g}"},
        witness=WITNESS,
    )  # fmt: skip


def block_norms(claim: Claim) -> Finding:
    """A block computes a formula. Options: `placement` of its norms, `stated` (the formula)."""
    placement, formula = claim.options["placement"], claim.options["stated"]
    spec = small("llama-7b", n_kv_heads=3, head_dim=8, d_ff=16, norm="layernorm", norm_bias=True,
                 norm_placement=placement)  # fmt: skip
    block = build(spec, device="cpu", dtype="fp64", seed=0).last_stack.blocks[0]
    x, sees = normal(1, 5, spec.d_model), Visibility(n_queries=5, n_keys=5)
    alpha = (2 * spec.n_layers) ** 0.25  # of the stated formula, DeepNet's
    norms = _norms(block)
    with torch.no_grad():
        for n, norm in enumerate(norms):
            for p, parameter in enumerate(norm.parameters()):
                parameter.add_(normal(*parameter.shape, seed=2 * n + p) / 4)
        y = block(x, sees)
        stated = _as_stated(block, formula, x, sees, alpha)
        post = _as_stated(block, "post", x, sees, 1.0) if formula == "deep" else None
    off = unequal(y, stated)
    holds = off < ROUNDING and len(norms) == 2 * NORMS_STATED[formula]
    lines = [
        f"2 layers, d = {spec.d_model}, float64, seed 0; LayerNorm with random weights as the norm",
        f"one block against the formula, attention and then FFN: off by {off:.0e}",
        f"norms in the block: {len(norms)}, stated {2 * NORMS_STATED[formula]}",
    ]
    if post is not None:
        lines.append(f"α = (2·{spec.n_layers})^¼ = {alpha:.4f}; with α = 1 (post-norm): off by "
                     f"{unequal(y, post):.2g}")  # fmt: skip
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=f"The block's output is {'' if off < ROUNDING else 'not '}that of the formula: off by "
        f"{off:.2g}. The block has {len(norms)} norms, the formula {2 * NORMS_STATED[formula]}.",
        correct="as stated" if holds else "something else",
        computation=tuple(lines),
        values={"n_norms": len(norms), "blocks": spec.n_layers, "alpha": f"{alpha:.4f}"},
        witness=WITNESS,
    )


def _norms(block: Block) -> list[nn.Module]:
    return [m for name, m in block.named_children() if name.endswith("layernorm")]


def _as_stated(block: Block, formula: str, x: Tensor, sees: Visibility, alpha: float) -> Tensor:
    """The formula for attention, then for the FFN, with the block's own parts."""
    norms = _norms(block)
    per_sublayer = len(norms) // 2
    attention, ffn = block.get_submodule("self_attn"), block.get_submodule("mlp")
    sublayers: tuple[Callable[[Tensor], Tensor], ...] = (lambda z: attention(z, sees), ffn)
    for i, sublayer in enumerate(sublayers):
        own = [*norms[i * per_sublayer : (i + 1) * per_sublayer], nn.Identity()]
        if formula == "sandwich":
            x = x + own[1](sublayer(own[0](x)))
        else:
            x = own[0](alpha * x + sublayer(x))
    return x
