"""Quantiles, rates, bounds and the noise verdict, by hand; sampling; results on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
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
    times,
)
from metacount.bench.timing import Stopwatch, flusher
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


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    import random

    draw = random.Random(3)
    held = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(11)]) or (0.0, 0.0)
        held += low <= 0.6931 <= high  # ln 2
    assert 0.95 <= held / 2000 < 0.995


def test_rounds() -> None:
    found = times([[1.0, 2.0, 3.0], [4.0, 2.0, 3.0]])
    # medians 2 and 3; of 1 2 2 3 3 4 the middle is 2.5, p20 is 2 and p80 is 3
    assert (found["median_s"], found["p20_s"], found["p80_s"]) == (2.5, 2.0, 3.0)
    assert (found["samples"], found["rounds"], found["apart"]) == (6, 2, 0.5)
    assert found["low_s"] is None and found["high_s"] is None
    six = times([[x] for x in (5.0, 1.0, 3.0, 2.0, 4.0, 6.0)])
    assert (six["low_s"], six["high_s"]) == (1.0, 6.0)
    one = times([[4.0]])
    assert (one["p20_s"], one["median_s"], one["p80_s"], one["apart"]) == (4.0, 4.0, 4.0, 0.0)


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


def test_the_roof_of_what_only_reads_is_the_reading() -> None:
    work = Work(matmul_flops=0, needed_flops=0, moved_bytes=12)
    reads = Ceiling(
        dtype="fp32", flops_per_s=12e9, shape=(2, 3, 5), bytes_per_s=3e9, read_bytes_per_s=4e9
    )
    # 12 bytes at 4 GB/s are 3 ns; at the copy's 3 GB/s they would be 4, more than it took
    assert rates(work, 3e-9, reads)["roof_share"] == pytest.approx(1.0)


@pytest.mark.parametrize(("flops", "bound"), [(399, "memory"), (400, "compute")])
def test_bounds_on_both_sides_of_the_ridge(flops: int, bound: str) -> None:
    work = Work(matmul_flops=flops, needed_flops=flops, moved_bytes=100)
    assert ROOF.ridge == 4.0 and rates(work, 1.0, ROOF)["bound"] == bound


@pytest.mark.parametrize(
    ("mine", "other", "ratio", "noise"),
    [
        # steadily 1 % slower, while both drift by half: seen, because it is so in every round
        ([1.01, 1.11, 1.212, 1.313, 1.414, 1.515], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], 1.01, False),
        ([1.2] * 6, [1.0] * 6, 1.2, False),
        # slower in five rounds and faster in one
        ([1.2, 1.2, 1.2, 1.2, 1.2, 0.9], [1.0] * 6, 1.2, True),
        ([0.8] * 6, [1.0] * 6, 0.8, False),
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


def test_cpu_stopwatch_calls_what_it_times() -> None:
    done: list[str] = []
    calls = [lambda: done.append("a"), lambda: done.append("b")]
    watch = Stopwatch(calls, lambda: done.append("flush"), 4e-4, torch.device("cpu"))
    # twice 0.4 ms are 0.8: two passes make a millisecond
    assert (watch.passes, watch.calls_per_sample) == (2, 4)
    with watch.turn():
        assert done == ["b", "a"] * 2
        done.clear()
        found = watch.burst("hot")
        assert done == ["b", "a"] * 2 * len(found) and all(0 < x < 1 for x in found)
        done.clear()
        found = watch.burst("cold")
        assert done == [x for i in range(len(found)) for x in ("flush", "ab"[i % 2])]


def test_a_flush_reads_and_leaves_nothing_to_be_written_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[torch.Tensor] = []
    real = torch.randint

    def randint(*arguments: Any, **rest: Any) -> torch.Tensor:
        made.append(real(*arguments, **rest))
        return made[-1]

    monkeypatch.setattr(torch, "randint", randint)
    flush = flusher(torch.device("cpu"), 8192)
    (buffer,) = made
    before, version = buffer.clone(), buffer._version
    assert buffer.nbytes == 8192 and before.unique().numel() > 50  # random, not zeros
    # all of it is read: the largest value decides, wherever it lies
    buffer[-1] = 1000
    assert int(flush()) == 1000
    assert buffer._version == version + 1  # by the test alone


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


def test_a_run_without_a_roof_can_be_saved(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    files.append(str(file), files.lines_of([ROW], {}, WHERE, "now"))
    assert files.read(str(file))[0]["ceiling"] is None
