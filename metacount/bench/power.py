"""Clocks, power and temperature of the device while it is timed, read by a thread through NVML.

Without NVIDIA's Python bindings (`pip install nvidia-ml-py`) nothing is read, and rows say nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch

from metacount.bench.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from metacount.files import Json

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        watts = median([r.watts for r in seen])
        bits = 0
        for r in seen:
            bits |= r.reasons
        why = [text for bit, text in REASONS.items() if bits & bit]
        return {
            "clock_mhz": round(median([r.sm_mhz for r in seen])),
            "clock_min_mhz": min(r.sm_mhz for r in seen),
            "memory_clock_mhz": round(median([r.memory_mhz for r in seen])),
            "power_w": watts,
            "temperature_c": max(r.celsius for r in seen),
            "throttled": ", ".join(why) or None,
            "joules_per_call": watts * call_s,
        }


def monitor_of(device: torch.device) -> Monitor | None:
    """Return a monitor of a CUDA device; None on a CPU, and without NVML or its bindings."""
    if device.type != "cuda":
        return None
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        handle = _handle(nvml, device)
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


def _handle(nvml: ModuleType, device: torch.device) -> object:
    """Find NVML's handle of the device by uuid: NVML's numbers ignore CUDA_VISIBLE_DEVICES."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return nvml.nvmlDeviceGetHandleByIndex(device.index or 0)
    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{str(uuid).removeprefix('GPU-')}")
