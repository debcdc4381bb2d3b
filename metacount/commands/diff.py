"""`metacount diff`: two models part by part."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch, table_text
from metacount.commands.options import (
    MODEL_HELP,
    add_formats,
    add_settings,
    add_workload,
    request_of,
)
from metacount.errors import InputError
from metacount.resolve import TransformersOnly, find_any
from metacount.settings import parse_settings

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="A", help=MODEL_HELP)
    parser.add_argument(
        "other", metavar="B", nargs="?", help="the model to compare with; without it, A with --set"
    )
    add_settings(parser)
    add_formats(parser)
    add_workload(parser)


def run(args: argparse.Namespace) -> Result:
    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    if args.other is not None and args.settings:
        raise InputError("--set compares A with itself, changed: leave out B or --set")
    if args.other is None and not args.settings:
        raise InputError("diff needs a second MODEL, or --set FIELD=VALUE to change the first")
    a = find_any(args.model)
    b = find_any(args.model if args.other is None else args.other, args.settings)
    if isinstance(a, TransformersOnly) or isinstance(b, TransformersOnly):
        prepare_for_torch()
    from metacount.api import diff

    found = diff(a, b, request_of(args))
    if args.json:
        return json_text(found.to_dict()), 0
    from metacount.views.diff import diff_table, diff_text

    if args.table:
        return table_text(args.table, diff_table(found)), 0
    return diff_text(found), 0
