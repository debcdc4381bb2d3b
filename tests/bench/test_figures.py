"""What runs on a GPU, step by step, and the figures asked of it, on rows made by hand."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
from helpers import ROOT
from helpers.bench_layers import result

from metacount.cli import main

FLOPS, BYTES = 8e14, 4e12  # of an invented device: a ridge of 200 FLOPs per byte
WEIGHTS = 2 * 3 * 4096 * 11008  # bytes of LLaMA-7B's SwiGLU in bf16


def script(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert found is not None and found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures() -> Any:
    return script("gpu_figures")


def test_the_steps_for_a_device_fit_into_their_time() -> None:
    """Each is a command that parses; what does not fit into its budget is said, not lost."""
    module: Any = script("on_a_gpu")
    steps = module.steps()
    names = [step.name for step in steps]
    assert names[:2] == ["tests", "calibrate"] and names[-1] == "figures"
    topics = {step.words[3] for step in steps if step.is_bench}
    assert topics == {"ffn", "attention", "mla", "moe", "norm"}
    dtypes = {
        word for step in steps for word in step.words if word in ("bf16", "fp16", "tf32", "fp32")
    }
    assert dtypes == {"bf16", "fp16", "tf32", "fp32"}
    assert module.BUDGET < module.LIMIT <= 480
    for step in steps:
        asked = step.words, step.within(1000.0)
        assert asked[0] == asked[1] and ("420" in step.words) == ("140" in step.within(200.0))
    for step in steps:
        if step.is_bench:
            options = list(step.words[2:])
            for word in {"--save", "--compare"} & {*options}:
                del options[options.index(word) : options.index(word) + 2]
            assert main([*options, "--dry-run"]) == 0, step.name
        else:
            name = next(word for word in step.words if word.endswith(".py"))
            assert (ROOT / name).exists()


def row(tokens: int, **changes: Any) -> dict[str, Any]:
    flops = WEIGHTS * tokens  # 2 FLOPs per weight and token, 2 bytes per weight
    seconds = max(flops / FLOPS, WEIGHTS / BYTES)
    return (
        result(
            variant="swiglu",
            date="1",
            workload={"tokens": tokens},
            median_s=seconds,
            needed_flops=flops,
            moved_bytes=WEIGHTS,
            ceiling_share=flops / seconds / FLOPS,
            ceiling={"flops_per_s": FLOPS, "bytes_per_s": BYTES},
        )
        | changes
    )


def test_every_figure_is_said_or_missing(figures: Any) -> None:
    assert figures.sentences([]) == [
        "llama-7b, 8,192 tokens, bf16: missing",
        "llama-7b, 8,192 tokens, bf16: SwiGLU / GELU with its interval: missing",
        "the same command twice: missing",
    ]
    ratio = {"ratio": 1.0123, "ratio_low": 1.01, "ratio_high": 1.0149, "ceiling_share": 0.921}
    rows = [
        row(1),
        row(8192, **ratio),
        row(16384),
        row(8192, **ratio, date="2", median_s=1.005 * row(8192)["median_s"]),
        row(8192, variant="swiglu-4d", ceiling_share=0.99),
        row(8192, launch="eager", ceiling_share=0.99),
    ]
    said = figures.sentences(rows)
    assert said == [
        "llama-7b, 8,192 tokens, bf16: swiglu reaches 92.1 % of the best product of its run, at "
        "least 90 %",
        "llama-7b, 8,192 tokens, bf16: SwiGLU / GELU at equal parameters 1.0123 (1.0100 - 1.0149)",
        "llama-7b, bf16: memory is the bound up to 200 tokens; the roofline says 200",
        "the same command twice: 0.50 % apart, within 1 %",
    ]
    slow = {"ceiling_share": 0.8, "median_s": 2 * row(8192)["median_s"]}
    worse = figures.sentences([row(8192, ceiling_share=0.85), row(8192, date="2", **slow)])
    assert "reaches 85.0 %" in worse[0] and "less than 90 %" in worse[0]
    assert worse[-1] == "the same command twice: 100.00 % apart, not within 1 %"
