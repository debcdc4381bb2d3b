"""Stopwatches and rounds, on a device that is a model of one: clock, memory, order of its calls.

Without work in front the launch shows: the model can tell a wrong stopwatch from a right one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from helpers.virtual_gpu import DEVICE, MICRO, VirtualGpu
from torch import Tensor

from metacount.bench import timing
from metacount.bench.case import Refused
from metacount.bench.timing import (
    CaptureRoom,
    Entrant,
    GraphStopwatch,
    Plan,
    Stopwatch,
    take_turns,
    waits_for_host,
)

OURS: Any = SimpleNamespace(may_raise=lambda error: not isinstance(error, KeyError))
FLUSH = 56 * MICRO  # what reading twice the L2 takes


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> VirtualGpu:
    return VirtualGpu(monkeypatch)


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


def test_without_work_in_front_the_launch_shows(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "keep_cuda_busy", lambda _cycles: None)
    monkeypatch.setattr(timing, "passes_for", lambda _call_s, _sets: 1)
    assert read(watch(gpu, 3 * MICRO, 1), "hot") > 9 * MICRO


@pytest.mark.parametrize("micros", [3.0, 60.0])
def test_cold_is_the_time_of_one_call(gpu: VirtualGpu, micros: float) -> None:
    one = watch(gpu, micros * MICRO, 3)
    # the events around it are the rest
    assert read(one, "cold") == pytest.approx(micros * MICRO, abs=1.5 * MICRO)


def test_a_sample_lasts_a_millisecond_and_a_burst_waits_once(gpu: VirtualGpu) -> None:
    one = watch(gpu, 5 * MICRO, 3)
    with one.turn():
        assert one.calls_per_sample * 5 * MICRO >= 1e-3
        gpu.said.clear()
        n = len(one.burst("hot"))
        assert n >= 4 and gpu.said[0] == "sleep" and gpu.said[-1] == "wait"
        assert gpu.said.count("wait") == 1 and gpu.said.count("event") == 2 * n
        gpu.said.clear()
        n = len(one.burst("cold"))
        assert gpu.said == ["sleep", *["flush", "event", "replay 1 k0", "event"] * n, "wait"]


def test_an_eager_call_shows_the_hosts_time(gpu: VirtualGpu) -> None:
    calls = [gpu.kernel(f"k{i}", 3 * MICRO) for i in range(3)]
    one = Stopwatch(calls, gpu.kernel("flush", FLUSH), 23 * MICRO, DEVICE)
    # 20 µs to launch, 3 µs to run: the launches are what takes time
    assert read(one, "hot") == pytest.approx(20 * MICRO, rel=0.05)
    slow = Stopwatch([gpu.kernel("s", 1e-3)], gpu.kernel("f", FLUSH), 1e-3, DEVICE)
    assert read(slow, "hot") == pytest.approx(1e-3, rel=0.05)
    gpu.said.clear()
    with one.turn():
        gpu.said.clear()
        n = len(one.burst("cold"))
    assert gpu.said.count("flush") == n and gpu.said.count("wait") == 1


def test_long_calls_have_one_set_and_one_graph(gpu: VirtualGpu) -> None:
    one = watch(gpu, 0.08, 3)
    with one.turn():
        assert (one.sets, one.calls_per_sample) == (1, 1)
        assert gpu.said.count("capture") == 1
        gpu.said.clear()
        assert len(one.burst("hot")) == 1
    assert gpu.said.count("replay 1 k0") == 1


def test_a_graph_that_writes_nothing_is_caught(gpu: VirtualGpu) -> None:
    seen: list[float] = []

    def check(out: Tensor) -> None:
        seen.extend(out.tolist())
        raise ValueError("wrong")

    one = watch(gpu, 5 * MICRO, 3, check=check)
    # a stale buffer: the call's result is there when it is captured, and a replay leaves it alone
    real = torch.cuda.CUDAGraph.replay

    def lazy(graph: Any) -> None:
        graph.make = None
        real(graph)

    torch.cuda.CUDAGraph.replay = lazy  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="wrong"), one.turn():
        pass
    assert seen and all(map(math.isnan, seen)) and gpu.held == 0


def test_a_graph_that_lost_work_is_caught(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "nodes_of", lambda graph: len(graph.kernels))
    with watch(gpu, 5 * MICRO, 3).turn():
        pass
    monkeypatch.setattr(timing, "nodes_of", lambda graph: min(len(graph.kernels), 40))
    lost = r"the graph of 201 calls holds 40 nodes, that of one call 1"
    with pytest.raises(Refused, match=lost), watch(gpu, 5 * MICRO, 3).turn():
        pass


def test_waiting_is_found_without_a_capture(gpu: VirtualGpu) -> None:
    assert waits_for_host(gpu.kernel("k", MICRO), DEVICE) is None
    said = waits_for_host(gpu.kernel("k", MICRO, waits=True), DEVICE)
    assert said == "called a synchronizing CUDA operation"
    assert gpu.debug_mode == 0 and "capture" not in gpu.said

    def broken() -> None:
        raise RuntimeError("no kernel for this")

    with pytest.raises(RuntimeError, match="no kernel"):
        waits_for_host(broken, DEVICE)
    assert gpu.debug_mode == 0


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


def test_the_first_variants_work_comes_before_the_first_sample() -> None:
    diary: list[str] = []
    found = scripted(diary, "a", "b")
    turns(found, rounds=3, warm_up_seconds=3.5)
    # two turns of a second each, twice, until 3.5 seconds are over; none of them is kept
    assert len(diary) == 3 * (2 * 2 + 3 * 2)
    assert [len(one.rounds["hot"]) for one in found] == [3, 3]
    diary.clear()
    turns(scripted(diary, "a", "b"), rounds=3)
    assert len(diary) == 3 * 3 * 2


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
