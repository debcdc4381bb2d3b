"""`metacount plot`: counts, caches, activations and benchmarks as pictures, models as a page."""

from __future__ import annotations

from metacount.cli.answer import Answer, Pieces, prepare_for_torch
from metacount.cli.options import check_quantity
from metacount.cli.pictures import (
    activations_figure,
    caches_figure,
    check_chinese,
    check_output,
    quantities_figure,
    save,
)
from metacount.errors import InputError, shown
from metacount.files import check_writable, write_whole
from metacount.languages import terminal_language
from metacount.resolve import Model, find_model
from metacount.settings import each_setting, parse_settings

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from metacount.spec import Request

    Picture = tuple[str, Callable[[], Figure], object]  # in a phrase, drawn, and as plain data

RESULT_DTYPES = ("bf16", "fp16", "tf32", "fp32")
# What can be drawn, by option; one of them is asked for.
KINDS = {"model": "MODEL", "caches": "--caches MODEL", "activations": "--activations NAME"}
KINDS |= {"roofline": "--roofline RESULTS", "curves": "--curves RESULTS"}


def run(args: argparse.Namespace) -> Answer | Pieces:
    from metacount.textbook.closed_form import FORWARD

    if args.output is not None and args.html is None and args.output.lower().endswith(".html"):
        args.html, args.output = args.output, None
    kind = _asked_kind(args)
    check_quantity(args.quantity, FORWARD)
    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    if args.html is not None:
        return Pieces(text=_page(args))
    draw = {"model": _quantities, "caches": _caches, "activations": _activations}
    if args.json:
        if kind not in draw:
            raise InputError(
                "--json gives the numbers of a picture of models, caches or "
                "activations; results are in their files already"
            )
        *_, data = draw[kind](args)
        return Answer(report=list, data=lambda: data)
    if args.output is None:
        raise InputError("required: -o/--output FILE, or --html PAGE.html with MODEL")
    check_output(args.output)
    if kind in draw and (args.lang or terminal_language()) == "zh":
        try:
            check_chinese()
            args.lang = "zh"
        except InputError:  # a terminal may be Chinese without such a font
            if args.lang is not None:
                raise
    about, figure, _ = draw.get(kind, _results)(args)
    save(figure(), args.output)
    return Pieces(text=f"{shown(args.output)}: {about}\n")


def _asked_kind(args: argparse.Namespace) -> str:
    """Find what is to be drawn; raise `InputError` unless it is one thing."""
    wanted = [kind for kind in KINDS if getattr(args, kind)]
    if len(wanted) != 1:
        raise InputError(
            f"plot needs one of {', '.join(list(KINDS.values())[:-1])} and "
            f"{list(KINDS.values())[-1]}; see `metacount plot --help`"
        )
    if args.html and args.over:  # a page that -o names
        raise InputError("a page has no --over; leave it out")
    return wanted[0]


def _request(args: argparse.Namespace, seq_len: int | None) -> Request:
    from metacount.spec import Request

    batch_size = 1 if args.batch is None else args.batch
    return Request(batch_size=batch_size, seq_len=seq_len, dtype=args.dtype or "bf16")


def _models(args: argparse.Namespace) -> list[tuple[str, Model]]:
    models = []
    for name in args.model:
        for setting in [None] if args.over is None else each_setting(args.over):
            model = find_model(name, [*args.settings, *([] if setting is None else [setting])])
            text = model.name if setting is None else setting.replace("=", " = ", 1)
            several = setting is not None and len(args.model) > 1
            models.append((f"{model.name}, {text}" if several else text, model))
    return models


def _quantities(args: argparse.Namespace) -> Picture:
    from metacount.textbook.series import bars

    models = _models(args)
    requests = [_request(args, n) for n in args.seq or [None]]
    drawn = bars(models, requests, args.quantity)
    what = "parameters" if args.quantity == "params" else args.quantity
    return (
        f"{what} of {', '.join(dict.fromkeys(model.id for _, model in models))}",
        lambda: quantities_figure(drawn, args.quantity, args.lang or "en"),
        [{"quantity": args.quantity, **bar.to_dict()} for bar in drawn],
    )


def _caches(args: argparse.Namespace) -> Picture:
    from metacount.textbook.series import LENGTHS, caches

    model = find_model(args.caches, args.settings)
    lengths = sorted(args.seq or LENGTHS)
    for n in lengths:
        run = _request(args, n)  # a length or dtype that cannot be is refused here
    kinds = caches(model.spec, run.dtype)
    title = f"{model.name}, {run.dtype}"
    return (
        f"KV caches of {model.id} with {', '.join(kind.kind for kind in kinds)}",
        lambda: caches_figure(title, kinds, lengths, run.batch_size, args.lang or "en"),
        [{"model": model.id, "dtype": run.dtype, **kind.to_dict()} for kind in kinds],
    )


def _activations(args: argparse.Namespace) -> Picture:
    prepare_for_torch()
    from metacount.measure.activations import curve

    names = list(dict.fromkeys(args.activations))
    curves = [curve(name) for name in names]
    return (
        f"{', '.join(names)} and their derivatives",
        lambda: activations_figure(curves, args.lang or "en"),
        [dict(vars(curve)) for curve in curves],
    )


def _results(args: argparse.Namespace) -> Picture:
    from metacount.bench import rows
    from metacount.cli import pictures_of_benchmarks as pictures

    if args.dtype not in (None, *RESULT_DTYPES):
        raise InputError(
            f"--dtype of results is one of {', '.join(RESULT_DTYPES)}: got '{shown(args.dtype)}'"
        )
    files = args.roofline or args.curves
    lines = rows.latest_run([line for file in files for line in rows.read(file)])
    chosen = pictures.chosen(lines, state=args.state, dtype=args.dtype, launch=args.launch)
    figure = pictures.roofline_figure if args.roofline else pictures.curves_figure
    return f"{len(chosen.points)} rows, {chosen.title}", lambda: figure(chosen), None


def _page(args: argparse.Namespace) -> str:
    if not args.html.lower().endswith(".html"):
        raise InputError(f"--html must end in .html: got {shown(args.html)}")
    lengths = args.seq or []
    if len(lengths) > 1:
        raise InputError("--seq of a page is one length: its slider goes to the others")
    check_writable("--html", args.html)
    models = [find_model(name, args.settings) for name in args.model]
    prepare_for_torch()
    from metacount.cli.page import page_html
    from metacount.textbook.worksheet import worksheet

    request = _request(args, lengths[0] if lengths else None)
    text = page_html([worksheet(m, request) for m in models], args.lang or terminal_language())
    write_whole("--html", args.html, text.encode())
    return f"{shown(args.html)}: page of {', '.join(model.id for model in models)}\n"
