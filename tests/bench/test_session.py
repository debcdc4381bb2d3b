"""A run as it goes: printed and saved case by case, stopped in the middle, planned, compared."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ROOT
from helpers.bench_layers import result as line
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here
from helpers.release import one_day_in

from metacount.bench import ceiling, run, saved
from metacount.bench.rows import Ceiling
from metacount.cli import main
from metacount.cli import pictures_of_benchmarks as plot_bench
from metacount.cli import pictures_of_benchmarks as plot_ffn
from metacount.cli.bench_rows import compare_text

ROOF = Ceiling(
    dtype="fp32", flops_per_s=1e11, shape=(512, 2048, 2048), bytes_per_s=1e10, read_bytes_per_s=2e10
)
QUICK = ("--device", "cpu", "--no-compile", "--rounds", "3", "--seconds", "0", "--state", "hot")
THREE = ("norm", "--model", "qwen3-0.6b", "--tokens", "1", "3", "5")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(ceiling, "measure_ceiling", lambda *_, **__: ROOF)


def stopping_at(monkeypatch: pytest.MonkeyPatch, number: int, stop: Any) -> None:
    """The case of this number is where somebody stops the run."""
    real, seen = run.run_case, [0]

    def run_case(*arguments: Any, **rest: Any) -> Any:
        seen[0] += 1
        if seen[0] == number:
            stop()
        return real(*arguments, **rest)

    monkeypatch.setattr(run, "run_case", run_case)


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("stop", "code"), [(interrupt, 130), (terminate, 143)])
def test_a_run_that_is_stopped_has_not_measured_in_vain(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: Any,
    code: int,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopping_at(monkeypatch, 3, stop)
    file = tmp_path / "r.jsonl"
    assert main(["bench", *THREE, *QUICK, "--save", str(file)]) == code
    out, err = capsys.readouterr()
    assert "tokens 1, fp32" in out and "tokens 3, fp32" in out and "tokens 5" not in out
    assert "metacount: interrupted after 2 of 3 cases" in err and "median " in out
    assert len(saved.read(str(file))) == 2 * 6  # four variants, and two that need a compiler
    assert signal.getsignal(signal.SIGTERM) == before


def test_json_of_a_run_that_is_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping_at(monkeypatch, 2, interrupt)
    assert main(["bench", *THREE, *QUICK, "--json"]) == 130
    assert {line["workload"]["tokens"] for line in json.loads(capsys.readouterr().out)} == {1}


def test_each_case_is_printed_when_it_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    stopping_at(monkeypatch, 3, lambda: printed.append(capsys.readouterr().out))
    assert main(["bench", *THREE, *QUICK]) == 0
    assert "tokens 3, fp32" in printed[0] and "tokens 5" not in printed[0]


@one_day_in(6)
def test_a_killed_run_has_shown_what_it_had() -> None:
    """A process of its own, without a terminal, whose output nobody reads until it is gone."""
    code = (
        "import os, signal\n"
        "from metacount.bench import run\n"
        "from metacount.cli import main\n"
        "real, seen = run.run_case, [0]\n"
        "def stop(*a, **k):\n"
        "    seen[0] += 1\n"
        "    if seen[0] == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(*a, **k)\n"
        "run.run_case = stop\n"
        f"main(['bench', *{THREE!r}, *{QUICK!r}, '--no-ceiling'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL
    assert "norm qwen3-0.6b, tokens 1, fp32" in done.stdout
    assert re.search(r"^metacount: 1 of 3, qwen3-0.6b, tokens 1, fp32, ", done.stderr, re.MULTILINE)


def test_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *THREE, *QUICK, "--budget", "0"]) == 1  # nothing was measured
    out, err = capsys.readouterr()
    assert "of which 0 s may be used" in err
    assert re.search(r"rmsnorm +no time: about \d+ s; of --budget 0 s 0 are left", out)


def test_nothing_measured_is_no_success(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(run, "flusher", broken)
    assert main(["bench", *THREE, *QUICK]) == 1
    assert "unspecified" in capsys.readouterr().out


def test_without_a_ceiling(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(ceiling, "measure_ceiling", None)
    words = ["bench", "norm", "--model", "qwen3-0.6b", "--tokens", "3", *QUICK, "--no-ceiling"]
    assert main([*words, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert row["ceiling"] is None and row["roof_share"] is None and row["median_s"] > 0
    assert main(words) == 0
    assert "ceiling fp32" not in capsys.readouterr().out


def test_a_plan_needs_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "bench ffn --device cuda --model llama-7b --tokens 4096 --dtype bf16"
    words = asked.split()
    assert main([*words, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "ffn llama-7b, tokens 4096, bf16" in out and "inputs  [4096, 4096]" in out
    # 2 · 4096 tokens · 4096 · 11008 · 3 matrices; 2 bytes · (3 · 4096 · 11008 + 2 · 4096²)
    assert re.search(r"^swiglu +1\.11 TFLOP +322\.00 MiB ", out, re.MULTILINE)
    assert re.search(r"^1 cases?, \d+ variants: about ", out, re.MULTILINE)
    assert main([*words, "--dry-run", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)
    found = {v["name"]: v for v in case["variants"]}
    assert found["swiglu"]["matmul_flops"] == 2 * 4096 * 4096 * 11008 * 3
    assert found["swiglu"]["moved_bytes"] == 2 * (3 * 4096 * 11008 + 2 * 4096 * 4096)
    assert case["estimated_by"].startswith("stated for ") and case["seconds"] > 0
    assert main([*words, "--list"]) == 0
    assert "swiglu-joined-compiled" in capsys.readouterr().out


def test_a_plan_and_its_run_draw_the_same_routing(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cpu", "--tokens", "64", "--dry-run", "--json"]

    def moved() -> list[int]:
        assert main(["bench", "moe", "--model", "deepseek-moe-16b", *options]) == 0
        cases = json.loads(capsys.readouterr().out)
        return [v["moved_bytes"] for case in cases for v in case["variants"]]

    torch.manual_seed(1)
    first = moved()
    torch.manual_seed(2)
    assert moved() == first


def test_two_runs_side_by_side() -> None:
    old = [
        line(),
        line(variant="swiglu", median_s=0.02, low_s=0.0199, high_s=0.0201),
        line(variant="swiglu-4d"),
        line(variant="gone"),
    ]
    new = [
        line(median_s=0.01005, low_s=0.01, high_s=0.0102),
        line(variant="swiglu", median_s=0.021, low_s=0.0209, high_s=0.0211),
        line(variant="swiglu-4d", median_s=0.01, low_s=None, high_s=None),
        line(variant="new"),
        line(variant="gelu", launch="eager"),
    ]
    found = saved.compare([{**x, "torch": "2.14"} for x in new], old)
    assert [round(pair.change, 4) for pair in found.pairs] == [0.005, 0.05, 0.0]
    assert [pair.apart for pair in found.pairs] == [False, True, None]
    assert (found.only_new, found.only_old) == (2, 1)
    assert found.places == {"torch": ('"2.13"', '"2.14"')}
    text = compare_text(found)
    assert "3 points in both, apart by 0.5 % in the middle; only new 2, only old 1" in text
    assert re.search(r"swiglu +hot graph +20 ms +21 ms +\+5\.0 % +!", text)
    assert "no point is in both" in compare_text(saved.compare([], old))


def test_compare_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(tmp_path / "old.jsonl")
    words = ["bench", "norm", "--model", "qwen3-0.6b", "--tokens", "3", *QUICK]
    assert main([*words, "--save", file]) == 0
    assert main([*words, "--compare", file]) == 0
    assert "4 points in both" in capsys.readouterr().out


@pytest.mark.parametrize("tflops", [0.0005, 30.0, 900.0])
def test_a_roofline_says_why_points_lie_above_it(tflops: float) -> None:
    found = plot_bench.chosen([line(tflops_per_s=tflops)], state="hot", dtype=None)
    notes = plot_bench.above_the_roof(found.points, found.ceiling)
    # 8 FLOP/B · 4.321 TB/s allow 34.6 TFLOP/s; the level is at 790
    assert notes == [] if tflops < 34.6 else "1 of 1 points lie above the level" in notes[0]
    cached = plot_bench.chosen([line(tflops_per_s=40.0)], state="hot", dtype=None)
    (why,) = plot_bench.above_the_roof(cached.points, cached.ceiling)
    assert "above the slope" in why and "can stay in a cache" in why


def drawn(picture: Any) -> str:
    from io import StringIO

    file = StringIO()
    picture.savefig(file, format="svg")
    return file.getvalue()


def test_pictures_say_what_they_leave_out() -> None:
    lines = [
        line(dtype="fp16"),
        line(device="other GPU"),
        line(torch="2.11"),
        line(other_load="busy"),
        line(),
    ]
    found = plot_bench.chosen(lines, state="hot", dtype=None)
    assert len(found.points) == 2
    assert "not drawn: dtype fp16" in found.notes
    assert "not drawn: device other GPU" in found.notes and "not drawn: torch 2.11" in found.notes
    svg = drawn(plot_bench.roofline_figure(found))
    assert "not drawn: dtype fp16" in svg and "copy 4,321 GB/s" in svg and "e+03" not in svg


def test_graphs_are_drawn_where_there_are_any() -> None:
    lines = [line(), line(launch="eager"), line(variant="loop", launch="eager")]
    shown = [
        (r.variant, r.launch) for r in plot_bench.chosen(lines, state="hot", dtype=None).points
    ]
    assert shown == [("gelu", "graph"), ("loop", "eager")]
    eager = plot_bench.chosen(lines, state="hot", dtype=None, launch="eager").points
    assert [row.variant for row in eager] == ["gelu", "loop"]


def test_a_roof_that_moved_is_said() -> None:
    slow = {**line()["ceiling"], "flops_per_s": 7.0e14}
    found = plot_bench.chosen([line(ceiling=slow), line(variant="swiglu")], state="hot", dtype=None)
    assert found.ceiling.flops_per_s == 7.9e14
    assert "measured at 700 to 790 TFLOP/s" in found.notes[0]


def many(n: int, **changes: Any) -> plot_bench.Chosen:
    lines = [line(model=f"m{i}", **changes) for i in range(n)]
    return plot_bench.chosen(lines, state="hot", dtype=None)


@one_day_in(6)
def test_what_cannot_be_told_apart_is_refused_and_not_dropped() -> None:
    assert len(set(plot_bench.MARKERS)) == len(plot_bench.MARKERS) == 14
    looks = [json.dumps(plot_bench._look(i)) for i in range(plot_bench.MOST_FAMILIES)]
    assert len(set(looks)) == len(looks) == 27
    drawn(plot_bench.roofline_figure(many(14)))
    with pytest.raises(plot_bench.InputError):
        plot_bench.roofline_figure(many(15))
    svg = drawn(plot_ffn.curves_figure(many(6)))
    assert all(f"m{i}, d = 4096" in svg for i in range(6))  # the sixth was dropped once
    with pytest.raises(plot_bench.InputError, match="9 models, 8 fit"):
        plot_ffn.curves_figure(many(9))


def test_the_curves_of_a_grid_of_a_gpu() -> None:
    tokens = (1, 16, 128, 1024, 4096, 8192, 16384)
    lines = [
        line(variant=name, workload={"tokens": n}, ratio_low=0.98, ratio_high=1.02)
        for name in ("gelu", "swiglu", "swiglu-joined-compiled", "swiglu-liger")
        for n in tokens
    ]
    found = plot_bench.chosen(lines, state="hot", dtype=None)
    svg = drawn(plot_ffn.curves_figure(found))
    shown = re.findall(r"<!-- (\d+K?) -->", svg)
    # labels at least four times apart: 8192 and 16384 do not stand beside each other
    assert {"1", "16", "128", "1K", "4K", "16K"} <= set(shown) and "8K" not in shown
    for text in ("best product 790", "Liger's silu·up", "one matrix, torch.compile", "TFLOP/s"):
        assert text in svg, text
    assert torch.get_num_threads() == 1
