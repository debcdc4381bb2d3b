"""How long a run will take, before it starts: from the work of each variant and a device's rates.

Rough by nature: a call is taken to run at a share of the roof. Enough to choose a grid by, and to
keep a run within `--budget`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from metacount.bench.clocks.rounds import FEWEST_ROUNDS
from metacount.bench.clocks.statistics import FEWEST_FOR_INTERVAL
from metacount.bench.clocks.stopwatch import (
    BURST_SECONDS,
    COLD,
    LONG_SECONDS,
    SAMPLE_SECONDS,
    WARM_SECONDS,
)
from metacount.bench.device import STATED_PEAKS
from metacount.bench.layers.case import Case, Variant
from metacount.bench.prepare import Plan
from metacount.bench.results.rows import Ceiling
from metacount.bench.work import Work

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
