"""The roof, measured and measured again; the device, and what else keeps it busy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here

from metacount.bench import ceiling
from metacount.bench import device as devices
from metacount.bench.ceiling import Roofs, measure_ceiling
from metacount.bench.device import clock_mhz, commit, describe, stated_peaks
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
    monkeypatch.setattr(ceiling, "_median_of", lambda _device, _call, _rounds: 0.5)
    roof = measure_ceiling(CPU, "fp32", CACHE, shapes=((2, 3, 5), (3, 5, 7)), copy_bytes=4096)
    # 2 · 3 · 5 · 7 FLOPs, and 4096 bytes read, or read and written, in half a second
    assert (roof.shape, roof.flops_per_s) == ((3, 5, 7), 420.0)
    assert (roof.bytes_per_s, roof.read_bytes_per_s) == (16384.0, 8192.0)


def test_the_ceiling_is_measured_again_when_it_is_old() -> None:
    now, asked = [0.0], []

    def measure(_device: Any, dtype: str, _cache: int, *, shapes: Any = None) -> Ceiling:
        asked.append(shapes)
        return replace(ROOF, dtype=dtype, flops_per_s=1e11 - 1e10 * (len(asked) - 1))

    roofs = Roofs(CPU, CACHE, measure=measure, clock=lambda: now[0])
    assert roofs.is_due("fp32") and roofs.of("fp32").flops_per_s == 1e11
    now[0] = 100.0
    assert not roofs.is_due("fp32") and roofs.of("fp32").drift is None and asked == [None]
    now[0] = 200.0
    # only the shape that won, a tenth slower than at the beginning
    assert roofs.of("fp32").drift == pytest.approx(-0.1) and asked == [None, (ROOF.shape,)]


def test_a_server_cpu_needs_neither_minutes_nor_gigabytes() -> None:
    mib = 2**20
    assert ceiling.copy_size(CPU, 480 * mib, 2**36) == 512 * mib
    assert ceiling.copy_size(CPU, 480 * mib, 2**30) == 128 * mib  # a quarter of 1 GiB for both
    assert ceiling.copy_size(torch.device("cuda"), 60 * mib, 2**37) == 1024 * mib


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
    info = describe(CPU)
    assert info.kind == "cpu" and info.driver is None and info.device
    assert info.cache_bytes >= 2**16 and info.memory_bytes > 2**20
    assert clock_mhz(CPU) is None or 100 < (clock_mhz(CPU) or 0) < 10_000
    assert stated_peaks("NVIDIA H100") is None
    found = commit()
    assert found is None or len(found.removesuffix("+changes")) == 40
