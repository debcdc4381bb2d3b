"""`metacount plot`: where a model's parameters are, or what benchmarks found, as a picture."""

from __future__ import annotations

from metacount.commands.options import MODEL_HELP, add_settings
from metacount.errors import InputError, shown
from metacount.resolve import find_model
from metacount.settings import parse_settings

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="*", help=MODEL_HELP)
    parser.add_argument("-o", "--output", metavar="FILE", required=True,
                        help="the picture: a name that ends in .svg, .png or .pdf")  # fmt: skip
    parser.add_argument("--roofline", nargs="+", metavar="RESULTS",
                        help="rates over intensity, from what `bench --save` wrote")  # fmt: skip
    parser.add_argument("--curves", nargs="+", metavar="RESULTS",
                        help="GELU and SwiGLU over the tokens, from such files")  # fmt: skip
    parser.add_argument("--state", choices=("hot", "cold"), default="hot",
                        help="which rows of the results (default hot)")  # fmt: skip
    parser.add_argument(
        "--launch",
        choices=("eager", "graph"),
        help="which rows of the results (default graph, where there are any)",
    )
    parser.add_argument("--dtype", choices=("bf16", "fp16", "tf32", "fp32"),
                        help="which rows of the results (default: of the last one)")  # fmt: skip
    add_settings(parser)


def run(args: argparse.Namespace) -> Result:
    wanted = [kind for kind in (args.model, args.roofline, args.curves) if kind]
    if len(wanted) != 1:
        raise InputError(
            "plot needs one of MODEL, --roofline RESULTS and --curves RESULTS; "
            "see `metacount plot --help`"
        )
    if args.settings and not args.model:
        raise InputError("--set belongs to MODEL; leave it out with results")
    from metacount.views.pictures.picture import check_output, save

    check_output(args.output)
    if args.model:
        figure, said = _parameters(args)
    else:
        figure, said = _results(args.roofline or args.curves, args)
    save(figure, args.output)
    return f"{shown(args.output)}: {said}\n", 0


def _parameters(args: argparse.Namespace) -> tuple[Any, str]:
    from metacount.spec import Request
    from metacount.textbook.count import count

    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    models = [find_model(name, args.settings) for name in args.model]
    rows = [(model.name, count(model.spec, Request()).by_role) for model in models]
    from metacount.views.pictures.parameters import parameters_figure

    return parameters_figure(rows), f"parameters of {', '.join(model.id for model in models)}"


def _results(files: Sequence[str], args: argparse.Namespace) -> tuple[Any, str]:
    from metacount.bench.results import files as results
    from metacount.views.pictures import benchmarks as plot_bench
    from metacount.views.pictures import ffn as plot_ffn

    lines = results.latest_run([line for file in files for line in results.read(file)])
    chosen = plot_bench.chosen(lines, state=args.state, dtype=args.dtype, launch=args.launch)
    figure = plot_bench.roofline_figure if args.roofline else plot_ffn.curves_figure
    return figure(chosen), f"{len(chosen.points)} rows, {chosen.title}"
