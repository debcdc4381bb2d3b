"""`metacount flow`: the forward of a model in execution order."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import (
    MODEL_HELP,
    add_input,
    add_json,
    add_settings,
    add_workload,
    request_of,
)
from metacount.errors import InputError
from metacount.resolve import file_and_name, find_any, find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result
    from metacount.flow.result import Flow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help=f"{MODEL_HELP}; or FILE.py:NAME, a module of your own"
    )
    add_settings(parser)
    add_workload(parser)
    add_input(parser)
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
    parser.add_argument(
        "--formula",
        action="store_true",
        help="by the formulas alone, without torch: FLOPs and saved bytes of each step in letters",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    if args.depth is not None and args.depth < 1:
        raise InputError(f"--depth must be at least 1: got {args.depth}; leave it out to see all")
    file = file_and_name(args.model)
    if args.formula:
        return _by_formula(args, is_file=file is not None), 0
    found = _of_file(args, *file) if file else _of_model(args)
    from metacount.views.flow import flow_text

    found = found.only(args.only) if args.only else found
    found = found.down_to(args.depth)
    return (json_text(found.to_dict()) if args.json else flow_text(found)), 0


def _by_formula(args: argparse.Namespace, *, is_file: bool) -> str:
    """Write the forward as the formulas run it."""
    given = (args.decode, args.reference, args.depth, args.only, args.input)
    if is_file or any(value not in (None, False, []) for value in given):
        raise InputError(
            "--formula takes a model that has formulas, and none of --decode, --reference, "
            "--depth, --only and --input; leave them out"
        )
    from metacount.textbook.count import fitted
    from metacount.textbook.forward import forward_table
    from metacount.views.forward import forward_text

    model = find_model(args.model, args.settings)
    table = forward_table(model.spec, fitted(model.spec, request_of(args)))
    if args.json:
        return json_text({"model": model.name, **table.to_dict()})
    return forward_text(model.name, table)


def _of_model(args: argparse.Namespace) -> Flow:
    if args.input:
        raise InputError("--input is for FILE.py:NAME; a model of tokens takes --batch and --seq")
    model = find_any(args.model, args.settings)
    prepare_for_torch()
    from metacount.flow.run import flow

    return flow(model, request_of(args), decode=args.decode, reference=args.reference)


def _of_file(args: argparse.Namespace, path: str, name: str) -> Flow:
    """Trace the forward of a module of somebody's own; the file is run to make the module."""
    prepare_for_torch()
    from metacount.summary.modules import module_of, typed_inputs
    from metacount.summary.summary import ModuleSummary

    if args.settings or args.decode or args.reference:
        raise InputError("--set, --decode and --reference are not for FILE.py:NAME; leave them out")
    if not args.input:
        raise InputError("FILE.py:NAME needs --input: its sizes, as in --input 2,16,64")
    module = module_of(path, name)
    return ModuleSummary(module).flow(*typed_inputs(module, args.input))
