"""Claims about norms: what they compute, and where a block has them; the reference modules run.

Small sizes, float64, fixed seed; equal means equal but for rounding, which is printed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from metacount.claims.finding import RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.executed.small import (
    ROUNDING,
    WITNESS,
    largest,
    normal,
    small,
    unequal,
)
from metacount.claims.text import Words, listed, say
from metacount.modules import Block, LayerNorm, RMSNorm, Visibility
from metacount.modules.build import build

# norms that the formula of a sublayer names
NORMS_STATED = {"deep": 1, "sandwich": 2, "pre": 1, "post": 1}
FORMULAS = {
    "deep": "LayerNorm(α·x + Sublayer(x))",
    "sandwich": "x + Norm(Sublayer(Norm(x)))",
    "pre": "x + Sublayer(Norm(x))",
    "post": "Norm(x + Sublayer(x))",
}
# what each could be taken for
BESIDE = {"deep": ("post",), "sandwich": (), "pre": ("post",), "post": ("pre",)}


def rmsnorm_divisor(claim: Claim) -> Finding:
    """Judge whether RMSNorm divides by the root of `of` plus eps. Options: `of`:
    sum or mean (of squares).
    """
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
    the = {"mean": say("the mean"), "sum": say("the sum")}
    found = listed((the[name] for name in fits), " and ") if fits else say("neither")
    divisors = {
        "mean": say("x / sqrt(mean of squares + eps)"),
        "sum": say("x / sqrt(sum of squares + eps)"),
    }
    return Finding(
        verdict=RIGHT if stated in fits else WRONG,
        says=say(
            "The module's output is that with {found}: a norm of {length} for d = {d}; with "
            "the mean it is {mean}, with the sum {sum}.",
            found=found,
            d=d,
            length=f"{float(y.norm()):.3f}",
            mean=f"{lengths['mean']:.3f}",
            sum=f"{lengths['sum']:.3f}",
        ),
        correct=divisors[fits[0]] if fits else say("something else"),
        computation=(
            say("d = {d}, eps = {eps}, weight 1, float64, seed 0", d=d, eps=f"{eps:g}"),
            say(
                "mean of squares {mean}, sum {sum}",
                mean=f"{float(by['mean']):.4f}",
                sum=f"{float(by['sum']):.4f}",
            ),
            say(
                "first value: x {x}, module {module}, with mean {mean}, with sum {sum}",
                x=f"{float(x[0, 0]):.6f}",
                module=f"{float(y[0, 0]):.6f}",
                mean=f"{float(made['mean'][0, 0]):.6f}",
                sum=f"{float(made['sum'][0, 0]):.6f}",
            ),
            say(
                "module against mean: off by {mean}; against sum: off by {sum}",
                mean=f"{off['mean']:.2g}",
                sum=f"{off['sum']:.2g}",
            ),
        ),
        values={"times": f"{lengths['mean'] / lengths['sum']:.3f}"},
        witness=WITNESS,
    )


def layernorm_roles(claim: Claim) -> Finding:
    """Judge what a LayerNorm multiplies with and what it adds. Options: `scale` and `shift`.

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
    told = {
        ("weight", "bias"): say("multiplies by its weight and adds its bias"),
        ("bias", "weight"): say("multiplies by its bias and adds its weight"),
    }
    return Finding(
        verdict=RIGHT if stated in fits else WRONG,
        says=say(
            "The module {does}; the stated formula is off by {off} of the largest value.",
            does=told[fits[0]] if fits else say("does something else"),
            off=f"{off[stated]:.2g}",
        ),
        correct=told[fits[0]] if fits else say("something else"),
        computation=(
            say(
                "d = {d}, eps = {eps}, float64; weight and bias drawn at random",
                d=d,
                eps=f"{eps:g}",
            ),
            *(say("{does}: off by {off}", does=told[way], off=f"{off[way]:.2g}") for way in ways),
            say(
                "torch's layer_norm with the same weight and bias: off by {off}",
                off=f"{unequal(y, torchs):.2g}",
            ),
            say(
                "a new module: weight {weight} on average, bias {bias}; the stated formula then "
                "gives values up to {stated}, the module up to {module}",
                weight=f"{starts['weight']:g}",
                bias=f"{starts['bias']:g}",
                stated=f"{largest(at_start):.3f}",
                module=f"{largest(fresh):.3f}",
            ),
        ),
        values={
            "constant_at_start": largest(at_start - at_start.mean()) < ROUNDING,
            "at_start": f"{float(at_start.mean()):g}",
        },
        witness=WITNESS,
    )


def block_norms(claim: Claim) -> Finding:
    """Judge whether a block computes a formula. Options:
    `placement` of its norms, `stated` (the formula).
    """
    placement, formula = claim.options["placement"], claim.options["stated"]
    spec = small(
        "llama-7b",
        n_kv_heads=3,
        head_dim=8,
        d_ff=16,
        norm="layernorm",
        norm_bias=True,
        norm_placement=placement,
    )
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
        others = {
            name: unequal(y, _as_stated(block, name, x, sees, 1.0)) for name in BESIDE[formula]
        }
    off = unequal(y, stated)
    n_stated = 2 * NORMS_STATED[formula]
    holds = off < ROUNDING and len(norms) == n_stated
    lines: list[Words] = [
        say(
            "2 layers, d = {d}, float64, seed 0; LayerNorm with random weights as the norm",
            d=spec.d_model,
        ),
        say(
            "one block against the formula, attention and then FFN: off by {off}", off=f"{off:.0e}"
        ),
        say("norms in the block: {n}, stated {stated}", n=len(norms), stated=n_stated),
        *(
            say("against {formula}: off by {off}", formula=FORMULAS[name], off=f"{by:.2g}")
            for name, by in others.items()
            if formula != "deep"
        ),
    ]
    if formula == "deep":
        lines.append(
            say(
                "α = {steps}; with α = 1 (post-norm): off by {off}",
                steps=f"(2·{spec.n_layers})^¼ = {alpha:.4f}",
                off=f"{others['post']:.2g}",
            )
        )
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "The block's output is {that} of the formula: off by {off}. The block has {n} "
            "norms, the formula {stated}.",
            that=say("that" if off < ROUNDING else "not that"),
            off=f"{off:.2g}",
            n=len(norms),
            stated=n_stated,
        ),
        correct=say("as stated" if holds else "something else"),
        computation=tuple(lines),
        values={
            "n_norms": len(norms),
            "blocks": spec.n_layers,
            "alpha": f"{alpha:.4f}",
            **{f"off_{name}": f"{by:.2g}" for name, by in others.items()},
            "others_differ": all(by > ROUNDING for by in others.values()),
        },
        witness=WITNESS,
    )


def _norms(block: Block) -> list[nn.Module]:
    return [m for name, m in block.named_children() if name.endswith("layernorm")]


def _as_stated(block: Block, formula: str, x: Tensor, sees: Visibility, alpha: float) -> Tensor:
    """Compute the formula for attention, then for the FFN, with the block's own parts."""
    norms = _norms(block)
    per_sublayer = len(norms) // 2
    attention, ffn = block.get_submodule("self_attn"), block.get_submodule("mlp")
    sublayers: tuple[Callable[[Tensor], Tensor], ...] = (lambda z: attention(z, sees), ffn)
    for i, sublayer in enumerate(sublayers):
        own = [*norms[i * per_sublayer : (i + 1) * per_sublayer], nn.Identity()]
        if formula == "sandwich":
            x = x + own[1](sublayer(own[0](x)))
        elif formula == "pre":
            x = x + sublayer(own[0](x))
        else:
            x = own[0]((alpha if formula == "deep" else 1.0) * x + sublayer(x))
    return x
