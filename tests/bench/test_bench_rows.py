"""Quantiles, rates, bounds and the noise verdict, by hand; sampling; results on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from one_thread import no_gradients  # noqa: F401  # a fixture for every test here

from metacount.bench import results
from metacount.bench.rows import (
    Ceiling,
    Row,
    Timing,
    bound,
    compared,
    quantile,
    rates,
    timing_of,
)
from metacount.bench.timing import CpuStopwatch, flusher, input_sets, samples
from metacount.bench.work import Work
from metacount.errors import InputError
from metacount.output_file import check_writable

# 12 FLOPs take as long as 3 bytes: the ridge is at 4 FLOPs per byte
ROOF = Ceiling(dtype="fp32", flops_per_s=12e9, shape=(2, 3, 5), bytes_per_s=3e9)


def timing(median: float, *, low: float | None = None, high: float | None = None,
           apart: float = 0.0) -> Timing:  # fmt: skip
    return Timing(median_s=median, p20_s=low or median, p80_s=high or median, samples=6,
                  apart=apart)  # fmt: skip


def test_quantiles_by_hand() -> None:
    values = [7.0, 1.0, 5.0, 3.0, 9.0, 11.0]
    assert [quantile(values, share) for share in (0.0, 0.2, 0.5, 0.8, 1.0)] == [1, 3, 6, 9, 11]
    # place 0.2 · 3 = 0.6, between 1 and 3
    assert quantile([1.0, 3.0, 5.0, 7.0], 0.2) == pytest.approx(2.2)
    assert quantile([4.0], 0.8) == 4.0


def test_two_passes() -> None:
    both = timing_of([1.0, 2.0, 3.0], [4.0, 2.0, 3.0])
    # medians 2 and 3; of 1 2 2 3 3 4 the middle is 2.5, p20 is 2 and p80 is 3
    assert both == Timing(median_s=2.5, p20_s=2.0, p80_s=3.0, samples=6, apart=0.5)
    assert timing_of([3.0, 4.0, 2.0], [1.0, 2.0, 3.0]).apart == 0.5


def test_rates_by_hand() -> None:
    work = Work(matmul_flops=100, needed_flops=60, weight_bytes=5, input_bytes=3, output_bytes=2,
                cache_bytes=2)  # fmt: skip
    found = rates(work, timing(1e-8), ROOF)
    # 60 FLOPs in 10 ns are 6 GFLOP/s, half of the roof; 12 bytes are 1.2 GB/s, two fifths
    assert found["tflops_per_s"] == pytest.approx(0.006)
    assert found["ceiling_share"] == pytest.approx(0.5)
    assert found["gbytes_per_s"] == pytest.approx(1.2)
    assert found["copy_share"] == pytest.approx(0.4)
    assert found["bound"] == "compute"  # 60 / 12 = 5, above 4


def test_bounds_on_both_sides_of_the_ridge() -> None:
    assert ROOF.ridge == 4.0
    assert [bound(x, ROOF) for x in (0.0, 3.99, 4.0, 4.01)] == [
        "memory", "memory", "compute", "compute"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "ratio", "noise"),
    [
        (timing(1.2), timing(1.0), 1.2, False),
        (timing(1.2, apart=0.19), timing(1.0), 1.2, False),
        (timing(1.2, apart=0.21), timing(1.0), 1.2, True),
        (timing(1.2), timing(1.0, apart=0.21), 1.2, True),
        # a quarter faster is a third more the other way round
        (timing(0.75, apart=0.3), timing(1.0), 0.75, False),
        (timing(0.75, apart=0.34), timing(1.0), 0.75, True),
        # ranges that overlap, and ranges that do not
        (timing(1.2, low=1.09), timing(1.0, high=1.1), 1.2, True),
        (timing(1.2, low=1.11), timing(1.0, high=1.1), 1.2, False),
        (timing(0.8, high=0.91), timing(1.0, low=0.9), 0.8, True),
    ],
)
def test_noise(one: Timing, other: Timing, ratio: float, noise: bool) -> None:
    assert compared(one, other) == {"ratio": pytest.approx(ratio), "within_noise": noise}


class Script:
    """A stopwatch that says what it is asked."""

    launch = "eager"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def hot(self) -> float:
        self.asked.append("hot")
        return 1.0

    def cold(self, index: int) -> float:
        self.asked.append(f"cold {index}")
        return 2.0


def test_samples_rotate_and_end() -> None:
    watch = Script()
    assert samples(watch, "cold", rounds=5, seconds=60.0, sets=3) == [2.0] * 5
    assert watch.asked == ["cold 0", "cold 1", "cold 2", "cold 0", "cold 1"]
    # no time at all still gives three
    assert samples(watch, "hot", rounds=50, seconds=0.0, sets=3) == [1.0] * 3
    assert samples(watch, "hot", rounds=2, seconds=0.0, sets=3) == [1.0] * 2


def test_cpu_stopwatch_calls_what_it_times() -> None:
    done: list[str] = []
    watch = CpuStopwatch([lambda: done.append("a"), lambda: done.append("b")],
                         lambda: done.append("flush"))  # fmt: skip
    assert done == ["a", "b"] * 3  # warm-up
    done.clear()
    assert 0 < watch.hot() < 1
    assert done == ["a", "b"]
    done.clear()
    assert 0 < watch.cold(1) < 1
    assert done == ["flush", "b"]


def test_flush_touches_twice_the_cache() -> None:
    buffer = flusher(torch.device("cpu"), 4096)()
    assert isinstance(buffer, torch.Tensor) and buffer.nbytes == 8192
    before = buffer.clone()
    assert before.unique().numel() > 50  # random, not zeros


def test_input_sets() -> None:
    assert input_sets(torch.device("cpu"), 1, 2**30) == 3
    # 50 MB of cache and sets of 10 MB: six of them are more than it holds
    assert input_sets(torch.device("cuda"), 10_000_000, 50_000_000) == 6
    assert input_sets(torch.device("cuda"), 2**30, 50_000_000) == 3


ROW = Row(topic="ffn", model="tiny", sizes={"d_model": 13}, workload={"tokens": 3}, dtype="fp32",
          variant="gelu", state="hot", launch="eager", median_s=0.25, p20_s=0.2, p80_s=0.3,
          intensity=5.0, tflops_per_s=0.006, ratio=1.0)  # fmt: skip
WHERE: dict[str, Any] = {"device": "a device", "torch": "2.0", "threads": 1}


def test_results_round_trip_and_append(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    lines = results.lines_of([ROW, ROW], {"fp32": ROOF}, WHERE, "2026-01-02T03:04:05+00:00")
    results.append(str(file), lines)
    first = file.read_text(encoding="utf-8")
    results.append(str(file), lines[:1])
    text = file.read_text(encoding="utf-8")
    assert text.startswith(first) and len(text.splitlines()) == 3
    read = results.read(str(file))
    assert [Row.from_dict(line) for line in read] == [ROW] * 3
    assert read[0]["ceiling"] == {
        "dtype": "fp32", "flops_per_s": 12e9, "shape": [2, 3, 5], "bytes_per_s": 3e9
    }  # fmt: skip
    assert (read[2]["device"], read[2]["date"]) == ("a device", "2026-01-02T03:04:05+00:00")


def test_the_last_measurement_of_a_point_counts() -> None:
    early, late = (
        results.lines_of([row], {"fp32": ROOF}, WHERE, "")[0]
        for row in (ROW, Row.from_dict({**ROW.to_dict(), "median_s": 0.5}))
    )
    other = {**early, "state": "cold"}
    assert results.latest_run([early, other, late]) == [late, other]


@pytest.mark.parametrize(
    "change",
    [{"median_s": "fast"}, {"ceiling": {}}, {"workload": []}, {"device": 3}, {"status": None},
     {"ceiling": {"flops_per_s": 0, "bytes_per_s": 1, "shape": [1, 1, 1]}},
     {"workload": {}}],
)  # fmt: skip
def test_a_line_that_is_no_result(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "r.jsonl"
    good = results.lines_of([ROW], {"fp32": ROOF}, WHERE, "now")[0]
    file.write_text(f"{json.dumps(good)}\n{json.dumps({**good, **change})}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 2: not a result"):
        results.read(str(file))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        results.read(str(tmp_path / "none.jsonl"))
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not text"):
        results.read(str(binary))
    with pytest.raises(InputError, match="no folder"):
        check_writable("--save", str(tmp_path / "none" / "r.jsonl"))
    with pytest.raises(InputError, match="is a folder"):
        check_writable("--save", str(tmp_path))


def test_the_default_file_needs_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="there is no folder benchmarks"):
        results.default_file("ffn")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    assert Path(results.default_file("ffn")) == Path("benchmarks/results/ffn.jsonl")
