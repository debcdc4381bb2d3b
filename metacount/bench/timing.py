"""Clocks: how long one call takes, with the caches hot or cold, on a CPU or a CUDA device.

A stopwatch is given a variant's calls, one for each input set, and takes single samples:

* `hot`: all sets one after the other, the time divided by their number; nothing is flushed;
* `cold`: one set, after the caches were filled with other data.

On CUDA both are read from device events. Where the calls can be captured they are replayed as CUDA
graphs, so that no time of Python or of a launch is in them; `launch` says so.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

HOT, COLD = "hot", "cold"
STATES = (HOT, COLD)
EAGER, GRAPH = "eager", "graph"

WARM_UP = 3  # calls of every input set before the first sample,
WARM_UP_SECONDS = 1.0  # or one, and as many more as begin within this time
FEWEST_SAMPLES = 3


class Stopwatch(Protocol):
    """Samples of one variant."""

    launch: str

    def hot(self) -> float:
        """Seconds of one call, the mean over all input sets."""

    def cold(self, index: int) -> float:
        """Seconds of the call with input set `index`, after a flush."""


Call = Callable[[], object]


def warm_up(calls: Sequence[Call], wait: Call) -> None:
    """Every call a few times; `wait` returns when the device is done with them."""
    began = time.perf_counter()
    for done in range(WARM_UP):
        if done and time.perf_counter() - began > WARM_UP_SECONDS:
            break
        for call in calls:
            call()
        wait()


class CpuStopwatch:
    """perf_counter around the call."""

    launch = EAGER

    def __init__(self, calls: Sequence[Call], flush: Call) -> None:
        self.calls, self.flush = calls, flush
        warm_up(calls, lambda: None)

    def hot(self) -> float:
        """Seconds of one call, the mean over all input sets."""
        start = time.perf_counter()
        for call in self.calls:
            call()
        return (time.perf_counter() - start) / len(self.calls)

    def cold(self, index: int) -> float:
        """Seconds of one call after the flush."""
        call = self.calls[index]
        self.flush()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start


class CaptureRoom:
    """Where the graphs of one case are captured: one stream and one pool of memory for all.

    They can share their memory: they are never replayed at the same time, and no result is read
    after another graph has run. Captures that share a pool must share their stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def capture(self, call: Call) -> torch.cuda.CUDAGraph:
        """One call as a graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            call()
        return graph

    def renew(self) -> None:
        """After a capture that failed: what it left of the pool is not used again."""
        torch.cuda.synchronize(self.device)
        self.pool = torch.cuda.graph_pool_handle()


class CudaStopwatch:
    """Device events around a graph's replay, or around eager calls where there is no graph."""

    def __init__(
        self,
        calls: Sequence[Call],
        flush: Call,
        *,
        room: CaptureRoom,
        capture: bool,
    ) -> None:
        self.calls, self.flush, device = calls, flush, room.device
        self.launch = EAGER
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # warm-up off the default stream, as capturing asks for
        room.stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(room.stream):
            warm_up(calls, room.stream.synchronize)
        torch.cuda.current_stream(device).wait_stream(room.stream)
        torch.cuda.synchronize(device)
        self.single: list[Call] = list(calls)
        self.together: Call = self._each
        if capture:
            self._capture(room)

    def _each(self) -> None:
        for call in self.calls:
            call()

    def _capture(self, room: CaptureRoom) -> None:
        try:
            single = [room.capture(call) for call in self.calls]
            together = room.capture(self._each)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            # what the device cannot capture is launched call by call, and the row says so
            room.renew()
            return
        self.single = [graph.replay for graph in single]
        self.together, self.launch = together.replay, GRAPH
        for graph in (*single, together):  # the first replay uploads the graph
            graph.replay()
        torch.cuda.synchronize(room.device)

    def _seconds(self, run: Call) -> float:
        self.start.record()
        run()
        self.end.record()
        self.end.synchronize()
        milliseconds: float = self.start.elapsed_time(self.end)
        return milliseconds / 1e3

    def hot(self) -> float:
        """Seconds of one call, the mean over all input sets."""
        return self._seconds(self.together) / len(self.calls)

    def cold(self, index: int) -> float:
        """Seconds of one call after the flush, which is queued before the first event."""
        self.flush()
        return self._seconds(self.single[index])


def flusher(device: torch.device, cache_bytes: int) -> Call:
    """A call that reads and writes a buffer of twice the last cache, whatever was in it."""
    buffer = torch.randint(100, (2 * cache_bytes // 4,), dtype=torch.int32, device=device)
    return lambda: buffer.add_(1)


def samples(watch: Stopwatch, state: str, *, rounds: int, seconds: float, sets: int) -> list[float]:
    """Up to `rounds` samples, fewer (at least 3) when `seconds` are over; cold ones rotate sets."""
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < rounds:
        if len(found) >= FEWEST_SAMPLES and time.perf_counter() - began > seconds:
            break
        found.append(watch.hot() if state == HOT else watch.cold(len(found) % sets))
    return found


@contextmanager
def no_collector() -> Iterator[None]:
    """Python's garbage collector stays out of the samples."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def input_sets(device: torch.device, set_bytes: int, cache_bytes: int) -> int:
    """How many input sets to rotate through: 3, on CUDA as many as exceed the cache, at most 16.

    >>> input_sets(torch.device("cpu"), 8192, 2**25)
    3
    >>> input_sets(torch.device("cuda"), 2**23, 2**26), input_sets(torch.device("cuda"), 1, 2**26)
    (9, 16)
    """
    if device.type != "cuda":
        return 3
    return min(16, max(3, cache_bytes // set_bytes + 1))
