"""Claims that give a number for a part of a model: the formulas count it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from metacount.claims import labels
from metacount.claims.facts import computed, named
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import computation, model_of, percent, spec_of, value, words
from metacount.units import exact, relative

if TYPE_CHECKING:
    from collections.abc import Callable

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
    return f"The exact count is {exact(count)}; {label.text} is {apart(label.value, count)}."


def number(n: int | Fraction, written: Callable[[int], str] = exact) -> str:
    """A number that may be no whole one.

    >>> number(1234), number(Fraction(1, 3))
    ('1,234', '1/3')
    """
    return written(int(n)) if Fraction(n).denominator == 1 else str(n)


def apart(said: int | Fraction, count: int) -> str:
    """How far a number is from the exact one.

    >>> apart(7, 10), apart(1010, 10)
    ('3 too few', '1,000 too many')
    """
    return f"{number(abs(Fraction(said) - count))} too {'few' if said < count else 'many'}"


def count(claim: Claim) -> Finding:
    """A part of a model has so many parameters. Options: `part`, `also` (further parts to show).

    With `missing`, the name of a part whose absence may explain the difference. With `because`,
    what the statement gives as a reason has to hold too; with `checkpoint`, the published number of
    values in the checkpoint has to be the claimed one.
    """
    spec, label, options = spec_of(claim), labels.parse(claim.claimed), claim.options
    part = options["part"]
    found = value(spec, part)
    also = options.get("also", [])
    values: dict[str, Any] = {"claimed": claim.claimed, "found": found}
    holds = label.holds(found)
    shown = {name: computation(spec, name) for name in (part, *also)}
    lines = [f"{words(name)}: {steps}" if also else steps for name, steps in shown.items()]
    says = said_of(label, found)
    if "because" in options:
        reason = all(computed(text, named(claim)) is True for text in options["because"])
        values["reason_holds"] = reason
        holds = holds and reason
    if "missing" in options:
        values["missing"] = value(spec, options["missing"])
        values["missing_explains"] = label.value + values["missing"] == found
    published = _published(claim) if part == "params" else []
    if options.get("checkpoint"):
        stored = model_of(claim).stored_checkpoint
        values["stored_values"] = stored.total if stored else None
        if stored is None:
            published.append("how many values the checkpoint stores was not published")
        else:
            holds = holds and label.holds(stored.total)
            published.append(f"values in the checkpoint, as published: {exact(stored.total)}")
            says += f" The checkpoint holds {exact(stored.total)} values, as published"
            says += f": {exact(2 * stored.total)} bytes in bf16. The file was not read here."
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=says,
        correct=exact(found),
        computation=(*lines, *published),
        values=values,
        witness=f"{WITNESS}; catalog (published count)" if published else WITNESS,
        headline=shown[part],
    )


def _published(claim: Claim) -> list[str]:
    published = model_of(claim).published
    if published.params is None:
        return []
    return [f"published: {exact(published.params)}, {published.params_source}"]


def counts(claim: Claim) -> Finding:
    """Several parts have so many parameters each. Options: `parts`, by the name of each number."""
    spec = spec_of(claim)
    found = {name: value(spec, part) for name, part in claim.options["parts"].items()}
    said = {name: labels.parse(text) for name, text in claim.claimed.items()}
    holds = {name: said[name].holds(found[name]) for name in said}
    first, *others = found.values()
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
        values={**found, "more": relative(first - others[0], others[0])},
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
        values={},
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
    if label.step:
        told = [f"{words}: {exact(n)}, or {label.rounded(n)}" for words, n in found.items()]
    return Finding(
        verdict=WRONG if not holds else CONDITIONAL if fails else RIGHT,
        says=f"{told[0][0].upper()}{'; '.join(told)[1:]}.",
        correct="; ".join(f"{words}: {exact(n)}" for words, n in found.items()),
        computation=tuple(
            f"{words}: {computation(spec, part)}" for words, part in claim.options["parts"].items()
        ),
        values={},
        witness=WITNESS,
        condition=f"it means {' or '.join(holds)}",
    )
