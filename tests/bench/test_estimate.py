"""What a run will do, before it does: counted on meta at real sizes, and estimated."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from helpers import ROOT
from helpers.bench_layers import DENSE, spec
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here

from metacount.bench import ffn, grid, session
from metacount.bench.case import Inputs
from metacount.bench.observe import observe
from metacount.bench.run import Plan
from metacount.cli import main

CPU = torch.device("cpu")


@pytest.mark.parametrize("topic", grid.TOPICS)
def test_the_default_grid_of_a_device_is_counted_right(topic: str) -> None:
    """Every variant at its real size, on meta: the formula is what the operators cost."""
    cases = grid.cases(topic, "cuda")
    small = [case for case in cases if case.workload.get("batch_size", 1) == 1]
    for case in (small[0], small[-1]):
        built = case.build(torch.device("meta"), 1)
        inputs: Inputs = built.inputs[0]
        for variant in built.variants:
            if variant.name == "loop" or variant.missing:
                continue  # reads values back, or is not here
            if variant.name.endswith(("-cudnn", "-flash", "-efficient")):
                continue  # kernels of a device
            seen = observe(variant, variant.inputs or inputs)
            assert seen.matmul_flops == variant.work.matmul_flops, (case.label, variant.name)


def test_the_plan_of_a_device_that_is_not_here() -> None:
    plan = Plan(device=torch.device("cuda"), rounds=40, seconds=0.3)
    rates = session.stated_rates("", "bf16")
    for topic in grid.TOPICS:
        plans = [session.plan_of(case, plan, rates) for case in grid.cases(topic, "cuda")]
        total = sum(one.seconds for one in plans)
        assert 1 < total < 1800, (topic, total)


def test_an_estimate_by_hand() -> None:
    rates = session.Rates(flops_per_s=1e12, bytes_per_s=1e9, flush_s=1e-3, source="")
    case = ffn.case("tiny", spec(DENSE), 3, "fp32")
    work = case.build(torch.device("meta"), 1).variants[0].work
    # 8112 FLOPs take 8.1 ns; 4 · (2 · 13 · 52 + 2 · 3 · 13) = 5720 bytes 5.72 µs; at 70 %
    assert session.call_seconds(work, rates) == pytest.approx(5.72e-6 / 0.7)
    plan = Plan(device=CPU, rounds=40, seconds=10.0, states=("hot",), compile=False)
    planned = session.plan_of(case, plan, rates)
    gelu = planned.variants[0]
    # ten calls to check, six rounds of a burst of 8 ms and three calls in front
    assert gelu.measuring_s == pytest.approx(10 * gelu.call_s + 6 * (8e-3 + 3 * gelu.call_s))
    assert [v.measuring_s for v in planned.variants if "compiled" in v.name] == [0.0] * 4


def test_the_steps_for_a_device_fit_into_their_time() -> None:
    """Each is a command that parses; what does not fit into its budget is said, not lost."""
    file = ROOT / "benchmarks" / "on_a_gpu.py"
    found = importlib.util.spec_from_file_location("on_a_gpu", file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["on_a_gpu"] = module
    found.loader.exec_module(module)
    steps = module.steps()
    names = [step.name for step in steps]
    assert names[:4] == ["tests", "modules", "peaks", "calibrate"] and names[-1] == "figures"
    topics = {step.words[3] for step in steps if step.is_bench}
    assert topics == {"ffn", "attention", "mla", "moe", "norm"}
    dtypes = {
        word for step in steps for word in step.words if word in ("bf16", "fp16", "tf32", "fp32")
    }
    assert dtypes == {"bf16", "fp16", "tf32", "fp32"}
    assert module.BUDGET < module.LIMIT <= 480
    for step in steps:
        if step.is_bench:
            options = list(step.words[2:])
            del options[options.index("--save") : options.index("--save") + 2]
            if "--compare" in options:
                del options[options.index("--compare") : options.index("--compare") + 2]
            assert main([*options, "--dry-run"]) == 0, step.name
        else:
            script = next(word for word in step.words if word.endswith(".py"))
            assert (file.parents[1] / script).exists()
