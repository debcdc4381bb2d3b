"""The roof, measured and measured again; the device, what keeps it busy, its clocks and power."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from helpers.virtual_gpu import DEVICE, VirtualGpu

from metacount.bench import device as devices
from metacount.bench.device import (
    Monitor,
    Reading,
    Roofs,
    cache_bytes_of,
    clock_mhz,
    commit,
    environment,
    measure_ceiling,
    monitor_of,
)
from metacount.bench.rows import Ceiling

CPU = torch.device("cpu")
ROOF = Ceiling(dtype="fp32", flops_per_s=1e11, shape=(2, 3, 5), bytes_per_s=1e10)
CACHE = 4096


def test_the_ceiling_is_measured() -> None:
    roof = measure_ceiling(
        CPU, "fp32", CACHE, shapes=((64, 64, 64), (2, 2, 2)), copy_bytes=2**22, rounds=3
    )
    assert roof.shape == (64, 64, 64)
    assert 1e7 < roof.flops_per_s < 1e15 and 1e7 < roof.bytes_per_s < 1e13
    assert roof.read_bytes_per_s is not None and 1e7 < roof.read_bytes_per_s < 1e13


def test_the_ceiling_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_median_of", lambda _device, _call, _rounds: 0.5)
    roof = measure_ceiling(CPU, "fp32", CACHE, shapes=((2, 3, 5), (3, 5, 7)), copy_bytes=4096)
    # 2 · 3 · 5 · 7 FLOPs, and 4096 bytes read, or read and written, in half a second
    assert (roof.shape, roof.flops_per_s) == ((3, 5, 7), 420.0)
    assert (roof.bytes_per_s, roof.read_bytes_per_s) == (16384.0, 8192.0)


def test_the_ceiling_is_measured_again_when_it_is_old() -> None:
    now, asked = [0.0], []

    def measure(_device: Any, dtype: str, _cache: int, *, shapes: Any = None) -> Ceiling:
        asked.append(shapes)
        return replace(ROOF, dtype=dtype, flops_per_s=1e11 - 1e10 * (len(asked) - 1))

    roofs = Roofs(CPU, measure=measure, clock=lambda: now[0])
    assert roofs.is_due("fp32") and roofs.of("fp32").flops_per_s == 1e11
    now[0] = 100.0
    assert not roofs.is_due("fp32") and roofs.of("fp32").drift is None and asked == [None]
    now[0] = 200.0
    # only the shape that won, a tenth slower than at the beginning
    assert roofs.of("fp32").drift == pytest.approx(-0.1) and asked == [None, (ROOF.shape,)]


def test_a_busy_machine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "core_share", lambda: 1.0)
    monkeypatch.setattr(devices.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(devices, "load_average", lambda: 0.3)
    assert devices.other_load(2) is None
    monkeypatch.setattr(devices, "load_average", lambda: 7.9)
    assert "load average 7.9 on 2 cores leaves less than 2 idle" in (devices.other_load(2) or "")
    monkeypatch.setattr(devices, "load_average", lambda: 0.3)
    monkeypatch.setattr(devices, "core_share", lambda: 0.5)
    assert "a loop got 50 % of a core" in (devices.other_load(2) or "")


def test_the_commit_of_a_tree_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.subprocess, "run", _no_git)
    monkeypatch.delenv("METACOUNT_COMMIT", raising=False)
    assert commit() is None
    monkeypatch.setenv("METACOUNT_COMMIT", "abc")
    assert commit() == "abc"


def _no_git(*_: Any, **__: Any) -> None:
    raise OSError("no git")


def test_the_device_is_described() -> None:
    info = environment(CPU)
    assert info["kind"] == "cpu" and info["driver"] is None and info["device"]
    assert cache_bytes_of(CPU) >= 2**16 and devices.free_bytes(CPU) > 2**20
    assert clock_mhz(CPU) is None or 100 < (clock_mhz(CPU) or 0) < 10_000
    assert info["stated_peaks"] is None
    found = commit()
    assert found is None or len(found.removesuffix("+changes")) == 40


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
