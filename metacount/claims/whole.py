"""Formulas for a whole model: judged as `metacount check` judges anybody's."""

from __future__ import annotations

from metacount import catalog
from metacount.claims.counted import apart
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.units import exact, signed

VERDICTS = {
    "equal": RIGHT,
    "equal_where_tried": RIGHT,
    "equal_here": CONDITIONAL,
    "wrong": WRONG,
}


def whole_formula(claim: Claim) -> Finding:
    """A formula for a count of a model. Options: `formula`, `quantity`."""
    from metacount.judge import check
    from metacount.views.formula import in_letters

    assert claim.model is not None
    judged = check(claim.options["formula"], claim.model, quantity=claim.options["quantity"])
    name = catalog.entry(claim.model).name
    says = {
        "equal": "Equal for all sizes of such models.",
        "equal_where_tried": f"Equal at the sizes of {name} and at {judged.tried} others.",
        "equal_here": f"Equal at the sizes of {name}, not at others.",
        "wrong": f"For {name} it gives {exact(int(judged.theirs_value))}, "
        f"{apart(int(judged.theirs_value), judged.ours_value)}; "
        f"exact is {exact(judged.ours_value)}.",
    }[judged.verdict]
    lines = [
        f"exact: {in_letters(judged.ours)}",
        f"stated: {in_letters(judged.theirs)}",
        f"{name}: exact {exact(judged.ours_value)}, stated {exact(int(judged.theirs_value))}",
    ]
    missing = ""
    if judged.verdict == "wrong":
        missing = "; ".join(f"{term.words}: {signed(int(term.value))}" for term in judged.terms)
        lines.append(f"stated - exact = {in_letters(judged.difference)} = "
                     f"{signed(int(judged.difference_value))}")  # fmt: skip
        lines += [f"{term.words}: {signed(int(term.value))}" for term in judged.terms]
    return Finding(
        verdict=VERDICTS[judged.verdict],
        says=says,
        correct=in_letters(judged.ours),
        computation=tuple(lines),
        values={},
        witness="formula, by `check`",
        headline=missing,
    )
