"""`metacount bench`: how long the forward of a layer takes, variant by variant."""

from __future__ import annotations

import argparse
import sys

from metacount.commands import EXIT_DISAGREE, EXIT_INTERRUPTED, interrupted, json_text
from metacount.errors import InputError, shown
from metacount.options import add_json

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from metacount.bench.layers.case import Case
    from metacount.bench.rows import Row
    from metacount.bench.run import Report
    from metacount.commands import Result

TOPICS = ("ffn", "attention", "mla", "moe", "norm")
LARGEST = 2**24  # of any size; larger ones are a slip of the finger
SAVED = ""  # --save without a file


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) <= LARGEST):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1: got '{shown(text)}'")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:  # not a number is refused too
        raise argparse.ArgumentTypeError(f"must be seconds, 0 to 3600: got '{shown(text)}'")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Every variant is compared with a float64 reference, and its FLOPs with the operators "
        "that run, before it is timed; a difference is a row of its own and exit code 1."
    )
    parser.add_argument("topic", metavar="TOPIC", choices=TOPICS, help=", ".join(TOPICS))
    parser.add_argument("--model", nargs="+", metavar="NAME",
                        help="take the sizes of these models of the catalog")  # fmt: skip
    parser.add_argument("--tokens", nargs="+", type=_size, metavar="N",
                        help="tokens of ffn, moe and norm")  # fmt: skip
    parser.add_argument("--seq", nargs="+", type=_size, metavar="N",
                        help="prefill of attention and mla: so many tokens")  # fmt: skip
    parser.add_argument("--kv-len", nargs="+", type=_size, metavar="N",
                        help="decode of attention and mla: one token that attends to so many, "
                        "itself included")  # fmt: skip
    parser.add_argument("--batch", nargs="+", type=_size, metavar="N",
                        help="sequences of attention and mla")  # fmt: skip
    parser.add_argument("--routing", nargs="+", choices=("balanced", "skewed"),
                        help="of moe (default both)")  # fmt: skip
    parser.add_argument("--dtype", nargs="+", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--device", choices=("cpu", "cuda"),
                        help="default cuda where there is one")  # fmt: skip
    parser.add_argument("--variant", nargs="+", metavar="NAME", help="only these variants")
    parser.add_argument("--state", nargs="+", choices=("hot", "cold"),
                        help="caches as they are, or flushed first (default both)")  # fmt: skip
    parser.add_argument("--rounds", type=_size, metavar="N",
                        help="samples of each of two passes (default 20)")  # fmt: skip
    parser.add_argument("--seconds", type=_seconds, metavar="X",
                        help="take fewer, but 3, when that lasts longer (default 0.1)")  # fmt: skip
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--save", nargs="?", const=SAVED, metavar="FILE",
                        help="append the rows as JSON lines to FILE; without FILE, to "
                        "benchmarks/results/TOPIC.jsonl, where there is such a folder")  # fmt: skip
    parser.add_argument("--list", action="store_true",
                        help="print the cases and variants, and run nothing")  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from datetime import UTC, datetime

    import torch

    from metacount.bench import grid, results
    from metacount.bench.prepare import Plan
    from metacount.bench.run import run_cases
    from metacount.output_file import check_writable

    device = _device(args.device, cuda=torch.cuda.is_available())
    cases = grid.cases(
        args.topic,
        device,
        models=args.model,
        dtypes=args.dtype,
        tokens=args.tokens,
        seq_lens=args.seq,
        kv_lens=args.kv_len,
        batch_sizes=args.batch,
        routings=args.routing,
    )
    _check_variants(args.variant, grid.variants_of(cases))
    if args.list:
        return _list(cases, args.json), 0
    file = None if args.save is None else args.save or results.default_file(args.topic)
    if file is not None:
        check_writable("--save", file)
    plan = Plan(
        device=torch.device("cuda", torch.cuda.current_device())
        if device == "cuda"
        else torch.device(device),
        rounds=args.rounds or 20,
        seconds=0.1 if args.seconds is None else args.seconds,
        states=tuple(s for s in ("hot", "cold") if args.state is None or s in args.state),
        compile=not args.no_compile,
        only=None if args.variant is None else tuple(args.variant),
    )
    date = datetime.now(UTC).isoformat(timespec="seconds")

    kept: list[Report] = []  # the report so far, once for each case

    def keep(report: Report, rows: list[Row]) -> None:
        kept.append(report)
        # case by case, so that an interrupted run has not measured in vain
        if file is not None:
            results.append(file, results.lines_of(rows, report.ceilings, report.environment, date))

    code = 0
    try:
        with _progress() as progress:
            report = run_cases(cases, plan, progress=progress, keep=keep)
    except KeyboardInterrupt:
        if not kept:
            raise
        report, code = kept[-1], EXIT_INTERRUPTED
        interrupted(len(kept), len(cases), "cases")
    if file is not None:
        print(f"metacount: {len(report.rows)} rows appended to {shown(file)}", file=sys.stderr)
    code = code or (EXIT_DISAGREE if report.failed else 0)
    if args.json:
        lines = results.lines_of(report.rows, report.ceilings, report.environment, date)
        return json_text(lines), code
    from metacount.views.bench import bench_text

    return bench_text(report.rows, report.ceilings, {"date": date, **report.environment}), code


def _device(asked: str | None, *, cuda: bool) -> str:
    if asked == "cuda" and not cuda:
        raise InputError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return asked or ("cuda" if cuda else "cpu")


def _check_variants(asked: Sequence[str] | None, known: Sequence[str]) -> None:
    from metacount.errors import nearest

    for name in asked or ():
        if name not in known:
            close = nearest(name, known, f"choose among {', '.join(known)}")
            raise InputError(f"--variant '{shown(name)}' is none of these cases'; {close}")


def _list(cases: Sequence[Case], as_json: bool) -> str:
    from metacount.views.bench import cases_data, cases_text

    return json_text(cases_data(cases)) if as_json else cases_text(cases)


def _progress() -> AbstractContextManager[Callable[[int, int, str], None]]:
    """A bar on stderr, on a terminal."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    shown_columns: Any = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )

    @contextmanager
    def bar() -> Iterator[Callable[[int, int, str], None]]:
        with Progress(
            *shown_columns, console=console, transient=True, disable=not console.is_terminal
        ) as progress:
            task = progress.add_task("starting", total=None)

            def update(done: int, total: int, label: str) -> None:
                progress.update(task, completed=done, total=total, description=label)

            yield update

    return bar()
