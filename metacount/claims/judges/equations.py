"""Claims that are equations: the reference modules run beside them, written out in plain torch.

Small sizes, float64, fixed seed; equal means equal but for rounding, which is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn

from metacount.claims.finding import RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.routing import D_FF, D_MODEL, N_TOKENS, ROUNDING, unequal
from metacount.claims.judges.running import STEPS, WITNESS, normal, small
from metacount.claims.text import Words, listed, say
from metacount.modules.attention import Visibility
from metacount.modules.build import build
from metacount.modules.ffn import activate, feed_forward
from metacount.modules.model import Model
from metacount.modules.position import sinusoid
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
    """A feed-forward computes an equation. Options: `activation`, `gated`, `bias`; `stated`.

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
    """How the first hidden value of the first token comes about."""
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
    """An activation of the modules is its formula. Options: `forms`."""
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


def sinusoids(claim: Claim) -> Finding:
    """The table of positions is sin and cos of pos/10000^(2i/d). Options: `style` of the table."""
    d, positions = 16, (0, 1, 2, 50, 1000)
    at = torch.tensor(positions)
    stated = torch.tensor(
        [
            [(math.sin, math.cos)[c % 2](p / 10000 ** ((c - c % 2) / d)) for c in range(d)]
            for p in positions
        ],
        dtype=torch.float64,
    )
    tables = {style: sinusoid(at, d, style=style) for style in ("alternating", "halves")}
    off = {style: unequal(table, stated) for style, table in tables.items()}
    # the same waves, all sines before all cosines
    moved = unequal(tables["halves"], torch.cat((stated[:, 0::2], stated[:, 1::2]), dim=-1))
    halves = torch.tensor(
        [
            [
                wave(p / 10000 ** (i / (d // 2 - 1)))
                for wave in (math.sin, math.cos)
                for i in range(d // 2)
            ]
            for p in positions
        ],
        dtype=torch.float64,
    )
    own = unequal(tables["halves"], halves)
    by = off[claim.options["style"]]
    holds = by < ROUNDING  # sin of 1,000 radians has a rounding error of 1e-13 in float64
    rows: tuple[Words, ...] = tuple(
        say(
            "position {p}, columns 0 to 3: {values}",
            p=p,
            values=", ".join(f"{v:.6f}" for v in tables["alternating"][n, :4].tolist()),
        )
        for n, p in enumerate(positions)
    )
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "At {n} positions up to {most} and d = {d} the module's table is {that} of the "
            "formula, to {off}.",
            n=len(positions),
            most=f"{positions[-1]:,}",
            d=d,
            that=say("that" if holds else "not that"),
            off=f"{by:.1g}",
        ),
        correct=say("as stated" if holds else "something else"),
        computation=(
            *rows,
            say(
                "sines and cosines by turns, against the formula: off by {off}",
                off=f"{off['alternating']:.1g}",
            ),
            say(
                "all sines before all cosines, against the formula: off by {off}; with its columns "
                "in that order: off by {moved}",
                off=f"{off['halves']:.2g}",
                moved=f"{moved:.2g}",
            ),
            say(
                "all sines before all cosines, against {formula}: off by {off}",
                formula="10000^(i/(d/2 - 1))",
                off=f"{own:.1g}",
            ),
        ),
        values={
            "halves_differ": moved > ROUNDING,
            "halves_own": own < ROUNDING,
            "moved": f"{moved:.2g}",
        },
        witness=WITNESS,
    )


N_PLACES = 5


def _ffn(x_SD: Tensor) -> Tensor:
    made = FeedForward(activation="silu", gated=True, d_ff=16)
    module = feed_forward(made, x_SD.shape[-1]).double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=seed + 1))
        y_SD: Tensor = module(x_SD)
    return y_SD


@lru_cache
def _decoder() -> Model:
    spec = small("llama-7b", n_kv_heads=3, head_dim=8, d_ff=16)
    return build(spec, device="cpu", dtype="fp64", seed=0)


def _attention(kind: str) -> Callable[[Tensor], Tensor]:
    def run(x_SD: Tensor) -> Tensor:
        attention = _decoder().last_stack.blocks[0].get_submodule("self_attn")
        sees = Visibility(n_queries=len(x_SD), n_keys=len(x_SD), kind=kind)
        with torch.no_grad():
            y_SD: Tensor = attention(x_SD[None], sees)[0]
        return y_SD

    return run


def _model(x_SD: Tensor) -> Tensor:
    """A whole decoder from the vectors of its tokens to logits."""
    model, tokens = _decoder(), torch.arange(len(x_SD))
    assert model.embed_tokens is not None
    with torch.no_grad():
        model.embed_tokens.weight[tokens] = x_SD
        out = model(tokens[None])
    y_SV: Tensor = out.logits_BSV[0]
    return y_SV


RUNS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "ffn": ("feed-forward", _ffn),
    "causal": ("attention with a causal mask", _attention("causal")),
    "open": ("attention without a mask", _attention("bidirectional")),
    "model": ("a whole decoder", _model),
}
REACHES: dict[str, Callable[[int], set[int]]] = {
    "itself": lambda t: {t},
    "itself and later": lambda t: set(range(t, N_PLACES)),
}


def reach(claim: Claim) -> Finding:
    """A changed token changes these outputs and no others. Options: `of`, `reaches`."""
    options = claim.options
    before_SD, other_SD = normal(N_PLACES, 24), normal(N_PLACES, 24, seed=1)
    changed: dict[str, list[set[int]]] = {}
    least: dict[str, float] = {}
    for name, (_, run) in RUNS.items():
        y_SD = run(before_SD)
        moves = []
        for t in range(N_PLACES):
            x_SD = before_SD.clone()
            x_SD[t] = other_SD[t]
            moves.append((run(x_SD) - y_SD).abs().amax(-1) / y_SD.abs().max())
        changed[name] = [
            {s for s, by in enumerate(move.tolist()) if by > ROUNDING} for move in moves
        ]
        least[name] = max([float(by) for move in moves for by in move if by <= ROUNDING] or [0.0])
    expected = [REACHES[options["reaches"]](t) for t in range(N_PLACES)]
    holds = changed[options["of"]] == expected
    fits = {
        name: [r for r, of in REACHES.items() if found == [of(t) for t in range(N_PLACES)]]
        for name, found in changed.items()
    }
    lines: list[Words] = [
        say("{n} tokens, float64, seed 0; each token changed in turn", n=N_PLACES)
    ]
    for name, found in changed.items():
        told = listed(
            (
                say("token {t} changes {outputs}", t=t, outputs=", ".join(map(str, sorted(moved))))
                for t, moved in enumerate(found)
            ),
            "; ",
        )
        lines.append(say("{part}: {steps}", part=say(RUNS[name][0]), steps=told))
    does = say(CHANGES[(fits[options["of"]] or ["others"])[0]])
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "Each of {n} tokens is changed in turn: {which}. The others move by at most {least}.",
            n=N_PLACES,
            least=f"{least[options['of']]:.1g}",
            which=does,
        ),
        correct=does,
        computation=tuple(lines),
        values={
            "causal_later": fits["causal"] == ["itself and later"],
            "open_all": changed["open"] == [set(range(N_PLACES))] * N_PLACES,
        },
        witness=WITNESS,
    )


CHANGES = {
    "itself": "its own output changes, and no other",
    "itself and later": "its own output and all later ones change, and no earlier one",
    "others": "other outputs change than stated",
}
