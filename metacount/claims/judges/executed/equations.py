"""Claims that are equations: the reference modules run beside them, written out in plain torch.

Small sizes, float64, fixed seed; equal means equal but for rounding, which is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from metacount.claims.finding import RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.executed.small import (
    D_FF,
    D_MODEL,
    N_TOKENS,
    ROUNDING,
    STEPS,
    WITNESS,
    largest,
    normal,
    unequal,
)
from metacount.claims.text import listed, say
from metacount.modules.ffn import activate, feed_forward
from metacount.spec.ffn import FeedForward


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def swish(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


# hidden vector of a feed-forward, from u = W1·x (+ b) and, with a gate, v = W3·x (+ c)
HIDDEN: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "GELU": ("GELU({u})", lambda u, _: gelu(u)),
    "ReLU": ("max(0, {u})", lambda u, _: u.clamp(min=0)),
    "GLU": ("σ({u}) ⊙ {v}", lambda u, v: sigmoid(u) * v),
    "Swish": ("Swish({u}) ⊙ {v}", lambda u, v: swish(u) * v),
    "SwiGLU": ("SwiGLU({u}) ⊙ {v}", lambda u, v: swish(u) * u * v),
}


def ffn_equation(claim: Claim) -> Finding:
    """Judge whether a feed-forward computes an equation. Options:
    `activation`, `gated`, `bias`; `stated`.

    The module's own hidden vector, what goes into its last matrix, is compared with each equation.
    SwiGLU takes two vectors; where an equation gives it one, it stands for both.
    """
    options, stated = claim.options, claim.options["stated"]
    made = FeedForward(
        activation=options["activation"], gated=options["gated"], d_ff=D_FF, bias=options["bias"]
    )
    module = feed_forward(made, D_MODEL).double()
    seen: list[Tensor] = []
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + 1))
        module.get_submodule("down_proj").register_forward_pre_hook(
            lambda _, given: seen.append(given[0])
        )
        x_ND = normal(N_TOKENS, D_MODEL)
        y_ND = module(x_ND)
        first = "gate_proj" if options["gated"] else "up_proj"
        u_NM, v_NM = (module.get_submodule(name)(x_ND) for name in (first, "up_proj"))
        # those with a gate beside those with one
        hidden = {
            name: form(u_NM, v_NM)
            for name, (text, form) in HIDDEN.items()
            if name == stated or ("{v}" in text) is options["gated"]
        }
        off = {name: unequal(seen[0], h_NM) for name, h_NM in hidden.items()}
        out = unequal(y_ND, module.down_proj(hidden[stated]))
    fits = [name for name in off if off[name] < ROUNDING]
    u, v, last = ("W1·x + b", "(W3·x + c)", " + b2") if made.bias else ("W1·x", "W3·x", "")
    text = {name: HIDDEN[name][0].format(u=u, v=v) for name in hidden}
    whole = [
        f"y = W2·({text[name]}){last}" if "⊙" in text[name] else f"y = W2·{text[name]}{last}"
        for name in fits
    ]
    holds = stated in fits and out < ROUNDING
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "The module's output is {that} of the equation: off by {off} of the largest value.",
            that=say("that" if holds else "not that"),
            off=f"{out:.1g}",
        ),
        correct=listed(whole, " or ") if fits else say("something else"),
        computation=(
            say(
                "d = {d}, m = {m}, {n} tokens, float64; matrices drawn at random",
                d=D_MODEL,
                m=D_FF,
                n=N_TOKENS,
            ),
            say(
                "matrices of the module: {shapes}",
                shapes=listed(
                    f"{name.removesuffix('.weight')} [{', '.join(map(str, weight.shape))}]"
                    for name, weight in module.named_parameters()
                    if weight.dim() > 1
                ),
            ),
            *(
                say(
                    "hidden vector against {equation}: off by {off}",
                    equation=text[name],
                    off=f"{by:.2g}",
                )
                for name, by in off.items()
            ),
            say("token {n}, first value: {steps}", n=0, steps=_first(seen[0], u_NM, v_NM, made)),
        ),
        values={"doubled": stated == "SwiGLU", "swish_fits": "Swish" in fits},
        witness=WITNESS,
    )


def _first(h_NM: Tensor, u_NM: Tensor, v_NM: Tensor, made: FeedForward) -> str:
    """Write how the first hidden value of the first token comes about."""
    h, u, v = (float(x[0, 0]) for x in (h_NM, u_NM, v_NM))
    act = float(activate(u_NM, made.activation, made.swish_beta)[0, 0])
    name = f"{made.activation}({u:.6f})"
    return f"{name}·{v:.6f} = {act:.6f}·{v:.6f} = {h:.6f}" if made.gated else f"{name} = {h:.6f}"


FORMS: dict[str, tuple[str, str, float, Callable[[Tensor], Tensor]]] = {
    "relu": ("max(0, x)", "relu", 1.0, lambda x: (x + x.abs()) / 2),
    "silu": ("x·σ(x)", "silu", 1.0, swish),
    "swish": ("x·σ(1.702·x)", "silu", 1.702, lambda x: x * sigmoid(1.702 * x)),
    "half": ("x·σ(0.5·x)", "silu", 0.5, lambda x: x * sigmoid(0.5 * x)),
}


def activation_forms(claim: Claim) -> Finding:
    """Judge whether activations of the modules are their formulas. Options: `forms`."""
    x = torch.arange(-6000, 6001, dtype=torch.float64) / 1000
    forms = [FORMS[name] for name in claim.options["forms"]]
    off = [unequal(activate(x, name, beta), form(x)) for _, name, beta, form in forms]
    torchs = unequal(activate(x, "silu", 1.0), nn.functional.silu(x))
    holds = bool(forms) and all(by < ROUNDING for by in off)
    most = max(off, default=0.0)
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "The module's activation is {that} of the formula, to {off}.",
            off=f"{most:.1g}",
            that=say("that" if holds else "not that"),
        ),
        correct=listed((text for text, *_ in forms), "; ") if holds else say("something else"),
        computation=(
            STEPS,
            *(
                say(
                    "{activation} against {formula}: at most {off}",
                    activation=name if name != "silu" else f"silu, β = {beta:g}",
                    formula=text,
                    off=f"{by:.1g}",
                )
                for (text, name, beta, _), by in zip(forms, off, strict=True)
            ),
            *(
                say(
                    "at x = {x}: {y}",
                    x=f"{at:g}",
                    y=f"{float(activate(torch.tensor(at).double(), name, beta)):.6f}",
                )
                for _, name, beta, _ in forms[:1]
                for at in (-2.0, 0.5, 2.0)
            ),
        ),
        values={"is_silu": torchs == 0, "beta": any(beta != 1.0 for _, _, beta, _ in forms)},
        witness=WITNESS,
    )


def gelu_forms(claim: Claim) -> Finding:
    """Judge whether GELU is x·Φ(x), and its tanh form near but not equal."""
    x = torch.arange(-6000, 6001, dtype=torch.float64) / 1000
    phi = torch.tensor(
        [(1 + math.erf(v / math.sqrt(2))) / 2 for v in x.tolist()], dtype=torch.float64
    )
    exact, near = activate(x, "gelu", 1.0), activate(x, "gelu_tanh", 1.0)
    off = largest(exact - x * phi)
    gap = (near - exact).abs()
    widest = float(x[gap.argmax()])
    holds = off < ROUNDING and 0 < largest(gap) < 1e-3
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "The module's GELU is x·Φ(x), to {off}; the tanh form is off by at most {gap}, at "
            "|x| = {x}.",
            off=f"{off:.0e}",
            gap=f"{largest(gap):.2e}",
            x=f"{abs(widest):.2f}",
        ),
        correct=say("x·Φ(x) with Φ(x) = (1 + erf(x/√2))/2"),
        computation=(
            STEPS,
            say("gelu against x·(1 + erf(x/√2))/2: at most {off}", off=f"{off:.0e}"),
            say(
                "gelu_tanh against gelu: at most {gap}, at x = {x}",
                gap=f"{largest(gap):.3e}",
                x=f"{widest:.3f}",
            ),
            say(
                "at x = 1: {exact} and {near}",
                exact=f"{float(exact[7000]):.9f}",
                near=f"{float(near[7000]):.9f}",
            ),
        ),
        values={},
        witness=WITNESS,
    )
