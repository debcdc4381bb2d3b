"""Claims that give a number for a part of a model: the formulas count it."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.claims import labels
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import computation, percent, spec_of, value, words
from metacount.units import exact, relative

WITNESS = "formula"


def said_of(label: labels.Label, count: int) -> str:
    """One sentence that lays a claimed number beside the exact one."""
    shown = label.rounded(count)
    if label.holds(count):
        return f"The exact count is {exact(count)}" + (
            "." if not label.step else f", which rounds to {label.text}."
        )
    if label.step:
        return f"The exact count is {exact(count)}, which rounds to {shown}, not to {label.text}."
    return f"The exact count is {exact(count)}; {label.text} is {apart(int(label.value), count)}."


def apart(said: int, count: int) -> str:
    """How far a number is from the exact one.

    >>> apart(7, 10), apart(1010, 10)
    ('3 too few', '1,000 too many')
    """
    return f"{exact(abs(said - count))} too {'few' if said < count else 'many'}"


def count(claim: Claim) -> Finding:
    """A part of a model has so many parameters. Options: `part`, `also` (further parts to show).

    With `missing`, the name of a part whose absence explains the difference: a wrong number that
    it does not explain gets no explanation.
    """
    spec, label = spec_of(claim), labels.parse(claim.claimed)
    part = claim.options["part"]
    found = value(spec, part)
    also = claim.options.get("also", [])
    values = {"exact": exact(found), "claimed": claim.claimed}
    values |= {name: exact(value(spec, name)) for name in also}
    says = said_of(label, found)
    shown = {name: computation(spec, name) for name in (part, *also)}
    lines = [f"{words(name)}: {steps}" if also else steps for name, steps in shown.items()]
    published = _published(claim) if part == "params" else []
    if missing := claim.options.get("missing"):
        explained = label.value + value(spec, missing) == found
        steps = f"{claim.claimed} + {exact(value(spec, missing))} = {exact(found)}"
        values["missing"] = (
            f"The difference is exactly that: {steps}." if explained else
            "The number claimed here differs by something else."
        )  # fmt: skip
    return Finding(
        verdict=RIGHT if label.holds(found) else WRONG,
        says=says,
        correct=exact(found),
        computation=(*lines, *published),
        values=values,
        witness=f"{WITNESS}; catalog (published count)" if published else WITNESS,
        headline=shown[part],
    )


def _published(claim: Claim) -> list[str]:
    assert claim.model is not None
    published = catalog.entry(claim.model).published
    if published.params is None:
        return []
    return [f"published: {exact(published.params)}, {published.params_source}"]


def counts(claim: Claim) -> Finding:
    """Several parts have so many parameters each. Options: `parts`, by the name of each number."""
    spec = spec_of(claim)
    found = {name: value(spec, part) for name, part in claim.options["parts"].items()}
    said = {name: labels.parse(text) for name, text in claim.claimed.items()}
    holds = {name: said[name].holds(found[name]) for name in said}
    values = {name: exact(n) for name, n in found.items()}
    first, *others = found.values()
    values["more"] = relative(first - others[0], others[0])
    return Finding(
        verdict=RIGHT if all(holds.values()) else WRONG,
        says=" ".join(
            f"{said_of(said[name], n).replace('count', f'count of {name}', 1)}"
            for name, n in found.items()
        ),
        correct=", ".join(f"{name} {exact(n)}" for name, n in found.items()),
        computation=tuple(
            f"{name}: {computation(spec, part)}" for name, part in claim.options["parts"].items()
        ),
        values=values,
        witness=WITNESS,
    )


def shares(claim: Claim) -> Finding:
    """Parts make up such shares of a whole. Options: `parts` by name, `whole`."""
    spec, options = spec_of(claim), claim.options
    whole = value(spec, options["whole"])
    found = {name: Fraction(value(spec, part), whole) for name, part in options["parts"].items()}
    said = {name: labels.parse(text) for name, text in claim.claimed.items()}
    lines = [
        f"{name}: {exact(value(spec, part))} / {exact(whole)} = {percent(found[name], 2)}"
        for name, part in options["parts"].items()
    ]
    told = [
        f"{name} is {percent(found[name], 2)}, stated as {said[name].text}"
        + ("" if said[name].holds(found[name]) else f": it rounds to {said[name].rounded(n)}")
        for name, n in found.items()
    ]
    return Finding(
        verdict=RIGHT if all(said[name].holds(found[name]) for name in said) else WRONG,
        says="; ".join(told) + ".",
        correct=", ".join(f"{name} {percent(n, 2)}" for name, n in found.items()),
        computation=tuple(lines),
        values={name: percent(n, 2) for name, n in found.items()},
        witness=WITNESS,
    )


def readings(claim: Claim) -> Finding:
    """A number that can be read in several ways. Options: `parts`, by the words of each reading.

    Right when it holds in all, conditional when in some, wrong when in none.
    """
    spec, label = spec_of(claim), labels.parse(claim.claimed)
    found = {words: value(spec, part) for words, part in claim.options["parts"].items()}
    holds = [words for words, n in found.items() if label.holds(n)]
    fails = [words for words in found if words not in holds]
    told = [f"{words}: {exact(n)}" for words, n in found.items()]
    return Finding(
        verdict=WRONG if not holds else CONDITIONAL if fails else RIGHT,
        says=f"{told[0][0].upper()}{'; '.join(told)[1:]}.",
        correct="; ".join(told),
        computation=tuple(
            f"{words}: {computation(spec, part)}" for words, part in claim.options["parts"].items()
        ),
        values={
            "holds": " or ".join(holds),
            "rounded": " or ".join(label.rounded(found[words]) for words in fails),
        },
        witness=WITNESS,
    )
