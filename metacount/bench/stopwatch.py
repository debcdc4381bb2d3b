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
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from metacount.measure.torch_private import keep_cuda_busy

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from metacount.bench.case import Output

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


# torch's words for an operator that waits, in its mode "error"
WAITS = "synchroniz"
# cycles that keep the device busy while the host queues what is timed: 0.25 ms at 2 GHz
SLEEP_CYCLES = 500_000


def waits_for_host(call: Call, device: torch.device) -> str | None:
    """Return torch's words where the host waits for the device inside of `call`, or None.

    Every other error is raised.
    """
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if WAITS not in str(error):
            raise
        return str(error).strip().splitlines()[0]
    finally:
        _set_sync_debug_mode(before)
        torch.cuda.synchronize(device)
    return None


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        # torch says once that it does not detect everything; a capture that fails is then healed
        warnings.filterwarnings("ignore", message=".*[Ss]ynchronization debug mode.*")
        torch.cuda.set_sync_debug_mode(mode)


def hold_device(_device: torch.device) -> None:
    """Keep the device busy for a moment, so that the host is ahead with what it queues next."""
    keep_cuda_busy(SLEEP_CYCLES)


def nodes_of(graph: torch.cuda.CUDAGraph) -> int | None:
    """Count a captured graph's nodes (kernels, copies); None without NVIDIA's Python bindings."""
    try:
        from cuda.bindings import runtime

        error, *found = runtime.cudaGraphGetNodes(graph.raw_cuda_graph(), numNodes=0)
        return int(found[-1]) if int(error) == 0 else None
    except Exception:  # no bindings, or of another version: a row then does not say
        return None


class Captured:
    """One graph, with what its last call gave."""

    def __init__(self, graph: torch.cuda.CUDAGraph, out: Any, nodes: int | None) -> None:
        self.graph, self.out, self.nodes = graph, out, nodes

    def replay(self) -> None:
        """Run all calls of the graph."""
        self.graph.replay()

    def drop(self) -> None:
        """Give back the graph and its memory."""
        self.out = None
        self.graph.reset()


class CaptureRoom:
    """Where the graphs of one case are captured: one stream for all, memory for those of a turn.

    Graphs of one turn share a pool: they are never replayed at the same time, and what one of them
    gives is read before another runs. `leave` gives the memory back, so that a case needs what its
    largest variant needs, not the sum of all.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool: Any = None  # torch's handle of it has a private type
        self.held: list[Captured] = []

    def warm_up(self, call: Call) -> None:
        """Run `call` on the stream it will be captured on."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            call()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        torch.cuda.synchronize(self.device)

    def capture(self, call: Call) -> Captured:
        """Capture one call as a graph, ready to be replayed."""
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        before = torch.cuda.current_stream(self.device)
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                out = call()
            found = Captured(graph, out, nodes_of(graph))
            graph.instantiate()
        except BaseException:
            # torch does not restore the stream where the end of a capture raises
            torch.cuda.set_stream(before)
            self.heal()
            raise
        self.held.append(found)
        return found

    def leave(self) -> None:
        """Drop every graph of this turn and return its memory to the device."""
        for graph in self.held:
            graph.drop()
        self.held.clear()
        self.pool = None  # a pool that was given back cannot be entered again
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def heal(self) -> None:
        """Recover from a failed capture: another stream and pool, a small capture that works."""
        torch.cuda.synchronize(self.device)
        self.stream, self.pool = torch.cuda.Stream(self.device), None
        x = torch.zeros(1, device=self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            x.add_(1)
        graph.reset()
        torch.cuda.synchronize(self.device)


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
