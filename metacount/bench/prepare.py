"""Before a variant is timed: counted, compared with the reference, compiled, warmed up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..measure.operators import UncountedOp
from .layers.case import Built, Case, Inputs, Variant
from .observe import TOLERANCE, Observed, error_of, observe
from .rows import MISCOUNTED, NO_ROOM, NOT_AVAILABLE, WRONG
from .timing import STATES, Call, CaptureRoom, CpuStopwatch, CudaStopwatch, Stopwatch

MAX_REASON = 160  # characters of somebody else's message


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to time: samples of each pass, the seconds they may take, and which states."""

    device: torch.device
    rounds: int
    seconds: float
    states: tuple[str, ...] = STATES
    compile: bool = True
    only: tuple[str, ...] | None = None
    seed: int = 0


@dataclass(kw_only=True)
class Ready:
    """A variant that passed its checks, with what was seen of it."""

    variant: Variant
    known: dict[str, Any]
    watch: Stopwatch
    passes: dict[str, list[list[float]]] = field(default_factory=dict)


class Refused(Exception):
    """A variant that is not timed, and why."""

    def __init__(self, status: str, reason: str, **known: Any) -> None:
        super().__init__(reason)
        self.status, self.reason, self.known = status, reason, known


def failure_of(error: BaseException) -> tuple[str, str]:
    """Status and one line of a forward that did not run."""
    text = str(error)
    # a CPU has no exception of its own for it
    no_room = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate" in text
    lines = text.strip().splitlines() or [type(error).__name__]
    said = lines[0] if len(lines[0]) <= MAX_REASON else lines[0][: MAX_REASON - 3] + "..."
    return (NO_ROOM, "out of memory") if no_room else (NOT_AVAILABLE, said)


def of_work(variant: Variant) -> dict[str, Any]:
    work = variant.work
    return {
        "matmul_flops": work.matmul_flops,
        "needed_flops": work.needed_flops,
        "moved_bytes": work.moved_bytes,
        "intensity": work.intensity,
    }


class Expected:
    """What the reference gives for the first input set, once for variants that share it."""

    def __init__(self, built: Built, rows: list[int]) -> None:
        self.inputs, self.rows = built.inputs[0], rows
        self._found: dict[Any, torch.Tensor] = {}

    def of(self, variant: Variant) -> torch.Tensor:
        """The rows in float64."""
        if variant.reference not in self._found:
            self._found[variant.reference] = variant.reference(self.inputs, self.rows)
        return self._found[variant.reference]


def prepare(
    case: Case,
    variant: Variant,
    built: Built,
    plan: Plan,
    expected: Expected,
    flush: Call,
    room: CaptureRoom | None,
) -> Ready:
    """Count, compare with the reference, compile, warm up. `Refused` where one of them fails."""
    if variant.compiled and not plan.compile:
        raise Refused(NOT_AVAILABLE, "--no-compile")
    inputs = built.inputs[0]
    try:
        seen = observe(variant, inputs)
        refuse_miscount(variant, seen)
        call = (
            torch.compile(variant.module, dynamic=False, fullgraph=True)
            if variant.compiled
            else variant.module
        )
        working = _working_bytes(call, inputs, plan.device, seen, compiled=variant.compiled)
        error = error_of(call, inputs, expected.rows, expected.of(variant))
        if not error <= TOLERANCE[case.dtype]:  # not a number is wrong too
            raise Refused(
                WRONG,
                f"relative error {error:.2g} against float64, {case.dtype} explains at most "
                f"{TOLERANCE[case.dtype]:.2g}",
                relative_error=None if math.isnan(error) else error,
            )
        calls = [partial(call, *inputs) for inputs in built.inputs]
        watch: Stopwatch
        if room is not None:
            watch = CudaStopwatch(calls, flush, room=room, capture=not variant.reads_back)
        else:
            watch = CpuStopwatch(calls, flush)
    except Refused:
        raise
    except UncountedOp as error:
        raise Refused(MISCOUNTED, str(error)) from None
    except Exception as error:
        if not variant.compiled and not isinstance(error, RuntimeError):
            raise  # a mistake of ours, not of the device; a compiler may raise anything
        status, reason = failure_of(error)
        raise Refused(status, reason) from None
    known = {
        **of_work(variant),
        "relative_error": error,
        "operator_bytes": None if variant.compiled else seen.operator_bytes,
        "working_bytes": working,
        "peak_bytes": None if working is None else seen.held_bytes + working,
    }
    return Ready(variant=variant, known=known, watch=watch)


def refuse_miscount(variant: Variant, seen: Observed) -> None:
    """No rate is given from a count that the operators do not confirm, to the last digit."""
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
    call: Any, inputs: Inputs, device: torch.device, seen: Observed, *, compiled: bool
) -> int | None:
    """Memory beyond weights and inputs: the allocator's on CUDA, the tensors' on a CPU."""
    if device.type != "cuda":
        return None if compiled else seen.working_bytes
    call(*inputs)  # compiles, and lets libraries make their workspaces
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call(*inputs)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
