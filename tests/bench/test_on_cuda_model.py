"""The whole CUDA path, from a case to its rows, on a model of a device: see `virtual_gpu`.

The tensors are on the CPU, everything else is what runs on a real device: checks, memory, finding
out what waits, captures, rounds, clocks and power, errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.bench_layers import SPARSE, altered, moe, spec, tiny_cases
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from helpers.virtual_gpu import DEVICE, MICRO, VirtualGpu
from torch import Tensor, nn

from metacount.bench import run
from metacount.bench.case import Case, Variant
from metacount.bench.device import Roofs
from metacount.bench.rows import Ceiling, Row
from metacount.bench.run import run_case
from metacount.bench.timing import CaptureRoom, Plan

CPU = torch.device("cpu")
ROOF = Ceiling(dtype="fp32", flops_per_s=1e14, shape=(2, 3, 5), bytes_per_s=1e12)
PLAN = Plan(device=DEVICE, rounds=6, seconds=60.0, compile=False, warm_up_seconds=0.0)
CACHE = 4096


class OnGpu(nn.Module):
    """A module whose forward is one kernel of the model; `at` may change what a call does."""

    def __init__(self, gpu: VirtualGpu, name: str, inner: nn.Module, **how: Any) -> None:
        super().__init__()
        self.gpu, self.name, self.how = gpu, name, how
        self.inner, self.calls = inner, 0

    def forward(self, *inputs: Tensor) -> Any:
        self.calls += 1
        if (fails := self.how.get("fails")) is not None and self.calls > fails[0]:
            raise fails[1]
        launch = self.gpu.kernel(
            self.name,
            50 * MICRO,
            gives=lambda: self.inner(*inputs),
            working=self.how.get("working", 0),
            waits=self.how.get("waits", False),
        )
        return launch()


def on_gpu(case: Case, gpu: VirtualGpu, **how: dict[str, Any]) -> Case:
    """The case with its tensors on the CPU and its variants on the model."""

    def build(_device: torch.device, n_sets: int) -> list[Variant]:
        def moved(v: Variant) -> Variant:
            own = how.get(v.name.replace("-", "_"), {})
            return replace(v, module=OnGpu(gpu, v.name, v.module, **own))

        return [moved(variant) for variant in case.build(CPU, n_sets)]

    return replace(case, build=build)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualGpu]:
    found = VirtualGpu(monkeypatch)
    monkeypatch.setattr(run, "monitor_of", lambda device: None)
    yield found


def by_key(rows: list[Row]) -> dict[tuple[str, str, str], Row]:
    return {(row.variant, row.launch, row.state): row for row in rows}


def test_every_variant_has_both_launches(gpu: VirtualGpu) -> None:
    rows = run_case(on_gpu(tiny_cases("fp32")[0], gpu), PLAN, ROOF, CACHE)
    ok = [row for row in rows if row.status == "ok"]
    assert {row.reason for row in rows if row.status != "ok"} == {"--no-compile"}
    found = by_key(ok)
    for name in ("gelu", "swiglu", "swiglu-joined", "swiglu-4d", "swiglu-own-joined"):
        graph, eager = found[name, "graph", "hot"], found[name, "eager", "hot"]
        assert graph.median_s == pytest.approx(50 * MICRO, rel=0.01)
        assert eager.median_s == pytest.approx(50 * MICRO, rel=0.05)
        assert graph.rounds == 6 and graph.calls_per_sample and graph.calls_per_sample >= 20
        # the ratio is to the baseline of the same launch
        assert graph.ratio == pytest.approx(1.0, rel=0.01) and graph.baseline == "gelu"
        assert graph.working_bytes == 64
    assert gpu.held == 0 and gpu.debug_mode == 0


def test_what_waits_for_the_host_is_launched_eagerly(gpu: VirtualGpu) -> None:
    case = moe(spec(SPARSE), 11, "balanced", "fp32")
    # loop is declared to wait and does; batched is not declared to, and does
    how = {"loop": {"waits": True}, "batched": {"waits": True}}
    rows = run_case(on_gpu(case, gpu, **how), PLAN, ROOF, CACHE)
    launches = {name: {row.launch for row in rows if row.variant == name} for name in case.variants}
    assert launches["dense"] == {"graph", "eager"}
    assert launches["loop"] == launches["batched"] == {"eager"}
    notes = {row.variant: row.note for row in rows}
    assert notes["loop"] is None and notes["batched"] is not None
    assert notes["batched"].startswith("no graph: called a synchronizing")
    # its baseline is launched in the same way
    assert all(row.ratio is not None for row in rows if row.variant == "loop")


def test_one_capture_that_fails_spoils_nothing(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CaptureRoom.heal

    def heal(room: CaptureRoom) -> None:
        gpu.refuse_capture = None
        real(room)

    monkeypatch.setattr(CaptureRoom, "heal", heal)
    gpu.refuse_capture = "operation failed due to a previous error during capture"
    cases = [on_gpu(tiny_cases("fp32")[i], gpu) for i in (0, -1)]
    roofs = Roofs(DEVICE, measure=lambda *_, **__: ROOF)
    rows = [row for found in run.run_cases(cases, PLAN, roofs=roofs) for row in found]
    bad = [row for row in rows if row.status != "ok" and row.reason != "--no-compile"]
    # one launch of one variant, and it says when
    assert len(bad) == 1 and (bad[0].reason or "").startswith("while it was timed: operation")
    assert {row.topic for row in rows if row.status == "ok"} == {"ffn", "norm"}


def test_graphs_are_compared_with_the_reference(gpu: VirtualGpu) -> None:
    class Fades(nn.Module):
        """Right when it is called, wrong when it is replayed."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.calls = inner, 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y: Tensor = self.inner(x)
            return y if gpu.graph is not None or gpu.said[-1:] != ["replaying"] else y * 2

    case = tiny_cases("fp32")[0]
    real = torch.cuda.CUDAGraph.replay

    def replay(graph: Any) -> None:
        gpu.said.append("replaying")
        real(graph)

    torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]

    fades = altered(case, lambda variant: {"module": Fades(variant.module)})
    plan = replace(PLAN, launches=("graph",), only=("gelu", "swiglu"))
    rows = run_case(on_gpu(fades, gpu), plan, ROOF, CACHE)
    found = {row.variant: row for row in rows}
    assert found["gelu"].status == "ok"
    assert found["swiglu"].status == "wrong result"
    assert "while it was timed: relative error 1" in (found["swiglu"].reason or "")
    assert run.disagrees(rows)
