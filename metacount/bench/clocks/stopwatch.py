"""Stopwatches: bursts of samples of one call, caches hot or cold, on a CPU or a CUDA device.

* `hot`: all input sets in turn, so often that one sample lasts a millisecond, the time divided by
  the number of calls; nothing is flushed;
* `cold`: one call, after other data were read through the caches.

On CUDA both are read from device events, and the host waits once for a burst, not for each sample.
A graph holds all calls of a hot sample, and the device is kept busy while the host queues the
first, so that no launch is in the interval; calls launched from Python (`eager`) are timed as they
come, as a user of PyTorch meets them.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


HOT, COLD = "hot", "cold"
STATES = (HOT, COLD)
EAGER, GRAPH = "eager", "graph"
LAUNCHES = (EAGER, GRAPH)

SAMPLE_SECONDS = 1e-3  # one hot sample lasts this long at least
BURST_SECONDS = 8e-3  # samples of a burst last this long together, if one call is not longer
MOST_CALLS = 1024  # of one sample, however short: the launches that a queue holds
MOST_SAMPLES = 8  # of a burst
LONG_SECONDS = 0.05  # of a call: then one input set and one sample have to do
FIRST_REPLAYS = 3  # of one call, to see how long it takes on the device
WARM_SECONDS = 4e-3  # of the variant's own work in front of each turn

Call = Callable[[], object]
Check = Callable[..., object]


class Stopwatch(Protocol):
    """Bursts of one variant; `sets` input sets are used when hot, `calls` of them in a sample."""

    launch: str
    sets: int
    calls_per_sample: int
    nodes: int | None

    def turn(self) -> AbstractContextManager[None]:
        """Return a context in which bursts can be taken: made ready before, given back after."""

    def burst(self, state: str) -> list[float]:
        """Take some samples, each the seconds of one call."""


def passes_for(call_s: float, sets: int) -> int:
    """Choose how often all sets are gone through for a sample of a millisecond.

    >>> passes_for(3e-6, 1), passes_for(3e-6, 16), passes_for(0.2, 3), passes_for(1e-9, 3)
    (334, 21, 1, 341)
    """
    wanted = math.ceil(SAMPLE_SECONDS / max(call_s * sets, 1e-9))
    return max(1, min(wanted, MOST_CALLS // sets))


def samples_for(sample_s: float) -> int:
    """Choose how many samples a burst has.

    >>> samples_for(1e-3), samples_for(2e-3), samples_for(0.5)
    (8, 4, 1)
    """
    return max(1, min(MOST_SAMPLES, int(BURST_SECONDS / max(sample_s, 1e-9))))


class Counted:
    """What every stopwatch keeps: its calls, and how many make a sample."""

    nodes: int | None = None

    def __init__(self, calls: Sequence[Call], flush: Call, call_s: float) -> None:
        self.calls, self.flush, self.flush_s = list(calls), flush, 0.0
        self.cold_taken = 0
        self.takes(call_s)

    def takes(self, call_s: float) -> None:
        """Choose how many calls make a sample, from how long one takes."""
        if call_s >= LONG_SECONDS:
            self.calls = self.calls[:1]
        self.call_s, self.sets = call_s, len(self.calls)
        self.passes = passes_for(call_s, self.sets)
        self.calls_per_sample = self.passes * self.sets

    def samples_of(self, state: str) -> int:
        """Choose how many samples a burst has in this state."""
        if state == COLD:
            return samples_for(self.call_s + self.flush_s)
        return samples_for(self.call_s * self.calls_per_sample)

    def next_set(self) -> int:
        """Return the index of the next set: cold samples go through the sets in turn."""
        self.cold_taken += 1
        return (self.cold_taken - 1) % self.sets

    def all_calls(self) -> None:
        """Run every call of a hot sample."""
        for _ in range(self.passes):
            for call in self.calls:
                call()


class CpuStopwatch(Counted):
    """perf_counter around the calls."""

    launch = EAGER

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run each set once before the block, so that caches are as this variant leaves them."""
        for call in self.calls:
            call()
        yield

    def burst(self, state: str) -> list[float]:
        """Take some samples, each the seconds of one call."""
        one = self._hot if state == HOT else self._cold
        return [one() for _ in range(self.samples_of(state))]

    def _hot(self) -> float:
        start = time.perf_counter()
        self.all_calls()
        return (time.perf_counter() - start) / self.calls_per_sample

    def _cold(self) -> float:
        call = self.calls[self.next_set()]
        begun = time.perf_counter()
        self.flush()
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        self.flush_s = start - begun
        return end - start


def estimate_call(call: Call, device: torch.device) -> float:
    """Estimate the seconds of one call: the shorter of two, the first of which may warm up."""
    found = []
    for _ in range(2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
        if found[0] > 1:
            break
    return min(found)


def flusher(device: torch.device, n_bytes: int) -> Call:
    """Return a call that reads a buffer of so many bytes: what the caches held goes, and nothing in
    them has to be written back later.
    """
    buffer = torch.randint(100, (max(1, n_bytes // 4),), dtype=torch.int32, device=device)
    return lambda: torch.amax(buffer, 0)


@contextmanager
def no_collector() -> Iterator[None]:
    """Switch Python's garbage collector off in the block, out of the samples; restore it after."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def input_sets(device: torch.device, set_bytes: int, cache_bytes: int) -> int:
    """Choose how many input sets to rotate: 3, on CUDA as many as exceed the cache, at most 16.

    >>> input_sets(torch.device("cpu"), 8192, 2**25)
    3
    >>> input_sets(torch.device("cuda"), 2**23, 2**26), input_sets(torch.device("cuda"), 1, 2**26)
    (9, 16)
    """
    if device.type != "cuda":
        return 3
    return min(16, max(3, cache_bytes // set_bytes + 1))
