"""The device: what it is called, how large its caches are, what clock it runs at. Only read."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MIB = 2**20
UNKNOWN_CACHE = 64 * MIB  # when the system does not say

# Dense (not sparse) peaks that NVIDIA states: bf16 and fp16 tensor TFLOP/s, fp32 TFLOP/s, TB/s.
# Source: the data sheets of the H200, H100 SXM and A100 80GB SXM.
STATED_PEAKS = {
    "NVIDIA H200": (989.4, 66.9, 4.8),
    "NVIDIA H100 80GB HBM3": (989.4, 66.9, 3.35),
    "NVIDIA A100-SXM4-80GB": (312.0, 19.5, 2.039),
}


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """What a result must say about where it was measured. `driver` is None on a CPU."""

    device: str
    kind: str
    driver: str | None
    threads: int | None
    cache_bytes: int
    memory_bytes: int
    stated_peaks: dict[str, float] | None


def describe(device: torch.device) -> DeviceInfo:
    """The device by name, its last cache, and its memory (on a CPU what is free now)."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free, _ = torch.cuda.mem_get_info(device)
        return DeviceInfo(
            device=properties.name,
            kind="cuda",
            driver=_nvidia_smi(device, "driver_version"),
            threads=None,
            cache_bytes=int(getattr(properties, "L2_cache_size", 0)) or UNKNOWN_CACHE,
            memory_bytes=free,
            stated_peaks=stated_peaks(properties.name),
        )
    return DeviceInfo(
        device=_cpu_name(),
        kind="cpu",
        driver=None,
        threads=torch.get_num_threads(),
        cache_bytes=_cpu_cache(),
        memory_bytes=_free_memory(),
        stated_peaks=None,
    )


def stated_peaks(name: str) -> dict[str, float] | None:
    """The vendor's dense figures for a device of exactly this name.

    >>> stated_peaks("NVIDIA H200")
    {'bf16_tflops': 989.4, 'fp16_tflops': 989.4, 'fp32_tflops': 66.9, 'memory_tbytes_per_s': 4.8}
    """
    if name not in STATED_PEAKS:
        return None
    tensor, fp32, memory = STATED_PEAKS[name]
    return {
        "bf16_tflops": tensor,
        "fp16_tflops": tensor,
        "fp32_tflops": fp32,
        "memory_tbytes_per_s": memory,
    }


def clock_mhz(device: torch.device) -> int | None:
    """The clock right now, in MHz; None where nobody says."""
    if device.type == "cuda":
        said = _nvidia_smi(device, "clocks.sm")
        return int(said) if said is not None and said.isdecimal() else None
    clocks = re.findall(r"^cpu MHz\s*:\s*(\d+)", _read("/proc/cpuinfo"), re.MULTILINE)
    return max(map(int, clocks)) if clocks else None


def _nvidia_smi(device: torch.device, query: str) -> str | None:
    """One value that nvidia-smi reports for this device; None without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    # its own numbering ignores CUDA_VISIBLE_DEVICES, the uuid does not
    which = [] if uuid is None else [f"--id=GPU-{str(uuid).removeprefix('GPU-')}"]
    command = [tool, f"--query-gpu={query}", "--format=csv,noheader,nounits", *which]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu_name() -> str:
    named = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    name = named.group(1).strip() if named else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def _cpu_cache() -> int:
    """Bytes of the largest cache that the first core sees."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = _read(str(file)).strip()
        if re.fullmatch(r"\d+K", text):
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=UNKNOWN_CACHE)


def _free_memory() -> int:
    """Bytes that can be had without swapping, as Linux estimates; else half of what is there."""
    free = re.search(r"^MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    if free:
        return int(free.group(1)) * 1024
    if hasattr(os, "sysconf") and sys.platform != "win32":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 2**32


def load_average() -> float | None:
    """Processes that wanted a core in the last minute: what else the machine was doing."""
    try:
        return round(os.getloadavg()[0], 1)
    except (AttributeError, OSError):  # not every system counts them
        return None


def environment(device: torch.device) -> dict[str, Any]:
    """What every line of a results file repeats: device, driver, versions, commit, settings."""
    from metacount import __version__

    info = describe(device)
    return {
        "device": info.device,
        "kind": info.kind,
        "driver": info.driver,
        "cuda": torch.version.cuda if info.kind == "cuda" else None,
        "threads": info.threads,
        "load_average": load_average(),
        "cache_bytes": info.cache_bytes,
        "stated_peaks": info.stated_peaks,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "metacount": __version__,
        "commit": commit(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def commit() -> str | None:
    """The commit of the checkout that this file belongs to, `+changes` where files differ from it.

    None for an installed package, also when it lies inside somebody else's repository.
    """
    package = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(package), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    if not git("ls-files", "__init__.py"):
        return None
    found = git("rev-parse", "HEAD")
    if found is None:
        return None
    return f"{found}+changes" if git("status", "--porcelain", "--", ".") else found
