"""`metacount bench` and pictures of its results as their users meet them."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bench_layers import result as line
from helpers.command_line import refused
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here

from metacount.bench import device, layers, rows, run
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
    # those of one reason together
    assert "not available: --no-compile\n  gelu-compiled, swiglu-joined-compiled, swiglu-4d" in out
    # nothing is explained that the screen has no room for
    assert "\nroof     the longer of" in out and "\nby ops" not in out


def test_a_busy_machine_has_no_results(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    roof = replace(ROOF, core_share=0.31)
    monkeypatch.setattr(device, "measure_ceiling", lambda *_, **__: roof)
    monkeypatch.setattr(rows, "LEAST_OF_A_CORE", 0.8)  # the clock of these tests has no seconds
    out, _ = bench(capsys, *NORM, *QUICK, code=1)
    assert "ceiling fp32  not measured: this process had 31 % of a core" in out
    assert "too busy: something else had more than a fifth of its core while it was timed" in out
    assert "median" not in out and "TFLOP/s" not in out
    data = json.loads(bench(capsys, *NORM, *QUICK, "--json", code=1)[0])
    assert {row["status"] for row in data} == {"too busy", "not available"}
    assert {row["ceiling"] for row in data} == {row["roof_share"] for row in data} == {None}


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lstm",), "invalid choice: 'lstm'"),
        (("ffn", "--tokens", "0"), "must be a whole number from 1: got '0'"),
        (("ffn", "--seq", "3"), "--seq means nothing to bench ffn; it takes --tokens"),
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_has_not_measured_in_vain(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: int,
) -> None:
    before, real, cases = signal.getsignal(signal.SIGTERM), run.run_case, count(1)

    def run_case(*arguments: Any, **rest: Any) -> Any:
        if next(cases) == 3:
            os.kill(os.getpid(), number)
        return real(*arguments, **rest)

    monkeypatch.setattr(run, "run_case", run_case)
    file = tmp_path / "r.jsonl"
    out, err = bench(capsys, *THREE, *QUICK, "--save", str(file), code=code)
    assert "tokens 1, fp32" in out and "tokens 3, fp32" in out and "tokens 5" not in out
    assert "metacount: interrupted after 2 of 3 cases" in err and "median " in out
    assert len(rows.read(str(file))) == 2 * 6  # four variants, and two that need a compiler
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = bench(capsys, *THREE, *QUICK, "--budget", "0", code=1)  # nothing was measured
    assert "of which 0 s may be used" in err
    assert re.search(r"all +no time: about \d+ s; of --budget 0 s 0 are left", out)


def test_a_plan_needs_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "ffn",
        "--device",
        "cuda",
        "--model",
        "llama-7b",
        "--tokens",
        "4096",
        "--dtype",
        "bf16",
        "--dry-run",
    ]
    out, err = bench(capsys, *words)
    assert err == "" and "inputs  [4096, 4096]" in out
    # 2 · 4096 tokens · 4096 · 11008 · 3 matrices; 2 bytes · (3 · 4096 · 11008 + 2 · 4096²)
    assert re.search(r"^swiglu +1\.11 TFLOP +322\.00 MiB ", out, re.MULTILINE)
    (case,) = json.loads(bench(capsys, *words, "--json")[0])
    planned = {v["name"]: v for v in case["variants"]}
    assert planned["swiglu"]["matmul_flops"] == 2 * 4096 * 4096 * 11008 * 3
    assert planned["swiglu"]["moved_bytes"] == 2 * (3 * 4096 * 11008 + 2 * 4096 * 4096)
    assert case["estimated_by"].startswith("stated for ") and case["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "p.svg"), "--caches"),
        (("llama-7b", "--curves", "x", "-o", "p.svg"), "plot"),
        (("llama-7b", "-o", "p.gif"), "'.gif'"),
        (("llama-7b", "-o", "no/such/p.svg"), "no/such"),
        (("--curves", "none.jsonl", "-o", "p.svg"), "none.jsonl"),
        (("--curves", "x", "-o", "p.svg", "--set", "n_layers=2"), "--set belongs to MODEL"),
    ],
)
def test_wrong_plots(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(capsys, "plot", *arguments)


def test_pictures_say_what_they_leave_out(tmp_path: Path) -> None:
    changes = ({"dtype": "fp16"}, {"device": "other GPU"}, {"torch": "2.11"}, {}, {})
    found = pictures.chosen([line(**each) for each in changes], state="hot", dtype=None)
    assert len(found.points) == 2
    left_out = ("dtype fp16", "device other GPU", "torch 2.11")
    assert {f"not drawn: {what}" for what in left_out} <= {*found.notes}
    pictures.roofline_figure(found).savefig(tmp_path / "p.svg")
    svg = (tmp_path / "p.svg").read_text("utf-8")
    assert "not drawn: dtype fp16" in svg and "copy 4,321 GB/s" in svg and "e+03" not in svg
    nine = pictures.chosen([line(model=f"m{i}") for i in range(9)], state="hot", dtype=None)
    with pytest.raises(pictures.InputError, match="9 models, 8 fit"):
        pictures.curves_figure(nine)
