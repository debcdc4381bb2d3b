"""Verdicts on statements as text: a list by topic, or one with the whole computation behind it."""

from __future__ import annotations

import re

from metacount.views.layout import WIDEST_TEXT, bold, columns, dim, wrapped
from metacount.views.tables import Table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.claims.finding import Verdict

GLUE = "\0"
# a letter of the legend beside a sign of a formula: not the s of "one's"
NAME = r"[A-Za-z](?:_[a-z]+)?\b"
LETTER = re.compile(rf"(?<![\w']){NAME}(?=[·²)]| [-+=/] )|(?<=[·(]){NAME}")
INDENT = "  "


def verdicts_text(verdicts: Sequence[Verdict]) -> str:
    """Every statement with its verdict and the reason, by topic; then how many of each."""
    from metacount.claims.finding import VERDICTS

    width = min(columns(), WIDEST_TEXT)
    lines: list[str] = []
    topic = ""
    for verdict in verdicts:
        if verdict.claim.topic != topic:
            topic = verdict.claim.topic
            lines += [bold(topic.upper()), ""]
        lines += [*_listed(verdict, width), ""]
    found = [verdict.verdict for verdict in verdicts]
    counts = ", ".join(f"{found.count(name)} {name}" for name in VERDICTS if name in found)
    n = len(verdicts)
    lines.append(bold(f"{n} statement{'s' * (n != 1)}" + (f": {counts}" if n else "")))
    if n:
        lines += wrapped(
            "A rounded number is right when the exact one rounds to it. Conditional: it holds in "
            "some of the cases that it is said of, and not in others. A statement with a false "
            f"part is wrong. Whole computation: metacount claims {verdicts[0].claim.id}",
            width,
        )
        lines += _letters(verdicts, width)
    return "\n".join(lines) + "\n"


def verdicts_table(verdicts: Sequence[Verdict]) -> Table:
    """Every statement with its verdict: what was said, what is right, and why."""
    heads = ("claim", "topic", "statement", "verdict", "condition", "correct", "reason")
    rows = tuple(
        (v.claim.id, v.claim.topic, v.claim.statement, v.verdict, v.condition or "", v.correct,
         v.reason)
        for v in verdicts
    )  # fmt: skip
    return Table(heads=heads, rows=rows, align="<" * len(heads))


def _letters(verdicts: Sequence[Verdict], width: int) -> list[str]:
    """What the letters in formulas stand for."""
    from metacount.spec.legend import MODEL_TERMS

    used = {
        letter
        for verdict in verdicts
        if verdict.claim.model is not None
        for text in (verdict.claim.statement, verdict.reason, verdict.correct, *verdict.computation)
        for letter in LETTER.findall(text)
    }
    terms = [f"{t.letter} {t.meaning}" for t in MODEL_TERMS if t.letter in used]
    return prose(f"Letters: {'; '.join(terms)}.", width) if terms else []


def _listed(verdict: Verdict, width: int) -> list[str]:
    room = width - len(INDENT)
    hang = len(verdict.verdict) + 2
    # the condition is the first thing to know about a verdict that has one
    told = [f"if {verdict.condition}."] if verdict.condition else []
    reason = prose(" ".join([*told, verdict.reason]), room - hang)
    step = broken(verdict.headline, room - hang) if verdict.headline else []
    first, *rest = [*reason, *map(dim, step)]
    lines = [dim(verdict.claim.id), *prose(verdict.claim.statement, room)]
    lines += [f"{bold(verdict.verdict)}  {first}", *(" " * hang + line for line in rest)]
    return [INDENT + line for line in lines]


def verdict_text(verdict: Verdict) -> str:
    """One statement with everything that was computed about it."""
    claim = verdict.claim
    width = min(columns(), WIDEST_TEXT)
    lines = [f"{bold(claim.id)}  ({claim.topic})", *wrapped(claim.statement, width), ""]
    stated = claim.stated
    if isinstance(stated, dict):
        stated = ", ".join(f"{name} {value}" for name, value in stated.items())
    told = {
        "stated": "" if stated is None else str(stated),
        "verdict": verdict.verdict,
        "condition": verdict.condition or "",
        "correct": verdict.correct,
        "reason": verdict.reason,
        "witness": verdict.witness,
    }
    told = {name: text for name, text in told.items() if text}
    label = max(map(len, told))
    for name, text in told.items():
        style = bold if name == "verdict" else dim
        first, *rest = prose(text, width - label - len(INDENT))
        lines += [f"{style(f'{name:{label}}')}{INDENT}{first}"]
        lines += [" " * (label + len(INDENT)) + more for more in rest]
    lines += ["", dim("computation")]
    for step in verdict.computation:
        first, *rest = broken(step, width - 4)
        lines += [INDENT + first, *(INDENT * 2 + line for line in rest)]
    if letters := _letters([verdict], width):
        lines += ["", *letters]
    return "\n".join(lines) + "\n"


def prose(text: str, width: int) -> list[str]:
    """`text` wrapped, with an equation of two short sides and a percent sign kept in one line.

    >>> prose("now it is h = 1 and 5 %", 12)
    ['now it is', 'h = 1 and', '5 %']
    """
    glued = text.replace(" %", f"{GLUE}%").replace(" = ", f"{GLUE}={GLUE}")
    return [line.replace(GLUE, " ") for line in wrapped(glued, width)]


def broken(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width`, not broken inside parentheses.

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
    if max(map(len, glued.split()), default=0) > width:
        glued = text
    return [line.replace(GLUE, " ") for line in wrapped(glued, width)]
