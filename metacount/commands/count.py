"""`metacount count`: parameters, FLOPs and KV cache of one model or of several."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch, table_text
from metacount.commands.options import (
    MODEL_HELP,
    add_columns,
    add_folder,
    add_formats,
    add_over,
    add_settings,
    add_workload,
    refuse_columns,
    refuse_table,
    request_of,
)
from metacount.errors import InputError
from metacount.resolve import Model, Source, TransformersOnly, find_any, find_over, remedy
from metacount.settings import parse_settings

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.commands import Result
    from metacount.files import Json
    from metacount.spec import Request, Workload
    from metacount.witness import Witness


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="*", help=MODEL_HELP)
    add_folder(parser)
    add_settings(parser)
    add_over(parser)
    add_workload(parser)
    parser.add_argument(
        "--conventions",
        action="store_true",
        help="the FLOPs of the workload under the conventions in use, and who uses each",
    )
    add_columns(parser)
    add_formats(parser)


def run(args: argparse.Namespace) -> Result:
    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    if args.columns:
        from metacount.views.columns import checked

        checked(args.columns)
    request = request_of(args)
    if args.folder is not None and args.conventions:
        raise InputError("--conventions takes MODEL, not --folder; leave one of them out")
    if args.folder is not None:
        refuse_table(args, "--folder, whose --json prints an object a line")
        refuse_columns(args, "--folder")
        if args.over is not None:
            raise InputError("--over does not go with --folder; leave one of them out")
        return _count_folder(args, request)
    if args.jobs is not None:
        raise InputError("--jobs belongs to --folder; leave it out")
    if not args.model:
        raise InputError("count needs MODEL or --folder DIR; see `metacount count --help`")
    found = _found(args)
    if args.conventions:
        refuse_table(args, "--conventions")
        refuse_columns(args, "--conventions")
        return _count_conventions(found, request, args.json)
    if any(isinstance(model, TransformersOnly) for model in found):
        prepare_for_torch()
    if len(found) == 1 and not (args.json or args.table or args.columns):
        return _one(found[0], request), 0
    data = [_figures(model, request) for model in found]
    if args.columns:
        return _columns(args, found, data), 0
    if args.json or args.table:
        return _as_data(args, data), 0
    from metacount.views.comparison import comparison_text

    return comparison_text(found, data), 0


def _found(args: argparse.Namespace) -> Sequence[Model | TransformersOnly]:
    """Find the models that are named, or the one that is named at every value of --over."""
    if args.over is None:
        return [find_any(argument, args.settings) for argument in args.model]
    if len(args.model) > 1:
        raise InputError(f"--over takes one MODEL: got {len(args.model)}")
    return find_over(args.model[0], args.settings, args.over)


def _one(model: Model | TransformersOnly, request: Request) -> str:
    """Write one model with the definition of each figure."""
    if isinstance(model, Model):
        from metacount.textbook.count import count
        from metacount.views.count import count_text

        return count_text(model, count(model.spec, request, notes=model.notes))
    from metacount.views.measured import measured_text

    return measured_text(model, *_measured(model, request))


def _figures(model: Model | TransformersOnly, request: Request) -> Json:
    """Count a model for --json: by formula, or measured where there is none."""
    if isinstance(model, Model):
        from metacount.textbook.count import count
        from metacount.textbook.proven import count_data

        return count_data(model, count(model.spec, request, notes=model.notes))
    from metacount.views.measured import measured_data

    return measured_data(model, *_measured(model, request))


def _measured(model: TransformersOnly, request: Request) -> tuple[Witness, Workload, Sequence[str]]:
    """Measure transformers' own module: what it has, the workload that it ran, any notes on it."""
    from metacount.verify.compare import fitted_outside, outside_witnesses

    source = Source(config=model.source.config)
    workload, why = fitted_outside(source, request)
    (said, *_), _ = outside_witnesses(source, workload)
    return said, workload, [why] if why else []


def _columns(
    args: argparse.Namespace,
    found: Sequence[Model | TransformersOnly],
    data: Sequence[Json],
) -> str:
    """Write the chosen columns, a row for each model."""
    from metacount.views.columns import columns_data, columns_table, columns_text
    from metacount.views.comparison import heading, notes
    from metacount.views.layout import columns

    rows = [
        (heading(model), model.name, getattr(model, "spec", None), each)
        for model, each in zip(found, data, strict=True)
    ]
    if args.json:
        return json_text(columns_data(args.columns, rows))
    if args.table:
        return table_text(args.table, columns_table(args.columns, rows))
    return columns_text(args.columns, rows, notes(found, data, columns()))


def _as_data(args: argparse.Namespace, data: list[Json]) -> str:
    """Write the figures of models in a format that programs read."""
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
    """Write each model's FLOPs under every convention."""
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
