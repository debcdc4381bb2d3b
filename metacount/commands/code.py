"""`metacount code`: the code of a module or a formula, as it runs."""

from __future__ import annotations

from metacount.commands import json_text
from metacount.commands.options import add_json

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="a class or a function (RMSNorm, apply_rope, glu_params), or a topic: "
        "all of norm, ffn, attention, mla, moe, position, ...",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.sources import codes, find_codes
    from metacount.views.code import code_text, listing_text

    found = find_codes(args.names) if args.names else codes()
    if args.json:
        return json_text([code.to_dict() for code in found]), 0
    return (code_text(found) if args.names else listing_text(found)), 0
