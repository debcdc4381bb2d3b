"""`metacount lesson`: a page of teaching, computed as it is printed."""

from __future__ import annotations

from metacount.commands import json_text
from metacount.commands.options import MODEL_HELP, add_json, add_settings
from metacount.errors import InputError

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "topic", metavar="TOPIC", nargs="?", help="one of those that `metacount lesson` lists"
    )
    parser.add_argument("--model", metavar="MODEL", help=f"the model to teach with: {MODEL_HELP}")
    add_settings(parser)
    parser.add_argument(
        "--lang", metavar="LANG", help="en or zh (default: that of the terminal, else en)"
    )
    parser.add_argument("--answers", action="store_true", help="show the exercises' answers")
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of text")
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.languages import checked_language, terminal_language
    from metacount.teaching.lessons import RUNNING, checked_topic, page_of
    from metacount.views.lesson import Lesson, listing, listing_text

    if args.json and args.markdown:
        raise InputError("--json and --markdown are two forms of one page; leave one of them out")
    lang = terminal_language() if args.lang is None else checked_language(args.lang)
    if args.topic is None:
        if args.model is not None or args.settings or args.answers or args.markdown:
            raise InputError("lesson needs TOPIC for that; `metacount lesson` lists them")
        return (json_text(listing(lang)) if args.json else listing_text(lang)), 0
    if checked_topic(args.topic) in RUNNING:
        from metacount.commands import prepare_for_torch

        prepare_for_torch()
    page = page_of(args.topic, args.model, lang, args.settings)
    found = Lesson(page=page, answers=args.answers)
    if args.json:
        return json_text(found.to_dict()), 0
    return (found.to_markdown() if args.markdown else found.text), 0
