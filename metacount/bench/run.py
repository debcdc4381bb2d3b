"""One case after the other: checked, then timed in rounds, then put into rows."""

from __future__ import annotations

import gc
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch

from metacount.bench import device as devices
from metacount.bench.case import Case, Refused, Variant, product_precision, rows_to_check
from metacount.bench.ceiling import Roofs
from metacount.bench.device import Monitor, monitor_of
from metacount.bench.ffn import EQUAL_TIME_MARK, ForwardBackward
from metacount.bench.observe import TOLERANCE, Observed, error_in, observe
from metacount.bench.rows import (
    BACKWARD,
    BOTH,
    FAILED,
    FORWARD,
    MISCOUNTED,
    NO_ROOM,
    NO_TIME,
    NOT_AVAILABLE,
    OK,
    TOO_BUSY,
    WRONG,
    Ceiling,
    Row,
    Work,
    compared,
    median_interval,
    rates,
    times,
    too_busy,
)
from metacount.bench.timing import (
    EAGER,
    GRAPH,
    HOT,
    Call,
    CaptureRoom,
    Entrant,
    GraphStopwatch,
    Plan,
    Stopwatch,
    estimate_call,
    flusher,
    input_sets,
    take_turns,
    waits_for_host,
)
from metacount.measure.operators import UncountedOp

if TYPE_CHECKING:
    from metacount.bench.case import Expected, Output, Reference
    from metacount.files import Json

MAX_REASON = 160  # characters of somebody else's message
WARM_UPS = 3  # calls of each input set before anything is timed; one for long calls
NO_STATE = "-"  # of a row that was not timed
# of the free memory; the rest is left to kernels and to whoever shares the machine
USABLE_MEMORY = 0.8
TIMING = "while it was timed: "

Tell = Callable[[int, int, str, str], None]


def failure_of(error: BaseException) -> tuple[str, str]:
    """Name the status of a forward that did not run, and say why in one line."""
    if isinstance(error, Refused):
        return error.status, error.reason
    text = str(error)
    # a CPU has no exception of its own for it
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate" in text:
        return NO_ROOM, "out of memory"
    line = (text.strip().splitlines() or [type(error).__name__])[0]
    return NOT_AVAILABLE, line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 3]}..."


def run_cases(
    cases: Sequence[Case],
    plan: Plan,
    *,
    roofs: Roofs | None,
    budget: float | None = None,
    seconds: Sequence[float] = (),
    tell: Tell = lambda done, total, label, detail: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[list[Row]]:
    """Measure every case, and the roof of its dtype first (unless `roofs` is None).

    Yields the rows of each case as soon as they are there. A case that, by the estimates `seconds`,
    does not fit into what is left of `budget` is rows that say so.
    """
    began, lost = clock(), None
    cache_bytes = devices.cache_bytes_of(plan.device)
    with monitor_of(plan.device) or nullcontext() as monitor:
        for done, case in enumerate(cases):
            left = math.inf if budget is None else budget - (clock() - began)
            if lost is not None:
                yield unmeasured(case, plan, NOT_AVAILABLE, f"the device was lost: {lost}")
                continue
            if budget is not None and seconds[done] > left:
                reason = f"about {seconds[done]:.0f} s; of --budget {budget:g} s {max(0, left):.0f}"
                yield unmeasured(case, plan, NO_TIME, f"{reason} are left")
            else:
                if roofs is not None and roofs.is_due(case.dtype):
                    tell(done, len(cases), case.label, f"ceiling, {case.dtype}")
                yield run_case(
                    case,
                    plan,
                    None if roofs is None else roofs.of(case.dtype),
                    cache_bytes,
                    monitor=monitor,
                    tell=partial(tell, done, len(cases), case.label),
                )
            lost = device_lost(plan)
        if roofs is not None and lost is None:
            for dtype in roofs.first:  # what the device can still do at the end
                roofs.of(dtype, again=True)


def device_lost(plan: Plan) -> str | None:
    """Return the error with which a CUDA device answers everything from now on, or None."""
    try:
        if plan.cuda:
            torch.cuda.synchronize(plan.device)
    except RuntimeError as error:
        return failure_of(error)[1]
    return None


def disagrees(rows: Sequence[Row]) -> bool:
    """Tell whether a result or a count is wrong, or nothing was measured.

    That is so where a case gave nothing and neither memory nor budget is the reason, or none did.
    """
    by_case: dict[object, set[str]] = {}
    for row in rows:
        key = (row.topic, row.model, tuple(row.workload.items()), row.dtype)
        by_case.setdefault(key, set()).add(row.status)
    empty = [statuses for statuses in by_case.values() if OK not in statuses]
    broken = [statuses for statuses in empty if not statuses <= {NO_ROOM, NO_TIME}]
    failed = any(row.status in FAILED for row in rows)
    return failed or bool(broken) or (bool(by_case) and len(empty) == len(by_case))


def unmeasured(case: Case, plan: Plan, status: str, reason: str) -> list[Row]:
    """Return a row for each variant of a case that was not tried."""
    names = [name for name in case.variants if plan.only is None or name in plan.only]
    return [row_of(case, variant=name, status=status, reason=reason) for name in names]


def row_of(case: Case, **known: object) -> Row:
    """Return a row of a case; of something that was not timed, unless its state is given."""
    fields = {
        name: getattr(case, name) for name in ("topic", "model", "sizes", "workload", "dtype")
    }
    return Row.from_dict({**fields, "state": NO_STATE, "launch": NO_STATE, **known})


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
    if plan.cuda:
        torch.cuda.empty_cache()
    free = devices.free_bytes(plan.device)
    needed = {
        n: case.needs_bytes + (n - 1) * case.set_bytes
        for n in (input_sets(plan.device, case.set_bytes, cache_bytes), 1)
    }
    n_sets = next((n for n, size in needed.items() if size <= USABLE_MEMORY * free), None)
    if n_sets is None:
        reason = f"needs about {needed[1] / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        return unmeasured(case, plan, NO_ROOM, reason)
    try:
        variants = case.build(plan.device, n_sets)
        flush = flusher(plan.device, devices.flush_bytes(plan.device, cache_bytes))
        # a stream that fails here is the device's trouble, not a variant's
        room = CaptureRoom(plan.device) if plan.cuda else None
    except (RuntimeError, MemoryError) as error:
        return unmeasured(case, plan, *failure_of(error))
    order = {(variant.name, BACKWARD): i for i, variant in enumerate(variants, len(variants))}
    order |= {(variant.name, variant.direction): i for i, variant in enumerate(variants)}
    entrants: list[Entrant] = []
    rows: list[Row] = []
    with torch.no_grad(), product_precision(case.dtype):
        expected = Reuse(rows_to_check(case.rows, case.checked_rows))
        for variant in variants:
            if plan.only is None or variant.name in plan.only:
                tell(variant.name)
                try:
                    entrants += prepare(case, variant, plan, expected, flush, room)
                except Refused as error:
                    rows.append(_refused(case, variant, error.status, error.reason, **error.known))
                    if plan.cuda:
                        torch.cuda.empty_cache()
        tell("timing")
        take_turns(entrants, plan)
    for entrant in entrants:
        if entrant.failed is not None:
            status, reason = failure_of(entrant.failed)
            known = entrant.known | {"launch": entrant.watch.launch}
            rows.append(_refused(case, entrant.variant, status, TIMING + reason, **known))
    timed = [entrant for entrant in entrants if entrant.failed is None and entrant.rounds]
    rows = [*rows_of_case(timed, case, plan, ceiling, monitor), *rows]

    def place(row: Row) -> tuple[int, bool, bool, bool]:
        number = order[row.variant, row.direction]
        return number, row.state == NO_STATE, row.launch != GRAPH, row.state != HOT

    return sorted(rows, key=place)


def _refused(case: Case, variant: Variant, status: str, reason: str, **known: object) -> Row:
    label = {"variant": variant.name, "direction": variant.direction}
    return row_of(case, **label, status=status, reason=reason, **of_work(variant.work) | known)


def of_work(work: Work) -> Json:
    """Return the fields of a row that the work fills."""
    names = ("matmul_flops", "needed_flops", "moved_bytes", "intensity")
    return {name: getattr(work, name) for name in names}


class Reuse:
    """What the references give for `rows`, once for variants that share one and their inputs."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self._known: dict[tuple[Reference, int], Expected] = {}

    def of(self, variant: Variant) -> Expected:
        """Return the rows of the first input set in float64."""
        key = variant.reference, id(variant.inputs[0])
        if key not in self._known:
            self._known[key] = variant.reference(variant.inputs[0], self.rows)
        return self._known[key]


def prepare(
    case: Case,
    variant: Variant,
    plan: Plan,
    expected: Reuse,
    flush: Call,
    room: CaptureRoom | None,
) -> list[Entrant]:
    """Count, compile, compare with the reference and warm up: an entrant a launch, or `Refused`."""
    if variant.missing is not None:
        raise Refused(NOT_AVAILABLE, variant.missing)
    if variant.compiled and not plan.compile:
        raise Refused(NOT_AVAILABLE, "--no-compile")
    check = partial(_check, case, variant, expected)
    try:
        seen = observe(variant)
        refuse_miscount(variant, seen)
        call = compiled_of(variant)
        working = _working_bytes(variant, call, plan, seen)
        error = check(call(*variant.inputs[0]))
        calls = [partial(call, *inputs) for inputs in variant.inputs]
        watches, note = _watches(variant, calls, flush, plan, room, check)
    except UncountedOp as error:
        raise Refused(MISCOUNTED, str(error)) from None
    except Exception as error:
        if isinstance(error, Refused) or not variant.may_raise(error):
            raise
        raise Refused(*failure_of(error)) from None
    # a compiler may fuse what the counted forward did one by one
    as_counted = not variant.compiled and variant.stand_in is None
    known = of_work(variant.work) | {
        "relative_error": error,
        "operators": seen.operators,
        "counted_on": variant.stand_in_name,
        "operator_bytes": seen.operator_bytes if as_counted else None,
        "working_bytes": working,
        "peak_bytes": None if working is None else seen.held_bytes + working,
        "note": note,
    }
    return [Entrant(variant=variant, watch=watch, known=known) for watch in watches]


def compiled_of(variant: Variant) -> Callable[..., Output]:
    """Return the variant's module, under torch.compile in its mode where it has one.

    Of a module that gives gradients it is the layer inside, its backward with it.
    """
    if variant.compiled is None:
        return variant.module
    compiled = partial(torch.compile, dynamic=False, fullgraph=True, mode=variant.compiled)
    if isinstance(variant.module, ForwardBackward):
        layer: object = compiled(variant.module.layer)
        assert isinstance(layer, torch.nn.Module)
        call: Callable[..., Output] = ForwardBackward(layer)
    else:
        call = compiled(variant.module)
    compiles = [True]

    def quiet_once(*inputs: torch.Tensor) -> Output:
        if not compiles:
            return call(*inputs)
        # float32 is meant here; the compiler advises against it
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*TensorFloat32.*")
            out = call(*inputs)
        compiles.clear()
        return out

    return quiet_once


def _check(case: Case, variant: Variant, expected: Reuse, out: Output) -> float:
    """Compare what a call gave with the reference: its error, or `Refused`."""
    error, bound = (
        error_in(out, expected.rows, expected.of(variant), variant.pick),
        TOLERANCE[case.dtype],
    )
    if not error <= bound:  # not a number is wrong too
        raise Refused(
            WRONG,
            f"relative error {error:.2g} against float64, {case.dtype} explains at most "
            f"{bound:.2g}",
            relative_error=None if math.isnan(error) else error,
        )
    return error


def _watches(
    variant: Variant,
    calls: Sequence[Call],
    flush: Call,
    plan: Plan,
    room: CaptureRoom | None,
    check: Callable[[Output], object],
) -> tuple[list[Stopwatch], str | None]:
    """Make a stopwatch for each launch the variant can have, and a note on a missing graph."""
    call_s = estimate_call(calls[0], plan.device)
    for call in calls:
        for _ in range(WARM_UPS if call_s * len(calls) < 0.1 else 0):
            call()
    eager = Stopwatch(calls, flush, call_s, plan.device)
    if room is None:
        return [eager], None
    room.warm_up(calls[0])
    waits, note = waits_for_host(calls[0], plan.device), None
    if waits and not variant.reads_back:
        note = f"no graph: {waits}"
    elif variant.reads_back and not waits:
        note = "no graph: said to wait for the host, though no wait was seen"
    watches: list[Stopwatch] = []
    if GRAPH in plan.launches and not waits and not variant.reads_back:
        watches.append(
            GraphStopwatch(calls, flush, call_s, room=room, states=plan.states, check=check)
        )
    if EAGER in plan.launches or not watches:
        watches.append(eager)
    torch.cuda.empty_cache()  # what this variant worked with is not kept while others run
    return watches, note


def refuse_miscount(variant: Variant, seen: Observed) -> None:
    """Refuse a count that the operators do not confirm, to the last digit: it gives no rate."""
    work = variant.work
    pairs = [("all pairs", work.matmul_flops, seen.matmul_flops)]
    if seen.masked_flops is not None:
        pairs.append(("pairs that the mask keeps", work.needed_flops, seen.masked_flops))
    for what, formula, measured in pairs:
        if formula != measured:
            raise Refused(
                MISCOUNTED,
                f"the formula gives {formula:,} FLOPs ({what}), the operators {measured:,}",
            )


def _working_bytes(
    variant: Variant, call: Callable[..., Output], plan: Plan, seen: Observed
) -> int | None:
    """Measure memory beyond weights and inputs: the allocator's on CUDA, the tensors' on a CPU."""
    if not plan.cuda:
        return None if variant.compiled else seen.working_bytes
    call(*variant.inputs[0])  # compiles, and lets libraries make their workspaces
    torch.cuda.synchronize(plan.device)
    before = torch.cuda.memory_allocated(plan.device)
    torch.cuda.reset_peak_memory_stats(plan.device)
    call(*variant.inputs[0])
    torch.cuda.synchronize(plan.device)
    return torch.cuda.max_memory_allocated(plan.device) - before


def rows_of_case(
    timed: Sequence[Entrant],
    case: Case,
    plan: Plan,
    ceiling: Ceiling | None,
    monitor: Monitor | None,
) -> Iterator[Row]:
    """Yield a row per variant, launch and state; the backward alone where both ways were timed.

    What was timed on a machine too busy for that to mean anything is a row that says so, without
    rates, and nothing is compared with it.
    """
    clock_mhz = devices.clock_mhz(plan.device)
    for state in plan.states:
        steady: list[tuple[Entrant, Json]] = []
        for entrant in (*timed, *_backwards(timed)):
            variant = entrant.variant
            row: Json = {
                "variant": variant.name,
                "direction": variant.direction,
                "state": state,
                "launch": entrant.watch.launch,
            }
            if min(entrant.medians(state)) <= 0:
                reason = "the forward took as long as forward and backward"
                yield row_of(case, **row, status=NOT_AVAILABLE, reason=reason)
                continue
            row |= entrant.known | {
                "input_sets": entrant.watch.sets,
                "calls_per_sample": entrant.watch.calls_per_sample,
                "graph_nodes": None if variant.direction == BACKWARD else entrant.watch.nodes,
                "clock_mhz": clock_mhz,
            }
            row |= times(entrant.rounds[state])
            rate = rates(variant.work, row["median_s"], ceiling)
            if (why := too_busy(row | rate)) is not None:
                yield row_of(case, **row, status=TOO_BUSY, reason=why)
                continue
            if monitor is not None:
                row |= monitor.of(entrant.windows, row["median_s"])
            steady.append((entrant, row | rate))
        entrants = [entrant for entrant, _ in steady]
        for entrant, known in steady:
            yield row_of(case, **known, **_against_baseline(entrants, entrant, state))


def _against_baseline(timed: Sequence[Entrant], entrant: Entrant, state: str) -> Json:
    """Compare with the fastest of the case's baselines, of the same launch and direction."""
    alike = [
        other
        for other in timed
        if other.watch.launch == entrant.watch.launch
        and other.variant.direction == entrant.variant.direction
    ]
    baselines = [other for other in alike if other.variant.baseline]
    if entrant.variant.part or not baselines:
        return {}
    baseline = min(baselines, key=lambda other: median(other.medians(state)))
    levels = baseline.medians(state)
    found = {"baseline": baseline.variant.name, **compared(entrant.medians(state), levels)}
    if entrant.variant.name == "swiglu":
        found |= _equal_time(alike, levels, state)
    return found


def _equal_time(alike: Sequence[Entrant], levels: Sequence[float], state: str) -> Json:
    """Find the width at which the gated block takes the baseline's time, where it was searched.

    Read off each round between the two widths on either side, then the median over rounds.
    """
    wide = {e.variant.d_ff: e.medians(state) for e in alike if e.variant.d_ff is not None}
    searched = any(EQUAL_TIME_MARK in entrant.variant.name for entrant in alike)
    widths = [
        crossing(sorted(zip(wide, of_round, strict=True)), level)
        for level, *of_round in zip(levels, *wide.values(), strict=True)
    ]
    known = [width for width in widths if width is not None]
    if not searched or 2 * len(known) <= len(levels):
        return {}
    low, high = median_interval(known) or (min(known), max(known))
    return {"equal_time_d_ff": median(known), "equal_time_low": low, "equal_time_high": high}


def crossing(points: Sequence[tuple[int, float]], level: float) -> float | None:
    """Find where a line through neighbouring points first reaches `level` from below, or None.

    >>> crossing([(100, 1.0), (200, 2.0), (300, 4.0)], 3.0)
    250.0
    >>> crossing([(100, 1.0), (200, 2.0)], 3.0) is None
    True
    """
    for (x, low), (right, high) in itertools.pairwise(points):
        if low <= level <= high and low < high:
            return x + (right - x) * (level - low) / (high - low)
    return None


def _backwards(timed: Sequence[Entrant]) -> Iterator[Entrant]:
    """Yield each backward: forward and backward less the forward of the same round.

    It reads weights, input and output gradient, and writes the gradients of weights and input: what
    both move, less the output.
    """
    forwards = {
        (e.variant.name, e.watch.launch): e for e in timed if e.variant.direction == FORWARD
    }
    for both in timed:
        forward = forwards.get((both.variant.name, both.watch.launch))
        if both.variant.direction != BOTH or forward is None:
            continue
        work, less = both.variant.work, forward.variant.work
        alone = Work(
            matmul_flops=work.matmul_flops - less.matmul_flops,
            needed_flops=work.needed_flops - less.needed_flops,
            moved_bytes=work.moved_bytes - both.variant.inputs[0][1].nbytes,
        )
        yield Entrant(
            variant=replace(both.variant, direction=BACKWARD, work=alone),
            watch=both.watch,
            rounds={
                state: [
                    [total - part]
                    for total, part in zip(both.medians(state), forward.medians(state), strict=True)
                ]
                for state in both.rounds
            },
            known=of_work(alone)
            | {
                "relative_error": both.known["relative_error"],
                "note": "forward and backward less the forward of the same round",
            },
            windows=both.windows,
        )
