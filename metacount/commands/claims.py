"""`metacount claims`: well-known statements, each judged right, conditional or wrong."""

from __future__ import annotations

import sys

from metacount.commands import json_text, table_text
from metacount.commands.options import add_formats
from metacount.errors import EXIT_INTERRUPTED, InputError, interrupted, shown
from metacount.languages import checked_language, terminal_language

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from metacount.commands import Result
    from metacount.teaching.claim import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from metacount.teaching.claim import VERDICTS
    from metacount.teaching.claims import TOPICS

    parser.add_argument(
        "ids", metavar="ID", nargs="*", help="these statements, each with its whole computation"
    )
    parser.add_argument(
        "--topic",
        metavar="NAME",
        help=f"only statements on this topic: {', '.join(TOPICS)}",
    )
    parser.add_argument(
        "--verdict", metavar="NAME", help=f"only statements that are {', '.join(VERDICTS)}"
    )
    parser.add_argument(
        "--lang",
        metavar="LANG",
        help="en or zh (default: that of the terminal; en with the options below)",
    )
    add_formats(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.teaching.claim import VERDICTS
    from metacount.teaching.claims import TOPICS, claims, judge_claim, needs_torch
    from metacount.teaching.texts import in_language, say

    if args.lang is not None:
        checked_language(args.lang)
    # what other programs read does not change with the terminal
    lang = args.lang or ("en" if args.json or args.table else terminal_language())
    known = {claim.id: claim for claim in claims()}
    for id in args.ids:
        _one_of("claim", id, known, "see `metacount claims`")
    _one_of("--topic", args.topic, TOPICS, f"choose one of {', '.join(TOPICS)}")
    _one_of("--verdict", args.verdict, VERDICTS, f"choose one of {', '.join(VERDICTS)}")
    chosen = [known[id] for id in dict.fromkeys(args.ids or known)]
    chosen = [claim for claim in chosen if args.topic in (None, claim.topic)]
    running = sum(needs_torch(claim) for claim in chosen)
    if running:
        from metacount.commands import prepare_for_torch

        prepare_for_torch()
        some = say("1 statement is judged by running modules")
        if running > 1:
            some = say("{n} statements are judged by running modules", n=running)
        print(f"metacount: {in_language(some, lang)}", file=sys.stderr)
    verdicts: list[Verdict] = []
    code, said = 0, ""
    try:
        for claim in chosen:
            verdicts.append(judge_claim(claim, lang=lang))
    except KeyboardInterrupt:
        code, said = EXIT_INTERRUPTED, interrupted(len(verdicts), len(chosen), "statements")
    verdicts = [v for v in verdicts if args.verdict in (None, v.verdict)]
    if args.json:
        return json_text([verdict.to_dict() for verdict in verdicts]), code
    from metacount.views.claims import verdict_text, verdicts_table, verdicts_text

    if args.table:
        return table_text(args.table, verdicts_table(verdicts, lang)), code
    last = f"\n{said}\n" if said and verdicts else ""
    if args.ids:
        return "\n".join(verdict_text(verdict) for verdict in verdicts) + last, code
    return (verdicts_text(verdicts, lang) if verdicts or not said else "") + last, code


def _one_of(what: str, name: str | None, known: Iterable[str], otherwise: str) -> None:
    if name is None or name in known:
        return
    from metacount.errors import nearest

    raise InputError(f"{what} '{shown(name)}' is not known; {nearest(name, known, otherwise)}")
