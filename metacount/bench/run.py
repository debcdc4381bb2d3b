"""One case after the other: counted and checked, then timed in rounds, then put into rows."""

from __future__ import annotations

import gc
import math
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from metacount.bench import device as devices
from metacount.bench.case import (
    Case,
    Expected,
    Pick,
    Refused,
    Variant,
    product_precision,
    rows_of,
    rows_to_check,
)
from metacount.bench.device import Monitor, Roofs, monitor_of
from metacount.bench.layers import ForwardBackward
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
from metacount.measure.ours import reference_counter
from metacount.measure.torch_private import (
    DispatchMode,
    returns_its_input,
    storage_key,
    tree_leaves,
)

if TYPE_CHECKING:
    from metacount.bench.case import Output
    from metacount.files import Json
    from metacount.measure.torch_private import OpOverload

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
    began = clock()
    cache_bytes = devices.cache_bytes_of(plan.device)
    with monitor_of(plan.device) or nullcontext() as monitor:
        for done, case in enumerate(cases):
            left = math.inf if budget is None else budget - (clock() - began)
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
        if roofs is not None:
            for dtype in roofs.first:  # what the device can still do at the end
                roofs.of(dtype, again=True)


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
        preparation = Preparation(case, plan, flush, room)
        for variant in variants:
            if plan.only is None or variant.name in plan.only:
                tell(variant.name)
                try:
                    entrants += preparation.entrants(variant)
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


class Preparation:
    """What is done with each variant of a case before it is timed."""

    def __init__(self, case: Case, plan: Plan, flush: Call, room: CaptureRoom | None) -> None:
        self.case, self.plan, self.flush, self.room = case, plan, flush, room
        self.rows = rows_to_check(case.rows, case.checked_rows)
        self.references: dict[object, Expected] = {}  # of variants that share one and their inputs

    def entrants(self, variant: Variant) -> list[Entrant]:
        """Count, compile, compare with the reference, warm up: one a launch, or `Refused`."""
        if variant.missing is not None:
            raise Refused(NOT_AVAILABLE, variant.missing)
        if variant.compiled and not self.plan.compile:
            raise Refused(NOT_AVAILABLE, "--no-compile")
        check = partial(self.check, variant)
        try:
            seen = observe(variant)
            refuse_miscount(variant, seen)
            call = compiled_of(variant)
            working = self.working_bytes(variant, call, seen)
            error = check(call(*variant.inputs[0]))
            calls = [partial(call, *inputs) for inputs in variant.inputs]
            watches, note = self.watches(variant, calls, check)
        except UncountedOp as error:
            raise Refused(MISCOUNTED, str(error)) from None
        except Exception as error:
            if isinstance(error, Refused) or not variant.may_raise(error):
                raise
            raise Refused(*failure_of(error)) from None
        # a compiler may fuse what the counted forward did one by one
        as_counted = not variant.compiled and variant.stand_in is None
        fields = of_work(variant.work) | {
            "relative_error": error,
            "operators": seen.operators,
            "counted_on": variant.stand_in_name,
            "operator_bytes": seen.operator_bytes if as_counted else None,
            "working_bytes": working,
            "peak_bytes": None if working is None else seen.held_bytes + working,
            "note": note,
        }
        return [Entrant(variant=variant, watch=watch, known=fields) for watch in watches]

    def check(self, variant: Variant, out: Output) -> float:
        """Compare what a call gave with the reference: its error, or `Refused`."""
        key = variant.reference, id(variant.inputs[0])
        if key not in self.references:
            self.references[key] = variant.reference(variant.inputs[0], self.rows)
        error = error_in(out, self.rows, self.references[key], variant.pick)
        bound = TOLERANCE[self.case.dtype]
        if not error <= bound:  # not a number is wrong too
            raise Refused(
                WRONG,
                f"relative error {error:.2g} against float64, {self.case.dtype} explains at most "
                f"{bound:.2g}",
                relative_error=None if math.isnan(error) else error,
            )
        return error

    def watches(
        self, variant: Variant, calls: Sequence[Call], check: Callable[[Output], object]
    ) -> tuple[list[Stopwatch], str | None]:
        """Make a stopwatch for each launch, and a note on a missing graph."""
        plan, flush, room = self.plan, self.flush, self.room
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

    def working_bytes(
        self, variant: Variant, call: Callable[..., Output], seen: Observed
    ) -> int | None:
        """Measure memory beyond weights and inputs: the allocator's, on a CPU the tensors'."""
        device = self.plan.device
        if not self.plan.cuda:
            return None if variant.compiled else seen.working_bytes
        call(*variant.inputs[0])  # compiles, and lets libraries make their workspaces
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call(*variant.inputs[0])
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before


def compiled_of(variant: Variant) -> Callable[..., Output]:
    """Return the variant's module, compiled where it asks for that.

    Of a module that gives gradients it is the layer inside, its backward with it.
    """
    if not variant.compiled:
        return variant.module
    compiled = partial(torch.compile, dynamic=False, fullgraph=True)
    call: Callable[..., Output] = compiled(variant.module)
    if isinstance(variant.module, ForwardBackward):
        layer: Any = compiled(variant.module.layer)
        call = ForwardBackward(layer)
    with warnings.catch_warnings():  # float32 is meant here; the compiler advises against it
        warnings.filterwarnings("ignore", message=".*TensorFloat32.*")
        call(*variant.inputs[0])
    return call


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
                "core_share": None if plan.cuda else entrant.core_share,
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
    how = entrant.watch.launch, entrant.variant.direction
    baselines = [
        other
        for other in timed
        if other.variant.baseline and (other.watch.launch, other.variant.direction) == how
    ]
    if not baselines:
        return {}
    baseline = min(baselines, key=lambda other: median(other.medians(state)))
    ratio = compared(entrant.medians(state), baseline.medians(state))
    return {"baseline": baseline.variant.name, **ratio}


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
            busy_s=both.busy_s,
        )


# What a variant does before it is timed: FLOPs and bytes by operator, memory, and its result

# Largest relative error that rounding explains, as ‖y - reference‖ / ‖reference‖ over the rows
# compared. bf16 and fp16 products add up in float32 and round each result once: half a unit in the
# last place, 2^-8 and 2^-11. A layer rounds up to about ten times on the way (projections, scores,
# weights, activation, product, sum), with random signs, and most of them matter little; 4 such
# roundings are allowed, and layers come to about one. A product in tf32 rounds what it multiplies
# to the digits of fp16. In fp32 the sums round as well, thousands of terms at 2^-24: 1e-5 allows
# about 170. A wrong layer (an activation left out, a head or an expert swapped) is off by more than
# 0.1.
TOLERANCE = {"fp32": 1e-5, "tf32": 4 * 2**-11, "fp16": 4 * 2**-11, "bf16": 4 * 2**-8}

UNWRITTEN = tuple(
    f"aten.{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view")
)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One eager forward. `masked_flops` is None where no mask was seen.

    `operator_bytes` is the size of what every operator is given and makes, each tensor once per
    operator: the traffic of a layer that fuses nothing (a grouped product may read less of its
    matrices). `held_bytes` is what was there before and was used,
    weights and inputs; `working_bytes` the most that was alive of what the forward itself made.
    `operators` are those that cost FLOPs: they say which attention kernel ran.
    """

    matmul_flops: int
    operators: dict[str, int]
    masked_flops: int | None
    operator_bytes: int
    held_bytes: int
    working_bytes: int


class _Traffic(DispatchMode):
    """Adds up the bytes of every operator's tensors, and follows which storages are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.held = self.alive = self.peak = 0
        self._known: set[int] = set()

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        for tensor in given:
            storage = tensor.untyped_storage()
            if storage_key(storage) not in self._known:
                self._known.add(storage_key(storage))
                self.held += storage.nbytes()
        out = func(*args, **kwargs)
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if not returns_its_input(func) and str(func.overloadpacket) not in UNWRITTEN:
            self.bytes += sum(map(touched_bytes, given)) + sum(map(touched_bytes, made))
        for tensor in made:
            self._follow(tensor)
        return out

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        name = storage_key(storage)
        if name in self._known:
            return
        self._known.add(name)
        self.alive += storage.nbytes()
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._gone, name, storage.nbytes())

    def _gone(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.alive -= size


def touched_bytes(tensor: Tensor) -> int:
    """Count the bytes of a tensor's values; an axis that only repeats them counts once."""
    count = tensor.element_size() if tensor.numel() else 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count


def observe(variant: Variant) -> Observed:
    """Run the module once, uncompiled, and count. `UncountedOp` for an operator nobody priced."""
    counter, traffic = reference_counter(), _Traffic()
    module = variant.stand_in or variant.module
    with traffic, counter.watching(module):
        module(*variant.inputs[0])
    report = counter.report()
    return Observed(
        matmul_flops=report.matmul_flops,
        operators=report.by_operator,
        masked_flops=report.causal_matmul_flops if variant.shows_mask else None,
        operator_bytes=traffic.bytes,
        held_bytes=traffic.held,
        working_bytes=traffic.peak,
    )


def error_in(out: Output, rows: list[int], expected: Expected, pick: Pick = rows_of) -> float:
    """Find the largest ‖got - expected‖ / ‖expected‖ of the blocks compared.

    Not a number where any value is not finite, also one that is not compared.
    """
    for tensor in out if isinstance(out, tuple) else (out,):
        if not bool(torch.isfinite(tensor).all()):
            return math.nan
    pairs = zip(pick(out, rows), expected, strict=True)
    errors = [float((got.double() - wanted).norm() / wanted.norm()) for got, wanted in pairs]
    return math.nan if any(map(math.isnan, errors)) else max(errors)
