"""What runs on a GPU, step by step, and the figures asked of it, on rows made by hand."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers import ROOT, benchmark
from helpers.bench_layers import result

from metacount.cli import main

FLOPS, BYTES = 8e14, 4e12  # of an invented device: a ridge of 200 FLOPs per byte
WEIGHTS = 2 * 3 * 4096 * 11008  # bytes of LLaMA-7B's SwiGLU in bf16


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


def row(tokens: int, **changes: Any) -> dict[str, Any]:
    flops = WEIGHTS * tokens  # 2 FLOPs per weight and token, 2 bytes per weight
    seconds = max(flops / FLOPS, WEIGHTS / BYTES)
    measured = {"median_s": seconds, "needed_flops": flops, "moved_bytes": WEIGHTS}
    roof = {"ceiling": {"flops_per_s": FLOPS, "bytes_per_s": BYTES}}
    share = {"ceiling_share": flops / seconds / FLOPS, "workload": {"tokens": tokens}}
    return result(**{"variant": "swiglu", "date": "1", **measured, **roof, **share, **changes})


def test_every_figure_is_said_or_missing() -> None:
    said = benchmark("gpu_figures").sentences
    assert len(said([])) == 3 and all(line.endswith(": missing") for line in said([]))
    ratio = {"ratio": 1.0123, "ratio_low": 1.01, "ratio_high": 1.0149, "ceiling_share": 0.921}
    later = {**ratio, "date": "2", "median_s": 1.005 * row(8192)["median_s"]}
    others = [row(8192, ceiling_share=0.99, **x) for x in ({"variant": "a"}, {"launch": "eager"})]
    assert said([row(1), row(8192, **ratio), row(16384), row(8192, **later), *others]) == [
        "llama-7b, 8,192 tokens, bf16: swiglu reaches 92.1 % of the best product of its run, at "
        "least 90 %",
        "llama-7b, 8,192 tokens, bf16: SwiGLU / GELU at equal parameters 1.0123 (1.0100 - 1.0149)",
        "llama-7b, bf16: memory is the bound up to 200 tokens; the roofline says 200",
        "the same command twice: 0.50 % apart, within 1 %",
    ]
    slow = {"ceiling_share": 0.8, "median_s": 2 * row(8192)["median_s"], "date": "2"}
    worse = said([row(8192, ceiling_share=0.85), row(8192, **slow)])
    assert "reaches 85.0 %" in worse[0] and "less than 90 %" in worse[0]
    assert worse[-1] == "the same command twice: 100.00 % apart, not within 1 %"


PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"


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
