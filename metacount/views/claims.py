"""Verdicts on statements as text: a list by topic, or one with the whole computation behind it."""

from __future__ import annotations

import re

from metacount.views.layout import WIDEST_TEXT, bold, cells, columns, dim, wrapped
from metacount.views.tables import Table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.teaching.claim import Verdict

GLUE = "\0"
# a letter of the legend beside a sign of a formula: not the s of "one's"
NAME = r"[A-Za-z](?:_(?:[a-z]+|I))?(?![A-Za-z0-9_])"
LETTER = re.compile(rf"(?<![\w']){NAME}(?=[·²)]| [-+=/] )|(?<=[·(]){NAME}")
INDENT = "  "


def verdicts_text(verdicts: Sequence[Verdict], lang: str = "en") -> str:
    """Write every statement with its verdict and the reason, by topic; then how many of each."""
    from metacount.teaching.claim import VERDICTS
    from metacount.teaching.texts import in_language, listed, say

    width = min(columns(), WIDEST_TEXT)
    lines: list[str] = []
    topic = ""
    for verdict in verdicts:
        if verdict.claim.topic != topic:
            topic = verdict.claim.topic
            lines += [bold(_topic(topic, lang)), ""]
        lines += [*_listed(verdict, width), ""]
    found = [verdict.verdict for verdict in verdicts]
    counts = listed(
        say("{n} {verdict}", n=found.count(name), verdict=say(name))
        for name in VERDICTS
        if name in found
    )
    n = len(verdicts)
    some = "{n} statement" if n == 1 else "{n} statements"
    ended = say(f"{some}: {{counts}}", n=n, counts=counts) if n else say(some, n=n)
    lines.append(bold(in_language(ended, lang)))
    if n:
        closing = say(
            "A rounded number is right when the exact one rounds to it. Conditional: it "
            "holds in some of the cases that it is said of, and not in others. A "
            "statement with a false part is wrong. Whole computation: metacount claims "
            "{id}",
            id=verdicts[0].claim.id,
        )
        lines += wrapped(in_language(closing, lang), width)
        lines += _letters(verdicts, width)
    return "\n".join(lines) + "\n"


def _topic(topic: str, lang: str) -> str:
    from metacount.teaching.texts import translated

    return topic.upper() if lang == "en" else translated(f"topic:{topic}", lang)


def verdicts_table(verdicts: Sequence[Verdict], lang: str = "en") -> Table:
    """Tabulate every statement with its verdict: what was said, what is right, and why."""
    from metacount.teaching.texts import translated

    heads = ("claim", "topic", "statement", "verdict", "condition", "correct", "reason")
    rows = tuple(
        (
            v.claim.id,
            v.claim.topic,
            v.statement,
            translated(v.verdict, lang),
            v.condition or "",
            v.correct,
            v.reason,
        )
        for v in verdicts
    )
    told = tuple(translated(head, lang) for head in heads)
    return Table(heads=told, rows=rows, align="<" * len(heads))


def _letters(verdicts: Sequence[Verdict], width: int) -> list[str]:
    """Say what the letters in formulas stand for."""
    from metacount.spec.legend import MODEL_TERMS
    from metacount.teaching.texts import in_language, listed, say

    used = {
        letter
        for verdict in verdicts
        if verdict.claim.model is not None
        for text in (verdict.statement, verdict.reason, verdict.correct, *verdict.computation)
        for letter in LETTER.findall(text)
    }
    terms = [
        say("{letter} {meaning}", letter=t.letter, meaning=say(t.meaning))
        for t in MODEL_TERMS
        if t.letter in used
    ]
    if not terms:
        return []
    told = say("Letters: {terms}.", terms=listed(terms, "; "))
    return prose(in_language(told, verdicts[0].lang), width)


def _listed(verdict: Verdict, width: int) -> list[str]:
    from metacount.teaching.texts import in_language, listed, say, translated

    room = width - len(INDENT)
    word = translated(verdict.verdict, verdict.lang)
    hang = cells(word) + len(INDENT)
    # the condition is the first thing to know about a verdict that has one
    told = [say("if {condition}.", condition=verdict.condition)] if verdict.condition else []
    reason = prose(in_language(listed([*told, verdict.reason], " "), verdict.lang), room - hang)
    step = broken(verdict.headline, room - hang) if verdict.headline else []
    first, *rest = [*reason, *map(dim, step)]
    lines = [dim(verdict.claim.id), *prose(verdict.statement, room)]
    lines += [f"{bold(word)}{INDENT}{first}", *(" " * hang + line for line in rest)]
    return [INDENT + line for line in lines]


def verdict_text(verdict: Verdict) -> str:
    """Write one statement with everything that was computed about it."""
    from metacount.spec.model import FIELDS
    from metacount.teaching.texts import in_language, listed, say, translated

    claim, lang = verdict.claim, verdict.lang
    width = min(columns(), WIDEST_TEXT)
    topic = f"({claim.topic})" if lang == "en" else _topic(claim.topic, lang)
    lines = [f"{bold(claim.id)}  {topic}", *prose(verdict.statement, width), ""]
    stated = claim.stated
    if isinstance(stated, dict):
        fields = stated.keys() <= FIELDS.keys()  # a field's name is no word
        pairs = (
            f"{name} {value}" if fields else say("{part} {n}", part=say(name), n=say(str(value)))
            for name, value in stated.items()
        )
        stated = in_language(listed(pairs), lang)
    told = {
        "stated": "" if stated is None else str(stated),
        "verdict": translated(verdict.verdict, lang),
        "condition": verdict.condition or "",
        "correct": verdict.correct,
        "reason": verdict.reason,
        "witness": verdict.witness,
    }
    labels = {name: translated(name, lang) for name, text in told.items() if text}
    label = max(map(cells, labels.values()))
    for name, shown in labels.items():
        style = bold if name == "verdict" else dim
        first, *rest = prose(told[name], width - label - len(INDENT))
        lines += [f"{style(shown + ' ' * (label - cells(shown)))}{INDENT}{first}"]
        lines += [" " * (label + len(INDENT)) + more for more in rest]
    lines += ["", dim(translated("computation", lang))]
    for step in verdict.computation:
        first, *rest = broken(step, width - 4)
        lines += [INDENT + first, *(INDENT * 2 + line for line in rest)]
    if letters := _letters([verdict], width):
        lines += ["", *letters]
    return "\n".join(lines) + "\n"


def prose(text: str, width: int) -> list[str]:
    """Wrap `text`, with an equation of two short sides and a percent sign kept in one line.

    >>> prose("now it is h = 1 and 5 %", 12)
    ['now it is', 'h = 1 and', '5 %']
    """
    glued = text.replace(" %", f"{GLUE}%").replace(" = ", f"{GLUE}={GLUE}")
    return [line.replace(GLUE, " ") for line in wrapped(glued, width)]


def broken(text: str, width: int) -> list[str]:
    """Break `text` into lines of at most `width`, inside parentheses only where a piece is wider.

    >>> broken("2·d·(h + h_kv) + m = 7", 16)
    ['2·d·(h + h_kv)', '+ m = 7']
    """
    out: list[str] = []
    level = 0
    for i, char in enumerate(text):
        level += (char == "(") - (char == ")")
        after_operator = i > 0 and text[i - 1] in "+-=/" and text[i - 2 : i - 1] == " "
        out.append(GLUE if char == " " and (level > 0 or after_operator) else char)
    glued = "".join(out).replace(" %", f"{GLUE}%")
    if max(map(cells, glued.split()), default=0) > width:
        glued = text
    return [line.replace(GLUE, " ") for line in wrapped(glued, width)]
