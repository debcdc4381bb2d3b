"""`metacount bench`: how long the forward of a layer takes, variant by variant.

A run is estimated, talked about on stderr, saved and printed case by case.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import contextmanager, nullcontext

from metacount.cli.answer import Answer, Pieces, json_text
from metacount.cli.options import check_known, options_of
from metacount.errors import EXIT_DISAGREE, EXIT_WRONG_INPUT, InputError, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from metacount.bench.case import Case
    from metacount.bench.rows import Ceiling, Row
    from metacount.bench.timing import Plan
    from metacount.files import Json

SAVED = ""  # --save without a file
INTERRUPTED, TERMINATED = 130, 143  # as a shell has it: 128 and the signal's number


def run(args: argparse.Namespace) -> Answer | Pieces:
    import torch

    from metacount.bench import grid, rows
    from metacount.cli import bench_rows
    from metacount.files import check_writable

    looking = args.list or args.dry_run
    device = _device(args.device, cuda=torch.cuda.is_available(), looking=looking)
    asked = {name: value for name, value in vars(args).items() if name in grid.OPTIONS}
    cases = grid.cases(args.topic, device, asked)
    for name in args.variant or ():
        known = tuple(dict.fromkeys(variant for case in cases for variant in case.variants))
        otherwise = f"choose among {', '.join(known)}"
        check_known("--variant", name, known, otherwise, "is none of these cases'")
    if device == "cpu" and args.launch is not None and "eager" not in args.launch:
        raise InputError("--launch graph needs a CUDA device; leave it out, or --device cuda")
    if args.list:
        return Answer(
            report=lambda: bench_rows.cases_report(cases),
            data=lambda: bench_rows.cases_data(cases),
        )
    plan = _plan(args, device)
    if args.dry_run:
        by = {case.dtype: grid.rates_of(plan, case.dtype) for case in cases}
        plans = [grid.plan_of(case, plan, by[case.dtype]) for case in cases]
        return Answer(
            report=lambda: bench_rows.plan_report(plans, by),
            data=lambda: plans,
        )
    file = None if args.save is None else args.save or rows.default_file(args.topic)
    if file is not None:
        check_writable("--save", file)
    session = Session(args, cases, plan, file)
    return Pieces(text=_all_pieces(session, as_json=args.json), code=session.code)


def _all_pieces(session: Session, *, as_json: bool) -> Generator[str, None, None]:
    """Yield each case as it is done; or every row as JSON at the end, also of a stopped run."""
    for piece in session.text():
        if not as_json:
            yield piece
            sys.stdout.flush()
    if as_json:
        yield json_text(session.lines)


class Session:
    """What a run is told, and what it has so far: rows, and `lines` as they are saved."""

    def __init__(
        self, args: argparse.Namespace, cases: Sequence[Case], plan: Plan, file: str | None
    ) -> None:
        self.args, self.cases, self.plan, self.file = args, cases, plan, file
        self.rows: list[Row] = []
        self.lines: list[Json] = []
        self.roofs: dict[str, Ceiling] = {}
        self.stopped: int | None = None  # the exit code of a run that was interrupted
        self.unsaved = False
        self.place, self.began = "", time.perf_counter()

    def code(self) -> int:
        """Return the exit code of the run, known when it has ended."""
        from metacount.bench.run import disagrees

        if self.stopped is not None:
            return self.stopped
        if self.unsaved:
            return EXIT_WRONG_INPUT
        return EXIT_DISAGREE if disagrees(self.rows) else 0

    def text(self) -> Iterator[str]:
        """Run the cases; yield the place, each case once it is done, then what the columns mean."""
        from datetime import UTC, datetime

        from metacount.bench.device import Roofs, environment
        from metacount.bench.grid import plan_of, rates_of
        from metacount.bench.run import run_cases
        from metacount.cli import bench_rows as show
        from metacount.cli.progress import Running

        terminal = sys.stderr is not None and sys.stderr.isatty()
        with _stoppable() as codes, Running("metacount bench") if terminal else nullcontext():
            machine = environment(self.plan.device, command=_command(self.args))
            if machine["other_load"] is not None:
                _say(f"warning: {machine['other_load']}")
            by = {case.dtype: rates_of(self.plan, case.dtype) for case in self.cases}
            seconds = [plan_of(c, self.plan, by[c.dtype])["seconds"] for c in self.cases]
            budget, n = self.args.budget, len(self.cases)
            within = "" if budget is None else f", of which {budget:g} s may be used"
            _say(f"{n} case{'s' * (n != 1)}, about {duration(sum(seconds))}{within}")
            date = datetime.now(UTC).isoformat(timespec="seconds")
            yield _cleared(show.where_text({"date": date, **machine}))
            roofs = None if self.args.no_ceiling else Roofs(self.plan.device)
            self.roofs = {} if roofs is None else roofs.last
            seen: set[str] = set()
            printed = ""
            try:
                for rows in run_cases(
                    self.cases,
                    self.plan,
                    roofs=roofs,
                    budget=budget,
                    seconds=seconds,
                    tell=self._tell,
                ):
                    self._keep(rows, machine, date)
                    if not terminal:
                        _say(f"{self.place}, {duration(time.perf_counter() - self.began)}")
                    self.began = time.perf_counter()
                    new = {dtype: roof for dtype, roof in self.roofs.items() if dtype not in seen}
                    seen |= new.keys()
                    text = show.case_text(rows, new, machine)
                    printed += text
                    yield _cleared(text)
            except KeyboardInterrupt:
                self.stopped = codes[-1] if codes else INTERRUPTED
                done = {(row.model, *row.workload.values(), row.dtype) for row in self.rows}
                _say(f"interrupted after {len(done)} of {n} cases")
            yield _cleared(show.end_text(self.rows, self.roofs, printed))
            if self.file is not None:
                _say(f"{len(self.lines)} rows appended to {shown(self.file)}")

    def _tell(self, done: int, total: int, label: str, detail: str) -> None:
        from metacount.cli.progress import say

        self.place = f"{done + 1} of {total}, {label}"
        say(f"{self.place}: {detail}")

    def _keep(self, rows: Sequence[Row], environment: Json, date: str) -> None:
        """Keep and save the rows of a case, so that an interrupted run has not measured in vain."""
        from metacount.bench import rows as files

        lines = files.lines_of(rows, self.roofs, environment, date)
        self.rows += rows
        self.lines += lines
        if self.file is not None:
            try:
                files.append(self.file, lines)
            except InputError as error:  # what was measured is printed all the same
                self.file, self.unsaved = None, True
                _say(f"error: {error}")


def _cleared(text: str) -> str:
    from metacount.cli.progress import clear

    clear()
    return text


def _say(text: str) -> None:
    print(_cleared(f"metacount: {text}"), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Write a duration in seconds, from two minutes on in minutes, from two hours on in hours.

    >>> duration(7.6), duration(600), duration(9000)
    ('8 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Make SIGTERM end the block as Ctrl-C does; the list then holds its code. Undo it after."""
    import threading

    codes: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield codes
        return

    def stop(*_: object) -> None:
        codes.append(TERMINATED)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield codes
    finally:
        signal.signal(signal.SIGTERM, before)


def _plan(args: argparse.Namespace, device: str) -> Plan:
    import torch

    from metacount.bench.timing import Plan

    with_index = device == "cuda" and torch.cuda.is_available()
    return Plan(
        device=torch.device("cuda", torch.cuda.current_device())
        if with_index
        else torch.device(device),
        rounds=args.rounds or 40,
        seconds=0.3 if args.seconds is None else args.seconds,
        precision=(0.5 if args.precision is None else args.precision) / 100,
        states=tuple(s for s in ("hot", "cold") if args.state is None or s in args.state),
        launches=tuple(x for x in ("eager", "graph") if args.launch is None or x in args.launch),
        compile=not args.no_compile,
        only=None if args.variant is None else tuple(args.variant),
    )


def _command(args: argparse.Namespace) -> str:
    """Write the command with the options that decide what is measured, no files of this machine."""
    words = ["metacount", "bench", args.topic]
    left_out = ("topic", "json", "save", "list", "dry_run")
    for name in sorted({option.dest for option in options_of("bench")} - {*left_out}):
        value = getattr(args, name)
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += [str(v) for v in (value if isinstance(value, list) else [value])]
    return " ".join(words)


def _device(asked: str | None, *, cuda: bool, looking: bool) -> str:
    if asked == "cuda" and not cuda and not looking:
        raise InputError(
            "--device cuda: torch finds no CUDA device here; use --device cpu, or --dry-run to "
            "see the plan"
        )
    return asked or ("cuda" if cuda else "cpu")
