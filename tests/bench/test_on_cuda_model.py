"""The whole CUDA path, from a case to its rows, on a model of a device: see `virtual_gpu`.

The tensors are on the CPU, everything else is what runs on a real device: checks, memory, finding
out what waits, captures, rounds, clocks and power, errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.bench_layers import SPARSE, altered, moe, spec, tiny_cases
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from helpers.virtual_gpu import DEVICE, MICRO, VirtualGpu
from torch import Tensor, nn

from metacount.bench import device as devices
from metacount.bench import run, timing
from metacount.bench.case import Case, Refused, Variant
from metacount.bench.device import (
    Monitor,
    Reading,
    Roofs,
    measure_ceiling,
    monitor_of,
)
from metacount.bench.rows import Ceiling, Row
from metacount.bench.run import run_case
from metacount.bench.timing import (
    CaptureRoom,
    Entrant,
    GraphStopwatch,
    Plan,
    take_turns,
)

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


OURS: Any = SimpleNamespace(may_raise=lambda error: not isinstance(error, KeyError))
FLUSH = 56 * MICRO  # what reading twice the L2 takes


def watch(
    gpu: VirtualGpu,
    seconds: float,
    sets: int,
    *,
    check: Any = lambda _out: None,
) -> GraphStopwatch:
    calls = [gpu.kernel(f"k{i}", seconds) for i in range(sets)]
    return GraphStopwatch(
        calls,
        gpu.kernel("flush", FLUSH),
        1e-3,
        room=CaptureRoom(DEVICE),
        states=("hot", "cold"),
        check=check,
    )


def read(one: Any, state: str) -> float:
    with one.turn():
        return median(one.burst(state))


@pytest.mark.parametrize("sets", [1, 3, 16])
@pytest.mark.parametrize("micros", [1.0, 3.0, 25.0, 400.0, 30_000.0])
def test_hot_is_the_time_on_the_device(gpu: VirtualGpu, sets: int, micros: float) -> None:
    # 9 µs of launching are not in it, however short the kernel and however many sets
    found = read(watch(gpu, micros * MICRO, sets), "hot")
    assert found == pytest.approx(micros * MICRO, rel=0.004)


def test_a_graph_that_lost_work_is_caught(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "nodes_of", lambda graph: len(graph.kernels))
    with watch(gpu, 5 * MICRO, 3).turn():
        pass
    monkeypatch.setattr(timing, "nodes_of", lambda graph: min(len(graph.kernels), 40))
    lost = r"the graph of 201 calls holds 40 nodes, that of one call 1"
    with pytest.raises(Refused, match=lost), watch(gpu, 5 * MICRO, 3).turn():
        pass


class Script:
    """A stopwatch that says what it is asked, and takes a second for each burst."""

    launch, sets, calls_per_sample, nodes = "eager", 3, 3, None

    def __init__(self, name: str, diary: list[str], seconds: Any = lambda: 1.0) -> None:
        self.name, self.diary, self.seconds = name, diary, seconds

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.diary.append(f"{self.name} begins")
        yield
        self.diary.append(f"{self.name} ends")

    def burst(self, state: str) -> list[float]:
        self.diary.append(f"{self.name} {state}")
        NOW[0] += 1.0
        return [self.seconds()]


NOW = [0.0]


def turns(found: list[Entrant], **how: Any) -> int:
    usual = {"rounds": 100, "seconds": 1000.0, "precision": -1.0, "warm_up_seconds": 0.0}
    plan = Plan(device=DEVICE, **{**usual, "states": ("hot",), "seed": 1, **how})
    return take_turns(found, plan, clock=lambda: NOW[0])


def scripted(diary: list[str], *names: str, **rest: Any) -> list[Entrant]:
    return [Entrant(variant=OURS, watch=Script(name, diary, **rest)) for name in names]


def test_every_variant_has_a_turn_in_each_round_in_an_order_drawn_anew() -> None:
    diary: list[str] = []
    found = scripted(diary, *"abcde")
    assert turns(found, rounds=12, states=("hot", "cold")) == 12
    orders = [
        "".join(word[0] for word in diary[i : i + 20] if word.endswith("hot"))
        for i in range(0, len(diary), 20)
    ]
    assert all(sorted(order) == list("abcde") for order in orders)
    assert len(set(orders)) > 8 and len({order[0] for order in orders}) > 2
    assert all(len(one.rounds[state]) == 12 for one in found for state in ("hot", "cold"))


def test_it_stops_when_the_medians_are_precise() -> None:
    # all alike: six rounds are the fewest that have an interval
    assert turns(scripted([], "a", "b"), precision=0.005) == 6
    # 1 % up and down: an interval of half a percent needs the middle of many
    values = iter([1.0, 1.01, 0.99] * 1000)
    n = turns(scripted([], "a", seconds=lambda: next(values)), precision=0.005, rounds=500)
    assert 6 < n < 500
    wild = iter([1.0, 2.0] * 1000)
    assert turns(scripted([], "a", seconds=lambda: next(wild)), precision=0.005, rounds=50) == 50


def test_it_stops_when_time_is_over_but_not_before_three_rounds() -> None:
    assert turns(scripted([], "a", "b"), seconds=0.0) == 3
    # a second a turn, two variants: ten seconds for each are ten rounds
    assert turns(scripted([], "a", "b"), seconds=10.0) == 10


def test_who_fails_has_no_more_turns_and_harms_nobody() -> None:
    diary: list[str] = []
    values = iter([1.0, 1.0, RuntimeError("out of order")])

    def fails() -> float:
        value = next(values)
        if isinstance(value, RuntimeError):
            raise value
        return value

    found = [*scripted(diary, "a"), Entrant(variant=OURS, watch=Script("b", diary, fails))]
    assert turns(found, rounds=5) == 5
    assert found[0].failed is None and len(found[0].rounds["hot"]) == 5
    assert str(found[1].failed) == "out of order" and len(found[1].rounds["hot"]) == 2
    with pytest.raises(KeyError, match="ours"):
        turns(scripted([], "a", seconds=lambda: {}["ours"]), rounds=5)


def test_the_ceiling_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_median_of", lambda _device, _call, _rounds: 0.5)
    roof = measure_ceiling(CPU, "fp32", CACHE, shapes=((2, 3, 5), (3, 5, 7)), copy_bytes=4096)
    # 2 · 3 · 5 · 7 FLOPs, and 4096 bytes read, or read and written, in half a second
    assert (roof.shape, roof.flops_per_s) == ((3, 5, 7), 420.0)
    assert (roof.bytes_per_s, roof.read_bytes_per_s) == (16384.0, 8192.0)


def test_the_ceiling_is_of_the_faster_library(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["cublas"]

    def prefer(name: str | None = None) -> str:
        asked.extend([name] if name else [])
        return asked[-1]

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", prefer)
    seconds = {"cublas": 0.5, "cublaslt": 0.25}
    for name in ("_product_seconds", "_median_of"):
        monkeypatch.setattr(devices, name, lambda *_: seconds[asked[-1]])
    roof = measure_ceiling(DEVICE, "fp32", CACHE, shapes=((2, 3, 5),), copy_bytes=4096)
    assert (roof.blas_library, roof.flops_per_s, asked[-1]) == ("cublaslt", 240.0, "cublas")
    assert roof.core_share is None


def test_the_ceiling_is_measured_again_when_it_is_old() -> None:
    now, asked = [0.0], []

    def measure(_device: Any, dtype: str, _cache: int, *, shapes: Any = None) -> Ceiling:
        asked.append(shapes)
        return replace(ROOF, dtype=dtype, flops_per_s=1e11 - 1e10 * (len(asked) - 1))

    roofs = Roofs(CPU, measure=measure, clock=lambda: now[0])
    assert roofs.is_due("fp32") and roofs.of("fp32").flops_per_s == 1e11
    now[0] = 100.0
    assert not roofs.is_due("fp32") and roofs.of("fp32").drift is None and asked == [None]
    now[0] = 200.0
    # only the shape that won, a tenth slower than at the beginning
    assert roofs.of("fp32").drift == pytest.approx(-0.1) and asked == [None, (ROOF.shape,)]


def test_a_busy_machine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(devices, "load_average", lambda: 0.3)
    assert devices.other_load(2) is None
    monkeypatch.setattr(devices, "load_average", lambda: 7.9)
    assert "load average 7.9 on 2 cores leaves less than 2 idle" in (devices.other_load(2) or "")


def reading(at: float, mhz: int, watts: float) -> Reading:
    return Reading(at=at, mhz=mhz, watts=watts, celsius=60)


def test_clocks_and_power_of_a_row_are_those_of_its_turns() -> None:
    monitor = Monitor(lambda: reading(0.0, 1, 1.0))
    monitor.readings = [
        reading(0.5, 345, 70.0),  # before the first turn
        reading(1.5, 1500, 690.0),
        reading(1.6, 1400, 710.0),
        reading(2.5, 345, 70.0),  # another one's turn
        reading(3.5, 1300, 700.0),
    ]
    found = monitor.of([(1.0, 2.0), (3.0, 4.0)], call_s=1e-3)
    assert (found["clock_mhz"], found["clock_min_mhz"]) == (1400, 1300)
    assert found["power_w"] == 700.0 and found["joules_per_call"] == pytest.approx(0.7)
    assert found["temperature_c"] == 60
    assert monitor.of([(10.0, 11.0)], call_s=1e-3) == {}


def test_clocks_and_power_are_torchs(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert monitor_of(CPU) is None
    for name, answer in (("clock_rate", 1700), ("power_draw", 650_000), ("temperature", 55)):
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)
    monitor = monitor_of(DEVICE)
    assert monitor is not None and monitor.read()[1:] == (1700, 650.0, 55)

    def missing(_device: Any) -> None:
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "power_draw", missing)
    assert monitor_of(DEVICE) is None
