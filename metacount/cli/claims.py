"""`metacount claims`: well-known statements, each judged right, conditional or wrong."""

from __future__ import annotations

import re
import sys

from metacount.cli.answer import Answer, prepare_for_torch
from metacount.cli.options import check_known
from metacount.cli.progress import gathered
from metacount.cli.report import WIDEST_TEXT, Grid, Lines, Text, bold, cells, dim, wrapped
from metacount.languages import checked_language, terminal_language
from metacount.teaching.texts import VERDICTS, translated

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.cli.report import Block, Report
    from metacount.teaching.texts import Verdict

GLUE = "\0"
# a letter of the legend beside a sign of a formula: not the s of "one's"
NAME = r"[A-Za-z](?:_(?:[a-z]+|I))?(?![A-Za-z0-9_])"
LETTER = re.compile(rf"(?<![\w']){NAME}(?=[·²)]| [-+=/] )|(?<=[·(]){NAME}")
INDENT = "  "


def run(args: argparse.Namespace) -> Answer:
    from metacount.teaching.claims import TOPICS, claims, judge_claim, needs_torch

    if args.lang is not None:
        checked_language(args.lang)
    # what other programs read does not change with the terminal
    lang = args.lang or ("en" if args.json or args.table else terminal_language())
    known = {claim.id: claim for claim in claims()}
    for id in args.ids:
        check_known("claim", id, known, "see `metacount claims`")
    check_known("--topic", args.topic, TOPICS, f"choose one of {', '.join(TOPICS)}")
    check_known("--verdict", args.verdict, VERDICTS, f"choose one of {', '.join(VERDICTS)}")
    chosen = [known[id] for id in dict.fromkeys(args.ids or known)]
    chosen = [claim for claim in chosen if args.topic in (None, claim.topic)]
    running = sum(needs_torch(claim) for claim in chosen)
    if running:
        prepare_for_torch()
        some = "1 statement is judged by running modules"
        if running > 1:
            some = "{n} statements are judged by running modules"
        print(f"metacount: {translated(some, lang, n=running)}", file=sys.stderr)
    judged = (judge_claim(claim, lang=lang) for claim in chosen)
    verdicts, code, message = gathered(judged, len(chosen), "judged", "statements")
    verdicts = [v for v in verdicts if args.verdict in (None, v.verdict)]

    def report() -> Report:
        if args.ids:
            sections = [section for verdict in verdicts for section in verdict_report(verdict)]
        else:
            sections = [*verdicts_report(verdicts, lang)] if verdicts or not message else []
        return [*sections, [Text(message if verdicts else "")]]

    return Answer(
        report=report,
        data=lambda: [verdict.to_dict() for verdict in verdicts],
        table=lambda: _table(verdicts, lang),
        code=code,
    )


def verdicts_report(verdicts: Sequence[Verdict], lang: str = "en") -> Report:
    """Report every statement with its verdict and the reason, by topic; then how many of each."""

    sections: list[list[Block]] = []
    topic = ""
    for verdict in verdicts:
        if verdict.claim.topic != topic:
            topic = verdict.claim.topic
            sections.append([Text(_topic(topic, lang), bold, unbroken=True)])
        sections.append([_listed(verdict)])
    words = [verdict.verdict for verdict in verdicts]
    counts = translated(", ", lang).join(
        translated("{n} {verdict}", lang, n=words.count(name), verdict=translated(name, lang))
        for name in VERDICTS
        if name in words
    )
    n = len(verdicts)
    some = "{n} statement" if n == 1 else "{n} statements"
    ended = translated(f"{some}: {{counts}}" if n else some, lang, n=n, counts=counts)
    last: list[Block] = [Text(ended, bold, unbroken=True)]
    if n:
        closing = translated(
            "A rounded number is right when the exact one rounds to it. Conditional: it "
            "holds in some of the cases that it is said of, and not in others. A "
            "statement with a false part is wrong. Whole computation: metacount claims "
            "{id}",
            lang,
            id=verdicts[0].claim.id,
        )
        last += [Text(closing, most=WIDEST_TEXT), _letters(verdicts)]
    return [*sections, last]


def _topic(topic: str, lang: str) -> str:
    return topic.upper() if lang == "en" else translated(f"topic:{topic}", lang)


def _table(verdicts: Sequence[Verdict], lang: str) -> Grid:
    heads = ("claim", "topic", "statement", "verdict", "condition", "correct", "reason")
    rows = [
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
    ]
    translated_heads = tuple(translated(head, lang) for head in heads)
    return Grid(heads=translated_heads, rows=rows, align="<" * len(heads))


def _letters(verdicts: Sequence[Verdict]) -> Lines:
    from metacount.spec.legend import MODEL_TERMS

    used = {
        letter
        for verdict in verdicts
        if verdict.claim.model is not None
        for text in (verdict.statement, verdict.reason, verdict.correct, *verdict.computation)
        for letter in LETTER.findall(text)
    }
    if not used.intersection(t.letter for t in MODEL_TERMS):
        return Lines(lambda _: [])
    lang = verdicts[0].lang
    terms = (
        translated("{letter} {meaning}", lang, letter=t.letter, meaning=translated(t.meaning, lang))
        for t in MODEL_TERMS
        if t.letter in used
    )
    text = translated("Letters: {terms}.", lang, terms=translated("; ", lang).join(terms))
    return Lines(lambda width: prose(text, min(width, WIDEST_TEXT)))


def _listed(verdict: Verdict) -> Lines:
    return Lines(lambda width: _drawn(verdict, min(width, WIDEST_TEXT)))


def _drawn(verdict: Verdict, width: int) -> list[str]:
    room = width - len(INDENT)
    word = translated(verdict.verdict, verdict.lang)
    hang = cells(word) + len(INDENT)
    # the condition is the first thing to know about a verdict that has one
    reason = verdict.reason
    if verdict.condition:
        condition = translated("if {condition}.", verdict.lang, condition=verdict.condition)
        reason = translated(" ", verdict.lang).join((condition, reason))
    because = prose(reason, room - hang)
    step = broken(verdict.headline, room - hang) if verdict.headline else []
    first, *rest = [*because, *map(dim, step)]
    lines = [dim(verdict.claim.id), *prose(verdict.statement, room)]
    lines += [f"{bold(word)}{INDENT}{first}", *(" " * hang + line for line in rest)]
    return [INDENT + line for line in lines]


def verdict_report(verdict: Verdict) -> Report:
    """Report one statement with everything that was computed about it."""
    from metacount.spec.model import FIELDS

    claim, lang = verdict.claim, verdict.lang
    topic = f"({claim.topic})" if lang == "en" else _topic(claim.topic, lang)
    stated = claim.stated
    if isinstance(stated, dict):
        fields = stated.keys() <= FIELDS.keys()  # a field's name is no word
        pairs = (
            f"{name} {value}"
            if fields
            else translated(
                "{part} {n}", lang, part=translated(name, lang), n=translated(str(value), lang)
            )
            for name, value in stated.items()
        )
        stated = translated(", ", lang).join(pairs)
    values = {
        "stated": "" if stated is None else str(stated),
        "verdict": translated(verdict.verdict, lang),
        "condition": verdict.condition or "",
        "correct": verdict.correct,
        "reason": verdict.reason,
        "witness": verdict.witness,
    }
    labels = {name: translated(name, lang) for name, text in values.items() if text}
    label = max(map(cells, labels.values()))

    def labelled(width: int) -> list[str]:
        lines = []
        for name, shown in labels.items():
            style = bold if name == "verdict" else dim
            first, *rest = prose(values[name], width - label - len(INDENT))
            lines += [f"{style(shown + ' ' * (label - cells(shown)))}{INDENT}{first}"]
            lines += [" " * (label + len(INDENT)) + more for more in rest]
        return lines

    def steps(width: int) -> list[str]:
        lines = [dim(translated("computation", lang))]
        for step in verdict.computation:
            first, *rest = broken(step, width - 4)
            lines += [INDENT + first, *(INDENT * 2 + line for line in rest)]
        return lines

    def statement(width: int) -> list[str]:
        return [f"{bold(claim.id)}  {topic}", *prose(verdict.statement, width)]

    drawn = [[Lines(draw, most=WIDEST_TEXT)] for draw in (statement, labelled, steps)]
    return [*drawn, [_letters([verdict])]]


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
