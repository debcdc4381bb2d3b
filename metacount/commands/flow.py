"""`metacount flow`: the forward of a model in execution order."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import add_json, add_model, add_workload, request_of
from metacount.errors import InputError
from metacount.resolve import find_any

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    add_workload(parser)
    parser.add_argument(
        "--decode", action="store_true", help="one more token, which finds the others in a cache"
    )
    parser.add_argument(
        "--depth", type=int, metavar="N", help="show modules down to this depth (default: all)"
    )
    parser.add_argument(
        "--only",
        metavar="PATH",
        action="append",
        default=[],
        help="the steps of one module, by its path (layers.0, self_attn); may be repeated",
    )
    parser.add_argument(
        "--reference",
        action="store_true",
        help="of a config, our reference module with its equations instead of transformers' own",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    if args.depth is not None and args.depth < 1:
        raise InputError(f"--depth must be at least 1: got {args.depth}; leave it out to see all")
    model = find_any(args.model, args.settings)
    prepare_for_torch()
    from metacount.flow.run import flow
    from metacount.views.flow import flow_text

    found = flow(model, request_of(args), decode=args.decode, reference=args.reference)
    found = found.only(args.only) if args.only else found
    found = found.down_to(args.depth)
    return (json_text(found.to_dict()) if args.json else flow_text(found)), 0
