"""One row of a benchmark: what was timed, and the figures that follow from it. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from metacount.bench.statistics import drift, median, median_interval, paired, quantile
from metacount.bench.work import Work

if TYPE_CHECKING:
    from metacount.files import Json

# what became of a row
OK = "ok"
WRONG = "wrong result"  # further from the float64 reference than its dtype explains
MISCOUNTED = "wrong count"  # the formula and the operators that ran differ
NO_ROOM = "does not fit"
NO_TIME = "no time"  # --budget was spent before
NOT_AVAILABLE = "not available"

FAILED = (WRONG, MISCOUNTED)

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"
DIRECTIONS = (FORWARD, BACKWARD, BOTH)


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What this device did in this run, in this dtype: the roof of the roofline.

    `flops_per_s` is the best matrix product of a sweep, by `blas_library` where there are several;
    `bytes_per_s` a large copy, its reading and its writing both counted; `read_bytes_per_s` a large
    sum, which only reads. `drift` is how far this and the first one of the run lie apart.
    """

    dtype: str
    flops_per_s: float
    shape: tuple[int, int, int]
    bytes_per_s: float
    read_bytes_per_s: float | None = None
    blas_library: str | None = None
    drift: float | None = None

    @property
    def memory_per_s(self) -> float:
        """The faster of copying and reading."""
        return max(self.bytes_per_s, self.read_bytes_per_s or 0.0)

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which the products are the bound, against the copy."""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one call, from rounds in which other variants took their turns too.

    `low_s` and `high_s` are the interval of the median over rounds (95 %), None for fewer than six;
    `apart` is how far the medians of the first and the second half of the rounds lie apart.
    """

    median_s: float
    p20_s: float
    p80_s: float
    samples: int
    apart: float
    rounds: int
    low_s: float | None
    high_s: float | None


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
    direction: str = FORWARD
    status: str = OK
    reason: str | None = None
    matmul_flops: int | None = None
    needed_flops: int | None = None
    moved_bytes: int | None = None
    intensity: float | None = None
    bound: str | None = None
    operators: dict[str, int] | None = None  # those with FLOPs, and their FLOPs
    counted_on: str | None = None  # where the kernel that ran shows no operators: what did
    relative_error: float | None = None
    median_s: float | None = None
    p20_s: float | None = None
    p80_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    samples: int | None = None
    rounds: int | None = None
    calls_per_sample: int | None = None
    graph_nodes: int | None = None
    apart: float | None = None
    tflops_per_s: float | None = None
    ceiling_share: float | None = None
    gbytes_per_s: float | None = None
    copy_share: float | None = None
    roof_share: float | None = None
    operator_bytes: int | None = None
    working_bytes: int | None = None
    peak_bytes: int | None = None
    input_sets: int | None = None
    clock_mhz: int | None = None
    clock_min_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled: str | None = None
    joules_per_call: float | None = None
    baseline: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    within_noise: bool | None = None
    equal_time_d_ff: float | None = None
    equal_time_low: float | None = None
    equal_time_high: float | None = None
    note: str | None = None

    def to_dict(self) -> Json:
        """Return every field, in order."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Json) -> Row:
        """Build a row from `to_dict` or a line of a results file, whose other keys are left out."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})


def timing_of(rounds: Sequence[Sequence[float]]) -> Timing:
    """Summarise the samples of all rounds, and what their medians say about the median.

    >>> timing_of([[1.0, 1.0], [1.0], [1.5, 1.5], [1.5]]).apart
    0.5
    """
    medians = [median(burst) for burst in rounds]
    samples = [sample for burst in rounds for sample in burst]
    interval = median_interval(medians)
    return Timing(
        median_s=median(samples),
        p20_s=quantile(samples, 0.2),
        p80_s=quantile(samples, 0.8),
        samples=len(samples),
        apart=drift(medians),
        rounds=len(medians),
        low_s=interval and interval[0],
        high_s=interval and interval[1],
    )


def times(timing: Timing) -> Json:
    """Return the fields of a row that a timing fills."""
    return asdict(timing)


def rates(work: Work, timing: Timing, ceiling: Ceiling | None) -> Json:
    """Derive from a time the rates, shares of what was measured in the same run, and the bound."""
    flops_per_s = work.needed_flops / timing.median_s
    bytes_per_s = work.moved_bytes / timing.median_s
    found: Json = {
        "tflops_per_s": flops_per_s / 1e12,
        "gbytes_per_s": bytes_per_s / 1e9,
    }
    if ceiling is None:
        return found
    return found | {
        "ceiling_share": flops_per_s / ceiling.flops_per_s,
        "copy_share": bytes_per_s / ceiling.bytes_per_s,
        "roof_share": roof_seconds(work, ceiling) / timing.median_s,
        "bound": bound(work.intensity, ceiling),
    }


def roof_seconds(work: Work, ceiling: Ceiling) -> float:
    """Return the longer time, of computing the needed FLOPs or moving the bytes that must move."""
    return max(work.needed_flops / ceiling.flops_per_s, work.moved_bytes / ceiling.memory_per_s)


def bound(intensity: float, ceiling: Ceiling) -> str:
    """Return `memory` where moving the bytes outlasts computing the products, else `compute`."""
    return "memory" if intensity < ceiling.ridge else "compute"


def compared(medians: Sequence[float], baseline: Sequence[float]) -> Json:
    """Compute the ratio to the baseline over paired rounds, and whether it may be 1.

    It may where the interval of the median of the rounds' ratios (95 %; for fewer than six rounds
    all of them) holds 1.
    """
    ratios = paired(medians, baseline)
    low, high = median_interval(ratios) or (min(ratios), max(ratios))
    enough = median_interval(ratios) is not None
    return {
        "ratio": median(ratios),
        "ratio_low": low if enough else None,
        "ratio_high": high if enough else None,
        "within_noise": low <= 1 <= high,
    }
