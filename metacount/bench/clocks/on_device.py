"""Stopwatches of a CUDA device: its own events around graphs, or around calls from Python.

The host waits once for a burst. In front of a graph's first sample the device is kept busy while
the host queues it, so that no launch is in the interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from metacount.bench.clocks.graphs import CaptureRoom, hold_device
from metacount.bench.clocks.stopwatch import (
    EAGER,
    FIRST_REPLAYS,
    GRAPH,
    HOT,
    SAMPLE_SECONDS,
    WARM_SECONDS,
    Call,
    Check,
    Counted,
)

if TYPE_CHECKING:
    from metacount.bench.clocks.graphs import Captured
    from metacount.bench.layers.case import Output


class _OnDevice(Counted):
    """Device events; the host waits once for all samples of a burst."""

    def __init__(
        self, calls: Sequence[Call], flush: Call, call_s: float, device: torch.device
    ) -> None:
        Counted.__init__(self, calls, flush, call_s)
        self.device = device

    def timed(self, before: Call, run: Call, n: int) -> list[float]:
        """Time `n` runs, in seconds, `before` queued in front of the first event of each."""
        pairs = []
        for _ in range(n):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before()
            start.record()
            run()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize(self.device)
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]


class EagerStopwatch(_OnDevice):
    """Calls launched from Python one by one: the host's time shows where it is the longer one."""

    launch = EAGER

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run one hot sample of the variant's own work before the block."""
        self.timed(_nothing, self.all_calls, 1)
        yield

    def burst(self, state: str) -> list[float]:
        """Take some samples, each the seconds of one call."""
        n = self.samples_of(state)
        if state == HOT:
            found = self.timed(_nothing, self.all_calls, n)
            return [seconds / self.calls_per_sample for seconds in found]
        return self.timed(self.flush, lambda: self.calls[self.next_set()](), n)


class GraphStopwatch(_OnDevice):
    """Calls captured as graphs at the beginning of a turn and dropped at its end.

    `check` is given what the last call of each graph gave, after its memory was filled with other
    values and the graph replayed; it raises where that is not the result. The last call has the
    first input set.
    """

    launch = GRAPH

    def __init__(
        self,
        calls: Sequence[Call],
        flush: Call,
        call_s: float,
        *,
        room: CaptureRoom,
        states: Sequence[str],
        check: Check,
        spoils: bool = True,
    ) -> None:
        _OnDevice.__init__(self, calls, flush, call_s, room.device)
        self.room, self.states, self.check, self.spoils = room, states, check, spoils
        self.single: Call = _nothing
        self.together: Call = _nothing
        self.measured = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Capture the graphs, compare results, warm up; drop the graphs after, whatever happens."""
        try:
            single = self.room.capture(self.calls[0])
            self._compare(single)
            self.nodes, self.single = single.nodes, single.replay
            self.together = single.replay
            if not self.measured:  # the estimate so far was the host's
                hold_device(self.device)
                self.takes(min(self.timed(_nothing, self.single, FIRST_REPLAYS)))
                self.measured = True
            if HOT in self.states and self.calls_per_sample > 1:
                together = self.room.capture(self._last_first)
                self._compare(together)
                _refuse_lost_work(single.nodes, together.nodes, self.calls_per_sample)
                self.together = together.replay
            rest = WARM_SECONDS - self.call_s * self.calls_per_sample
            while rest > 0:  # each capture left the device idle
                self.together()
                rest -= max(self.call_s * self.calls_per_sample, SAMPLE_SECONDS / 2)
            yield
        finally:
            self.single = self.together = _nothing
            self.room.leave()

    def _last_first(self) -> object:
        """Run every call of a hot sample, the first set last; return what the last call gave."""
        out = None
        for _ in range(self.passes):
            for call in reversed(self.calls):
                out = None  # given back first: each call writes where the one before it did
                out = call()
        return out

    def _compare(self, captured: Captured) -> None:
        if self.spoils:
            spoil(captured.out)
        captured.replay()
        torch.cuda.synchronize(self.device)
        self.check(captured.out)
        captured.out = None

    def burst(self, state: str) -> list[float]:
        """Take some samples, each the seconds of one call."""
        n = self.samples_of(state)
        hold_device(self.device)
        if state == HOT:
            found = self.timed(_nothing, self.together, n)
            return [seconds / self.calls_per_sample for seconds in found]
        return self.timed(self.flush, self.single, n)


class LostWork(Exception):
    """A graph that holds less than the calls that were captured."""


def _refuse_lost_work(single: int | None, together: int | None, calls: int) -> None:
    if single is not None and together is not None and together < single * calls:
        raise LostWork(
            f"the graph of {calls} calls holds {together} nodes, that of one call {single}"
        )


def spoil(out: Output) -> None:
    """Fill what a call gave with values that no result has."""
    for tensor in out if isinstance(out, tuple) else (out,):
        tensor.fill_(math.nan if tensor.is_floating_point() else -1)


def _nothing() -> None:
    pass
