"""Formulas for a whole model: judged as `metacount check` judges anybody's."""

from __future__ import annotations

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import apart, number
from metacount.claims.parts import model_of
from metacount.claims.text import Words, listed, say
from metacount.units import exact, signed

VERDICTS = {
    "equal": RIGHT,
    "equal_where_tried": RIGHT,
    "equal_here": CONDITIONAL,
    "wrong": WRONG,
}


def whole_formula(claim: Claim) -> Finding:
    """Judge a formula for a count of a model. Options: `formula`, `quantity`."""
    from metacount.algebra.writing import in_letters
    from metacount.check import check

    entry = model_of(claim)
    judged = check(claim.options["formula"], entry.id, quantity=claim.options["quantity"])
    name = entry.name
    says = {
        "equal": say("Equal for all sizes of such models."),
        "equal_where_tried": say(
            "Equal at the sizes of {model} and at {n} others.", model=name, n=judged.tried
        ),
        "equal_here": say("Equal at the sizes of {model}, not at others.", model=name),
        "wrong": say(
            "For {model} it gives {stated}, {apart}; exact is {exact}.",
            model=name,
            stated=number(judged.theirs_value),
            exact=exact(judged.ours_value),
            apart=apart(judged.theirs_value, judged.ours_value),
        ),
    }[judged.verdict]
    lines: list[Words] = [
        say("exact: {formula}", formula=in_letters(judged.ours)),
        say("stated: {formula}", formula=in_letters(judged.theirs)),
        say(
            "{model}: exact {exact}, stated {stated}",
            model=name,
            exact=exact(judged.ours_value),
            stated=number(judged.theirs_value),
        ),
    ]
    missing: Words = ""
    if judged.verdict == "wrong":
        # the words of `check` for a part that explains a difference
        terms = [
            say("{part}: {steps}", part=say(term.words), steps=number(term.value, signed))
            for term in judged.terms
        ]
        missing = listed(terms, "; ")
        difference = in_letters(judged.difference)
        lines.append(
            say(
                "stated - exact = {steps}",
                steps=f"{difference} = {number(judged.difference_value, signed)}",
            )
        )
        lines += terms
    return Finding(
        verdict=VERDICTS[judged.verdict],
        says=says,
        correct=in_letters(judged.ours),
        computation=tuple(lines),
        values={"one_cause": len(judged.terms) == 1 and judged.terms[0].known},
        witness=say("formula, by `check`"),
        headline=missing,
        condition=judged.condition or say("the sizes are those of {model}", model=name),
    )
