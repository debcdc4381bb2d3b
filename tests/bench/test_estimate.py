"""What a run will do, before it does: counted on meta at real sizes, and estimated."""

from __future__ import annotations

import pytest
import torch
from helpers.bench_layers import DENSE, ffn, spec
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here

from metacount.bench import grid
from metacount.bench.run import observe
from metacount.bench.timing import Plan

CPU = torch.device("cpu")


@pytest.mark.parametrize("topic", grid.TOPICS)
def test_the_default_grid_of_a_device_is_counted_right(topic: str) -> None:
    """Every variant at its real size, on meta: the formula is what the operators cost."""
    cases = grid.cases(topic, "cuda")
    small = [case for case in cases if case.workload.get("batch_size", 1) == 1]
    for case in (small[0], small[-1]):
        for variant in case.build(torch.device("meta"), 1):
            if variant.name == "loop" or variant.missing:
                continue  # reads values back, or is not here
            if variant.name.endswith(("-cudnn", "-flash", "-efficient")):
                continue  # kernels of a device
            seen = observe(variant)
            assert seen.matmul_flops == variant.work.matmul_flops, (case.label, variant.name)


def test_the_plan_of_a_device_that_is_not_here() -> None:
    plan = Plan(device=torch.device("cuda"), rounds=40, seconds=0.3)
    rates = grid.rates_of(plan, "bf16")
    for topic in grid.TOPICS:
        plans = [grid.plan_of(case, plan, rates) for case in grid.cases(topic, "cuda")]
        total = sum(one["seconds"] for one in plans)
        assert 1 < total < 1800, (topic, total)


def test_an_estimate_by_hand() -> None:
    rates = grid.Rates(flops_per_s=1e12, bytes_per_s=1e9, flush_s=1e-3, source="")
    case = ffn(spec(DENSE), 3, "fp32")
    work = case.build(torch.device("meta"), 1)[0].work
    # 8112 FLOPs take 8.1 ns; 4 · (2 · 13 · 52 + 2 · 3 · 13) = 5720 bytes 5.72 µs; at 70 %
    assert grid.call_seconds(work, rates) == pytest.approx(5.72e-6 / 0.7)
    plan = Plan(device=CPU, rounds=40, seconds=10.0, states=("hot",), compile=False)
    planned = grid.plan_of(case, plan, rates)
    gelu = planned["variants"][0]
    # ten calls to check, six rounds of a burst of 8 ms and three calls in front
    call_s = gelu["call_s"]
    assert gelu["measuring_s"] == pytest.approx(10 * call_s + 6 * (8e-3 + 3 * call_s))
    assert [v["measuring_s"] for v in planned["variants"] if "compiled" in v["name"]] == [0.0] * 4
