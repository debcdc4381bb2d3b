"""Quantiles, rates, bounds and the noise verdict, by hand; sampling; results on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.bench_layers import result
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here

from metacount.bench import rows as files
from metacount.bench.rows import (
    Ceiling,
    Row,
    Work,
    compared,
    half_width,
    median_interval,
    rates,
)
from metacount.errors import InputError
from metacount.files import check_writable

# 12 FLOPs take as long as 3 bytes: the ridge is at 4 FLOPs per byte
ROOF = Ceiling(dtype="fp32", flops_per_s=12e9, shape=(2, 3, 5), bytes_per_s=3e9)


def test_the_interval_of_a_median_by_hand() -> None:
    # the median of six lies outside of smallest and largest with probability 2/64 = 3.1 %
    assert median_interval([1.0, 6.0, 2.0, 5.0, 3.0, 4.0]) == (1.0, 6.0)
    assert median_interval([1.0] * 5) is None
    # of nine the second smallest and largest: 2 · (1 + 9) / 512 = 3.9 %; of eight the outermost,
    # since 2 · (1 + 8) / 256 = 7.0 %
    assert median_interval([float(x) for x in range(1, 10)]) == (2.0, 8.0)
    assert median_interval([float(x) for x in range(1, 9)]) == (1.0, 8.0)
    assert median_interval([float(x) for x in range(1, 21)]) == (6.0, 15.0)  # 2.07 % below the 6th
    assert half_width([1.0]) == float("inf")
    assert half_width([98.0, 100.0, 100.0, 100.0, 100.0, 102.0]) == pytest.approx(0.02)


def test_rates_by_hand() -> None:
    work = Work(matmul_flops=100, needed_flops=60, moved_bytes=12)
    found = rates(work, 1e-8, ROOF)
    # 60 FLOPs in 10 ns are 6 GFLOP/s, half of the roof; 12 bytes are 1.2 GB/s, two fifths
    assert found["tflops_per_s"] == pytest.approx(0.006)
    assert found["ceiling_share"] == pytest.approx(0.5)
    assert found["gbytes_per_s"] == pytest.approx(1.2)
    assert found["copy_share"] == pytest.approx(0.4)
    assert found["bound"] == "compute"  # 60 / 12 = 5, above 4
    # 60 FLOPs take 5 ns at the ceiling, 12 bytes 4 ns: half of the time
    assert found["roof_share"] == pytest.approx(0.5)
    assert rates(work, 1e-8, None).keys() == {"tflops_per_s", "gbytes_per_s"}


@pytest.mark.parametrize(
    ("mine", "other", "ratio", "noise"),
    [
        # steadily 1 % slower, while both drift by half: seen, because it is so in every round
        ([1.01, 1.11, 1.212, 1.313, 1.414, 1.515], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], 1.01, False),
        # slower in five rounds and faster in one
        ([1.2, 1.2, 1.2, 1.2, 1.2, 0.9], [1.0] * 6, 1.2, True),
        # three rounds have no interval; all on one side is all that can be said
        ([1.2, 1.3, 1.1], [1.0] * 3, 1.2, False),
        ([1.2, 1.3, 0.9], [1.0] * 3, 1.2, True),
        ([1.0] * 6, [1.0] * 6, 1.0, True),
        # the median of the ratios 2, 1/2 and 3; the medians themselves are alike
        ([2.0, 1.0, 6.0], [1.0, 2.0, 2.0], 2.0, True),
    ],
)
def test_noise(mine: list[float], other: list[float], ratio: float, noise: bool) -> None:
    found = compared(mine, other)
    assert found["ratio"] == pytest.approx(ratio, rel=2e-3) and found["within_noise"] == noise
    assert (found["ratio_low"] is None) == (len(mine) < 6)


SIZES = {"sizes": {"d_model": 13}, "workload": {"tokens": 3}, "dtype": "fp32"}
ROW = Row.from_dict(result(**SIZES, model="tiny", launch="eager"))
WHERE: dict[str, Any] = {"format": 2, "device": "a device", "torch": "2.0", "threads": 1}


def test_results_round_trip_and_append(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    lines = files.lines_of([ROW, ROW], {"fp32": ROOF}, WHERE, "2026-01-02T03:04:05+00:00")
    files.append(str(file), lines)
    first = file.read_text(encoding="utf-8")
    files.append(str(file), lines[:1])
    text = file.read_text(encoding="utf-8")
    assert text.startswith(first) and len(text.splitlines()) == 3
    read = files.read(str(file))
    assert [Row.from_dict(line) for line in read] == [ROW] * 3
    assert read[0]["ceiling"] == {
        "dtype": "fp32",
        "flops_per_s": 12e9,
        "shape": [2, 3, 5],
        "bytes_per_s": 3e9,
        "read_bytes_per_s": None,
        "blas_library": None,
        "drift": None,
        "core_share": None,
    }
    assert (read[2]["device"], read[2]["date"]) == ("a device", "2026-01-02T03:04:05+00:00")


def test_the_last_measurement_of_a_point_counts() -> None:
    early, late = (
        files.lines_of([row], {"fp32": ROOF}, WHERE, "")[0]
        for row in (ROW, Row.from_dict({**ROW.to_dict(), "median_s": 0.5}))
    )
    other = {**early, "state": "cold"}
    assert files.latest_run([early, other, late]) == [late, other]


@pytest.mark.parametrize(
    "change",
    [
        {"median_s": "fast"},
        {"ceiling": {}},
        {"workload": []},
        {"device": 3},
        {"status": None},
        {"ceiling": {"flops_per_s": 0, "bytes_per_s": 1, "shape": [1, 1, 1]}},
        {"workload": {}},
    ],
)
def test_a_line_that_is_no_result(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "r.jsonl"
    good = files.lines_of([ROW], {"fp32": ROOF}, WHERE, "now")[0]
    file.write_text(f"{json.dumps(good)}\n{json.dumps({**good, **change})}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2: not a result"):
        files.read(str(file))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        files.read(str(tmp_path / "none.jsonl"))
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not text"):
        files.read(str(binary))
    with pytest.raises(InputError, match="no folder"):
        check_writable("--save", str(tmp_path / "none" / "r.jsonl"))
    with pytest.raises(InputError, match="is a folder"):
        check_writable("--save", str(tmp_path))
