"""A CUDA device that is a model: a clock for the host, a clock for the device, memory, and a diary.

It stands for `torch.cuda`, with the calls that torch 2.11 and 2.13 have. Tensors stay on the CPU;
what a call costs is told by `kernel`. The host runs ahead of the device until it waits; an event is
taken when the device comes to it, so that the time in which it waits for the host is inside of an
interval, as on a real one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

DEVICE = torch.device("cuda", 0)
MICRO = 1e-6
EAGER_LAUNCH, GRAPH_LAUNCH, EVENT = 20 * MICRO, 9 * MICRO, 1 * MICRO
CYCLES_PER_SECOND = 2e9
GIB = 2**30
REAL_COPY = Tensor.copy_


class VirtualGpu:
    """`said` is what happened, in order; `memory` is held by name. Seconds everywhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = self.device = 0.0
        self.said: list[str] = []
        self.graph: Any = None  # being captured
        self.debug_mode = 0
        self.held = 0
        self.generator_is_capturing = False  # torch 2.11, after a capture that failed
        self.refuse_capture: str | None = None
        self.pools = 0
        self.current = "default"
        self._install(monkeypatch)

    def run(self, seconds: float) -> None:
        """Something of this length on the device, after what is queued."""
        self.device = max(self.device, self.host) + seconds

    def kernel(
        self,
        name: str,
        seconds: float,
        *,
        gives: Callable[[], Tensor] | None = None,
        working: int = 0,
        waits: bool = False,
    ) -> Callable[[], Tensor]:
        """A call that launches one kernel; `working` bytes are held by a graph that captured it."""
        make = gives or (lambda: torch.ones(2))

        def call() -> Tensor:
            if waits and self.debug_mode == 2:
                raise RuntimeError("called a synchronizing CUDA operation")
            out = make()
            if self.graph is not None:
                self.graph.take(name, seconds, working, make, out)
                return out
            self.host += EAGER_LAUNCH
            self.run(seconds)
            if waits:
                self.host = max(self.host, self.device)
            self.said.append(name)
            return out

        return call

    def _wait(self, *_: Any) -> None:
        self.host = max(self.host, self.device)
        self.said.append("wait")

    def _install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.at: float | None = None

            def record(self) -> None:
                gpu.host += EVENT
                gpu.device = max(gpu.device, gpu.host)
                self.at = gpu.device
                gpu.said.append("event")

            def elapsed_time(self, end: Event) -> float:
                assert self.at is not None and end.at is not None
                assert gpu.host >= end.at, "read before the device came to it"
                return (end.at - self.at) * 1e3

        class Stream:
            def __init__(self, _device: torch.device) -> None:
                self.name = "side"

            def wait_stream(self, _other: Stream) -> None:
                pass

            def synchronize(self) -> None:
                gpu._wait()

        class Graph:
            def __init__(self, keep_graph: bool = False) -> None:
                self.kernels: list[str] = []
                self.seconds, self.working, self.live = 0.0, 0, False
                self.make: Callable[[], Tensor] | None = None
                self.out: Tensor | None = None

            def take(self, name: str, seconds: float, working: int, make: Any, out: Tensor) -> None:
                self.kernels.append(name)
                self.seconds += seconds
                self.working = max(self.working, working)
                self.make, self.out = make, out

            def instantiate(self) -> None:
                self.live = True

            def replay(self) -> None:
                assert self.live, "not instantiated, or given back"
                gpu.host += GRAPH_LAUNCH
                gpu.run(self.seconds)
                if self.make is not None and self.out is not None:
                    REAL_COPY(self.out, self.make())
                gpu.said.append(
                    f"replay {len(self.kernels)} {'+'.join(dict.fromkeys(self.kernels))}"
                )

            def reset(self) -> None:
                if self.live:
                    gpu.held -= self.working
                self.live = False
                gpu.said.append("drop")

        @contextmanager
        def graph(graph: Graph, *, stream: Stream, pool: int | None = None) -> Iterator[None]:
            gpu.said.append("capture")
            gpu.graph, before = graph, gpu.current
            gpu.current = "side"
            try:
                yield
            finally:
                gpu.graph = None
            if gpu.refuse_capture is not None:
                # torch does not come to restore the stream, nor (2.11) the generator
                gpu.generator_is_capturing = True
                raise RuntimeError(gpu.refuse_capture)
            gpu.generator_is_capturing = False
            gpu.current = before
            gpu.held += graph.working
            graph.live = True

        @contextmanager
        def on(_stream: Any) -> Iterator[None]:
            yield

        def pool() -> int:
            gpu.pools += 1
            return gpu.pools

        def sleep(cycles: int) -> None:
            gpu.host += EVENT
            gpu.run(cycles / CYCLES_PER_SECOND)
            gpu.said.append("sleep")

        def set_stream(stream: Any) -> None:
            gpu.current = getattr(stream, "name", "default")

        def set_mode(mode: Any) -> None:
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)
            gpu.debug_mode = {"default": 0, "warn": 1, "error": 2}.get(mode, mode)

        properties = SimpleNamespace(
            name="NVIDIA H200",
            L2_cache_size=2**12,
            total_memory=140 * GIB,
            multi_processor_count=132,
            uuid="a-b",
        )
        fakes = {
            "Event": Event,
            "Stream": Stream,
            "CUDAGraph": Graph,
            "graph": graph,
            "stream": on,
            "graph_pool_handle": pool,
            "set_stream": set_stream,
            "_sleep": sleep,
            "current_stream": lambda *_: SimpleNamespace(name=gpu.current, wait_stream=id),
            "synchronize": gpu._wait,
            "empty_cache": lambda: gpu.said.append("empty"),
            "get_sync_debug_mode": lambda: gpu.debug_mode,
            "set_sync_debug_mode": set_mode,
            "memory_allocated": lambda *_: gpu.held,
            "max_memory_allocated": lambda *_: gpu.held + 64,
            "reset_peak_memory_stats": lambda *_: None,
            "mem_get_info": lambda *_: (140 * GIB - gpu.held, 140 * GIB),
            "get_device_properties": lambda *_: properties,
            "get_device_capability": lambda *_: (9, 0),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        real_zeros, real_randn, real_randint = torch.zeros, torch.randn, torch.randint

        def zeros(*sizes: Any, device: Any = None, **rest: Any) -> Tensor:
            return real_zeros(*sizes, **rest)

        def randn(*sizes: Any, device: Any = None, **rest: Any) -> Tensor:
            if gpu.generator_is_capturing:
                raise RuntimeError(
                    "Offset increment outside graph capture encountered unexpectedly."
                )
            return real_randn(*sizes, **rest)

        def randint(*sizes: Any, device: Any = None, **rest: Any) -> Tensor:
            return real_randint(*sizes, **rest)

        monkeypatch.setattr(torch, "zeros", zeros)
        monkeypatch.setattr(torch, "randn", randn)
        monkeypatch.setattr(torch, "randint", randint)
