"""Rows of a benchmark: what was timed, the figures that follow from it, files of them. No torch."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from statistics import median, quantiles

from metacount.errors import InputError, shown
from metacount.files import Json, not_written

# what became of a row
OK = "ok"
WRONG = "wrong result"  # further from the float64 reference than its dtype explains
MISCOUNTED = "wrong count"  # the formula and the operators that ran differ
NO_ROOM = "does not fit"
NO_TIME = "no time"  # --budget was spent before
TOO_BUSY = "too busy"  # something else ran while it was timed
NOT_AVAILABLE = "not available"

FAILED = (WRONG, MISCOUNTED)

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"
DIRECTIONS = (FORWARD, BACKWARD, BOTH)

CONFIDENCE, FEWEST_FOR_INTERVAL = 0.95, 6
# Times beyond these are no result: the 80th percentile over the median (an idle machine stays
# below 2), the share of the best product, which no layer exceeds by much, and the part of a core
# that a CPU gave to this process while it was timed.
MOST_SPREAD, MOST_SHARE, LEAST_OF_A_CORE = 10.0, 1.5, 0.8


@dataclass(frozen=True, kw_only=True)
class Work:
    """One call.

    `matmul_flops` is torch's convention, what a counter of operators must find; `needed_flops` is
    what cannot be avoided: pairs that a causal mask keeps, no padding. Rates are of the latter.
    """

    matmul_flops: int
    needed_flops: int
    moved_bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs for each byte that must move."""
        return self.needed_flops / self.moved_bytes


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """What this device did in this run, in this dtype: the roof of the roofline.

    `flops_per_s` is the best matrix product of a sweep, by `blas_library` where there are several;
    `bytes_per_s` a large copy, its reading and its writing both counted; `read_bytes_per_s` a large
    sum, which only reads. `drift` is how far this and the first one of the run lie apart;
    `core_share` the part of a core that a CPU gave to this process meanwhile.
    """

    dtype: str
    flops_per_s: float
    shape: tuple[int, int, int]
    bytes_per_s: float
    read_bytes_per_s: float | None = None
    blas_library: str | None = None
    drift: float | None = None
    core_share: float | None = None

    @property
    def held_up(self) -> bool:
        """Whether something else had the CPU, so that this is not what the device can do."""
        return self.core_share is not None and self.core_share < LEAST_OF_A_CORE

    @classmethod
    def from_dict(cls, data: Json) -> Ceiling:
        """Build a roof from a line of a results file, whose other keys are left out."""
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        return cls(**known | {"shape": tuple(data["shape"])})

    @property
    def memory_per_s(self) -> float:
        """The faster of copying and reading."""
        return max(self.bytes_per_s, self.read_bytes_per_s or 0.0)

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which the products are the bound, against the copy."""
        return self.flops_per_s / self.bytes_per_s


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
    core_share: float | None = None
    joules_per_call: float | None = None
    baseline: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    within_noise: bool | None = None
    note: str | None = None

    def to_dict(self) -> Json:
        """Return every field, in order."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Json) -> Row:
        """Build a row from `to_dict` or a line of a results file, whose other keys are left out."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Find where the median lies with at least 95 % confidence, whatever the distribution.

    The k-th smallest and the k-th largest value, k as large as the binomial distribution allows;
    None for fewer than six values: of six that are independent, the smallest and the largest have
    the median between them with probability 1 - 2/2^6 = 96.9 %; of five with 93.75 %.
    """
    n = len(values)
    if n < FEWEST_FOR_INTERVAL:
        return None
    outside, below = (1 - CONFIDENCE) / 2, 0
    total = math.comb(n, 0)
    while total / 2**n <= outside:
        below += 1
        total += math.comb(n, below)
    ordered = sorted(values)
    return ordered[below - 1], ordered[n - below]


def half_width(values: Sequence[float]) -> float:
    """Compute half of the interval as a share of the median; infinite where there is none."""
    interval = median_interval(values)
    return math.inf if interval is None else (interval[1] - interval[0]) / 2 / median(values)


def times(rounds: Sequence[Sequence[float]]) -> Json:
    """Summarise the samples of all rounds in the fields of a row, and what their medians say.

    `low_s` and `high_s` are the interval of the median over rounds (95 %), None for fewer than six;
    `apart` is how far the medians of the first and the second half of the rounds lie apart.
    """
    medians = [median(burst) for burst in rounds]
    samples = [sample for burst in rounds for sample in burst]
    several = samples if len(samples) > 1 else samples * 2
    p20, *_, p80 = quantiles(several, n=5, method="inclusive")
    half = len(medians) // 2
    ends = sorted((median(medians[:half]), median(medians[-half:]))) if half else [1.0, 1.0]
    low, high = median_interval(medians) or (None, None)
    return {
        "median_s": median(samples),
        "p20_s": p20,
        "p80_s": p80,
        "samples": len(samples),
        "apart": ends[1] / ends[0] - 1,
        "rounds": len(medians),
        "low_s": low,
        "high_s": high,
    }


def rates(work: Work, median_s: float, ceiling: Ceiling | None) -> Json:
    """Derive from a time the rates, shares of what was measured in the same run, and the bound.

    `roof_share`: the longer of computing the needed FLOPs and moving the bytes that must move.
    """
    flops_per_s = work.needed_flops / median_s
    bytes_per_s = work.moved_bytes / median_s
    rate = {"tflops_per_s": flops_per_s / 1e12, "gbytes_per_s": bytes_per_s / 1e9}
    if ceiling is None or ceiling.held_up:
        return rate
    computing, moving = flops_per_s / ceiling.flops_per_s, bytes_per_s / ceiling.memory_per_s
    return rate | {
        "ceiling_share": computing,
        "copy_share": bytes_per_s / ceiling.bytes_per_s,
        "roof_share": max(computing, moving),
        "bound": "memory" if work.intensity < ceiling.ridge else "compute",
    }


def too_busy(row: Json) -> str | None:
    """Say why times are of a machine too busy for them to mean anything; None where they may."""
    spread, share = row["p80_s"] / row["median_s"], row.get("ceiling_share") or 0.0
    core = row.get("core_share")
    if core is not None and core < LEAST_OF_A_CORE:
        return "something else had more than a fifth of its core while it was timed"
    if spread > MOST_SPREAD:
        return f"a fifth of the samples took {spread:,.0f} times the median and more"
    if share > MOST_SHARE:
        return f"{share * 100:.0f} % of the best product of this run, which was held up"
    return None


def compared(medians: Sequence[float], baseline: Sequence[float]) -> Json:
    """Compute the ratio to the baseline over paired rounds, and whether it may be 1.

    What drifts does so for both of a round. It may be 1 where the interval of the median of the
    rounds' ratios (95 %; for fewer than six rounds all of them) holds 1.
    """
    ratios = [value / other for value, other in zip(medians, baseline, strict=True)]
    interval = median_interval(ratios)
    low, high = interval or (min(ratios), max(ratios))
    return {
        "ratio": median(ratios),
        "ratio_low": interval and low,
        "ratio_high": interval and high,
        "within_noise": low <= 1 <= high,
    }


# Results on disk

FORMAT = 2  # of a line
MAX_FILE_BYTES = 2**28


def lines_of(
    rows: Sequence[Row], ceilings: Mapping[str, Ceiling], environment: Json, date: str
) -> list[Json]:
    """Make a dict of each row: the row, its dtype's roof (if any), the environment, the date."""
    usable = {dtype: roof for dtype, roof in ceilings.items() if not roof.held_up}
    return [
        {
            "date": date,
            **environment,
            "ceiling": asdict(roof) if (roof := usable.get(row.dtype)) else None,
            **row.to_dict(),
        }
        for row in rows
    ]


def default_file(topic: str) -> str:
    """Name the file of `--save` without one: metacount-bench-TOPIC.jsonl in the current folder.

    >>> default_file("ffn")
    'metacount-bench-ffn.jsonl'
    """
    return f"metacount-bench-{topic}.jsonl"


def append(file: str, lines: list[Json]) -> None:
    """Append the lines, all or none; the file keeps its own."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    try:
        with open(file, "ab", buffering=0) as out:
            before = out.tell()
            try:
                if out.write(text.encode()) < len(text.encode()):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with suppress(OSError):  # a device has no end
                    out.truncate(before)
                raise
    except OSError as error:
        raise not_written("--save", file, error) from None


def read(file: str) -> list[Json]:
    """Read every line of a results file; an `InputError` names the first that is no result."""
    try:
        if os.path.getsize(file) > MAX_FILE_BYTES:
            raise InputError(f"{shown(file)} is larger than {MAX_FILE_BYTES // 2**20} MiB")
        with open(file, encoding="utf-8") as lines:
            return [_line(file, number, text) for number, text in enumerate(lines, 1)]
    except OSError as error:
        raise InputError(
            f"{shown(file)} cannot be read: {error.strerror}; give a file that "
            "`metacount bench --save` wrote"
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{shown(file)} is not text; give a file that `metacount bench --save` wrote"
        ) from None


def _line(file: str, number: int, text: str) -> Json:
    problem = f"{shown(file)}, line {number}: not a result of `metacount bench --save`"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(problem) from None
    if not isinstance(data, dict) or not _is_result(data):
        raise InputError(problem)
    return data


TEXTS = (
    "date",
    "device",
    "torch",
    "status",
    "topic",
    "model",
    "dtype",
    "variant",
    "state",
    "launch",
)
# what makes two lines the same point
POINT = (*TEXTS[4:], "sizes", "workload", "direction", "device", "torch")
NUMBERS = ("median_s", "p20_s", "p80_s", "intensity", "tflops_per_s")  # of a timed row


def _is_result(data: Json) -> bool:

    def positive(value: object) -> bool:
        return isinstance(value, int | float) and value > 0

    roof, workload = data.get("ceiling", "missing"), data.get("workload")
    if not isinstance(workload, dict) or not isinstance(data.get("sizes"), dict):
        return False
    if roof is not None and not (
        isinstance(roof, dict)
        and all(positive(roof.get(name)) for name in ("flops_per_s", "bytes_per_s"))
        and isinstance(shape := roof.get("shape"), list)
        and len(shape) == 3
    ):
        return False
    return (
        all(isinstance(data.get(name), str) for name in TEXTS)
        and (
            data["status"] != OK
            or all(type(data.get(name)) in (int, float) for name in NUMBERS)  # no bool
        )
        and (data["topic"] != "ffn" or positive(workload.get("tokens")))
    )


def latest_run(lines: list[Json]) -> list[Json]:
    """Keep the last line of each point on each device and torch.

    A file grows by one run after another; a picture shows one point for each.
    """

    def point(line: Json) -> str:
        key = [line.get(name, FORWARD if name == "direction" else None) for name in POINT]
        return json.dumps(key, sort_keys=True)

    return list({point(line): line for line in lines}.values())
