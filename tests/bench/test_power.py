"""Clocks and power beside the rows, read by a thread."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from helpers.virtual_gpu import DEVICE, VirtualGpu

from metacount.bench.power import Monitor, Reading, monitor_of

CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> VirtualGpu:
    return VirtualGpu(monkeypatch)


def reading(at: float, mhz: int = 1980, watts: float = 700.0, reasons: int = 0) -> Reading:
    return Reading(at=at, sm_mhz=mhz, memory_mhz=3201, watts=watts, celsius=60, reasons=reasons)


def test_clocks_and_power_of_a_row_are_those_of_its_turns() -> None:
    monitor = Monitor(lambda: reading(0.0))
    monitor.readings = [
        reading(0.5, 345, 70.0),  # before the first turn
        reading(1.5, 1500, 690.0, 0x4),
        reading(1.6, 1400, 710.0, 0x4),
        reading(2.5, 345, 70.0),  # another one's turn
        reading(3.5, 1300, 700.0),
    ]
    found = monitor.of([(1.0, 2.0), (3.0, 4.0)], call_s=1e-3)
    assert (found["clock_mhz"], found["clock_min_mhz"]) == (1400, 1300)
    assert found["power_w"] == 700.0 and found["joules_per_call"] == pytest.approx(0.7)
    assert found["throttled"] == "power cap" and found["temperature_c"] == 60
    assert monitor.of([(10.0, 11.0)], call_s=1e-3) == {}


def test_the_monitor_reads_while_it_is_open() -> None:
    monitor = Monitor(lambda: reading(time.perf_counter()), period=0.001)
    start = time.perf_counter()
    with monitor:
        while len(monitor.readings) < 3 and time.perf_counter() - start < 10:
            time.sleep(0.002)
    assert len(monitor.readings) >= 3
    assert monitor.of([(start, time.perf_counter())], 1.0)["clock_mhz"] == 1980


def test_nvml_is_asked_by_the_uuid_of_the_device(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    nvml = ModuleType("pynvml")
    vars(nvml).update(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1700, 2: 3201}[kind],
        nvmlDeviceGetPowerUsage=lambda handle: 650_000,
        nvmlDeviceGetTemperature=lambda handle, sensor: 55,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x44,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monitor = monitor_of(DEVICE)
    assert monitor is not None and asked == ["GPU-a-b"]
    seen = monitor.read()
    assert (seen.sm_mhz, seen.memory_mhz, seen.watts, seen.celsius) == (1700, 3201, 650.0, 55)
    monitor.readings = [replace(seen, at=0.5)]
    assert monitor.of([(0.0, 1.0)], 1.0)["throttled"] == "power cap, hardware thermal"
    assert monitor_of(CPU) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert monitor_of(DEVICE) is None
