"""`metacount count`: parameters, FLOPs and KV cache of one model or of several."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch, table_text
from metacount.commands.options import (
    MODEL_HELP,
    add_folder,
    add_formats,
    add_settings,
    add_workload,
    refuse_table,
    request_of,
)
from metacount.errors import InputError
from metacount.resolve import Model, Source, TransformersOnly, find_any, remedy
from metacount.settings import parse_settings

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from metacount.commands import Result
    from metacount.spec import Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="*", help=MODEL_HELP)
    add_folder(parser)
    add_settings(parser)
    add_workload(parser)
    parser.add_argument(
        "--conventions",
        action="store_true",
        help="the FLOPs of the workload under the conventions in use, and who uses each",
    )
    add_formats(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.textbook.count import count, count_data

    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    request = request_of(args)
    if args.folder is not None and args.conventions:
        raise InputError("--conventions takes MODEL, not --folder; leave one of them out")
    if args.folder is not None:
        refuse_table(args, "--folder, whose --json prints an object a line")
        return _count_folder(args, request)
    if args.jobs is not None:
        raise InputError("--jobs belongs to --folder; leave it out")
    if not args.model:
        raise InputError("count needs MODEL or --folder DIR; see `metacount count --help`")
    found = [find_any(argument, args.settings) for argument in args.model]
    if args.conventions:
        refuse_table(args, "--conventions")
        return _count_conventions(found, request, args.json)
    if any(isinstance(model, TransformersOnly) for model in found):
        return _count_measured(found, request, args)
    models = [model for model in found if isinstance(model, Model)]
    results = [count(model.spec, request) for model in models]
    if args.json or args.table:
        return _as_data(args, [count_data(*each) for each in zip(models, results, strict=True)]), 0
    from metacount.views.count import comparison_text, count_text

    if len(models) == 1:
        return count_text(models[0], results[0]), 0
    return comparison_text(models, results), 0


def _as_data(args: argparse.Namespace, data: list[dict[str, Any]]) -> str:
    """The figures of models in a format that programs read."""
    if args.json:
        return json_text(data if len(data) > 1 else data[0])
    from metacount.views.count_table import count_table

    return table_text(args.table, count_table(data))


def _count_folder(args: argparse.Namespace, request: Request) -> Result:
    if args.model:
        raise InputError("--folder takes the place of MODEL; give one of them")
    from metacount.many.folder import count_folder, list_folder
    from metacount.views.folder import FolderView

    listing = list_folder(args.folder)
    counted = count_folder(listing, request, settings=args.settings, jobs=args.jobs)
    view = FolderView(listing, request, counted)
    return (view.json_lines() if args.json else view.text()), view.closing


def _count_conventions(
    found: Sequence[Model | TransformersOnly], request: Request, as_json: bool
) -> Result:
    """One model's FLOPs under every convention."""
    from metacount.textbook.count import fitted
    from metacount.views.conventions import conventions_data, conventions_text

    data, texts = [], []
    for model in found:
        if isinstance(model, TransformersOnly):
            raise InputError(
                f"--conventions: {model.name} has no formula: {model.problem}; {remedy(model)}"
            )
        run = fitted(model.spec, request)
        if as_json:
            data.append(conventions_data(model, run))
        else:
            texts.append(conventions_text(model, run))
    return (json_text(data if len(data) > 1 else data[0]) if as_json else "\n".join(texts)), 0


def _count_measured(
    found: Sequence[Model | TransformersOnly], request: Request, args: argparse.Namespace
) -> Result:
    """Models among which at least one has no formula: that one is measured with transformers."""
    from metacount.textbook.count import count, count_data

    prepare_for_torch()
    from metacount.verify.compare import fitted_outside, outside_witnesses
    from metacount.views.count import count_text
    from metacount.views.measured import measured_data, measured_text

    data: list[dict[str, Any]] = []
    texts: list[str] = []
    for model in found:
        if isinstance(model, Model):
            result = count(model.spec, request)
            data.append(count_data(model, result))
            texts.append(count_text(model, result))
            continue
        source = Source(config=model.source.config)
        workload, why = fitted_outside(source, request)
        (said, *_), _ = outside_witnesses(source, workload)
        notes = [why] if why else []
        data.append(measured_data(model, said, workload, notes))
        texts.append(measured_text(model, said, workload, notes))
    return (_as_data(args, data) if args.json or args.table else "\n".join(texts)), 0
