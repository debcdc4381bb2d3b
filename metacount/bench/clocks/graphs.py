"""CUDA graphs of one case: captured when they are due, dropped after it, healed when one fails.

Nothing is captured to find out whether it can be: in torch 2.11 a capture that fails leaves the
generator of random numbers as if capturing, and every later draw raises. `waits_for_host` finds out
without harm. A capture that fails all the same is followed by a small one that works, which ends
that state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from metacount.measure.torch_private import keep_cuda_busy

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

Call = Callable[[], object]

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
