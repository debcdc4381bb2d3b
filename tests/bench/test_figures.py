"""The figures asked of a GPU, on rows made by hand from a roofline: nothing here was measured."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
from helpers import ROOT

FILE = ROOT / "benchmarks" / "gpu_figures.py"
FLOPS, BYTES = 8e14, 4e12  # of an invented device: a ridge of 200 FLOPs per byte
WEIGHTS = 2 * 3 * 4096 * 11008  # bytes of LLaMA-7B's SwiGLU in bf16


@pytest.fixture(scope="module")
def figures() -> Any:
    found = importlib.util.spec_from_file_location("gpu_figures", FILE)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["gpu_figures"] = module
    found.loader.exec_module(module)
    return module


def row(tokens: int, **changes: Any) -> dict[str, Any]:
    flops = WEIGHTS * tokens  # 2 FLOPs per weight and token, 2 bytes per weight
    seconds = max(flops / FLOPS, WEIGHTS / BYTES)
    return {
        "topic": "ffn",
        "model": "llama-7b",
        "dtype": "bf16",
        "status": "ok",
        "state": "hot",
        "launch": "graph",
        "direction": "forward",
        "variant": "swiglu",
        "date": "1",
        "workload": {"tokens": tokens},
        "median_s": seconds,
        "needed_flops": flops,
        "moved_bytes": WEIGHTS,
        "ceiling_share": flops / seconds / FLOPS,
        "ceiling": {"flops_per_s": FLOPS, "bytes_per_s": BYTES},
        **changes,
    }


def test_the_turning_point_of_a_roofline_is_where_it_is_predicted(figures: Any) -> None:
    rows = [row(n) for n in (1, 16, 128, 256, 1024, 16384)]
    # 200 FLOPs a byte, 2 FLOPs a token and a weight of 2 bytes: 200 tokens
    assert figures.turning_point(rows) == pytest.approx(200.0)
    assert figures.predicted(rows[0]) == pytest.approx(200.0)
    assert figures.turning_point(rows[:1]) is None
    # half as fast above: the turning point comes at half the tokens
    slow = [rows[0], row(16384, median_s=2 * rows[-1]["median_s"])]
    assert figures.turning_point(slow) == pytest.approx(100.0)


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
