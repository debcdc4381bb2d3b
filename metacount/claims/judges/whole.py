"""Formulas for a whole model: judged as `metacount check` judges anybody's."""

from __future__ import annotations

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import apart, number
from metacount.claims.parts import model_of
from metacount.units import exact, signed

VERDICTS = {
    "equal": RIGHT,
    "equal_where_tried": RIGHT,
    "equal_here": CONDITIONAL,
    "wrong": WRONG,
}


def whole_formula(claim: Claim) -> Finding:
    """A formula for a count of a model. Options: `formula`, `quantity`."""
    from metacount.algebra.writing import in_letters
    from metacount.check import check

    entry = model_of(claim)
    judged = check(claim.options["formula"], entry.id, quantity=claim.options["quantity"])
    name = entry.name
    says = {
        "equal": "Equal for all sizes of such models.",
        "equal_where_tried": f"Equal at the sizes of {name} and at {judged.tried} others.",
        "equal_here": f"Equal at the sizes of {name}, not at others.",
        "wrong": f"For {name} it gives {number(judged.theirs_value)}, "
        f"{apart(judged.theirs_value, judged.ours_value)}; exact is {exact(judged.ours_value)}.",
    }[judged.verdict]
    lines = [
        f"exact: {in_letters(judged.ours)}",
        f"stated: {in_letters(judged.theirs)}",
        f"{name}: exact {exact(judged.ours_value)}, stated {number(judged.theirs_value)}",
    ]
    missing = ""
    if judged.verdict == "wrong":
        terms = [f"{term.words}: {number(term.value, signed)}" for term in judged.terms]
        missing = "; ".join(terms)
        lines.append(f"stated - exact = {in_letters(judged.difference)} = "
                     f"{number(judged.difference_value, signed)}")  # fmt: skip
        lines += terms
    return Finding(
        verdict=VERDICTS[judged.verdict],
        says=says,
        correct=in_letters(judged.ours),
        computation=tuple(lines),
        values={"one_cause": len(judged.terms) == 1 and judged.terms[0].known},
        witness="formula, by `check`",
        headline=missing,
        condition=judged.condition or f"the sizes are those of {name}",
    )
