"""How long a run will take, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from metacount.bench import device as devices
from metacount.bench.case import DTYPES, Case, Variant
from metacount.bench.device import STATED_PEAKS
from metacount.bench.rows import FEWEST_FOR_INTERVAL, Work
from metacount.bench.timing import (
    BURST_SECONDS,
    COLD,
    FEWEST_ROUNDS,
    LONG_SECONDS,
    SAMPLE_SECONDS,
    WARM_SECONDS,
    Plan,
    estimate_call,
)

if TYPE_CHECKING:
    from metacount.files import Json

SHARE_OF_ROOF = 0.7  # that a variant is taken to reach
COMPILE_SECONDS, AUTOTUNE_SECONDS = 3.0, 20.0
BUILD_SECONDS = 0.2  # of a case: tensors drawn, allocator emptied
CHECK_CALLS = 10  # counted, warmed up, its memory and its result looked at
DEFAULT_GPU = "NVIDIA H200"
PROBE = 512  # [n, n] @ [n, n] that says roughly what a CPU does
PROBE_BYTES = 2**25


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device is taken to do, and who says so."""

    flops_per_s: float
    bytes_per_s: float
    flush_s: float
    source: str


def stated_rates(name: str, dtype: str) -> Rates:
    """Return the rates that the vendor states for a GPU; an H200's where the GPU is not known.

    >>> stated_rates("NVIDIA H200", "bf16").flops_per_s
    989400000000000.0
    """
    known = name if name in STATED_PEAKS else DEFAULT_GPU
    peaks = STATED_PEAKS[known]
    tflops = peaks["bf16_tflops"] / 2 if dtype == "tf32" else peaks[f"{dtype}_tflops"]
    return Rates(
        flops_per_s=tflops * 1e12,
        bytes_per_s=peaks["memory_tbytes_per_s"] * 1e12,
        flush_s=60e-6,
        source=f"stated for {known}",
    )


def rates_for(plan: Plan) -> Callable[[str], Rates]:
    """Return what gives the rates of a dtype: stated ones, on a CPU by a quick look."""

    @cache
    def rates(dtype: str) -> Rates:
        if plan.cuda:
            here = torch.cuda.is_available()
            name = torch.cuda.get_device_properties(plan.device).name if here else ""
            return stated_rates(name, dtype)
        return _probed(dtype)

    return rates


def _probed(dtype: str) -> Rates:
    cpu = torch.device("cpu")
    a = torch.ones(PROBE, PROBE, dtype=DTYPES[dtype])
    x = torch.ones(PROBE_BYTES // 4, dtype=torch.int32)
    bytes_per_s = PROBE_BYTES / estimate_call(partial(torch.amax, x, 0), cpu)
    return Rates(
        flops_per_s=2 * PROBE**3 / estimate_call(partial(torch.mm, a, a), cpu),
        bytes_per_s=bytes_per_s,
        flush_s=devices.flush_bytes(cpu, devices.cache_bytes_of(cpu)) / bytes_per_s,
        source="a quick look",
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
    launches = len(plan.launches) if plan.cuda else 1
    sample_s = max(SAMPLE_SECONDS, call_s * (1 if call_s >= LONG_SECONDS else 3))
    turn_s = WARM_SECONDS if plan.cuda else 3 * call_s
    for state in plan.states:
        turn_s += max(BURST_SECONDS, call_s + rates.flush_s if state == COLD else sample_s)
    allowed = plan.seconds * len(plan.states)
    rounds = min(FEWEST_FOR_INTERVAL, max(FEWEST_ROUNDS, plan.rounds))
    if rounds * turn_s > allowed:
        rounds = max(FEWEST_ROUNDS, min(rounds, int(allowed / turn_s)))
    return compiling + CHECK_CALLS * call_s + launches * rounds * turn_s


def plan_of(case: Case, plan: Plan, rates: Rates) -> Json:
    """Plan a case, built on meta, where it costs nothing: its sizes, inputs, variants and seconds.

    Each variant with what it has to do, and how long one call and all its measuring may take.
    """
    torch.manual_seed(plan.seed)  # a run draws the same routing
    built = case.build(torch.device("meta"), 1)
    variants: list[Json] = []
    for variant in built:
        if plan.only is None or variant.name in plan.only:
            call_s = max(call_seconds(variant.work, rates), 2e-6 if plan.cuda else 0.0)
            variants.append(
                {
                    "name": variant.name,
                    "direction": variant.direction,
                    "matmul_flops": variant.work.matmul_flops,
                    "needed_flops": variant.work.needed_flops,
                    "moved_bytes": variant.work.moved_bytes,
                    "call_s": call_s,
                    "measuring_s": measuring_seconds(variant, call_s, plan, rates),
                    "missing": variant.missing,
                }
            )
    given = {id(t): list(t.shape) for v in built if not v.part for t in v.inputs[0]}
    return {
        "topic": case.topic,
        "model": case.model,
        "sizes": case.sizes,
        "workload": case.workload,
        "dtype": case.dtype,
        "needs_bytes": case.needs_bytes,
        "inputs": [*given.values()],
        "estimated_by": rates.source,
        "seconds": BUILD_SECONDS + sum(variant["measuring_s"] for variant in variants),
        "variants": variants,
    }
