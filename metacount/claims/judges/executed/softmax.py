"""Claims about where a model runs a softmax: the operators of reference modules say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.executed.small import WITNESS, small
from metacount.claims.text import Words, listed, say
from metacount.measure.torch_private import DispatchMode
from metacount.modules.build import build

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload


class _Softmaxes(DispatchMode):
    """Counts softmaxes by the class of the module that runs them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, int] = {}
        self.running: list[str] = []
        for module in model.modules():
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave)

    def _enter(self, module: nn.Module, _: object) -> None:
        self.running.append(type(module).__name__)

    def _leave(self, *_: object) -> None:
        self.running.pop()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func.overloadpacket is torch.ops.aten._softmax:
            place = self.running[-1]
            self.found[place] = self.found.get(place, 0) + 1
        return func(*args, **(kwargs or {}))


def softmax_places(claim: Claim) -> Finding:
    """Judge whether softmax is run by the attention and nowhere else before the logits."""
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
