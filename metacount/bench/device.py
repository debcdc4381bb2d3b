"""The device: its name, caches, what else keeps it busy, its clocks and power. Only read."""

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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import torch

from metacount.bench.saved import FORMAT

if TYPE_CHECKING:
    from metacount.files import Json

MIB = 2**20
UNKNOWN_CACHE = 64 * MIB  # when the system does not say
FLUSH_CACHES = 2  # a flush reads so many times the cache,
MOST_CPU_FLUSH = 64 * MIB  # on a CPU of at most this much cache: a server's L3 serves others too
BUSY_SHARE = 0.9  # of a core that an idle machine gives to a loop, at the least
PROBE_SECONDS = 0.05
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


def clock_mhz(device: torch.device) -> int | None:
    """Read the clock of a CPU right now, in MHz; None where nobody says, and of a GPU."""
    if device.type == "cuda":
        return None
    clocks = re.findall(r"^cpu MHz\s*:\s*(\d+)", _read("/proc/cpuinfo"), re.MULTILINE)
    return max(map(int, clocks)) if clocks else None


@cache
def _nvidia_smi(device: torch.device) -> dict[str, str | None]:
    """Ask nvidia-smi about this device; nothing but None without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return dict.fromkeys(NVIDIA_SMI)
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    # its own numbering ignores CUDA_VISIBLE_DEVICES, the uuid does not
    which = [] if uuid is None else [f"--id={_uuid(uuid)}"]
    command = [tool, f"--query-gpu={','.join(NVIDIA_SMI)}", "--format=csv,noheader,nounits"]
    line = _output([*command, *which])
    if not line:
        return dict.fromkeys(NVIDIA_SMI)
    return dict(zip(NVIDIA_SMI, map(str.strip, line.splitlines()[0].split(",")), strict=False))


def _uuid(uuid: object) -> str:
    return f"GPU-{str(uuid).removeprefix('GPU-')}"


def _output(command: list[str]) -> str | None:
    """Run a command that only looks; None where it fails, or is not there."""
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
    """Say why times taken now would be of a busy machine, in one sentence; None on an idle one.

    Two looks: what the last minute's load leaves of the cores, and whether a short loop gets a
    whole core now.
    """
    cores, load = os.cpu_count() or 1, load_average()
    if load is not None and load + threads > cores + 0.5 and load > 0.5:
        return (
            f"load average {load} on {cores} core{'s' if cores > 1 else ''} leaves less than "
            f"{threads} idle: times are of a busy machine"
        )
    share = core_share()
    if share < BUSY_SHARE:
        return (
            f"a loop got {share * 100:.0f} % of a core: something else is running, and times are "
            "of a busy machine"
        )
    return None


def core_share(seconds: float = PROBE_SECONDS) -> float:
    """Measure the share of a core that this process got while it wanted all of it."""
    wall, mine = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        pass
    return (time.process_time() - mine) / (time.perf_counter() - wall)


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
    """Collect what changes times, of a CUDA device and of torch's settings for it."""
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
# NVML's bits for why a clock is not the highest, those that concern a measurement
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at the device: seconds on the host's clock, MHz, watts, degrees, NVML's bits."""

    at: float
    sm_mhz: int
    memory_mhz: int
    watts: float
    celsius: int
    reasons: int


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
        """Sum up the windows: medians, the lowest clock and why, the highest temperature.

        Energy is the median power times the median time of a call.
        """
        seen = [r for r in list(self.readings) if any(a <= r.at <= b for a, b in windows)]
        if not seen:
            return {}
        watts = median(r.watts for r in seen)
        why = [text for bit, text in REASONS.items() if any(r.reasons & bit for r in seen)]
        return {
            "clock_mhz": round(median(r.sm_mhz for r in seen)),
            "clock_min_mhz": min(r.sm_mhz for r in seen),
            "memory_clock_mhz": round(median(r.memory_mhz for r in seen)),
            "power_w": watts,
            "temperature_c": max(r.celsius for r in seen),
            "throttled": ", ".join(why) or None,
            "joules_per_call": watts * call_s,
        }


def monitor_of(device: torch.device) -> Monitor | None:
    """Return a monitor of a CUDA device; None on a CPU, and without NVML or its bindings.

    They are `pip install nvidia-ml-py`. The device is found by uuid: NVML's numbers ignore
    CUDA_VISIBLE_DEVICES.
    """
    if device.type != "cuda":
        return None
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        handle = (
            nvml.nvmlDeviceGetHandleByIndex(device.index or 0)
            if uuid is None
            else nvml.nvmlDeviceGetHandleByUUID(_uuid(uuid))
        )
    except Exception:  # no bindings, no library, no permission: nothing to read
        return None

    def read() -> Reading:
        return Reading(
            at=time.perf_counter(),
            sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            memory_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            watts=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            celsius=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            reasons=nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        )

    return Monitor(read)
