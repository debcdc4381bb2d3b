"""The device: its name, caches, what else keeps it busy, clocks and power, and its roof.

The roof is the best matrix product of a sweep, a large copy and a large read, measured in the same
run, and again while it goes on: a device that warms up loses some of its clock, and a share is of
what the device could do at that time.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from metacount.bench.case import DTYPES, product_precision
from metacount.bench.rows import FORMAT, Ceiling
from metacount.bench.timing import (
    HOT,
    Call,
    CaptureRoom,
    GraphStopwatch,
    Stopwatch,
    estimate_call,
    nothing,
)

if TYPE_CHECKING:
    from metacount.files import Json

MIB = 2**20
UNKNOWN_CACHE = 64 * MIB  # when the system does not say
FLUSH_CACHES = 2  # a flush reads so many times the cache,
MOST_CPU_FLUSH = 64 * MIB  # on a CPU of at most this much cache: a server's L3 serves others too
COMMIT_VARIABLE = "METACOUNT_COMMIT"  # of a tree without .git
NVIDIA_SMI = ("driver_version", "power.limit", "ecc.mode.current", "mig.mode.current")

# Dense (not sparse) peaks that NVIDIA states: bf16 and fp16 tensor TFLOP/s, fp32 TFLOP/s, TB/s.
# Source: the data sheets of the H200, H100 SXM and A100 80GB SXM.
PEAKS = ("bf16_tflops", "fp16_tflops", "fp32_tflops", "memory_tbytes_per_s")
STATED_PEAKS: dict[str, dict[str, float]] = {
    name: dict(zip(PEAKS, figures, strict=True))
    for name, figures in {
        "NVIDIA H200": (989.4, 989.4, 66.9, 4.8),
        "NVIDIA H100 80GB HBM3": (989.4, 989.4, 66.9, 3.35),
        "NVIDIA A100-SXM4-80GB": (312.0, 312.0, 19.5, 2.039),
    }.items()
}


def cache_bytes_of(device: torch.device) -> int:
    """Return the bytes of the device's last cache, of a CPU's largest that the first core sees."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return int(getattr(properties, "L2_cache_size", 0)) or UNKNOWN_CACHE
    files = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [_read(str(file)).strip() for file in files]
    return max(
        (int(s[:-1]) * 1024 for s in sizes if re.fullmatch(r"\d+K", s)), default=UNKNOWN_CACHE
    )


def flush_bytes(device: torch.device, cache_bytes: int) -> int:
    """Choose how much a flush reads: twice the cache; on a CPU twice the share of its threads.

    >>> flush_bytes(torch.device("cuda"), 60 * MIB) == 120 * MIB
    True
    >>> flush_bytes(torch.device("cpu"), 480 * MIB) <= 128 * MIB
    True
    """
    if device.type == "cuda":
        return FLUSH_CACHES * cache_bytes
    share = cache_bytes * torch.get_num_threads() // (os.cpu_count() or 1)
    return FLUSH_CACHES * min(max(share, 1), cache_bytes, MOST_CPU_FLUSH)


@cache
def _nvidia_smi(device: torch.device) -> dict[str, str | None]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return dict.fromkeys(NVIDIA_SMI)
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    # its own numbering ignores CUDA_VISIBLE_DEVICES, the uuid does not
    which = [] if uuid is None else [f"--id=GPU-{str(uuid).removeprefix('GPU-')}"]
    command = [tool, f"--query-gpu={','.join(NVIDIA_SMI)}", "--format=csv,noheader,nounits"]
    line = _output([*command, *which])
    if not line:
        return dict.fromkeys(NVIDIA_SMI)
    return dict(zip(NVIDIA_SMI, map(str.strip, line.splitlines()[0].split(",")), strict=False))


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu_name() -> str:
    named = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    name = named.group(1).strip() if named else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def free_bytes(device: torch.device) -> int:
    """Read the bytes of memory to be had now, of a CPU without swapping, as Linux estimates."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    if free:
        return int(free.group(1)) * 1024
    if hasattr(os, "sysconf") and sys.platform != "win32":  # half of what is there
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 2**32


def load_average() -> float | None:
    """Read how many processes wanted a core in the last minute: what else the machine was doing."""
    try:
        return round(os.getloadavg()[0], 1)
    except (AttributeError, OSError):  # not every system counts them
        return None


def other_load(threads: int) -> str | None:
    """Say why times taken now would be of a busy machine, in one sentence; None on an idle one."""
    cores, load = os.cpu_count() or 1, load_average()
    if load is None or load <= 0.5 or load + threads <= cores + 0.5:
        return None
    return (
        f"load average {load} on {cores} core{'s' if cores > 1 else ''} leaves less than "
        f"{threads} idle: times are of a busy machine"
    )


def environment(device: torch.device, *, command: str | None = None) -> Json:
    """Collect what each result line repeats: device, driver, versions, commit, settings."""
    from metacount import __version__

    cuda = device.type == "cuda"
    name = torch.cuda.get_device_properties(device).name if cuda else _cpu_name()
    cache_bytes = cache_bytes_of(device)
    return {
        "format": FORMAT,
        "device": name,
        "kind": device.type,
        "driver": _nvidia_smi(device)["driver_version"] if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "threads": None if cuda else torch.get_num_threads(),
        "load_average": load_average(),
        "other_load": None if cuda else other_load(torch.get_num_threads()),
        "cache_bytes": cache_bytes,
        "flush_bytes": flush_bytes(device, cache_bytes),
        "flush": "reads",  # so that no changed lines are left to be written back
        "stated_peaks": STATED_PEAKS.get(name),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "metacount": __version__,
        "commit": commit(),
        "command": command,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    } | (_cuda_settings(device) if cuda else {})


def _cuda_settings(device: torch.device) -> Json:
    properties = torch.cuda.get_device_properties(device)
    matmul: Any = torch.backends.cuda.matmul
    asked = _nvidia_smi(device)
    return {
        "host": _cpu_name(),
        "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "power_limit_w": asked["power.limit"],
        "ecc": asked["ecc.mode.current"],
        "mig": asked["mig.mode.current"],
        "cudnn": torch.backends.cudnn.version(),
        "triton": _version("triton"),
        "cublas": _version("nvidia-cublas") or _version("nvidia-cublas-cu12"),
        "blas_library": str(torch.backends.cuda.preferred_blas_library()),
        "bf16_reduced_precision": str(matmul.allow_bf16_reduced_precision_reduction),
        "fp16_reduced_precision": str(matmul.allow_fp16_reduced_precision_reduction),
        "alloc_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        or os.environ.get("PYTORCH_ALLOC_CONF"),
    }


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Find the commit that was run: what METACOUNT_COMMIT says, or that of this file's checkout.

    `+changes` where files differ from the checkout's. None for an installed package, also when it
    lies inside somebody else's repository.
    """
    if named := os.environ.get(COMMIT_VARIABLE):
        return named
    git = ["git", "-C", str(Path(__file__).resolve().parent.parent)]
    head = (
        _output([*git, "rev-parse", "HEAD"]) if _output([*git, "ls-files", "__init__.py"]) else None
    )
    changed = head is not None and _output([*git, "status", "--porcelain", "--", "."])
    return f"{head}+changes" if changed else head


PERIOD_SECONDS = 0.02


class Reading(NamedTuple):
    """One look at the device: seconds on the host's clock, MHz, watts, degrees."""

    at: float
    mhz: int
    watts: float
    celsius: int


class Monitor:
    """A thread that reads while the context is open; `of` sums up what it saw in some windows."""

    def __init__(self, read: Callable[[], Reading], period: float = PERIOD_SECONDS) -> None:
        self.read, self.period = read, period
        self.readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.readings.append(self.read())
            except Exception:  # a reading that fails is a reading less
                return
            self._stop.wait(self.period)

    def of(self, windows: Sequence[tuple[float, float]], call_s: float) -> Json:
        """Sum up the windows: medians, the lowest clock, the highest temperature.

        Energy is the median power times the median time of a call.
        """
        seen = [r for r in list(self.readings) if any(a <= r.at <= b for a, b in windows)]
        if not seen:
            return {}
        watts = median(r.watts for r in seen)
        return {
            "clock_mhz": round(median(r.mhz for r in seen)),
            "clock_min_mhz": min(r.mhz for r in seen),
            "power_w": watts,
            "temperature_c": max(r.celsius for r in seen),
            "joules_per_call": watts * call_s,
        }


def monitor_of(device: torch.device) -> Monitor | None:
    """Return a monitor of a CUDA device; None on a CPU, and where torch cannot ask NVML.

    It needs `pip install nvidia-ml-py` for that.
    """

    def read() -> Reading:
        now, mhz = time.perf_counter(), torch.cuda.clock_rate(device)
        return Reading(
            now, mhz, torch.cuda.power_draw(device) / 1000, torch.cuda.temperature(device)
        )

    try:
        return Monitor(read) if device.type == "cuda" and read() else None
    except Exception:  # no bindings, no library, no permission: nothing to read
        return None


Shape = tuple[int, int, int]

# [n, k] @ [k, m], as (n, k, m)
CUDA_SHAPES: tuple[Shape, ...] = (
    (4096, 4096, 4096),
    (8192, 4096, 11008),
    (8192, 8192, 8192),
    (16384, 4096, 16384),
    (16384, 8192, 8192),
)
CPU_SHAPES: tuple[Shape, ...] = ((512, 512, 512), (1024, 1024, 1024), (512, 2048, 2048))
LIBRARIES = ("cublas", "cublaslt")  # torch's two for products on CUDA
# a copy this many times the last cache, so that no part of it stays there
COPY_CACHES = 8
CUDA_COPY_BYTES = 2**30
MOST_CPU_COPY_BYTES = 2**29
FREE_SHARE = 0.25  # of the free memory, for both buffers of the copy
AGAIN_SECONDS = 180.0  # a roof older than that is measured again


def measure_ceiling(
    device: torch.device,
    dtype: str,
    cache_bytes: int,
    *,
    shapes: tuple[Shape, ...] | None = None,
    copy_bytes: int | None = None,
    rounds: int = 10,
) -> Ceiling:
    """Measure the roof on random data, warmed up: median of `rounds` a shape, then the best one."""
    cuda, rates = device.type == "cuda", {}
    began, busy = time.perf_counter(), time.process_time()
    prefer: Any = torch.backends.cuda.preferred_blas_library
    before = prefer() if cuda else None
    try:
        with product_precision(dtype):
            for library in LIBRARIES if cuda else (None,):
                if cuda:
                    prefer(library)
                for n, k, m in shapes or (CUDA_SHAPES if cuda else CPU_SHAPES):
                    seconds = _product_seconds(device, (n, k, m), dtype, rounds)
                    # 2 FLOPs per multiply-add
                    rates[(n, k, m), library] = 2 * n * k * m / seconds
    finally:
        if cuda:
            prefer(before)
    shape, library = max(rates, key=lambda pair: rates[pair])
    if copy_bytes is None:
        copy_bytes = copy_size(device, cache_bytes, free_bytes(device))
    source = torch.randint(2**31 - 1, (copy_bytes // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    copy_s = _median_of(device, partial(target.copy_, source), rounds)
    del target
    read_s = _median_of(device, partial(torch.amax, source, 0), rounds)
    return Ceiling(
        dtype=dtype,
        flops_per_s=rates[shape, library],
        shape=shape,
        bytes_per_s=2 * source.nbytes / copy_s,  # read once, written once
        read_bytes_per_s=source.nbytes / read_s,
        blas_library=library,
        core_share=None if cuda else (time.process_time() - busy) / (time.perf_counter() - began),
    )


def copy_size(device: torch.device, cache_bytes: int, free_bytes: int) -> int:
    """Choose the bytes of one buffer of the copy: large beside the cache, small beside the memory.

    >>> copy_size(torch.device("cuda"), 60 * 2**20, 2**37) == 2**30
    True
    >>> copy_size(torch.device("cpu"), 480 * 2**20, 2**36) == 2**29
    True
    >>> copy_size(torch.device("cpu"), 32 * 2**20, 2**30) == 2**27  # an eighth of what is free
    True
    """
    if device.type == "cuda":
        wanted = max(CUDA_COPY_BYTES, COPY_CACHES * cache_bytes)
    else:
        wanted = min(COPY_CACHES * cache_bytes, MOST_CPU_COPY_BYTES)
    return min(wanted, int(FREE_SHARE * free_bytes) // 2) // 4 * 4


def _product_seconds(device: torch.device, shape: Shape, dtype: str, rounds: int) -> float:
    n, k, m = shape
    a = torch.randn(n, k, device=device, dtype=DTYPES[dtype])
    # as a linear layer has it: the second matrix is stored transposed
    b = torch.randn(m, k, device=device, dtype=DTYPES[dtype]).T
    out = torch.empty(n, m, device=device, dtype=DTYPES[dtype])
    return _median_of(device, partial(torch.mm, a, b, out=out), rounds)


def _median_of(device: torch.device, call: Call, rounds: int) -> float:
    watch = Stopwatch([call], nothing, estimate_call(call, device), device)
    if device.type == "cuda":
        room = CaptureRoom(device)
        room.warm_up(call)
        watch = GraphStopwatch(
            [call], nothing, watch.call_s, room=room, states=(HOT,), check=nothing
        )
    samples: list[float] = []
    with watch.turn():
        while len(samples) < rounds:
            samples += watch.burst(HOT)
    return median(samples)


class Roofs:
    """The roof of each dtype in `last`, measured when first asked for and again when it is old."""

    def __init__(
        self,
        device: torch.device,
        *,
        measure: Callable[..., Ceiling] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self.cache_bytes = device, cache_bytes_of(device)
        self.measure, self.clock = measure or measure_ceiling, clock
        self.first: dict[str, Ceiling] = {}
        self.last: dict[str, Ceiling] = {}
        self._at: dict[str, float] = {}

    def is_due(self, dtype: str) -> bool:
        """Tell whether asking for the roof of a dtype measures it."""
        return dtype not in self._at or self.clock() - self._at[dtype] > AGAIN_SECONDS

    def of(self, dtype: str, *, again: bool = False) -> Ceiling:
        """Return the roof of a dtype as it was not long ago; measure it first where that is due."""
        if not again and not self.is_due(dtype):
            return self.last[dtype]
        before = self.first.get(dtype)
        shapes = None if before is None else (before.shape,)
        roof = self.measure(self.device, dtype, self.cache_bytes, shapes=shapes)
        if before is not None:
            roof = replace(roof, drift=roof.flops_per_s / before.flops_per_s - 1)
        self.first.setdefault(dtype, roof)
        self.last[dtype], self._at[dtype] = roof, self.clock()
        return roof
