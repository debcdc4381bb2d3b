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
from metacount.bench import saved
from metacount.bench.case import DTYPES, Case, Variant
from metacount.bench.ceiling import Roofs
from metacount.bench.device import STATED_PEAKS
from metacount.bench.rounds import FEWEST_ROUNDS
from metacount.bench.rows import Ceiling, Row
from metacount.bench.run import Plan, Report, run_cases
from metacount.bench.statistics import FEWEST_FOR_INTERVAL
from metacount.bench.stopwatch import (
    BURST_SECONDS,
    COLD,
    LONG_SECONDS,
    SAMPLE_SECONDS,
    WARM_SECONDS,
    estimate_call,
)
from metacount.bench.work import Work
from metacount.errors import InputError, shown

if TYPE_CHECKING:
    from metacount.files import Json

SHARE_OF_ROOF = 0.7  # that a variant is taken to reach
COMPILE_SECONDS, AUTOTUNE_SECONDS = 3.0, 20.0
BUILD_SECONDS = 0.2  # of a case: tensors drawn, allocator emptied
CHECK_CALLS = 10  # counted, warmed up, its memory and its result looked at
DEFAULT_GPU = "NVIDIA H200"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device is taken to do, and who says so."""

    flops_per_s: float
    bytes_per_s: float
    flush_s: float
    source: str


@dataclass(frozen=True, kw_only=True)
class VariantPlan:
    """A variant before it runs: what it has to do, and how long all its measuring may take."""

    name: str
    direction: str
    work: Work
    call_s: float
    measuring_s: float
    missing: str | None


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """A case before it runs; `shapes` of the tensors it is given."""

    case: Case
    shapes: list[tuple[int, ...]]
    variants: list[VariantPlan]

    @property
    def seconds(self) -> float:
        """Of the whole case."""
        return BUILD_SECONDS + sum(variant.measuring_s for variant in self.variants)


def stated_rates(name: str, dtype: str) -> Rates:
    """Return the rates that the vendor states for a GPU; an H200's where the GPU is not known.

    >>> stated_rates("NVIDIA H200", "bf16").flops_per_s
    989400000000000.0
    """
    known = name if name in STATED_PEAKS else DEFAULT_GPU
    tensor, fp32, memory = STATED_PEAKS[known]
    tflops = {"fp32": fp32, "tf32": tensor / 2}.get(dtype, tensor)
    return Rates(
        flops_per_s=tflops * 1e12,
        bytes_per_s=memory * 1e12,
        flush_s=60e-6,
        source=f"stated for {known}",
    )


def measured_rates(ceiling: Ceiling, flush_bytes: int) -> Rates:
    """Convert the measured roof of this run to rates."""
    read = ceiling.read_bytes_per_s or ceiling.bytes_per_s
    return Rates(
        flops_per_s=ceiling.flops_per_s,
        bytes_per_s=ceiling.bytes_per_s,
        flush_s=flush_bytes / read,
        source="measured",
    )


def call_seconds(work: Work, rates: Rates) -> float:
    """Estimate the seconds of one call, at a share of the roof."""
    roof = max(work.matmul_flops / rates.flops_per_s, work.moved_bytes / rates.bytes_per_s)
    return roof / SHARE_OF_ROOF


def measuring_seconds(variant: Variant, call_s: float, plan: Plan, rates: Rates) -> float:
    """Estimate the seconds of all that is done with a variant: checked, compiled, warmed up, timed.

    Six rounds are assumed, three where they last longer than `--seconds` allows.
    """
    if variant.missing is not None or (variant.compiled and not plan.compile):
        return 0.0
    compiling = 0.0
    if variant.compiled:
        compiling = COMPILE_SECONDS if variant.compiled == "default" else AUTOTUNE_SECONDS
    launches = len(plan.launches) if plan.device.type == "cuda" else 1
    sample_s = max(SAMPLE_SECONDS, call_s * (1 if call_s >= LONG_SECONDS else 3))
    turn_s = WARM_SECONDS if plan.device.type == "cuda" else 3 * call_s
    for state in plan.states:
        one = call_s + rates.flush_s if state == COLD else sample_s
        turn_s += max(BURST_SECONDS, one)
    allowed = plan.seconds * len(plan.states)
    rounds = min(FEWEST_FOR_INTERVAL, max(FEWEST_ROUNDS, plan.rounds))
    if rounds * turn_s > allowed:
        rounds = max(FEWEST_ROUNDS, min(rounds, int(allowed / turn_s)))
    return compiling + CHECK_CALLS * call_s + launches * rounds * turn_s


def plan_of(case: Case, plan: Plan, rates: Rates) -> CasePlan:
    """Plan the variants of a case, built on meta, where they cost nothing."""
    torch.manual_seed(plan.seed)  # a run draws the same routing
    built = case.build(torch.device("meta"), 1)
    names = [name for name in case.variants if plan.only is None or name in plan.only]

    def each() -> Iterator[VariantPlan]:
        for variant in built.variants:
            if variant.name in names:
                call_s = call_seconds(variant.work, rates)
                if plan.device.type == "cuda":
                    call_s = max(call_s, 2e-6)
                yield VariantPlan(
                    name=variant.name,
                    direction=variant.direction,
                    work=variant.work,
                    call_s=call_s,
                    measuring_s=measuring_seconds(variant, call_s, plan, rates),
                    missing=variant.missing,
                )

    return CasePlan(
        case=case, shapes=[tuple(t.shape) for t in built.inputs[0]], variants=list(each())
    )


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
    unsaved: bool = False
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
                    self._keep(rows, environment, date, talk)
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

    def _keep(self, rows: Sequence[Row], environment: Json, date: str, talk: _Talk) -> None:
        # case by case, so that an interrupted run has not measured in vain
        lines = saved.lines_of(rows, self.report.ceilings, environment, date)
        self.lines += lines
        if self.file is not None:
            try:
                saved.append(self.file, lines)
            except InputError as error:  # what was measured is printed all the same
                self.file, self.unsaved = None, True
                talk.say(f"error: {error}")


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
