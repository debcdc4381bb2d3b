"""Claims about which tokens an output depends on: each is changed in turn, and modules run.

Small sizes, float64, fixed seed; equal means equal but for rounding, which is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from metacount.claims.finding import RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.executed.small import ROUNDING, WITNESS, normal, small
from metacount.claims.text import Words, listed, say
from metacount.modules.attention import Visibility
from metacount.modules.build import build
from metacount.modules.ffn import feed_forward
from metacount.modules.model import Model
from metacount.spec.ffn import FeedForward

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
    """Run a whole decoder from the vectors of its tokens to logits."""
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
    """Judge whether a changed token changes these outputs and no others.
    Options: `of`, `reaches`.
    """
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
