"""`metacount plot`: counts, caches, activations and benchmarks as pictures, models as a page."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import check_quantity
from metacount.commands.plot_options import RESULT_DTYPES, asked_kind
from metacount.commands.plot_options import add_arguments as add_arguments
from metacount.errors import InputError, shown
from metacount.resolve import find_model
from metacount.settings import parse_settings
from metacount.settings.over import each_setting
from metacount.settings.values import length

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from metacount.commands import Result
    from metacount.resolve import Model
    from metacount.spec import Request


def run(args: argparse.Namespace) -> Result:
    from metacount.textbook.closed_form import FORWARD

    kind = asked_kind(args)
    check_quantity(args.quantity, FORWARD)
    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    if args.html is not None:
        return _page(args), 0
    draw = {"model": _quantities, "caches": _caches, "activations": _activations}
    if args.json:
        if kind not in draw:
            raise InputError(
                "--json gives the numbers of a picture of models, caches or "
                "activations; results are in their files already"
            )
        return json_text(draw[kind](args).data), 0
    if args.output is None:
        raise InputError("required: -o/--output FILE, or --html PAGE.html with MODEL")
    from metacount.views.pictures.picture import check_output, save

    check_output(args.output)
    if args.lang == "zh":
        from metacount.views.pictures.fonts import check_chinese
        from metacount.views.pictures.words import CHINESE

        check_chinese(CHINESE.values())
    picture = draw.get(kind, _results)(args)
    save(picture.draw(), args.output)
    return f"{shown(args.output)}: {picture.said}\n", 0


class _Picture:
    """What a picture shows: as plain data, as a sentence, and how it is drawn."""

    def __init__(self, said: str, draw: Callable[[], Figure], data: object = None) -> None:
        self.said, self.draw, self.data = said, draw, data


def _lengths(args: argparse.Namespace) -> list[int]:
    """Read the lengths of --seq: 1k is 1,024."""
    found = []
    for text in [] if args.seq is None else args.seq.split(","):
        number = length(text.strip())
        if number is None and text.strip().isdecimal() and len(text) <= 40:
            number = int(text)
        if number is None:
            raise InputError(f"--seq takes lengths such as 1k,4k,16k: got '{shown(text)}'")
        found.append(number)
    return found


def _request(args: argparse.Namespace, seq_len: int | None) -> Request:
    from metacount.spec import Request

    batch_size = 1 if args.batch is None else args.batch
    return Request(batch_size=batch_size, seq_len=seq_len, dtype=args.dtype or "bf16")


def _models(args: argparse.Namespace) -> list[tuple[str, Model]]:
    """List each model that gets a bar, under its name or its value of --over."""
    if args.over is None:
        return [(model.name, model) for model in _found(args)]
    found = []
    for name in args.model:
        for setting in each_setting(args.over):
            model = find_model(name, [*args.settings, setting])
            label = setting.replace("=", " = ", 1)
            found.append((f"{model.name}, {label}" if len(args.model) > 1 else label, model))
    return found


def _found(args: argparse.Namespace) -> list[Model]:
    return [find_model(name, args.settings) for name in args.model]


def _quantities(args: argparse.Namespace) -> _Picture:
    from metacount.textbook.series import bars

    models = _models(args)
    requests = [_request(args, n) for n in _lengths(args)] or [_request(args, None)]
    found = bars(models, requests, args.quantity)

    def draw() -> Figure:
        from metacount.views.pictures.quantities import quantities_figure

        return quantities_figure(found, args.quantity, args.lang or "en")

    what = "parameters" if args.quantity == "params" else args.quantity
    said = f"{what} of {', '.join(dict.fromkeys(model.id for _, model in models))}"
    data = [{"quantity": args.quantity, **one.to_dict()} for one in found]
    return _Picture(said, draw, data)


def _caches(args: argparse.Namespace) -> _Picture:
    from metacount.textbook.series import LENGTHS, caches

    model = find_model(args.caches, args.settings)
    lengths = sorted(_lengths(args) or LENGTHS)
    for n in lengths:
        run = _request(args, n)  # a length or dtype that cannot be is said here
    kinds = caches(model.spec, run.dtype)

    def draw() -> Figure:
        from metacount.views.pictures.caches import caches_figure

        title = f"{model.name}, {run.dtype}"
        return caches_figure(title, kinds, lengths, run.batch_size, args.lang or "en")

    said = f"KV caches of {model.id} with {', '.join(kind.kind for kind in kinds)}"
    data = [{"model": model.id, "dtype": run.dtype, **kind.to_dict()} for kind in kinds]
    return _Picture(said, draw, data)


def _activations(args: argparse.Namespace) -> _Picture:
    prepare_for_torch()
    from metacount.measure.activations import curve

    names = list(dict.fromkeys(args.activations))
    curves = [curve(name) for name in names]

    def draw() -> Figure:
        from metacount.views.pictures.activations import activations_figure

        return activations_figure(curves, args.lang or "en")

    said = f"{', '.join(names)} and their derivatives"
    return _Picture(said, draw, [dict(vars(one)) for one in curves])


def _results(args: argparse.Namespace) -> _Picture:
    from metacount.bench import saved
    from metacount.views.pictures import benchmarks as plot_bench
    from metacount.views.pictures import ffn as plot_ffn

    if args.dtype not in (None, *RESULT_DTYPES):
        raise InputError(
            f"--dtype of results is one of {', '.join(RESULT_DTYPES)}: got '{shown(args.dtype)}'"
        )
    files = args.roofline or args.curves
    lines = saved.latest_run([line for file in files for line in saved.read(file)])
    chosen = plot_bench.chosen(lines, state=args.state, dtype=args.dtype, launch=args.launch)
    figure = plot_bench.roofline_figure if args.roofline else plot_ffn.curves_figure
    return _Picture(f"{len(chosen.points)} rows, {chosen.title}", lambda: figure(chosen))


def _page(args: argparse.Namespace) -> str:
    from metacount.output_file import check_writable, write_whole

    if not args.html.lower().endswith(".html"):
        raise InputError(f"--html must end in .html: got {shown(args.html)}")
    lengths = _lengths(args)
    if len(lengths) > 1:
        raise InputError("--seq of a page is one length: its slider goes to the others")
    check_writable("--html", args.html)
    models = _found(args)
    prepare_for_torch()
    from metacount.textbook.worksheet import worksheet
    from metacount.views.page import page_html

    request = _request(args, lengths[0] if lengths else None)
    text = page_html([worksheet(model, request) for model in models])
    write_whole("--html", args.html, text.encode())
    return f"{shown(args.html)}: page of {', '.join(model.id for model in models)}\n"
