"""The order of things on a CUDA device, told by a device that only writes down what it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from one_thread import no_gradients  # noqa: F401  # a fixture for every test here

from metacount.bench.timing import CaptureRoom, CudaStopwatch

DEVICE = torch.device("cuda", 0)


class Told:
    """Stands for torch.cuda; `said` is what happened, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuse: Exception | None = None) -> None:
        self.said: list[str] = []
        self.capturing: Any = None
        self.pools = 0
        told = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                told.said.append("event")

            def synchronize(self) -> None:
                told.said.append("wait")

            def elapsed_time(self, _end: Event) -> float:
                return 6.0  # milliseconds

        class Stream:
            def __init__(self, _device: torch.device) -> None:
                pass

            def wait_stream(self, _other: Stream) -> None:
                pass

            def synchronize(self) -> None:
                pass

        class Graph:
            def __init__(self) -> None:
                self.held: list[str] = []

            def replay(self) -> None:
                told.said.append(f"replay {'+'.join(self.held)}")

        @contextmanager
        def graph(graph: Graph, *, pool: int, stream: Stream) -> Iterator[None]:
            told.said.append(f"capture in {pool}")
            told.capturing = graph
            try:
                yield
            finally:
                told.capturing = None
            if refuse is not None:
                raise refuse

        @contextmanager
        def on(_stream: Stream) -> Iterator[None]:
            yield

        def handle() -> int:
            told.pools += 1
            return told.pools

        fakes = {"Event": Event, "Stream": Stream, "CUDAGraph": Graph, "graph": graph,
                 "stream": on, "graph_pool_handle": handle,
                 "current_stream": Stream, "synchronize": lambda _device: None}  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def call(self, name: str) -> Any:
        """A call that is captured or done."""

        def do() -> None:
            (self.said if self.capturing is None else self.capturing.held).append(name)

        return do

    def watch(self, room: CaptureRoom, *, capture: bool) -> CudaStopwatch:
        calls = [self.call("a"), self.call("b"), self.call("c")]
        return CudaStopwatch(calls, self.call("flush"), room=room, capture=capture)


def test_a_graph_for_each_set_and_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    watch = told.watch(CaptureRoom(DEVICE), capture=True)
    assert watch.launch == "graph"
    # warm-up, four captures in the one pool, and a first replay of each
    assert told.said == ["a", "b", "c"] * 3 + ["capture in 1"] * 4 + [
        "replay a", "replay b", "replay c", "replay a+b+c"
    ]  # fmt: skip
    told.said.clear()
    # 6 ms for three sets
    assert watch.hot() == pytest.approx(0.002)
    assert told.said == ["event", "replay a+b+c", "event", "wait"]
    told.said.clear()
    assert watch.cold(1) == pytest.approx(0.006)
    assert told.said == ["flush", "event", "replay b", "event", "wait"]


def test_without_a_graph_the_calls_are_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    watch = told.watch(CaptureRoom(DEVICE), capture=False)
    assert watch.launch == "eager"
    told.said.clear()
    assert watch.hot() == pytest.approx(0.002)
    assert told.said == ["event", "a", "b", "c", "event", "wait"]
    told.said.clear()
    watch.cold(2)
    assert told.said == ["flush", "event", "c", "event", "wait"]


def test_a_refused_capture_is_launched_and_leaves_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, RuntimeError("operation not permitted when stream is capturing"))
    room = CaptureRoom(DEVICE)
    watch = told.watch(room, capture=True)
    assert (watch.launch, room.pool) == ("eager", 2)
    told.said.clear()
    watch.hot()
    assert told.said == ["event", "a", "b", "c", "event", "wait"]


def test_no_memory_for_a_graph_is_no_reason_to_go_without(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        told.watch(CaptureRoom(DEVICE), capture=True)
