"""One row of a benchmark: what was timed, and the figures that follow from it. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from metacount.bench.work import Work

# what became of a row
OK = "ok"
WRONG = "wrong result"  # further from the float64 reference than its dtype explains
MISCOUNTED = "wrong count"  # the formula and the operators that ran differ
NO_ROOM = "does not fit"
NOT_AVAILABLE = "not available"

FAILED = (WRONG, MISCOUNTED)


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What this device did in this run, in this dtype: the roof of the roofline.

    `flops_per_s` is the best matrix product of a sweep, `bytes_per_s` a large copy, its reading
    and its writing both counted.
    """

    dtype: str
    flops_per_s: float
    shape: tuple[int, int, int]
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which the products are the bound."""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one call, from two passes with other variants in between.

    `apart` is how far the medians of the two passes lie apart, as a share of the smaller one.
    """

    median_s: float
    p20_s: float
    p80_s: float
    samples: int
    apart: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant of one case, with caches hot or cold. None where there is nothing to say."""

    topic: str
    model: str
    sizes: dict[str, int]
    workload: dict[str, int | str]
    dtype: str
    variant: str
    state: str  # hot: caches as the run before left them; cold: flushed before every call
    launch: str  # eager, or one CUDA graph
    status: str = OK
    reason: str | None = None
    matmul_flops: int | None = None
    needed_flops: int | None = None
    moved_bytes: int | None = None
    intensity: float | None = None
    bound: str | None = None
    relative_error: float | None = None
    median_s: float | None = None
    p20_s: float | None = None
    p80_s: float | None = None
    samples: int | None = None
    apart: float | None = None
    tflops_per_s: float | None = None
    ceiling_share: float | None = None
    gbytes_per_s: float | None = None
    copy_share: float | None = None
    operator_bytes: int | None = None
    working_bytes: int | None = None
    peak_bytes: int | None = None
    input_sets: int | None = None
    clock_mhz: int | None = None
    baseline: str | None = None
    ratio: float | None = None
    within_noise: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Every field, in order."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """From `to_dict` or a line of a results file, whose other keys are left out."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, between neighbours in proportion.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5), quantile([5.0, 1.0, 2.0, 4.0, 3.0, 6.0], 0.2)
    (2.5, 2.0)
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    rest = place - below
    if rest == 0:
        return ordered[below]
    return ordered[below] * (1 - rest) + ordered[below + 1] * rest


def timing_of(first: Sequence[float], second: Sequence[float]) -> Timing:
    """Both passes together, and how far they lie apart.

    >>> timing_of([1.0, 1.0], [1.5, 1.5]).apart
    0.5
    """
    medians = sorted((quantile(first, 0.5), quantile(second, 0.5)))
    both = [*first, *second]
    return Timing(
        median_s=quantile(both, 0.5),
        p20_s=quantile(both, 0.2),
        p80_s=quantile(both, 0.8),
        samples=len(both),
        apart=medians[1] / medians[0] - 1,
    )


def rates(work: Work, timing: Timing, ceiling: Ceiling) -> dict[str, Any]:
    """What follows from a time: rates, shares of what was measured in the same run, the bound."""
    flops_per_s = work.needed_flops / timing.median_s
    bytes_per_s = work.moved_bytes / timing.median_s
    return {
        "median_s": timing.median_s,
        "p20_s": timing.p20_s,
        "p80_s": timing.p80_s,
        "samples": timing.samples,
        "apart": timing.apart,
        "tflops_per_s": flops_per_s / 1e12,
        "ceiling_share": flops_per_s / ceiling.flops_per_s,
        "gbytes_per_s": bytes_per_s / 1e9,
        "copy_share": bytes_per_s / ceiling.bytes_per_s,
        "bound": bound(work.intensity, ceiling),
    }


def bound(intensity: float, ceiling: Ceiling) -> str:
    """`memory` where moving the bytes takes longer than computing the products, else `compute`."""
    return "memory" if intensity < ceiling.ridge else "compute"


def compared(timing: Timing, baseline: Timing) -> dict[str, Any]:
    """The ratio to the baseline, and whether it is within the noise.

    It is when timing either of them twice differs by as much, or when the times between which 60 %
    of their samples lie overlap.
    """
    ratio = timing.median_s / baseline.median_s
    difference = max(ratio, 1 / ratio) - 1
    overlap = timing.p20_s <= baseline.p80_s and baseline.p20_s <= timing.p80_s
    twice = max(timing.apart, baseline.apart)
    return {"ratio": ratio, "within_noise": overlap or difference <= twice}
