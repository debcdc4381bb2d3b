"""Stopwatches, and rounds in which variants take turns, on a CPU or a CUDA device.

* `hot`: all input sets in turn, so often that one sample lasts a millisecond, the time divided by
  the number of calls; nothing is flushed;
* `cold`: one call, after other data were read through the caches.

On CUDA both are read from device events, and the host waits once for a burst, not for each sample.
A graph holds all calls of a hot sample, and the device is kept busy while the host queues the
first, so that no launch is in the interval; calls launched from Python (`eager`) are timed as they
come, as a user of PyTorch meets them.

In a round every variant gives one burst, in a fresh random order, until the medians are precise.
What drifts (clocks, temperature, other load) does so for all of a round alike, so that two variants
are compared within each round. A round's median is one value: samples of a burst are neighbours and
say little about each other's noise.
"""

from __future__ import annotations

import gc
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from metacount.bench.case import Refused, Variant
from metacount.bench.rows import FEWEST_FOR_INTERVAL, WRONG, half_width
from metacount.measure.torch_private import keep_cuda_busy

if TYPE_CHECKING:
    from metacount.files import Json

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
FEWEST_ROUNDS = 3
# cycles that keep the device busy while the host queues what is timed: 0.25 ms at 2 GHz
SLEEP_CYCLES = 500_000
WAITS = "synchroniz"  # torch's words for an operator that waits, in its mode "error"

Call = Callable[[], object]
Check = Callable[..., object]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to time, and what is left out.

    Rounds end when every half-width is at most `precision`, or after `rounds` or `seconds`, which
    are meant for each variant, launch and state; three rounds are taken whatever they last.
    """

    device: torch.device
    rounds: int
    seconds: float
    precision: float = 0.005
    warm_up_seconds: float = 0.1
    states: tuple[str, ...] = STATES
    launches: tuple[str, ...] = LAUNCHES
    compile: bool = True
    only: tuple[str, ...] | None = None
    seed: int = 0

    @property
    def cuda(self) -> bool:
        """Whether it is timed on a CUDA device."""
        return self.device.type == "cuda"


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


class Stopwatch:
    """Bursts of one variant launched from Python: perf_counter on a CPU, events on a device.

    There the host's time shows where it is the longer one. `sets` input sets are used when hot,
    `calls_per_sample` calls of them in a sample.
    """

    launch = EAGER
    nodes: int | None = None  # of a graph

    def __init__(
        self, calls: Sequence[Call], flush: Call, call_s: float, device: torch.device
    ) -> None:
        self.calls, self.flush, self.flush_s = list(calls), flush, 0.0
        self.device, self.cold_taken = device, 0
        self.takes(call_s)

    def takes(self, call_s: float) -> None:
        """Choose how many calls make a sample, from how long one takes."""
        if call_s >= LONG_SECONDS:
            self.calls = self.calls[:1]
        self.call_s, self.sets = call_s, len(self.calls)
        self.passes = passes_for(call_s, self.sets)
        self.calls_per_sample = self.passes * self.sets

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Open a turn, in which bursts can be taken: the variant's own work is done before."""
        self.timed(1, nothing, self.hot_sample)
        yield

    def burst(self, state: str) -> list[float]:
        """Take some samples, each the seconds of one call."""
        if state == COLD:
            n = samples_for(self.call_s + self.flush_s)
            return self.timed(n, self.flush, self.cold_sample)
        n = samples_for(self.call_s * self.calls_per_sample)
        return [s / self.calls_per_sample for s in self.timed(n, nothing, self.hot_sample)]

    def hot_sample(self) -> object:
        """Run every call of a hot sample, the first set last; return what the last call gave."""
        out = None
        for _ in range(self.passes):
            for call in reversed(self.calls):
                out = None  # given back first: each call writes where the one before it did
                out = call()
        return out

    def cold_sample(self) -> object:
        """Run one call; cold samples go through the sets in turn."""
        self.cold_taken += 1
        return self.calls[(self.cold_taken - 1) % self.sets]()

    def timed(self, n: int, before: Call, run: Call) -> list[float]:
        """Time `n` runs, in seconds, `before` each of which something is run or queued."""
        if self.device.type != "cuda":
            seconds = []
            for _ in range(n):
                begun = time.perf_counter()
                before()
                start = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - start)
                if before is self.flush:
                    self.flush_s = start - begun
            return seconds
        pairs = []
        for _ in range(n):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before()
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize(self.device)
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]


class GraphStopwatch(Stopwatch):
    """Calls captured as CUDA graphs at the beginning of a turn and dropped at its end.

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
    ) -> None:
        super().__init__(calls, flush, call_s, room.device)
        self.room, self.states, self.check = room, states, check
        self.measured = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Capture the graphs, compare results, warm up; drop the graphs after, whatever happens."""
        try:
            single, self.nodes = self._captured(self.calls[0])
            together = single
            if not self.measured:  # the estimate so far was the host's
                keep_cuda_busy(SLEEP_CYCLES)
                self.takes(min(self.timed(FIRST_REPLAYS, nothing, single)))
                self.measured = True
            if HOT in self.states and self.calls_per_sample > 1:
                together, nodes = self._captured(super().hot_sample)
                if self.nodes and nodes and nodes < self.nodes * self.calls_per_sample:
                    raise Refused(
                        WRONG,
                        f"the graph of {self.calls_per_sample} calls holds {nodes} nodes, that of "
                        f"one call {self.nodes}",
                    )
            self.samples = {HOT: together, COLD: single}
            rest = WARM_SECONDS - self.call_s * self.calls_per_sample
            while rest > 0:  # each capture left the device idle
                together()
                rest -= max(self.call_s * self.calls_per_sample, SAMPLE_SECONDS / 2)
            yield
        finally:
            self.samples = {}
            self.room.leave()

    def _captured(self, call: Call) -> tuple[Call, int | None]:
        """Capture a call, compare what a replay gives, and return the replay and its nodes."""
        graph, out, nodes = self.room.capture(call)
        for tensor in out if isinstance(out, tuple) else (out,):
            tensor.fill_(math.nan if tensor.is_floating_point() else -1)  # as no result is
        graph.replay()
        torch.cuda.synchronize(self.device)
        self.check(out)
        return graph.replay, nodes

    def burst(self, state: str) -> list[float]:
        """Take some samples, each the seconds of one call, the host ahead of the device."""
        keep_cuda_busy(SLEEP_CYCLES)
        return super().burst(state)

    def hot_sample(self) -> object:
        """Replay the graph of all calls."""
        return self.samples[HOT]()

    def cold_sample(self) -> object:
        """Replay the graph of one call."""
        return self.samples[COLD]()


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
        self.held: list[torch.cuda.CUDAGraph] = []

    def warm_up(self, call: Call) -> None:
        """Run `call` on the stream it will be captured on."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            call()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        torch.cuda.synchronize(self.device)

    def capture(self, call: Call) -> tuple[torch.cuda.CUDAGraph, Any, int | None]:
        """Capture one call: a graph ready to be replayed, what it gives, how many nodes it has."""
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        before = torch.cuda.current_stream(self.device)
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                out = call()
            nodes = nodes_of(graph)
            graph.instantiate()
        except BaseException:
            # torch does not restore the stream where the end of a capture raises
            torch.cuda.set_stream(before)
            self.heal()
            raise
        self.held.append(graph)
        return graph, out, nodes

    def leave(self) -> None:
        """Drop every graph of this turn and return its memory to the device."""
        for graph in self.held:
            graph.reset()
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


def nodes_of(graph: torch.cuda.CUDAGraph) -> int | None:
    """Count a captured graph's nodes (kernels, copies); None without NVIDIA's Python bindings."""
    try:
        from cuda.bindings import runtime

        error, *counts = runtime.cudaGraphGetNodes(graph.raw_cuda_graph(), numNodes=0)
        return int(counts[-1]) if int(error) == 0 else None
    except Exception:  # no bindings, or of another version: a row then does not say
        return None


def nothing(*_: object) -> None:
    """Do nothing, before a sample or after a graph."""


def estimate_call(call: Call, device: torch.device) -> float:
    """Estimate the seconds of one call: the shorter of two, the first of which may warm up."""
    seconds = []
    for _ in range(2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
        if seconds[0] > 1:
            break
    return min(seconds)


def flusher(device: torch.device, n_bytes: int) -> Call:
    """Return a call that reads a buffer of so many bytes: what the caches held goes, and nothing in
    them has to be written back later.
    """
    buffer = torch.randint(100, (max(1, n_bytes // 4),), dtype=torch.int32, device=device)
    return lambda: torch.amax(buffer, 0)


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


@dataclass(kw_only=True)
class Entrant:
    """A variant launched in one way: what is known of it, and its bursts, by state and round.

    `windows` are its turns on the host's clock, `busy_s` the seconds of processor in them, of all
    threads. `failed` is set where a turn raised; it takes none after that.
    """

    variant: Variant
    watch: Stopwatch
    known: Json = field(default_factory=dict)
    rounds: dict[str, list[list[float]]] = field(default_factory=dict)
    windows: list[tuple[float, float]] = field(default_factory=list)
    busy_s: float = 0.0
    failed: BaseException | None = None

    @property
    def core_share(self) -> float:
        """The part of a core that this process had in its turns; of several threads more than 1."""
        taken = sum(end - start for start, end in self.windows)
        return self.busy_s / taken if taken else 1.0

    def medians(self, state: str) -> list[float]:
        """Return one value for each round, the median of its samples."""
        return [median(burst) for burst in self.rounds[state]]

    def take_turn(
        self, states: Sequence[str], clock: Callable[[], float], *, keep: bool = True
    ) -> None:
        """Take a burst in each state. An error is kept, unless it is our own mistake."""
        try:
            with self.watch.turn():
                start, busy = clock(), time.process_time()
                bursts = {state: self.watch.burst(state) for state in states}
                end, busy = clock(), time.process_time() - busy
        except Exception as error:
            if not self.variant.may_raise(error):
                raise
            self.failed = error.with_traceback(None)  # whose frames hold tensors
            return
        if keep:
            self.windows.append((start, end))
            self.busy_s += busy
            for state, burst in bursts.items():
                self.rounds.setdefault(state, []).append(burst)


def take_turns(
    entrants: Sequence[Entrant], plan: Plan, clock: Callable[[], float] = time.perf_counter
) -> int:
    """Fill `rounds` of every entrant; return how many rounds it took.

    Before any sample the case's own work warms up: clocks ramp up, caches and allocators settle.
    Python's garbage collector is off meanwhile.
    """
    collects, order = gc.isenabled(), random.Random(plan.seed)
    allowed = plan.seconds * len(entrants) * len(plan.states)

    def running() -> list[Entrant]:
        return [entrant for entrant in entrants if entrant.failed is None]

    gc.disable()
    try:
        began, done = clock(), 0
        while clock() - began < plan.warm_up_seconds and running():
            for entrant in running():
                entrant.take_turn(plan.states[:1], clock, keep=False)
        began = clock()
        while done < max(plan.rounds, FEWEST_ROUNDS) and (turns := running()):
            if done >= FEWEST_ROUNDS and clock() - began >= allowed:
                break
            if done >= FEWEST_FOR_INTERVAL and _precise(turns, plan):
                break
            order.shuffle(turns)
            for entrant in turns:
                entrant.take_turn(plan.states, clock)
            done += 1
        return done
    finally:
        if collects:
            gc.enable()


def _precise(entrants: Sequence[Entrant], plan: Plan) -> bool:
    return all(
        half_width(entrant.medians(state)) <= plan.precision
        for entrant in entrants
        for state in plan.states
    )
