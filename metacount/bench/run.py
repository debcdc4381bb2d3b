"""One case after the other: checked, then timed in two interleaved passes, then put into rows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from . import device as devices
from .ceiling import measure_ceiling
from .layers.case import Case
from .observe import rows_to_check
from .prepare import Expected, Plan, Ready, Refused, failure_of, of_work, prepare
from .rows import FAILED, NO_ROOM, OK, Ceiling, Row, Timing, compared, rates, timing_of
from .timing import CaptureRoom, flusher, input_sets, no_collector, samples

NO_STATE = "-"  # of a row that was not timed
# of the free memory; the rest is left to kernels and to whoever shares the machine
USABLE_MEMORY = 0.8


@dataclass(frozen=True, kw_only=True)
class Report:
    """Rows in order, with the roof of each dtype and where it all was measured."""

    environment: dict[str, Any]
    ceilings: dict[str, Ceiling]
    rows: list[Row] = field(default_factory=list)

    @property
    def failed(self) -> list[Row]:
        """Rows whose result or count is wrong."""
        return [row for row in self.rows if row.status in FAILED]


def run_cases(
    cases: Sequence[Case],
    plan: Plan,
    *,
    ceilings: dict[str, Ceiling] | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, label: None,
    keep: Callable[[Report, list[Row]], None] = lambda report, rows: None,
) -> Report:
    """Measure the roof of each dtype (unless given), then every case.

    `keep` gets the rows of each case as soon as they are there.
    """
    cache_bytes = devices.describe(plan.device).cache_bytes
    roofs = dict(ceilings or {})
    with torch.no_grad():
        for dtype in dict.fromkeys(case.dtype for case in cases):
            if dtype not in roofs:
                progress(0, len(cases), f"ceiling, {dtype}")
                roofs[dtype] = measure_ceiling(plan.device, dtype, cache_bytes)
        report = Report(environment=devices.environment(plan.device), ceilings=roofs)
        for done, case in enumerate(cases):
            progress(done, len(cases), case.label)
            rows = run_case(case, plan, roofs[case.dtype], cache_bytes)
            report.rows.extend(rows)
            keep(report, rows)
    return report


def run_case(case: Case, plan: Plan, ceiling: Ceiling, cache_bytes: int) -> list[Row]:
    """The rows of one case, in the order of its variants; nothing here raises for one variant."""
    torch.manual_seed(plan.seed)
    torch.compiler.reset()  # what was compiled for other sizes counts against a limit
    gc.collect()  # graphs and compiled code of the case before hold its tensors in cycles
    if plan.device.type == "cuda":
        torch.cuda.empty_cache()
    blank = partial(Row, topic=case.topic, model=case.model, sizes=case.sizes,
                    workload=case.workload, dtype=case.dtype)  # fmt: skip
    names = [name for name in case.variants if plan.only is None or name in plan.only]
    failure = partial(blank, state=NO_STATE, launch=NO_STATE)
    free = devices.describe(plan.device).memory_bytes
    n_sets = input_sets(plan.device, case.set_bytes, cache_bytes)
    needed = case.needs_bytes + (n_sets - 1) * case.set_bytes
    if needed > USABLE_MEMORY * free:
        reason = f"needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        return [failure(variant=name, status=NO_ROOM, reason=reason) for name in names]
    try:
        built = case.build(plan.device, n_sets)
        flush = flusher(plan.device, cache_bytes)
    except (RuntimeError, MemoryError) as error:
        status, reason = failure_of(error)
        return [failure(variant=name, status=status, reason=reason) for name in names]
    room = CaptureRoom(plan.device) if plan.device.type == "cuda" else None
    expected = Expected(built, rows_to_check(case.rows, case.checked_rows))
    rows: dict[str, list[Row]] = {}
    ready: list[Ready] = []
    for variant in built.variants:
        if variant.name not in names:
            continue
        try:
            found = prepare(case, variant, built, plan, expected, flush, room)
        except Refused as refused:
            said = {"status": refused.status, "reason": refused.reason, **refused.known}
            rows[variant.name] = [failure(variant=variant.name, **said, **of_work(variant))]
            continue
        ready.append(found)
    with no_collector():
        clock = _time(ready, plan, n_sets)
    rows |= _timed_rows(ready, partial(blank, clock_mhz=clock, input_sets=n_sets), case, ceiling)
    return [row for name in names for row in rows[name]]


def _time(ready: Sequence[Ready], plan: Plan, n_sets: int) -> int | None:
    """Two passes over all variants, so that what drifts does so for all; the clock in between."""
    clock = None
    for number in range(2):
        for state in plan.states:
            for one in ready:
                found = samples(one.watch, state, rounds=plan.rounds, seconds=plan.seconds,
                                sets=n_sets)  # fmt: skip
                one.passes.setdefault(state, []).append(found)
        if number == 0 and ready:
            clock = devices.clock_mhz(plan.device)
    return clock


def _timed_rows(
    ready: Sequence[Ready], blank: Any, case: Case, ceiling: Ceiling
) -> dict[str, list[Row]]:
    timings = {
        (one.variant.name, state): timing_of(*passes)
        for one in ready
        for state, passes in one.passes.items()
    }
    baseline = case.variants[0]
    rows: dict[str, list[Row]] = {}
    for one in ready:
        name = one.variant.name
        rows[name] = list(_rows_of(one, timings, baseline, blank, ceiling))
    return rows


def _rows_of(
    one: Ready, timings: dict[tuple[str, str], Timing], baseline: str, blank: Any, ceiling: Ceiling
) -> Iterator[Row]:
    name = one.variant.name
    for state in one.passes:
        timing = timings[name, state]
        against = timings.get((baseline, state))
        ratio = {} if against is None else {"baseline": baseline, **compared(timing, against)}
        yield blank(
            variant=name,
            state=state,
            launch=one.watch.launch,
            status=OK,
            **one.known,
            **rates(one.variant.work, timing, ceiling),
            **ratio,
        )
