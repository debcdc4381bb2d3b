"""Before a variant is timed: counted, compared with the reference, compiled, launches chosen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from metacount.bench.clocks.graphs import CaptureRoom, waits_for_host
from metacount.bench.clocks.on_device import EagerStopwatch, GraphStopwatch, LostWork
from metacount.bench.clocks.stopwatch import (
    EAGER,
    GRAPH,
    LAUNCHES,
    STATES,
    Call,
    CpuStopwatch,
    Stopwatch,
    estimate_call,
)
from metacount.bench.layers import case as cases
from metacount.bench.layers.case import Built, Case, Inputs, Variant
from metacount.bench.layers.training import ForwardBackward
from metacount.bench.observe import TOLERANCE, Observed, error_in, observe
from metacount.bench.results.rows import MISCOUNTED, NO_ROOM, NOT_AVAILABLE, WRONG
from metacount.measure.operators import UncountedOp

if TYPE_CHECKING:
    from metacount.bench.layers.case import Output, Reference
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
