"""What a judgement rests on: a textbook formula, and what is recorded of it beside code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.textbook.count import count
from metacount.textbook.proven import CODE, SHOWN, proven_of, sizes_text

if TYPE_CHECKING:
    from metacount.resolve import Model
    from metacount.spec import Workload
    from metacount.textbook.proven import Against, Said


def rests_on(model: Model, workload: Workload, quantity: str) -> str:
    """Say which formula stands on the model's side, and what was shown of it beside which code.

    >>> from metacount.resolve import find_model
    >>> from metacount.spec import Workload
    >>> rests_on(find_model("llama-7b"), Workload(), "no such quantity")
    'our textbook formula alone: nothing is recorded of it beside code'
    """
    found = proven_of(model, count(model.spec, workload))
    sides = () if found is None else (found.code, found.ours)
    said = [_of(side, quantity, found.small) for side in sides if found is not None]
    known = [text for text in said if text]
    return "our textbook formula" + (
        ", " + "; ".join(known) if known else " alone: nothing is recorded of it beside code"
    )


def _of(against: Against | None, quantity: str, small: tuple[str, ...]) -> str:
    if against is None:
        return ""
    code = "our reference modules"
    if against.side == CODE:
        code = f"transformers' code of {against.name}"
    one = next((one for one in against.said if one.quantity == quantity), None)
    return "" if one is None else _in_words(one, code, small)


def _in_words(one: Said, code: str, small: tuple[str, ...]) -> str:
    domain = f"for {sizes_text(one.where, small, SHOWN)}"
    if one.verdict == "equal":
        return f"proven equal to {code} {domain}"
    if one.verdict == "chosen":
        return (
            f"equal to {code} for the experts that a token chose, {domain}; that code runs "
            f"{one.text} more FLOPs"
        )
    if one.verdict == "differs":
        return f"not what {code} computes: the formula less the code is {one.text}"
    return f"not proven against {code} at these sizes: {one.text}"
