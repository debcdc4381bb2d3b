"""Claims that give a number for a part of a model: the formulas count it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.claims import labels
from metacount.claims.facts import computed, named
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import computation, model_of, percent, spec_of, value, words
from metacount.claims.text import Said, Words, listed, say
from metacount.units import exact, relative

if TYPE_CHECKING:
    from collections.abc import Callable

WITNESS = say("formula")
TO_CATALOG = say("formula; catalog (published count)")


def said_of(label: labels.Label, count: int, of: Words = "") -> Said:
    """Write one sentence that compares a claimed number with the exact one,
    of a part where it is named.
    """
    known = say("The exact count of {part} is {exact}", part=of, exact=exact(count))
    if not of:
        known = say("The exact count is {exact}", exact=exact(count))
    if label.holds(count):
        if not label.step:
            return say("{known}.", known=known)
        return say("{known}, which rounds to {label}.", known=known, label=label.text)
    if label.step:
        return say(
            "{known}, which rounds to {shown}, not to {label}.",
            known=known,
            shown=label.rounded(count),
            label=label.text,
        )
    return say(
        "{known}; {label} is {apart}.",
        known=known,
        label=label.text,
        apart=apart(label.value, count),
    )


def number(n: int | Fraction, written: Callable[[int], str] = exact) -> str:
    """Format a number, which need not be whole.

    >>> number(1234), number(Fraction(1, 3))
    ('1,234', '1/3')
    """
    return written(int(n)) if Fraction(n).denominator == 1 else str(n)


def apart(said: int | Fraction, count: int) -> Said:
    """Say how far a number is from the exact one.

    >>> from metacount.claims.text import in_language
    >>> in_language(apart(7, 10), "en"), in_language(apart(1010, 10), "en")
    ('3 too few', '1,000 too many')
    """
    few = said < count
    return say(
        "{number} too few" if few else "{number} too many",
        number=number(abs(Fraction(said) - count)),
    )


def count(claim: Claim) -> Finding:
    """Judge whether a part of a model has so many parameters. Options:
    `part`, `also` (further parts to show).

    With `missing`, the name of a part whose absence may explain the difference. With `because`,
    what the statement gives as a reason has to hold too; with `checkpoint`, the published number of
    values in the checkpoint has to be the claimed one; where it is `values`, it is only said.
    """
    spec, label, options = spec_of(claim), labels.parse(claim.claimed), claim.options
    part = options["part"]
    found = value(spec, part)
    also = options.get("also", [])
    values: dict[str, object] = {"claimed": claim.claimed, "found": found}
    holds = label.holds(found)
    shown = {name: computation(spec, name) for name in (part, *also)}
    lines: list[Words] = [
        say("{part}: {steps}", part=say(words(name)), steps=steps) if also else steps
        for name, steps in shown.items()
    ]
    says: list[Words] = [said_of(label, found)]
    if "because" in options:
        reason = all(computed(text, named(claim)) is True for text in options["because"])
        values["reason_holds"] = reason
        holds = holds and reason
    if "missing" in options:
        missing = value(spec, options["missing"])
        values["missing"] = missing
        values["missing_explains"] = label.value + missing == found
    published = _published(claim) if part == "params" else []
    if options.get("checkpoint"):
        stored = model_of(claim).stored_checkpoint
        values["stored_values"] = stored.total if stored else None
        if stored is None:
            published.append(say("how many values the checkpoint stores was not published"))
        else:
            told = options["checkpoint"] == "values"
            holds = holds and (told or label.holds(stored.total))
            published.append(
                say("values in the checkpoint, as published: {n}", n=exact(stored.total))
            )
            says.append(_stored(stored.total, in_bytes=not told))
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=listed(says, " "),
        correct=exact(found),
        computation=(*lines, *published),
        values=values,
        witness=TO_CATALOG if published else WITNESS,
        headline=shown[part],
    )


def _stored(n_values: int, *, in_bytes: bool) -> Words:
    if not in_bytes:
        said = "The checkpoint holds {n} values, as published. The file was not read here."
        return say(said, n=exact(n_values))
    return say(
        "The checkpoint holds {n} values, as published: {bytes} bytes in bf16. The file was not "
        "read here.",
        n=exact(n_values),
        bytes=exact(2 * n_values),
    )


def _published(claim: Claim) -> list[Words]:
    published = model_of(claim).published
    if published.params is None:
        return []
    return [
        say(
            "published: {n}, {source}",
            n=exact(published.params),
            source=published.params_source or "",
        )
    ]


def counts(claim: Claim) -> Finding:
    """Judge whether several parts have so many parameters each. Options:
    `parts`, by the name of each number.
    """
    spec = spec_of(claim)
    found = {name: value(spec, part) for name, part in claim.options["parts"].items()}
    said = {name: labels.parse(text) for name, text in claim.claimed.items()}
    holds = {name: said[name].holds(found[name]) for name in said}
    first, *others = found.values()
    return Finding(
        verdict=RIGHT if all(holds.values()) else WRONG,
        says=listed((said_of(said[name], n, say(name)) for name, n in found.items()), " "),
        correct=listed(say("{part} {n}", part=say(name), n=exact(n)) for name, n in found.items()),
        computation=_computations(claim),
        values={**found, "more": relative(first - others[0], others[0])},
        witness=WITNESS,
    )


def _computations(claim: Claim) -> tuple[Words, ...]:
    """Write each of the claim's parts in letters and in numbers."""
    spec = spec_of(claim)
    return tuple(
        say("{part}: {steps}", part=say(name), steps=computation(spec, part))
        for name, part in claim.options["parts"].items()
    )


def shares(claim: Claim) -> Finding:
    """Judge whether parts make up such shares of a whole. Options: `parts` by name, `whole`."""
    spec, options = spec_of(claim), claim.options
    whole = value(spec, options["whole"])
    found = {name: Fraction(value(spec, part), whole) for name, part in options["parts"].items()}
    said = {name: labels.parse(text) for name, text in claim.claimed.items()}
    lines = [
        say(
            "{part}: {steps}",
            part=say(name),
            steps=f"{exact(value(spec, part))} / {exact(whole)} = {percent(found[name], 2)}",
        )
        for name, part in options["parts"].items()
    ]
    told: list[Words] = []
    for name, n in found.items():
        one = say(
            "{part} is {percent}, stated as {label}",
            part=say(name),
            percent=percent(n, 2),
            label=said[name].text,
        )
        holds = said[name].holds(n)
        told.append(
            one
            if holds
            else say("{said}: it rounds to {rounded}", said=one, rounded=said[name].rounded(n))
        )
    return Finding(
        verdict=RIGHT if all(said[name].holds(found[name]) for name in said) else WRONG,
        says=say("{told}.", told=listed(told, "; ")),
        correct=listed(
            say("{part} {n}", part=say(name), n=percent(n, 2)) for name, n in found.items()
        ),
        computation=tuple(lines),
        values={},
        witness=WITNESS,
    )


def readings(claim: Claim) -> Finding:
    """Judge a number that can be read in several ways. Options:
    `parts`, by the words of each reading.

    Right when it holds in all, conditional when in some, wrong when in none.
    """
    spec, label = spec_of(claim), labels.parse(claim.claimed)
    found = {words: value(spec, part) for words, part in claim.options["parts"].items()}
    holds = [words for words, n in found.items() if label.holds(n)]
    fails = [words for words in found if words not in holds]
    told = [say("{part}: {steps}", part=say(words), steps=exact(n)) for words, n in found.items()]
    both = told
    if label.step:
        both = [
            say("{said}, or {rounded}", said=one, rounded=label.rounded(n))
            for one, n in zip(told, found.values(), strict=True)
        ]
    return Finding(
        verdict=WRONG if not holds else CONDITIONAL if fails else RIGHT,
        says=say("{told}.", told=listed(both, "; ", capital=True)),
        correct=listed(told, "; "),
        computation=_computations(claim),
        values={},
        witness=WITNESS,
        condition=say("it means {readings}", readings=listed(map(say, holds), " or ")),
    )
