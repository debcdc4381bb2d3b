"""One case after the other: checked, then timed in rounds, then put into rows."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from metacount.bench import device as devices
from metacount.bench.ceiling import Roofs
from metacount.bench.clocks.graphs import CaptureRoom
from metacount.bench.clocks.power import Monitor, monitor_of
from metacount.bench.clocks.rounds import Entrant, Until, take_turns
from metacount.bench.clocks.stopwatch import flusher, input_sets, no_collector
from metacount.bench.layers.case import Built, Case, Variant, product_precision
from metacount.bench.observe import rows_to_check
from metacount.bench.prepare import (
    Expected,
    Plan,
    Ready,
    Refused,
    failure_of,
    is_ours,
    of_work,
    prepare,
)
from metacount.bench.results.measured import Measured, rows_of_case
from metacount.bench.results.rows import FAILED, NO_ROOM, NO_TIME, NOT_AVAILABLE, OK, Ceiling, Row

if TYPE_CHECKING:
    from metacount.files import Json

NO_STATE = "-"  # of a row that was not timed
# of the free memory; the rest is left to kernels and to whoever shares the machine
USABLE_MEMORY = 0.8
TIMING = "while it was timed: "


@dataclass(kw_only=True)
class Report:
    """Rows in order, with the roof of each dtype and where it all was measured."""

    environment: Json
    ceilings: dict[str, Ceiling]
    rows: list[Row] = field(default_factory=list)

    @property
    def failed(self) -> list[Row]:
        """Rows whose result or count is wrong."""
        return [row for row in self.rows if row.status in FAILED]

    @property
    def unmeasured(self) -> bool:
        """Whether a case gave nothing and neither memory nor budget is the reason, or none did."""
        by_case: dict[object, list[Row]] = {}
        for row in self.rows:
            key = (row.topic, row.model, tuple(row.workload.items()), row.dtype)
            by_case.setdefault(key, []).append(row)
        empty = [rows for rows in by_case.values() if all(row.status != OK for row in rows)]
        excused = (NO_ROOM, NO_TIME)
        broken = [rows for rows in empty if any(row.status not in excused for row in rows)]
        return bool(broken) or (bool(by_case) and len(empty) == len(by_case))


Tell = Callable[[int, int, str, str], None]


def run_cases(
    cases: Sequence[Case],
    plan: Plan,
    *,
    report: Report,
    roofs: Roofs | None,
    budget: float | None = None,
    seconds: Sequence[float] = (),
    tell: Tell = lambda done, total, label, detail: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[list[Row]]:
    """Measure every case, and the roof of its dtype first (unless `roofs` is None).

    Gives the rows of each case as soon as they are there; they and the roofs are in `report` too. A
    case that, by the estimates `seconds`, does not fit into what is left of `budget` is rows that
    say so.
    """
    began = clock()
    cache_bytes = devices.describe(plan.device).cache_bytes
    with monitor_of(plan.device) or nullcontext() as monitor:
        for done, case in enumerate(cases):
            spent = clock() - began
            if budget is not None and spent + seconds[done] > budget:
                reason = (
                    f"about {seconds[done]:.0f} s; of --budget {budget:g} s "
                    f"{max(0, budget - spent):.0f} are left"
                )
                rows = unmeasured(case, plan, NO_TIME, reason)
            else:
                if roofs is not None:
                    if roofs.is_due(case.dtype):
                        tell(done, len(cases), case.label, f"ceiling, {case.dtype}")
                    report.ceilings[case.dtype] = roofs.of(case.dtype)
                rows = run_case(
                    case,
                    plan,
                    report.ceilings.get(case.dtype),
                    cache_bytes,
                    monitor=monitor,
                    tell=partial(tell, done, len(cases), case.label),
                )
            report.rows.extend(rows)
            yield rows
            if (lost := device_lost(plan.device)) is not None:
                for rest in cases[done + 1 :]:
                    rows = unmeasured(rest, plan, NOT_AVAILABLE, f"the device was lost: {lost}")
                    report.rows.extend(rows)
                    yield rows
                return
        if roofs is not None:
            for dtype in roofs.first:  # what the device can still do at the end
                report.ceilings[dtype] = roofs.of(dtype, again=True)


def device_lost(device: torch.device) -> str | None:
    """Return the error with which a CUDA device answers everything from now on, or None."""
    if device.type != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return failure_of(error)[1]
    return None


def unmeasured(case: Case, plan: Plan, status: str, reason: str) -> list[Row]:
    """Return a row for each variant of a case that was not tried."""
    return [
        _blank(case)(variant=name, state=NO_STATE, launch=NO_STATE, status=status, reason=reason)
        for name in _names(case, plan)
    ]


def run_case(
    case: Case,
    plan: Plan,
    ceiling: Ceiling | None,
    cache_bytes: int,
    *,
    monitor: Monitor | None = None,
    tell: Callable[[str], None] = lambda detail: None,
) -> list[Row]:
    """Measure a case; return its rows in the order of its variants, those that failed too."""
    torch.manual_seed(plan.seed)
    torch.compiler.reset()  # what was compiled for other sizes counts against a limit
    gc.collect()  # graphs and compiled code of the case before hold its tensors in cycles
    if plan.device.type == "cuda":
        torch.cuda.empty_cache()
    free = devices.free_bytes(plan.device)
    wanted = input_sets(plan.device, case.set_bytes, cache_bytes)
    n_sets = next((n for n in (wanted, 1) if _needed(case, n) <= USABLE_MEMORY * free), None)
    if n_sets is None:
        reason = f"needs about {_needed(case, 1) / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        return unmeasured(case, plan, NO_ROOM, reason)
    try:
        built = case.build(plan.device, n_sets)
        flush = flusher(plan.device, devices.flush_bytes(plan.device, cache_bytes))
        # a stream that fails here is the device's trouble, not a variant's
        room = CaptureRoom(plan.device) if plan.device.type == "cuda" else None
    except (RuntimeError, MemoryError) as error:
        return unmeasured(case, plan, *failure_of(error))
    with torch.no_grad(), product_precision(case.dtype):
        ready, refused = _prepared(case, built, plan, flush, room, tell)
        tell("timing")
        measured, failed = _timed(case, ready, plan)
    timed = rows_of_case(
        measured, case, ceiling, _blank(case), plan.states, monitor, devices.clock_mhz(plan.device)
    )
    rows = [*timed, *refused, *failed]
    order = {variant.key: i for i, variant in enumerate(built.variants)}
    return sorted(rows, key=lambda row: order.get((row.variant, row.direction), len(order)))


def _needed(case: Case, n_sets: int) -> int:
    return case.needs_bytes + (n_sets - 1) * case.set_bytes


def _names(case: Case, plan: Plan) -> list[str]:
    return [name for name in case.variants if plan.only is None or name in plan.only]


def _blank(case: Case) -> Callable[..., Row]:
    return partial(
        Row,
        topic=case.topic,
        model=case.model,
        sizes=case.sizes,
        workload=case.workload,
        dtype=case.dtype,
    )


def _not_timed(case: Case, variant: Variant, status: str, reason: str, **known: object) -> Row:
    return _blank(case)(
        **{
            "variant": variant.name,
            "direction": variant.direction,
            "state": NO_STATE,
            "launch": NO_STATE,
            "status": status,
            "reason": reason,
            **of_work(variant),
            **known,
        }
    )


def _prepared(
    case: Case,
    built: Built,
    plan: Plan,
    flush: Callable[[], object],
    room: CaptureRoom | None,
    tell: Callable[[str], None],
) -> tuple[list[Ready], list[Row]]:
    """Check the variants one after the other, before the first is timed."""
    expected = Expected(rows_to_check(case.rows, case.checked_rows))
    names, ready, refused = _names(case, plan), [], []
    for variant in built.variants:
        if variant.name not in names:
            continue
        tell(variant.name)
        try:
            ready.append(prepare(case, variant, built, plan, expected, flush, room))
        except Refused as error:
            refused.append(_not_timed(case, variant, error.status, error.reason, **error.known))
            if plan.device.type == "cuda":
                torch.cuda.empty_cache()
    return ready, refused


def _timed(case: Case, ready: Sequence[Ready], plan: Plan) -> tuple[list[Measured], list[Row]]:
    """Time by turns all that passed their checks; who fails meanwhile is a row that says when."""
    pairs = [
        (Entrant(name=one.variant.name, watch=watch), one) for one in ready for watch in one.watches
    ]
    owners = {id(entrant): one for entrant, one in pairs}
    until = Until(
        rounds=plan.rounds,
        seconds=plan.seconds,
        precision=plan.precision,
        states=plan.states,
        warm_up_seconds=plan.warm_up_seconds,
    )
    with no_collector():
        take_turns(
            [entrant for entrant, _ in pairs],
            until,
            seed=plan.seed,
            is_ours=lambda entrant, error: is_ours(owners[id(entrant)].variant, error),
        )
    measured, failed = [], []
    for entrant, one in pairs:
        if entrant.failed is not None:
            status, reason = failure_of(entrant.failed)
            known = one.known | {"launch": entrant.watch.launch}
            failed.append(_not_timed(case, one.variant, status, TIMING + reason, **known))
        elif entrant.rounds:
            measured.append(Measured.of(entrant, one))
    return measured, failed
