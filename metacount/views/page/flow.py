"""The forward in execution order as HTML to expand: each step with its equation and shapes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from metacount import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json

OPEN_DEPTH = 2  # modules whose steps stand open at first


def flow_html(flow: Json) -> str:
    """Render the steps of a flow, as its `to_dict` gives them, and their sum."""
    steps = "".join(_step(step, 0) for step in flow["steps"])
    total = f"{units.exact(flow['params'])} parameters, {units.exact(flow['matmul_flops'])} FLOPs"
    notes = "".join(f'<p class="faint">{escape(note)}</p>' for note in flow["notes"])
    return f'<div class="tree flow">{steps}</div><p>In all {total}.</p>{notes}'


def _step(step: Json, depth: int) -> str:
    times = f" ×{step['times']}" if step["times"] > 1 else ""
    name = f"<b>{escape(step['name'] + times)}</b> " if step["name"] else ""
    line = name + _said(step) + _figures(step)
    if not step["steps"] or step["like"]:
        return f'<div class="leaf">{line}{_shapes(step)}</div>'
    inner = "".join(_step(one, depth + 1) for one in step["steps"])
    opened = " open" if depth < OPEN_DEPTH else ""
    return f"<details{opened}><summary>{line}</summary>{inner}</details>"


def _said(step: Json) -> str:
    """Choose the equation; else the step that is repeated, or the module or what ran in it."""
    if step["like"]:
        return escape(f"as {step['like']}")
    if step["equation"]:
        return f"<code>{escape(step['equation'])}</code>"
    if step["steps"]:
        return f'<span class="faint">{escape(step["module"])}</span>'
    return escape(step["module"] or " ".join(step["operators"]) or "reshaped")


def _figures(step: Json) -> str:
    """Write parameters and FLOPs, of one repetition; FLOPs in letters too where they are known."""
    found = [f"{units.short(step['params'])} parameters"] if step["params"] else []
    found += [units.flops(step["matmul_flops"])] if step["matmul_flops"] else []
    letters = step["matmul_flops_letters"]
    found += [letters] if letters and step["matmul_flops"] and not step["steps"] else []
    text = escape(", ".join(found))
    return f' <span class="n faint">{text}</span>' if found else ""


def _shapes(step: Json) -> str:
    """Write inputs and outputs, in letters and in numbers; once where all are of one shape."""
    sides = [step["inputs"], step["outputs"]]
    if not step["inputs"] or all(one == step["outputs"][0] for side in sides for one in side):
        sides = [step["outputs"][:1]]
    letters = " → ".join(_all(side, "letters") for side in sides)
    numbers = " → ".join(_all(side, "shape") for side in sides)
    text = letters if letters == numbers else f"{letters} = {numbers}"
    return f'<div class="faint shape">{escape(text)}</div>' if text else ""


def _all(shapes: Sequence[Json], kind: str) -> str:
    return "; ".join(
        "["
        + ", ".join(
            str(n if term is None else term)
            for n, term in zip(one["shape"], one[kind], strict=True)
        )
        + "]"
        for one in shapes
    )
