"""One case after the other: checked, then timed in rounds, then put into rows."""

from __future__ import annotations

import gc
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

import torch

from metacount.bench import case as cases
from metacount.bench import device as devices
from metacount.bench.case import Built, Case, Inputs, Variant, product_precision, rows_to_check
from metacount.bench.ceiling import Roofs
from metacount.bench.ffn import ForwardBackward
from metacount.bench.observe import TOLERANCE, Observed, error_in, observe
from metacount.bench.power import Monitor, monitor_of
from metacount.bench.rounds import Entrant, Until, take_turns
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
    WRONG,
    Ceiling,
    Row,
    compared,
    rates,
    times,
    timing_of,
)
from metacount.bench.statistics import median, median_interval
from metacount.bench.stopwatch import (
    EAGER,
    GRAPH,
    LAUNCHES,
    STATES,
    Call,
    CaptureRoom,
    CpuStopwatch,
    EagerStopwatch,
    GraphStopwatch,
    LostWork,
    Stopwatch,
    estimate_call,
    flusher,
    input_sets,
    no_collector,
    waits_for_host,
)
from metacount.bench.work import Work, backward_work
from metacount.measure.operators import UncountedOp

if TYPE_CHECKING:
    from metacount.bench.case import Output, Reference
    from metacount.files import Json

MAX_REASON = 160  # characters of somebody else's message
WARM_UPS = 3  # calls of each input set before anything is timed; one for long calls


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to time: see `rounds.Until`; which states and launches; what is left out."""

    device: torch.device
    rounds: int
    seconds: float
    precision: float = 0.005
    warm_up_seconds: float = 0.1
    states: tuple[str, ...] = STATES
    launches: tuple[str, ...] = LAUNCHES
    compile: bool = True
    only: tuple[str, ...] | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A variant that passed its checks, with what was seen of it, and a stopwatch a launch."""

    variant: Variant
    known: Json
    watches: list[Stopwatch]


class Refused(Exception):
    """A variant that is not timed, and why."""

    def __init__(self, status: str, reason: str, **known: object) -> None:
        super().__init__(reason)
        self.status, self.reason, self.known = status, reason, known


def failure_of(error: BaseException) -> tuple[str, str]:
    """Name the status of a forward that did not run, and say why in one line."""
    if isinstance(error, Refused):
        return error.status, error.reason
    if isinstance(error, LostWork):
        return WRONG, str(error)
    text = str(error)
    # a CPU has no exception of its own for it
    no_room = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate" in text
    lines = text.strip().splitlines() or [type(error).__name__]
    said = lines[0] if len(lines[0]) <= MAX_REASON else lines[0][: MAX_REASON - 3] + "..."
    return (NO_ROOM, "out of memory") if no_room else (NOT_AVAILABLE, said)


def is_ours(variant: Variant, error: BaseException) -> bool:
    """Tell whether an error is a mistake of this program: what a device, a compiler or other
    people's code raises is a row.
    """
    expected = (RuntimeError, MemoryError, Refused, LostWork)
    return not (variant.compiled or variant.foreign or isinstance(error, expected))


def of_work(variant: Variant) -> Json:
    """Return the fields of a row that the work fills."""
    work = variant.work
    return {
        "matmul_flops": work.matmul_flops,
        "needed_flops": work.needed_flops,
        "moved_bytes": work.moved_bytes,
        "intensity": work.intensity,
    }


class Expected:
    """What the reference gives for the first input set, once for variants that share it."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self._found: dict[tuple[Reference, int], cases.Expected] = {}

    def of(self, variant: Variant, inputs: Inputs) -> cases.Expected:
        """Return the reference's rows in float64."""
        key = variant.reference, id(inputs)  # parts share a reference, and not their inputs
        if key not in self._found:
            self._found[key] = variant.reference(inputs, self.rows)
        return self._found[key]


def prepare(
    case: Case,
    variant: Variant,
    built: Built,
    plan: Plan,
    expected: Expected,
    flush: Call,
    room: CaptureRoom | None,
) -> Ready:
    """Prepare a variant: count, compile, compare with the reference, warm up; else `Refused`."""
    if variant.missing is not None:
        raise Refused(NOT_AVAILABLE, variant.missing)
    if variant.compiled and not plan.compile:
        raise Refused(NOT_AVAILABLE, "--no-compile")
    sets = variant.inputs or built.inputs
    try:
        seen = observe(variant, sets[0])
        refuse_miscount(variant, seen)
        call = compiled_of(variant)
        working = _working_bytes(call, sets[0], plan.device, seen, compiled=bool(variant.compiled))
        check = _checker(case, variant, expected, sets[0])
        error = check(call(*sets[0]))
        calls = [partial(call, *inputs) for inputs in sets]
        watches, note = _watches(variant, calls, flush, plan, room, check)
    except Refused:
        raise
    except UncountedOp as error:
        raise Refused(MISCOUNTED, str(error)) from None
    except Exception as error:
        if is_ours(variant, error):
            raise
        status, reason = failure_of(error)
        raise Refused(status, reason) from None
    known = of_work(variant) | {
        "relative_error": error,
        "operators": seen.operators,
        "counted_on": variant.stand_in_name or None,
        # a compiler may fuse what the counted forward did one by one
        "operator_bytes": None if variant.compiled or variant.stand_in else seen.operator_bytes,
        "working_bytes": working,
        "peak_bytes": None if working is None else seen.held_bytes + working,
        "note": note,
    }
    return Ready(variant=variant, known=known, watches=watches)


def compiled_of(variant: Variant) -> Callable[..., Output]:
    """Return the variant's module, under torch.compile in its mode where it has one."""
    if not variant.compiled:
        return variant.module
    if isinstance(variant.module, ForwardBackward):
        call: Callable[..., Output] = variant.module.compiled(variant.compiled)
    else:
        call = torch.compile(variant.module, dynamic=False, fullgraph=True, mode=variant.compiled)

    def quiet(*inputs: torch.Tensor) -> Output:
        # float32 is meant here; the compiler advises against it
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*TensorFloat32.*")
            return call(*inputs)

    ready: list[bool] = []

    def once_quiet(*inputs: torch.Tensor) -> Output:
        if ready:
            return call(*inputs)
        out = quiet(*inputs)
        ready.append(True)
        return out

    return once_quiet


def _checker(
    case: Case, variant: Variant, expected: Expected, inputs: Inputs
) -> Callable[[Output], float]:
    """Compare what a call gave with the reference: its error, or `Refused`."""
    bound = TOLERANCE[case.dtype]

    def check(out: Output) -> float:
        error = error_in(out, expected.rows, expected.of(variant, inputs), variant.pick)
        if not error <= bound:  # not a number is wrong too
            raise Refused(
                WRONG,
                f"relative error {error:.2g} against float64, {case.dtype} explains at most "
                f"{bound:.2g}",
                relative_error=None if math.isnan(error) else error,
            )
        return error

    return check


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
    if room is None:
        return [CpuStopwatch(calls, flush, call_s)], None
    room.warm_up(calls[0])
    waits = waits_for_host(calls[0], plan.device)
    note = None
    if waits and not variant.reads_back:
        note = f"no graph: {waits}"
    elif variant.reads_back and not waits:
        note = "no graph: said to wait for the host, though no wait was seen"
    graph = not waits and not variant.reads_back
    found: list[Stopwatch] = []
    if GRAPH in plan.launches and graph:
        found.append(
            GraphStopwatch(calls, flush, call_s, room=room, states=plan.states, check=check)
        )
    if EAGER in plan.launches or not found:
        found.append(EagerStopwatch(calls, flush, call_s, plan.device))
    torch.cuda.empty_cache()  # what this variant worked with is not kept while others run
    return found, note


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
    call: Callable[..., Output],
    inputs: Inputs,
    device: torch.device,
    seen: Observed,
    *,
    compiled: bool,
) -> int | None:
    """Measure memory beyond weights and inputs: the allocator's on CUDA, the tensors' on a CPU."""
    if device.type != "cuda":
        return None if compiled else seen.working_bytes
    call(*inputs)  # compiles, and lets libraries make their workspaces
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call(*inputs)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


EQUAL_TIME_MARK = "@"  # in the name of a variant that is there to find the width of equal time


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One variant launched in one way: its rounds by state, and what is known of it."""

    variant: Variant
    direction: str
    launch: str
    work: Work
    rounds: dict[str, list[list[float]]]
    known: Json
    windows: list[tuple[float, float]]

    @classmethod
    def of(cls, entrant: Entrant, ready: Ready) -> Self:
        """Join an entrant that took its turns with what is known of its variant."""
        watch = entrant.watch
        known = ready.known | {
            "input_sets": watch.sets,
            "calls_per_sample": watch.calls_per_sample,
            "graph_nodes": watch.nodes,
        }
        return cls(
            variant=ready.variant,
            direction=ready.variant.direction,
            launch=watch.launch,
            work=ready.variant.work,
            rounds=entrant.rounds,
            known=known,
            windows=entrant.windows,
        )

    def medians(self, state: str) -> list[float]:
        """Return one value a round, the median of its samples."""
        return [median(burst) for burst in self.rounds[state]]


def rows_of_case(
    measured: Sequence[Measured],
    case: Case,
    ceiling: Ceiling | None,
    blank: Callable[..., Row],
    states: Sequence[str],
    monitor: Monitor | None,
    clock_mhz: int | None,
) -> Iterator[Row]:
    """Yield a row per variant, launch and state; the backward alone where both ways were timed."""
    everything = [*measured, *_backwards(measured)]
    for one in everything:
        for state in states:
            label = {
                "variant": one.variant.name,
                "direction": one.direction,
                "state": state,
                "launch": one.launch,
            }
            values = one.medians(state)
            if min(values) <= 0:
                yield blank(
                    **label,
                    status=NOT_AVAILABLE,
                    reason="the forward took as long as forward and backward",
                )
                continue
            timing = timing_of(one.rounds[state])
            against = _baseline(everything, one, case, state)
            ratio = (
                {}
                if against is None
                else {"baseline": against.variant.name, **compared(values, against.medians(state))}
            )
            seen = {"clock_mhz": clock_mhz}
            if monitor is not None:
                seen |= monitor.of(one.windows, timing.median_s)
            equal = _equal_time(everything, one, against, state)
            yield blank(
                **label,
                **one.known,
                **times(timing),
                **rates(one.work, timing, ceiling),
                **ratio,
                **seen,
                **equal,
            )


def _baseline(
    everything: Sequence[Measured], one: Measured, case: Case, state: str
) -> Measured | None:
    """Find the fastest of the case's baselines, of the same launch and direction."""
    if one.variant.part:
        return None
    names = case.baselines or case.variants[:1]
    found = [
        other
        for other in everything
        if other.variant.name in names
        and (other.launch, other.direction) == (one.launch, one.direction)
    ]
    return min(found, key=lambda other: median(other.medians(state)), default=None)


def _backwards(measured: Sequence[Measured]) -> Iterator[Measured]:
    """Yield each backward: forward and backward less the forward of the same round."""
    forwards = {(m.variant.name, m.launch): m for m in measured if m.direction == FORWARD}
    for both in measured:
        forward = forwards.get((both.variant.name, both.launch))
        if both.direction != BOTH or forward is None:
            continue
        rounds = {
            state: [
                [whole - part]
                for whole, part in zip(both.medians(state), forward.medians(state), strict=True)
            ]
            for state in both.rounds
        }
        work = backward_work(forward.work, both.work)
        kept = ("relative_error", "input_sets", "calls_per_sample")
        yield Measured(
            variant=both.variant,
            direction=BACKWARD,
            launch=both.launch,
            work=work,
            rounds=rounds,
            known={name: both.known[name] for name in kept}
            | {
                "matmul_flops": work.matmul_flops,
                "needed_flops": work.needed_flops,
                "moved_bytes": work.moved_bytes,
                "intensity": work.intensity,
                "note": "forward and backward less the forward of the same round",
            },
            windows=both.windows,
        )


def _equal_time(
    everything: Sequence[Measured], one: Measured, against: Measured | None, state: str
) -> Json:
    """Find the width at which the gated block takes the baseline's time, for the rule's row.

    Read off each round between the two widths on either side, then the median over rounds.
    """
    wide = [
        other
        for other in everything
        if other.variant.d_ff is not None
        and (other.launch, other.direction) == (one.launch, one.direction)
    ]
    searched = any(EQUAL_TIME_MARK in other.variant.name for other in wide)
    if against is None or not searched or one.variant.name != "swiglu":
        return {}
    widths = [other.variant.d_ff or 0 for other in wide]
    found = []
    for values in zip(against.medians(state), *(w.medians(state) for w in wide), strict=True):
        width = crossing(sorted(zip(widths, values[1:], strict=True)), values[0])
        if width is not None:
            found.append(width)
    if 2 * len(found) <= len(one.medians(state)):
        return {}
    low, high = median_interval(found) or (min(found), max(found))
    return {"equal_time_d_ff": median(found), "equal_time_low": low, "equal_time_high": high}


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
