"""The order of computation in a GPT: shapes of a real run, causality, decoding step by step."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from metacount.flow.run import flow
from metacount.spec import ModelSpec
from metacount.teaching.counts import short
from metacount.teaching.experiments.modules import made
from metacount.units import exact

if TYPE_CHECKING:
    from metacount.flow.steps import Step
    from metacount.resolve import Model

# sizes of the small model, those that the model has
SMALL = {
    "head_dim": 6,
    "d_ff": 20,
    "d_ff_expert": 10,
    "n_experts": 4,
    "d_ff_shared": 8,
    "n_positions": 40,
    "window": 64,
    "n_groups": 2,
    "top_groups": 1,
    "rotary_dim": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
}


def steps(model: Model) -> list[list[str]]:
    """List the steps of a forward in the order of a run on meta: equation, shape, parameters."""
    rows: list[list[str]] = []
    _add(flow(model, reference=True).steps, rows)
    return rows


def _add(ran: tuple[Step, ...], rows: list[list[str]]) -> None:
    for step in ran:
        if step.name.startswith("layers."):
            like = f" = {step.like}" if step.like is not None else ""
            rows.append([f"{step.name}{like}:", "", f"×{step.times}", ""])
        equation = short(step.equation)
        if equation and step.outputs:
            letters = step.output_letters[0] if step.output_letters else ()
            shape = "×".join(map(str, step.outputs[0]))
            own = exact(step.params) if step.params else ""
            named = ", ".join(map(str, letters)).replace(" + ", "+")
            rows.append([equation, f"[{named}]", shape, own])
        _add(step.inside, rows)


def small(spec: ModelSpec) -> ModelSpec:
    """Shrink a model to one of the same structure, each kind of block in it, that runs at once."""
    fewest = max(spec.n_dense_layers + 1, spec.moe_every or 1, 1)
    sizes = {"d_model": 24, "n_heads": 4, "vocab_size": 31}
    sizes["n_layers"] = min(spec.n_layers, fewest) + 1
    sizes |= {name: n for name, n in SMALL.items() if getattr(spec, name)}
    if spec.n_kv_heads:
        sizes["n_kv_heads"] = {spec.n_heads: 4, 1: 1}.get(spec.n_kv_heads, 2)
    if spec.is_moe:
        sizes["top_k"] = min(spec.top_k, 2)
    return spec.replace(**sizes)


@cache
def decoded(spec: ModelSpec, prompt: int, more: int) -> dict[str, object]:
    """Run a prompt at once, then token by token with a cache, beside a forward of everything.

    Returns: the steps as rows; `off`, how far they are from that forward; `ahead`, the largest
    difference that another last token makes to earlier logits.
    """
    model = made(spec)
    tokens = torch.arange(prompt + more).remainder(spec.vocab_size)[None]
    rows, worst, start = [], 0.0, 0
    with torch.no_grad():
        at_once = model(tokens).logits_BSV
        cache_ = model.new_cache()
        for end in range(prompt, prompt + more + 1):
            logits = model(tokens[:, start:end], cache=cache_).logits_BSV
            worst = max(worst, float((logits - at_once[:, start:end]).abs().max()))
            values = sum(t.numel() for t in cache_.tensors())
            sizes = end, list(tokens[:, start:end].shape), list(logits.shape), values
            rows.append([str(size) for size in sizes])
            start = end
        changed = tokens.clone()
        changed[0, -1] = (changed[0, -1] + 1) % spec.vocab_size
        moves = (at_once - model(changed).logits_BSV).abs()
    if float(moves[:, -1].max()) < 1e-3:
        raise AssertionError("another token made no difference: nothing was tried")
    if worst > 1e-9:
        raise AssertionError(f"decoding with a cache is off by {worst}")
    return {"rows": rows, "off": worst, "ahead": float(moves[:, :-1].max())}
