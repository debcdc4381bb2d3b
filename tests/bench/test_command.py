"""`metacount bench` and pictures of its results as their users meet them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from helpers import ROOT, benchmark
from helpers.bench_layers import result as line_of
from helpers.command_line import Ask
from helpers.one_thread import no_gradients, short_bursts  # noqa: F401  # fixtures for every test here

from metacount.bench import device, layers, rows, run
from metacount.bench.rows import Ceiling
from metacount.cli import main
from metacount.cli import pictures_of_benchmarks as pictures

ROOF = Ceiling(
    dtype="fp32", flops_per_s=1e11, shape=(512, 2048, 2048), bytes_per_s=1e10, read_bytes_per_s=2e10
)
QUICK = "--device cpu --no-compile --rounds 3 --seconds 0 --state hot"
NORM = f"bench norm --model qwen3-0.6b --tokens 3 {QUICK}"
THREE = NORM.replace("--tokens 3", "--tokens 1 3 5")
FFN = f"bench ffn --model textbook-block --tokens 3 {QUICK}"


@pytest.fixture(autouse=True)
def _ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "measure_ceiling", lambda *_, **__: ROOF)


def test_text(ask: Ask) -> None:
    code, out, err = ask.all(FFN)
    said = [line for line in err.splitlines() if "warning" not in line]
    assert code == 0 and len(said) == 2
    assert re.fullmatch("metacount: 1 case, about .* s", said[0])
    assert re.fullmatch("metacount: 1 of 1, textbook-block, tokens 3, fp32, .* s", said[1])
    assert max(len(line) for line in out.splitlines()) <= 80
    widths = "d_model 512, gelu_d_ff 2048, swiglu_d_ff 1376, swiglu_4d_d_ff 2048"
    assert "ffn textbook-block, tokens 3, fp32" in out and widths in " ".join(out.split())
    assert "ceiling fp32  0.1 TFLOP/s ([512, 2048] @ [2048, 2048]), copy 10.0 GB/s" in out
    # 4 · 3 · 512 · 2048 FLOPs over 4 bytes · (2 · 512 · 2048 + 2 · 3 · 512)
    assert re.search(r"^gelu +hot .* 8\.01 MiB +\d+ % +1\.50  memory$", out, re.MULTILINE)
    # those of one reason together; nothing is explained that the screen has no room for
    assert "not available: --no-compile\n  gelu-compiled, swiglu-joined-compiled, swiglu-4d" in out
    assert "\nroof     the longer of" in out and "\nby ops" not in out


def test_a_busy_machine_has_no_results(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    roof = replace(ROOF, core_share=0.31)
    monkeypatch.setattr(device, "measure_ceiling", lambda *_, **__: roof)
    monkeypatch.setattr(rows, "LEAST_OF_A_CORE", 0.8)  # the clock of these tests has no seconds
    code, out, _ = ask.all(NORM)
    assert code == 1 and "ceiling fp32  not measured: this process had 31 % of a core" in out
    assert "too busy: something else had more than a fifth of its core while it was timed" in out
    assert "median" not in out and "TFLOP/s" not in out
    data = json.loads(ask.all(f"{NORM} --json")[1])
    assert {row["status"] for row in data} == {"too busy", "not available"}
    assert {row["ceiling"] for row in data} == {row["roof_share"] for row in data} == {None}


def test_json_and_save(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # as from an installed wheel: no checkout here, and no file of one is touched
    monkeypatch.chdir(tmp_path)
    _, out, err = ask.all(f"{NORM} --json --save r.jsonl")
    data = json.loads(out)
    assert f"metacount: {len(data)} rows appended to r.jsonl\n" in err
    assert [json.loads(line) for line in Path("r.jsonl").read_text().splitlines()] == data
    row = data[0]
    assert (row["topic"], row["variant"], row["kind"]) == ("norm", "rmsnorm", "cpu")
    # in and out, 3 · 1024 values each, and 1024 weights, 4 bytes each
    assert row["moved_bytes"] == 4 * (6 * 1024 + 1024)
    assert {"device", "driver", "torch", "commit", "date", "threads"} <= row.keys()
    assert "--rounds 3" in row["command"] and "<" not in row["command"]
    ask.all(f"{NORM} --save")
    named = Path("metacount-bench-norm.jsonl")
    saved = named.read_text()
    ask.all(NORM)  # writes nothing
    assert {*Path().iterdir()} == {Path("r.jsonl"), named} and named.read_text() == saved
    assert len(saved.splitlines()) == len(data) and str(tmp_path) not in saved


def test_a_wrong_variant_ends_with_1(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers.F, "silu", torch.sigmoid)
    code, out, _ = ask.all(f"{FFN} --variant swiglu-joined gelu")
    assert code == 1 and "swiglu-joined  wrong result: relative error" in out
    assert re.search(r"^gelu +hot ", out, re.MULTILINE)


REFUSED = """
bench lstm                                   invalid choice: 'lstm'
bench ffn --tokens 0                         must be a whole number from 1: got '0'
bench ffn --seq 3                            --seq means nothing to bench ffn; it takes --tokens
bench moe --model llama-7b                   llama-7b has no experts
bench mla --model llama-7b                   llama-7b has no MLA
bench attention --model deepseek-v3          deepseek-v3 has MLA
bench attention --model mamba-2.8b           mamba-2.8b has no attention
bench ffn --model mamba-2.8b                 mamba-2.8b has no feed-forward
bench ffn --model lama-7b                    model is not in the catalog: got 'lama-7b'
bench ffn --variant swigl                    did you mean swiglu
bench ffn --save no/such/folder.jsonl        there is no folder no/such
bench ffn --part core                        --part means nothing to bench ffn
bench ffn --device cpu --dtype tf32          --dtype tf32 is a mode of CUDA devices
bench ffn --device cpu --launch graph        --launch graph needs a CUDA device
bench ffn --d-ff 7                           --d-ff needs --d-model
bench ffn --budget -1                        must be seconds, 0 to 604800
bench ffn --device cuda                      torch finds no CUDA device here; use --device cpu
plot -o p.svg                                --caches
plot llama-7b --curves x -o p.svg            plot
plot llama-7b -o p.gif                       '.gif'
plot llama-7b -o no/such/p.svg               no/such
plot --curves none.jsonl -o p.svg            none.jsonl
plot --curves x -o p.svg --set n_layers=2    --set belongs to MODEL
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_wrong_requests(ask: Ask, row: str) -> None:
    line, said = re.split(" {2,}", row)
    if "--device cuda" in line and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert said in ask.refused(line)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_has_not_measured_in_vain(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    before, real, cases = signal.getsignal(signal.SIGTERM), run.run_case, count(1)

    def run_case(*arguments: Any, **rest: Any) -> Any:
        if next(cases) == 3:
            os.kill(os.getpid(), number)
        return real(*arguments, **rest)

    monkeypatch.setattr(run, "run_case", run_case)
    file = tmp_path / "r.jsonl"
    ended, out, err = ask.all(f"{THREE} --save {file}")
    assert ended == code and "metacount: interrupted after 2 of 3 cases" in err
    assert "tokens 1, fp32" in out and "tokens 3, fp32" in out and "tokens 5" not in out
    assert "median " in out
    assert len(rows.read(str(file))) == 2 * 6  # four variants, and two that need a compiler
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_budget(ask: Ask) -> None:
    code, out, err = ask.all(f"{THREE} --budget 0")
    assert code == 1 and "of which 0 s may be used" in err  # nothing was measured
    assert re.search(r"all +no time: about \d+ s; of --budget 0 s 0 are left", out)


def test_a_plan_needs_no_device(ask: Ask) -> None:
    line = "bench ffn --device cuda --model llama-7b --tokens 4096 --dtype bf16 --dry-run"
    out = ask(line)
    assert "inputs  [4096, 4096]" in out
    # 2 · 4096 tokens · 4096 · 11008 · 3 matrices; 2 bytes · (3 · 4096 · 11008 + 2 · 4096²)
    assert re.search(r"^swiglu +1\.11 TFLOP +322\.00 MiB ", out, re.MULTILINE)
    (case,) = ask.json(line)
    (swiglu,) = (v for v in case["variants"] if v["name"] == "swiglu")
    assert swiglu["matmul_flops"] == 2 * 4096 * 4096 * 11008 * 3
    assert swiglu["moved_bytes"] == 2 * (3 * 4096 * 11008 + 2 * 4096 * 4096)
    assert case["estimated_by"].startswith("stated for ") and case["seconds"] > 0


def test_pictures_say_what_they_leave_out(tmp_path: Path) -> None:
    changes = ({"dtype": "fp16"}, {"device": "other GPU"}, {"torch": "2.11"}, {}, {})
    drawn = pictures.chosen([line_of(**each) for each in changes], state="hot", dtype=None)
    assert len(drawn.points) == 2
    left_out = ("dtype fp16", "device other GPU", "torch 2.11")
    assert {f"not drawn: {what}" for what in left_out} <= {*drawn.notes}
    pictures.roofline_figure(drawn).savefig(tmp_path / "p.svg")
    svg = (tmp_path / "p.svg").read_text("utf-8")
    assert "not drawn: dtype fp16" in svg and "copy 4,321 GB/s" in svg and "e+03" not in svg
    nine = pictures.chosen([line_of(model=f"m{i}") for i in range(9)], state="hot", dtype=None)
    with pytest.raises(pictures.InputError, match="9 models, 8 fit"):
        pictures.curves_figure(nine)


# ---- what runs on a GPU, and sentences of pages


def test_the_steps_for_a_device_fit_into_their_time() -> None:
    """Each is a command that parses; what does not fit into its budget is said, not lost."""
    module = benchmark("on_a_gpu")
    steps = module.steps()
    names = [step.name for step in steps]
    assert names[:2] == ["tests", "calibrate"] and names[-1] == "figures"
    assert module.BUDGET < module.LIMIT <= 480
    words = {word for step in steps if step.is_bench for word in step.words}
    assert {"ffn", "attention", "mla", "moe", "norm", "bf16", "fp16", "tf32", "fp32"} <= words
    for step in steps:
        assert step.words == step.within(1000.0)
        assert ("420" in step.words) == ("140" in step.within(200.0))
        options = list(step.words[2:])
        for word in {"--save", "--compare"} & {*options}:
            del options[options.index(word) : options.index(word) + 2]
        if step.is_bench:
            assert main([*options, "--dry-run"]) == 0, step.name
        else:
            assert (ROOT / next(word for word in step.words if word.endswith(".py"))).exists()


PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"


def test_the_sentences_are_what_the_saved_rows_say() -> None:
    lines = rows.latest_run(rows.read(str(RESULTS / "ffn.jsonl")))
    wanted = ("qwen3-0.6b", {"tokens": 256}, "hot")  # of the table
    found = [x for x in lines if (x["model"], x["workload"], x["state"]) == wanted]
    by_name = {row["variant"]: row for row in found}
    gelu, equal, wide = (by_name[name] for name in ("gelu", "swiglu", "swiglu-4d"))
    words = " ".join(PAGE.split())
    assert gelu["load_average"] < 1 and "two otherwise idle cores" in words
    assert "At equal parameters SwiGLU takes GELU's time;" in words
    assert equal["within_noise"] and abs(equal["ratio"] - 1) < 0.01
    assert "at equal width it has 3/2 of the FLOPs and takes 3/2 of the time" in words
    assert 2 * wide["matmul_flops"] == 3 * gelu["matmul_flops"]
    assert round(2 * wide["ratio"]) == 3 and abs(wide["ratio"] / 1.5 - 1) < 0.05


def on_gpu(file: str, **wanted: object) -> list[dict[str, Any]]:
    """Rows of a device that were timed."""
    found = map(json.loads, (RESULTS / file).read_text("utf-8").splitlines())
    return [row for row in found if all(row.get(k) == v for k, v in wanted.items())]


def test_the_sentences_of_an_h200_are_what_the_saved_rows_say() -> None:
    words = " ".join(PAGE.split())
    hot = {"status": "ok", "state": "hot", "launch": "graph", "direction": "forward"}
    swiglu = on_gpu("gpu-ffn.jsonl", model="llama-7b", dtype="bf16", variant="swiglu", **hot)
    assert {row["device"] for row in swiglu} == {"NVIDIA H200"}
    long = [row for row in swiglu if row["workload"] == {"tokens": 8192}]
    shares, times = ([row[k] for row in long] for k in ("ceiling_share", "median_s"))
    assert len(long) == 4 and max(times) / min(times) < 1.012
    said = f"reached {100 * min(shares):.1f} to {100 * max(shares):.1f} % of the best product"
    assert said in words and min(shares) >= 0.9
    one = [row["ratio"] for row in swiglu if row["workload"] == {"tokens": 1}]
    assert all(1.115 < ratio < 1.145 for ratio in one) and "12 to 14 % more than GELU" in words
    late = [row["ratio"] for row in swiglu if row["workload"]["tokens"] >= 8192]
    assert min(late) >= 0.98 and max(late) < 1.035 and "between 0.98 and 1.03" in words
    (kernels,) = (row["kernels"] for row in on_gpu("gpu-calibration.jsonl"))
    assert kernels[-1]["hot_1_s"] == pytest.approx(kernels[-1]["profiler_s"], rel=0.03)


def test_peaks_of_an_h200_are_what_the_saved_rows_say() -> None:
    rows = on_gpu("gpu-peaks.jsonl")
    less = {row["model"]: row for row in rows if row["max_memory_allocated"] < row["predicted"]}
    assert len(rows) == 26 and set(less) == {"t5-small", "switch-base-8"}
    page = " ".join((ROOT / "docs" / "training.md").read_text("utf-8").split())
    shares = [
        round(100 - 100 * less[name]["max_memory_allocated"] / less[name]["predicted"])
        for name in ("t5-small", "switch-base-8")
    ]
    assert f"takes {shares[0]} and {shares[1]} % less" in page
    for row in rows:
        if row["model"] not in less or row["attention"] != "sdpa":
            assert not row["only_predicted"], row["model"]
            assert all(size == 8 for size, _ in row["only_on_device"]), row["model"]
            rounding = row["max_memory_allocated"] - row["requested"]
            assert rounding == row["rounding"] < 0.007 * row["predicted"]


PICTURES = {
    "ffn-cpu.svg": ("--curves", "ffn.jsonl"),
    "ffn-h200.svg": ("--dtype", "bf16", "--curves", "gpu-ffn.jsonl"),
    "roofline-cpu.svg": ("--roofline", "ffn.jsonl", "attention.jsonl", "mla.jsonl", "moe.jsonl"),
}


def shown(svg: str) -> tuple[list[str], Counter[tuple[str, str]]]:
    """The words of a picture, and how many marks of each kind and look it has.

    Places and the names of parts differ from machine to machine.
    """
    marks = Counter((e.tag, e.get("style", "")) for e in ElementTree.fromstring(svg).iter())
    return re.findall(r"<!-- (.*?) -->", svg), marks


@pytest.mark.parametrize("name", list(PICTURES))
def test_the_pictures_are_drawn_from_the_saved_rows(name: str, tmp_path: Path) -> None:
    words = [str(RESULTS / one) if one.endswith(".jsonl") else one for one in PICTURES[name]]
    drawn = tmp_path / name
    assert main(["plot", *words, "-o", str(drawn)]) == 0
    saved = (RESULTS / name).read_text("utf-8")
    assert shown(drawn.read_text("utf-8")) == shown(saved)
    for changed in (r"<use [^>]*/>", ""), (r'style="stroke', 'style="fill'), ("<!-- ", "<!-- not "):
        assert shown(re.sub(*changed, saved, count=1)) != shown(saved)
