"""`metacount bench` and pictures of its results as their users meet them."""

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

from metacount.bench import device, grid, layers, rows, run
from metacount.bench.rows import Ceiling
from metacount.cli import main
from metacount.cli import pictures_of_benchmarks as pictures

ROOF = Ceiling(
    dtype="fp32", flops_per_s=1e11, shape=(512, 2048, 2048), bytes_per_s=1e10, read_bytes_per_s=2e10
)
QUICK = ("--device", "cpu", "--no-compile", "--rounds", "3", "--seconds", "0", "--state", "hot")
NORM = ("norm", "--model", "qwen3-0.6b", "--tokens", "3")
THREE = (*NORM[:-1], "1", "3", "5")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(device, "measure_ceiling", lambda *_, **__: ROOF)


def bench(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(["bench", *arguments]) == code
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = bench(capsys, "ffn", "--model", "textbook-block", "--tokens", "3", *QUICK)
    said = [line for line in err.splitlines() if "warning" not in line]
    assert re.fullmatch("metacount: 1 case, about .* s", said[0])
    assert re.fullmatch("metacount: 1 of 1, textbook-block, tokens 3, fp32, .* s", said[1])
    assert len(said) == 2
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "ffn textbook-block, tokens 3, fp32" in out
    assert "d_model 512, gelu_d_ff 2048, swiglu_d_ff 1376, swiglu_4d_d_ff 2048" in " ".join(
        out.split()
    )
    assert "ceiling fp32  0.1 TFLOP/s ([512, 2048] @ [2048, 2048]), copy 10.0 GB/s" in out
    # 4 · 3 · 512 · 2048 FLOPs over 4 bytes · (2 · 512 · 2048 + 2 · 3 · 512)
    assert re.search(r"^gelu +hot .* 8\.01 MiB +\d+ % +1\.50  memory$", out, re.MULTILINE)
    assert "gelu-compiled  not available: --no-compile" in out


def test_json_and_save(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.jsonl"
    asked = (*NORM, *QUICK)
    out, err = bench(capsys, *asked, "--json", "--save", str(file))
    data = json.loads(out)
    assert f"metacount: {len(data)} rows appended to {file}\n" in err
    assert [json.loads(line) for line in file.read_text().splitlines()] == data
    row = data[0]
    assert (row["topic"], row["variant"], row["kind"]) == ("norm", "rmsnorm", "cpu")
    # in and out, 3 · 1024 values each, and 1024 weights, 4 bytes each
    assert row["moved_bytes"] == 4 * (6 * 1024 + 1024)
    for name in ("device", "driver", "torch", "commit", "date", "threads"):
        assert name in row
    monkeypatch.chdir(tmp_path)
    # as from an installed wheel: no checkout here, and no file of one is touched
    bench(capsys, *asked, "--save")
    named = tmp_path / "metacount-bench-norm.jsonl"
    saved = named.read_text()
    bench(capsys, *asked)  # writes nothing
    assert set(tmp_path.iterdir()) == {file, named} and named.read_text() == saved
    assert len(saved.splitlines()) == len(data)
    assert str(tmp_path) not in saved and "--rounds 3" in data[0]["command"]
    assert "<" not in data[0]["command"]


def test_a_wrong_variant_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers.F, "silu", torch.sigmoid)
    asked = ("--model", "textbook-block", "--tokens", "3", "--variant", "swiglu-joined", "gelu")
    out, _ = bench(capsys, "ffn", *asked, *QUICK, code=1)
    assert "swiglu-joined  wrong result: relative error" in out
    assert re.search(r"^gelu +hot ", out, re.MULTILINE)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = bench(capsys, "attention", "--device", "cpu", "--list", "--json")
    data = json.loads(out)
    assert [case["model"] for case in data] == ["textbook-block"] * 2 + ["qwen3-0.6b"] * 2
    assert data[2]["sizes"] == {
        "d_model": 1024,
        "n_heads": 16,
        "head_dim": 128,
        "mha_n_kv_heads": 16,
        "gqa_n_kv_heads": 8,
        "mqa_n_kv_heads": 1,
    }
    text, _ = bench(capsys, "moe", "--device", "cpu", "--tokens", "7", "--list")
    assert "deepseek-moe-16b  tokens 7, routing skewed" in text
    assert "variants  dense, loop, batched, grouped" in text


def test_the_grid_of_a_cuda_device() -> None:
    found = grid.cases("ffn", "cuda")
    assert {case.model for case in found} == {"llama-7b", "llama3-8b", "qwen3-32b", "deepseek-v3"}
    assert {case.workload["tokens"] for case in found} >= {1, 4096, 16384}
    assert {case.dtype for case in found} == {"bf16"}
    sizes = {case.model: case.sizes for case in found}
    assert sizes["llama-7b"]["swiglu_d_ff"] == 11008
    assert sizes["qwen3-32b"]["swiglu_own_d_ff"] == 25600
    assert sizes["deepseek-v3"]["swiglu_own_d_ff"] == 18432
    decode = [c.workload for c in grid.cases("attention", "cuda") if c.workload["seq_len"] == 1]
    assert {work["batch_size"] for work in decode} == {1, 16, 128}
    assert {case.model for case in grid.cases("mla", "cuda")} == {"deepseek-v3", "deepseek-v2"}
    assert {case.model for case in grid.cases("moe", "cuda")} >= {"mixtral-8x7b"}
    for topic in grid.TOPICS:
        # names are made without building anything: the largest case costs nothing
        assert all(case.needs_bytes > 0 and case.variants for case in grid.cases(topic, "cuda"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: TOPIC"),
        (("lstm",), "invalid choice: 'lstm'"),
        (("ffn", "--tokens", "0"), "must be a whole number from 1: got '0'"),
        (("ffn", "--tokens", "99999999"), "must be a whole number from 1"),
        (("ffn", "--seconds", "nan"), "must be seconds, 0 to 3600"),
        (("ffn", "--seq", "3"), "--seq means nothing to bench ffn; it takes --tokens"),
        (("mla", "--tokens", "3"), "--tokens means nothing to bench mla; it takes --seq"),
        (("moe", "--model", "llama-7b"), "llama-7b has no experts"),
        (("mla", "--model", "llama-7b"), "llama-7b has no MLA"),
        (("attention", "--model", "deepseek-v3"), "deepseek-v3 has MLA"),
        (("attention", "--model", "mamba-2.8b"), "mamba-2.8b has no attention"),
        (("ffn", "--model", "mamba-2.8b"), "mamba-2.8b has no feed-forward"),
        (("ffn", "--model", "lama-7b"), "model is not in the catalog: got 'lama-7b'"),
        (("ffn", "--variant", "swigl"), "did you mean swiglu"),
        (("ffn", "--save", "no/such/folder.jsonl"), "there is no folder no/such"),
        (("ffn", "--part", "core"), "--part means nothing to bench ffn"),
        (("ffn", "--device", "cpu", "--dtype", "tf32"), "--dtype tf32 is a mode of CUDA devices"),
        (("ffn", "--device", "cpu", "--launch", "graph"), "--launch graph needs a CUDA device"),
        (("ffn", "--d-ff", "7"), "--d-ff needs --d-model"),
        (("ffn", "--budget", "-1"), "must be seconds, 0 to 604800"),
        (("ffn", "--precision", "x"), "must be percent, 0 to 100"),
    ],
)
def test_wrong_requests(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    out, err = bench(capsys, *arguments, code=2)
    assert out == "" and message in err and err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = bench(capsys, "ffn", "--device", "cuda", code=2)
    assert "torch finds no CUDA device here; use --device cpu" in err


def test_directions_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--d-model 48 --d-ff 100 --tokens 3 --direction backward"
    out, _ = bench(capsys, "ffn", *asked.split(), *QUICK)
    assert "ffn d48-ff100, tokens 3, fp32" in out
    assert "swiglu_own_d_ff 100" in " ".join(out.split())
    assert re.search(r"^swiglu-own-joined +hot fwd\+bwd ", out, re.MULTILINE)
    assert "bwd: forward and backward (fwd+bwd) less the forward of the same round" in out
    assert max(len(line) for line in out.splitlines()) <= 80


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
    assert len(rows.read(str(file))) == 2 * 6  # four variants, and two that need a compiler
    assert signal.getsignal(signal.SIGTERM) == before


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
    monkeypatch.setattr(device, "measure_ceiling", None)
    words = ["bench", *NORM, *QUICK, "--no-ceiling"]
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-7b",), "required: -o/--output"),
        (("-o", "p.svg"), "--caches"),
        (("llama-7b", "--curves", "x", "-o", "p.svg"), "plot"),
        (("llama-7b", "-o", "p.gif"), "'.gif'"),
        (("llama-7b", "-o", "p"), ""),
        (("llama-7b", "-o", "no/such/p.svg"), "no/such"),
        (("lama-7b", "-o", "p.svg"), "lama-7b"),
        (("--curves", "none.jsonl", "-o", "p.svg"), "none.jsonl"),
        (("--curves", "x", "-o", "p.svg", "--set", "n_layers=2"), "--set belongs to MODEL"),
    ],
)
def test_wrong_plots(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_results_without_what_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, results = str(tmp_path / "p.svg"), str(tmp_path / "r.jsonl")
    Path(results).write_text(json.dumps(line(topic="norm", intensity=0.0)) + "\n")
    assert main(["plot", "--roofline", results, "--state", "cold", "-o", file]) == 2
    assert main(["plot", "--roofline", results, "-o", file]) == 2
    assert "no matrix products" in capsys.readouterr().err
    assert main(["plot", "--curves", results, "-o", file]) == 2
    assert "no feed-forward rows" in capsys.readouterr().err


@pytest.mark.parametrize("tflops", [0.0005, 30.0, 900.0])
def test_a_roofline_says_why_points_lie_above_it(tflops: float) -> None:
    found = pictures.chosen([line(tflops_per_s=tflops)], state="hot", dtype=None)
    notes = pictures.above_the_roof(found.points, found.ceiling)
    # 8 FLOP/B · 4.321 TB/s allow 34.6 TFLOP/s; the level is at 790
    assert notes == [] if tflops < 34.6 else "1 of 1 points lie above the level" in notes[0]
    cached = pictures.chosen([line(tflops_per_s=40.0)], state="hot", dtype=None)
    (why,) = pictures.above_the_roof(cached.points, cached.ceiling)
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
    found = pictures.chosen(lines, state="hot", dtype=None)
    assert len(found.points) == 2
    assert "not drawn: dtype fp16" in found.notes
    assert "not drawn: device other GPU" in found.notes and "not drawn: torch 2.11" in found.notes
    svg = drawn(pictures.roofline_figure(found))
    assert "not drawn: dtype fp16" in svg and "copy 4,321 GB/s" in svg and "e+03" not in svg


def test_graphs_are_drawn_where_there_are_any() -> None:
    lines = [line(), line(launch="eager"), line(variant="loop", launch="eager")]
    shown = [(r.variant, r.launch) for r in pictures.chosen(lines, state="hot", dtype=None).points]
    assert shown == [("gelu", "graph"), ("loop", "eager")]
    eager = pictures.chosen(lines, state="hot", dtype=None, launch="eager").points
    assert [row.variant for row in eager] == ["gelu", "loop"]


def test_a_roof_that_moved_is_said() -> None:
    slow = {**line()["ceiling"], "flops_per_s": 7.0e14}
    found = pictures.chosen([line(ceiling=slow), line(variant="swiglu")], state="hot", dtype=None)
    assert found.ceiling.flops_per_s == 7.9e14
    assert "measured at 700 to 790 TFLOP/s" in found.notes[0]


def many(n: int, **changes: Any) -> pictures.Chosen:
    lines = [line(model=f"m{i}", **changes) for i in range(n)]
    return pictures.chosen(lines, state="hot", dtype=None)


@one_day_in(6)
def test_what_cannot_be_told_apart_is_refused_and_not_dropped() -> None:
    assert len(set(pictures.MARKERS)) == len(pictures.MARKERS) == 14
    looks = [json.dumps(pictures._look(i)) for i in range(pictures.MOST_FAMILIES)]
    assert len(set(looks)) == len(looks) == 27
    drawn(pictures.roofline_figure(many(14)))
    with pytest.raises(pictures.InputError):
        pictures.roofline_figure(many(15))
    svg = drawn(pictures.curves_figure(many(6)))
    assert all(f"m{i}, d = 4096" in svg for i in range(6))  # the sixth was dropped once
    with pytest.raises(pictures.InputError, match="9 models, 8 fit"):
        pictures.curves_figure(many(9))
