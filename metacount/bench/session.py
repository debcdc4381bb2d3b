"""A run from the command line: estimated, talked about, saved and printed case by case."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import torch

from metacount.bench import device as devices
from metacount.bench.ceiling import Roofs
from metacount.bench.clocks.stopwatch import estimate_call
from metacount.bench.estimate import Rates, measured_rates, plan_of, stated_rates
from metacount.bench.layers.case import DTYPES, Case
from metacount.bench.prepare import Plan
from metacount.bench.results import files as results
from metacount.bench.results.rows import Ceiling, Row
from metacount.bench.run import Report, run_cases
from metacount.errors import shown

if TYPE_CHECKING:
    from metacount.files import Json

PROBE = 512  # [n, n] @ [n, n] that says roughly what a CPU does
PROBE_BYTES = 2**25
INTERRUPTED, TERMINATED = 130, 143  # as a shell has it: 128 and the signal's number


def beforehand(plan: Plan) -> Callable[[str], Rates]:
    """Find rates to estimate by before anything is measured: stated, on a CPU by a quick look."""

    @cache
    def rates(dtype: str) -> Rates:
        if plan.device.type == "cuda":
            here = torch.cuda.is_available()
            name = torch.cuda.get_device_properties(plan.device).name if here else ""
            return stated_rates(name, dtype)
        return _probed(dtype)

    return rates


def _probed(dtype: str) -> Rates:
    cpu = torch.device("cpu")
    a = torch.ones(PROBE, PROBE, dtype=DTYPES[dtype])
    x = torch.ones(PROBE_BYTES // 4, dtype=torch.int32)
    product_s = estimate_call(partial(torch.mm, a, a), cpu)
    read_s = estimate_call(partial(torch.amax, x, 0), cpu)
    looked = Ceiling(
        dtype=dtype,
        flops_per_s=2 * PROBE**3 / product_s,  # 2 FLOPs per multiply-add
        shape=(PROBE, PROBE, PROBE),
        bytes_per_s=PROBE_BYTES / read_s,
    )
    cache_bytes = devices.describe(cpu).cache_bytes
    rates = measured_rates(looked, devices.flush_bytes(cpu, cache_bytes))
    return Rates(**{**vars(rates), "source": "a quick look"})


class Show(Protocol):
    """Writes rows as text; `metacount.cli.bench_rows` does."""

    def where_text(self, environment: Json) -> str:
        """Write where and when a run was made."""

    def case_text(
        self, rows: Sequence[Row], ceilings: dict[str, Ceiling], environment: Json
    ) -> str:
        """Write the rows of one case, and ceilings not shown before."""

    def end_text(self, rows: Sequence[Row], ceilings: dict[str, Ceiling]) -> str:
        """Write what the columns mean."""


@dataclass(kw_only=True)
class Session:
    """What a run is told, and what it has so far: `lines` as they are saved."""

    cases: Sequence[Case]
    plan: Plan
    show: Show
    file: str | None
    budget: float | None
    ceiling: bool
    command: str
    report: Report = field(default_factory=lambda: Report(environment={}, ceilings={}))
    lines: list[Json] = field(default_factory=list)
    interrupted: int | None = None
    roofs: Callable[..., Roofs] = Roofs

    def text(self) -> Iterator[str]:
        """Run the cases; yield the place, each case once it is done, then what the columns mean."""
        with _stoppable() as stopped, _talk() as talk:
            environment = devices.environment(self.plan.device, command=self.command)
            if (load := environment["other_load"]) is not None:
                talk.say(f"warning: {load}")
            rates = beforehand(self.plan)
            seconds = [plan_of(case, self.plan, rates(case.dtype)).seconds for case in self.cases]
            total = sum(seconds)
            within = "" if self.budget is None else f", of which {self.budget:g} s may be used"
            talk.say(f"{_cases(len(self.cases))}, about {duration(total)}{within}")
            date = datetime.now(UTC).isoformat(timespec="seconds")
            yield self.show.where_text({"date": date, **environment})
            cache_bytes = devices.describe(self.plan.device).cache_bytes
            self.report.environment.update(environment)
            shown_roofs: dict[str, Ceiling] = {}
            try:
                for rows in run_cases(
                    self.cases,
                    self.plan,
                    report=self.report,
                    roofs=self.roofs(self.plan.device, cache_bytes) if self.ceiling else None,
                    budget=self.budget,
                    seconds=seconds,
                    tell=talk.tell,
                ):
                    self._keep(rows, environment, date)
                    talk.done(rows)
                    new = {d: c for d, c in self.report.ceilings.items() if d not in shown_roofs}
                    shown_roofs |= new
                    yield self.show.case_text(rows, new, environment)
            except KeyboardInterrupt:
                self.interrupted = stopped[-1] if stopped else INTERRUPTED
                n = len(
                    {(row.model, *row.workload.values(), row.dtype) for row in self.report.rows}
                )
                talk.say(f"interrupted after {n} of {len(self.cases)} cases")
            yield self.show.end_text(self.report.rows, self.report.ceilings)
            if self.file is not None:
                talk.say(f"{len(self.lines)} rows appended to {shown(self.file)}")

    def _keep(self, rows: Sequence[Row], environment: Json, date: str) -> None:
        # case by case, so that an interrupted run has not measured in vain
        lines = results.lines_of(rows, self.report.ceilings, environment, date)
        self.lines += lines
        if self.file is not None:
            results.append(self.file, lines)


def _cases(n: int) -> str:
    return "1 case" if n == 1 else f"{n} cases"


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
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        seen.append(TERMINATED)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGTERM, before)


class _Bar(Protocol):
    """A moving line."""

    def update(self, text: str) -> None:
        """Show another text."""

    def stop(self) -> None:
        """Clear the line."""


class _Talk:
    """Lines on stderr: what is being done on a terminal, each case as it is done elsewhere."""

    def __init__(self, bar: _Bar | None) -> None:
        self.bar, self.began = bar, time.perf_counter()
        self.place = ""

    def say(self, text: str) -> None:
        """Print one line."""
        self._clear()
        print(f"metacount: {text}", file=sys.stderr, flush=True)

    def tell(self, done: int, total: int, label: str, detail: str) -> None:
        """Show which case is being measured, and what of it."""
        self.place = f"{done + 1} of {total}, {label}"
        if self.bar is not None:
            self.bar.update(f"{self.place}: {detail}")

    def done(self, rows: Sequence[Row]) -> None:
        """End a case: clear the moving line or, without one, print the case and its time."""
        self._clear()
        if self.bar is None:
            took = time.perf_counter() - self.began
            print(f"metacount: {self.place}, {duration(took)}", file=sys.stderr, flush=True)
        self.began = time.perf_counter()

    def _clear(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def _talk() -> Iterator[_Talk]:
    """Talk on stderr inside the block, with a moving line on a terminal, which is cleared after."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Talk(None)
        return
    status = console.status("")

    class Bar:
        def update(self, text: str) -> None:
            status.update(text)
            status.start()

        def stop(self) -> None:
            status.stop()

    try:
        yield _Talk(Bar())
    finally:
        status.stop()
