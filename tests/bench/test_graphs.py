"""The stopwatch on a device that is a model of one: its clock, its memory, the order of its calls.

Each test of the timing has a twin that plants the fault and sees it: the model can tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here
from helpers.virtual_gpu import DEVICE, GIB, MICRO, VirtualGpu
from torch import Tensor

from metacount.bench import stopwatch
from metacount.bench.rounds import Entrant, Until, take_turns
from metacount.bench.statistics import median
from metacount.bench.stopwatch import (
    CaptureRoom,
    EagerStopwatch,
    GraphStopwatch,
    LostWork,
    waits_for_host,
)

FLUSH = 56 * MICRO  # what reading twice the L2 takes


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> VirtualGpu:
    return VirtualGpu(monkeypatch)


def no_check(_out: Any) -> None:
    pass


def watch(
    gpu: VirtualGpu,
    seconds: float,
    sets: int,
    *,
    check: Any = no_check,
    working: int = 0,
    room: CaptureRoom | None = None,
    states: Sequence[str] = ("hot", "cold"),
    waits: bool = False,
) -> GraphStopwatch:
    calls = [gpu.kernel(f"k{i}", seconds, working=working) for i in range(sets)]
    return GraphStopwatch(
        calls,
        gpu.kernel("flush", FLUSH),
        1e-3,
        room=room or CaptureRoom(DEVICE),
        states=states,
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
    monkeypatch.setattr(stopwatch, "hold_device", lambda _device: None)
    monkeypatch.setattr(stopwatch, "passes_for", lambda _call_s, _sets: 1)
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
    one = EagerStopwatch(calls, gpu.kernel("flush", FLUSH), 23 * MICRO, DEVICE)
    # 20 µs to launch, 3 µs to run: the launches are what takes time
    assert read(one, "hot") == pytest.approx(20 * MICRO, rel=0.05)
    slow = EagerStopwatch([gpu.kernel("s", 1e-3)], gpu.kernel("f", FLUSH), 1e-3, DEVICE)
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


class Result:
    """What a call gives, and what is seen of it."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def check(self, out: Tensor) -> None:
        self.seen.append(out.tolist())
        if out.tolist() != [1.0, 1.0]:
            raise ValueError("wrong")


def test_what_a_graph_gives_is_compared(gpu: VirtualGpu) -> None:
    result = Result()
    with watch(gpu, 5 * MICRO, 3, check=result.check).turn():
        # the graph of one call and that of many
        assert result.seen == [[1.0, 1.0]] * 2


def test_a_graph_that_writes_nothing_is_caught(gpu: VirtualGpu) -> None:
    result = Result()
    one = watch(gpu, 5 * MICRO, 3, check=result.check)
    # a stale buffer: the call's result is there when it is captured, and a replay leaves it alone
    real = torch.cuda.CUDAGraph.replay

    def lazy(graph: Any) -> None:
        graph.make = None
        real(graph)

    torch.cuda.CUDAGraph.replay = lazy  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="wrong"), one.turn():
        pass
    assert all(math.isnan(x) for x in result.seen[0])
    assert gpu.held == 0


def test_a_graph_that_lost_work_is_caught(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "nodes_of", lambda graph: len(graph.kernels))
    with watch(gpu, 5 * MICRO, 3).turn():
        pass
    monkeypatch.setattr(stopwatch, "nodes_of", lambda graph: min(len(graph.kernels), 40))
    lost = r"the graph of 201 calls holds 40 nodes, that of one call 1"
    with pytest.raises(LostWork, match=lost), watch(gpu, 5 * MICRO, 3).turn():
        pass


def entrants(gpu: VirtualGpu, room: CaptureRoom, working: int) -> list[Entrant]:
    return [
        Entrant(name=str(i), watch=watch(gpu, 50 * MICRO, 3, working=working, room=room))
        for i in range(5)
    ]


UNTIL = Until(rounds=6, seconds=60.0, precision=0.0, states=("hot", "cold"), warm_up_seconds=0.0)


def test_graphs_are_dropped_before_the_next_variant(gpu: VirtualGpu) -> None:
    room = CaptureRoom(DEVICE)
    found = entrants(gpu, room, 80 * GIB // 2)  # five such variants do not fit into 140 GiB at once
    take_turns(found, UNTIL, seed=0, is_ours=lambda *_: True)
    assert all(len(one.rounds["hot"]) == 6 for one in found)
    # the graph of one call and that of many; what is held is never more than one variant's
    assert gpu.most_held == 80 * GIB and gpu.held == 0 and room.held == []


def test_graphs_that_stay_would_not_fit(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CaptureRoom, "leave", lambda room: None)
    found = entrants(gpu, CaptureRoom(DEVICE), 80 * GIB // 2)
    take_turns(found, UNTIL, seed=0, is_ours=lambda *_: False)
    assert {type(one.failed) for one in found} == {torch.OutOfMemoryError}


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


def test_after_a_capture_that_failed_random_numbers_can_be_drawn(gpu: VirtualGpu) -> None:
    room = CaptureRoom(DEVICE)
    first = room.stream
    one = watch(gpu, MICRO, 1, room=room)
    gpu.refuse_capture = "operation failed due to a previous error during capture"
    real = room.heal

    def heal() -> None:
        assert gpu.generator_is_capturing  # as torch 2.11 leaves it
        gpu.refuse_capture = None
        real()

    room.heal = heal  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="previous error"), one.turn():
        pass
    torch.randn(1, device="cuda")
    assert gpu.current == "default" and room.stream is not first
    assert read(watch(gpu, 3 * MICRO, 1, room=room), "hot") == pytest.approx(3 * MICRO, rel=0.01)


def test_the_model_poisons_the_generator_without_healing(
    gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CaptureRoom, "heal", lambda room: None)
    gpu.refuse_capture = "operation failed"
    with pytest.raises(RuntimeError, match="failed"), watch(gpu, MICRO, 1).turn():
        pass
    with pytest.raises(RuntimeError, match="outside graph capture"):
        torch.randn(1, device="cuda")
