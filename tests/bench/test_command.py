"""`metacount bench` and `metacount plot` as their users meet them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bench_layers import result
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here
from helpers.release import daily

from metacount.bench import ceiling, ffn, grid
from metacount.bench.rows import Ceiling
from metacount.cli import main

ROOF = Ceiling(dtype="fp32", flops_per_s=1e11, shape=(512, 2048, 2048), bytes_per_s=1e10)
QUICK = ("--device", "cpu", "--no-compile", "--rounds", "3", "--seconds", "0", "--state", "hot")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(ceiling, "measure_ceiling", lambda *_, **__: ROOF)


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
    asked = ("norm", "--model", "qwen3-0.6b", "--tokens", "3", *QUICK)
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
    saved = (tmp_path / "metacount-bench-norm.jsonl").read_text()
    assert len(saved.splitlines()) == len(data)
    assert str(tmp_path) not in saved and "--rounds 3" in data[0]["command"]
    assert "<" not in data[0]["command"]


def test_nothing_is_written_unasked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench(capsys, "norm", "--model", "qwen3-0.6b", "--tokens", "1", *QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_variant_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ffn.F, "silu", torch.sigmoid)
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
        (("norm", "--parts"), "--parts means nothing to bench norm; it takes --tokens"),
        (("ffn", "--part", "core"), "--part means nothing to bench ffn"),
        (("ffn", "--device", "cpu", "--dtype", "tf32"), "--dtype tf32 is a mode of CUDA devices"),
        (("ffn", "--device", "cpu", "--launch", "graph"), "--launch graph needs a CUDA device"),
        (("ffn", "--d-ff", "7"), "--d-ff needs --d-model"),
        (("ffn", "--budget", "-1"), "must be seconds, 0 to 604800"),
        (("ffn", "--precision", "x"), "must be percent, 0 to 100"),
        (("ffn", "--compare", "none.jsonl"), "none.jsonl cannot be read"),
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


def on_cpu(**changes: Any) -> dict[str, Any]:
    ceiling = {"dtype": "fp32", "flops_per_s": 1e11, "shape": [2, 3, 5], "bytes_per_s": 1e10}
    where = {"device": "some CPU", "kind": "cpu", "threads": 2, "ceiling": ceiling}
    how = {"dtype": "fp32", "launch": "eager", "sizes": {"d_model": 512}, "tflops_per_s": 0.05}
    return result(**{**where, **how, "model": "textbook-block", **changes})


@pytest.fixture
def saved(tmp_path: Path) -> str:
    file = tmp_path / "r.jsonl"
    lines = [
        on_cpu(variant=name, workload={"tokens": n}, intensity=n / 2, model=model)
        for name in ("gelu", "swiglu", "swiglu-joined", "swiglu-4d", "swiglu-4d-compiled")
        for model in ("textbook-block", "qwen3-0.6b")
        for n in (1, 16)
    ]
    lines.append(on_cpu(variant="swiglu", status="does not fit", state="-", median_s=None))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def svg_of(capsys: pytest.CaptureFixture[str], file: Path, *arguments: str) -> str:
    assert main(["plot", *arguments, "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{file}: ") and err == ""
    return file.read_text(encoding="utf-8")


def test_plot_of_parameters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg = svg_of(capsys, tmp_path / "p.svg", "llama-7b", "mixtral-8x7b")
    # matplotlib draws letters as paths and keeps the text as a comment
    for text in (
        "LLaMA-7B",
        "Mixtral 8x7B",
        "attention",
        "moe",
        "6.74B",
        "46.7B",
        "97 %",
        "share of the parameters [%]",
        "parameters [B = 10^9]",
    ):
        assert f"<!-- {text}" in svg or f"{text} -->" in svg, text
    again = svg_of(capsys, tmp_path / "q.svg", "llama-7b", "mixtral-8x7b")
    assert again == svg


def test_plot_of_a_changed_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    svg = svg_of(capsys, tmp_path / "p.svg", "llama-7b", "--set", "n_layers=1")
    # 2 · 32000 · 4096 + 4 · 4096² + 3 · 4096 · 11008 + 3 · 4096 = 464,531,456
    assert "465M" in svg


def test_plot_of_results(capsys: pytest.CaptureFixture[str], tmp_path: Path, saved: str) -> None:
    roof = svg_of(capsys, tmp_path / "r.svg", "--roofline", saved)
    for text in (
        "some CPU, 2 threads, fp32, hot caches",
        "copy 10 GB/s",
        "ridge 10",
        "ffn: swiglu-4d",
        "qwen3-0.6b",
    ):
        assert text in roof
    curves = svg_of(capsys, tmp_path / "c.svg", "--curves", saved)
    for text in ("SwiGLU, 8/3·d", "gate and up in one matrix", "tokens", "d = 512"):
        assert text in curves


@daily(2)
@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_other_formats(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str, magic: bytes
) -> None:
    file = tmp_path / f"p.{ending}"
    assert main(["plot", "gpt2", "-o", str(file)]) == 0
    first = file.read_bytes()
    assert first.startswith(magic)
    assert main(["plot", "gpt2", "-o", str(file)]) == 0
    assert file.read_bytes() == first


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


def test_results_without_what_is_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, saved: str
) -> None:
    file = str(tmp_path / "p.svg")
    assert main(["plot", "--roofline", saved, "--state", "cold", "-o", file]) == 2
    Path(saved).write_text(json.dumps(on_cpu(topic="norm", intensity=0.0)) + "\n")
    assert main(["plot", "--roofline", saved, "-o", file]) == 2
    assert "no matrix products" in capsys.readouterr().err
    assert main(["plot", "--curves", saved, "-o", file]) == 2
    assert "no feed-forward rows" in capsys.readouterr().err


def test_directions_and_parts_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--d-model 48 --d-ff 100 --tokens 3 --direction backward --parts --equal-time"
    out, _ = bench(capsys, "ffn", *asked.split(), *QUICK)
    assert "ffn d48-ff100, tokens 3, fp32" in out
    assert "swiglu_own_d_ff 100" in " ".join(out.split())
    assert re.search(r"^swiglu-own-joined +hot fwd\+bwd ", out, re.MULTILINE)
    assert re.search(r"^swiglu:gate_up +hot fwd ", out, re.MULTILINE)
    assert "bwd: forward and backward (fwd+bwd) less the forward of the same round" in out
    assert max(len(line) for line in out.splitlines()) <= 80
