"""Claims about positions, activations and softmax: the reference modules run on CPU.

Small sizes, float64, fixed seed; equal means equal but for rounding, which is printed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from metacount import catalog
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.routing import ROUNDING, largest
from metacount.claims.text import Words, listed, say
from metacount.measure.ours.params import measure_params
from metacount.measure.torch_private import TorchDispatchMode
from metacount.modules import apply_rope
from metacount.modules.build import build
from metacount.modules.ffn import activate
from metacount.spec import ModelSpec

WITNESS = say("reference modules, run")
STEPS = say("x from -6 to 6 in steps of 0.001, float64")
SMALL = {"n_layers": 2, "d_model": 24, "n_heads": 3, "vocab_size": 31}


def small(id: str, **sizes: Any) -> ModelSpec:
    """A model of the catalog with small sizes."""
    return catalog.entry(id).spec().replace(**{**SMALL, **sizes})


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normally distributed values in float64, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class _Softmaxes(TorchDispatchMode):
    """Counts softmaxes by the class of the module that runs them."""

    def __init__(self, model: nn.Module) -> None:
        TorchDispatchMode.__init__(self)
        self.found: dict[str, int] = {}
        self.running: list[str] = []
        for module in model.modules():
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave)

    def _enter(self, module: nn.Module, _: Any) -> None:
        self.running.append(type(module).__name__)

    def _leave(self, *_: Any) -> None:
        self.running.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten._softmax:
            place = self.running[-1]
            self.found[place] = self.found.get(place, 0) + 1
        return func(*args, **(kwargs or {}))


def softmax_places(claim: Claim) -> Finding:
    """Softmax is run by the attention and nowhere else before the logits."""
    experts = {"n_experts": 4, "top_k": 2, "d_ff_expert": 8}
    heads = {"n_kv_heads": 3, "head_dim": 8}
    latent = {
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 4,
        "d_ff": 16,
        "n_dense_layers": 1,
        "n_groups": 2,
        "top_groups": 1,
    }
    models = {
        "a dense model (LLaMA)": small("llama-7b", d_ff=16, **heads),
        "a softmax router (Mixtral)": small("mixtral-8x7b", **experts, **heads),
        "a sigmoid router (DeepSeek-V3)": small("deepseek-v3", **experts, **latent),
    }
    holds: dict[str, bool] = {}
    lines: list[Words] = []
    places: set[str] = set()
    at_output: list[bool] = []
    for name, spec in models.items():
        model = build(spec, device="cpu", dtype="fp64", seed=0)
        with torch.no_grad(), _Softmaxes(model) as seen:
            model(torch.arange(5)[None])
        holds[name] = seen.found.keys() <= {"ScaledDotProduct"} and bool(seen.found)
        places |= seen.found.keys()
        told = [f"{place} {n}" for place, n in sorted(seen.found.items())]
        lines.append(
            say(
                "{model}, 2 layers: softmax in {places}",
                model=say(name),
                places=listed(told or [say("no module")]),
            )
        )
        at_output.append("ScaledDotProduct" not in seen.found)
    yes = [say(name) for name, held in holds.items() if held]
    no = [say(name) for name, held in holds.items() if not held]
    none = [say("none")]
    return Finding(
        verdict=RIGHT if not no else CONDITIONAL if yes else WRONG,
        says=say(
            "Holds for {yes}. Fails for {no}.",
            yes=listed(yes or none, "; "),
            no=listed(no or none, "; "),
        ),
        correct=listed([say("attention"), *([say("router")] if no else [])], "; "),
        computation=tuple(lines),
        values={
            "in_router": any("Router" in place for place in places),
            "at_output": any(at_output),
        },
        witness=WITNESS,
        condition=say("no other part of the model runs one, as in {yes}", yes=listed(yes, "; ")),
    )


def gelu_forms(claim: Claim) -> Finding:
    """GELU is x·Φ(x); the tanh form is near, not equal."""
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


def position_params(claim: Claim) -> Finding:
    """A kind of position adds no parameters to a model without any. Options: `position`."""
    kinds = ("none", "alibi", "rope", "sinusoidal", "learned")
    heads = {"n_kv_heads": 3, "head_dim": 8, "d_ff": 16}
    counts = {}
    for kind in kinds:
        rows = 50 if kind == "learned" else None
        counts[kind] = measure_params(
            build(small("llama-7b", **heads, position=kind, n_positions=rows))
        ).params
    added = counts[claim.options["position"]] - counts["none"]
    return Finding(
        verdict=RIGHT if added == 0 else WRONG,
        says=say(
            "The same model has {none} parameters without positions and {with_them} with them.",
            none=f"{counts['none']:,}",
            with_them=f"{counts[claim.options['position']]:,}",
        ),
        correct=say("{n} parameters", n=f"{added:,}"),
        computation=(
            say("2 layers, d = 24, 50 positions; parameters of the module on the meta device"),
            *(f"{kind}: {n:,} ({n - counts['none']:+,})" for kind, n in counts.items()),
        ),
        values={kind: n - counts["none"] for kind, n in counts.items()},
        witness=say("reference modules, measured"),
    )


def rope_shift(claim: Claim) -> Finding:
    """Scores of rotated queries and keys stay the same when both positions move."""
    head_dim, shifts = 16, (0, 1, 10, 1000, 100_000)
    q, k = normal(1, 1, 1, head_dim), normal(1, 1, 1, head_dim, seed=1)

    def score(i: int, j: int, dtype: torch.dtype = torch.float64) -> float:
        turned = [
            apply_rope(
                x.to(dtype), torch.tensor([at]), rotary_dim=head_dim, theta=10000.0, style="half"
            )
            for x, at in ((q, i), (k, j))
        ]
        return float((turned[0] * turned[1]).sum())

    lines: list[Words] = []
    means: list[float] = []
    spread = 0.0
    for distance in (0, 3, 7):
        scores = [score(j + distance, j) for j in shifts]
        means.append(scores[0])
        spread = max(spread, max(scores) - min(scores))
        lines.append(f"i - j = {distance}: {', '.join(f'{s:.9f}' for s in scores)}")
    between = max(means) - min(means)
    single = [score(j + 3, j, torch.float32) for j in shifts]
    coarse = max(single) - min(single)
    # angles of up to 100,000 have an absolute rounding error of 1e-11 in float64
    holds = spread < 1e-9 and between > 1e-3
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "Moved by up to {most} positions, scores change by at most {spread}; another "
            "distance changes them by up to {between}.",
            most=f"{max(shifts):,}",
            spread=f"{spread:.0e}",
            between=f"{between:.2g}",
        ),
        correct=say("a function of i - j" if holds else "not a function of i - j alone"),
        computation=(
            say(
                "one head of width {width}, float64; j = {shifts}",
                width=head_dim,
                shifts=", ".join(f"{j:,}" for j in shifts),
            ),
            *lines,
            say("i - j = 3 in float32: {scores}", scores=", ".join(f"{s:.6f}" for s in single)),
            say(
                "one pair of columns as a complex number, ι² = -1: {equation}",
                equation="q·e^(ι·i·θ)·conj(k·e^(ι·j·θ)) = q·conj(k)·e^(ι·(i - j)·θ)",
            ),
        ),
        values={"coarse": f"{coarse:.0e}", "grows": coarse > spread},
        witness=WITNESS,
    )
