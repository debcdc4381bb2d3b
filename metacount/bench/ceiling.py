"""The roof, measured in the same run: the best matrix product of a sweep, a large copy and read.

It is measured again while the run goes on: a device that warms up loses some of its clock, and a
share is of what the device could do at that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from metacount.bench import device as devices
from metacount.bench.case import DTYPES, product_precision
from metacount.bench.rows import Ceiling
from metacount.bench.statistics import median
from metacount.bench.stopwatch import (
    HOT,
    Call,
    CaptureRoom,
    CpuStopwatch,
    GraphStopwatch,
    Stopwatch,
    estimate_call,
)

Shape = tuple[int, int, int]

# [n, k] @ [k, m], as (n, k, m)
CUDA_SHAPES: tuple[Shape, ...] = (
    (4096, 4096, 4096),
    (8192, 4096, 11008),
    (8192, 8192, 8192),
    (16384, 4096, 16384),
    (16384, 8192, 8192),
)
CPU_SHAPES: tuple[Shape, ...] = ((512, 512, 512), (1024, 1024, 1024), (512, 2048, 2048))
LIBRARIES = ("cublas", "cublaslt")  # torch's two for products on CUDA
# a copy this many times the last cache, so that no part of it stays there
COPY_CACHES = 8
CUDA_COPY_BYTES = 2**30
MOST_CPU_COPY_BYTES = 2**29
FREE_SHARE = 0.25  # of the free memory, for both buffers of the copy
AGAIN_SECONDS = 180.0  # a roof older than that is measured again


def measure_ceiling(
    device: torch.device,
    dtype: str,
    cache_bytes: int,
    *,
    shapes: tuple[Shape, ...] | None = None,
    copy_bytes: int | None = None,
    rounds: int = 10,
) -> Ceiling:
    """Measure the roof on random data, warmed up: median of `rounds` a shape, then the best one."""
    cuda = device.type == "cuda"
    rates: dict[tuple[Shape, str | None], float] = {}
    with product_precision(dtype):
        for library in LIBRARIES if cuda else (None,):
            with _library(library):
                for shape in shapes or (CUDA_SHAPES if cuda else CPU_SHAPES):
                    n, k, m = shape
                    seconds = _product_seconds(device, shape, dtype, rounds)
                    # 2 FLOPs per multiply-add
                    rates[shape, library] = 2 * n * k * m / seconds
    shape, library = max(rates, key=lambda found: rates[found])
    if copy_bytes is None:
        copy_bytes = copy_size(device, cache_bytes, devices.free_bytes(device))
    source = torch.randint(2**31 - 1, (copy_bytes // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    copy_s = _median_of(device, partial(target.copy_, source), rounds)
    del target
    read_s = _median_of(device, partial(torch.amax, source, 0), rounds)
    return Ceiling(
        dtype=dtype,
        flops_per_s=rates[shape, library],
        shape=shape,
        bytes_per_s=2 * source.nbytes / copy_s,  # read once, written once
        read_bytes_per_s=source.nbytes / read_s,
        blas_library=library,
    )


def copy_size(device: torch.device, cache_bytes: int, free_bytes: int) -> int:
    """Choose the bytes of one buffer of the copy: large beside the cache, small beside the memory.

    >>> copy_size(torch.device("cuda"), 60 * 2**20, 2**37) == 2**30
    True
    >>> copy_size(torch.device("cpu"), 480 * 2**20, 2**36) == 2**29
    True
    >>> copy_size(torch.device("cpu"), 32 * 2**20, 2**30) == 2**27  # an eighth of what is free
    True
    """
    if device.type == "cuda":
        wanted = max(CUDA_COPY_BYTES, COPY_CACHES * cache_bytes)
    else:
        wanted = min(COPY_CACHES * cache_bytes, MOST_CPU_COPY_BYTES)
    return min(wanted, int(FREE_SHARE * free_bytes) // 2) // 4 * 4


def _product_seconds(device: torch.device, shape: Shape, dtype: str, rounds: int) -> float:
    n, k, m = shape
    a = torch.randn(n, k, device=device, dtype=DTYPES[dtype])
    # as a linear layer has it: the second matrix is stored transposed
    b = torch.randn(m, k, device=device, dtype=DTYPES[dtype]).T
    out = torch.empty(n, m, device=device, dtype=DTYPES[dtype])
    return _median_of(device, partial(torch.mm, a, b, out=out), rounds)


def _median_of(device: torch.device, call: Call, rounds: int) -> float:
    watch = _watch(device, call)
    found: list[float] = []
    with watch.turn():
        while len(found) < rounds:
            found += watch.burst(HOT)
    return median(found)


@contextmanager
def _library(name: str | None) -> Iterator[None]:
    """Compute the products of the block with one library of torch's; restore the choice after."""
    if name is None:
        yield
        return
    prefer: Any = torch.backends.cuda.preferred_blas_library
    before = prefer()
    prefer(name)
    try:
        yield
    finally:
        prefer(before)


def _watch(device: torch.device, call: Call) -> Stopwatch:
    call_s = estimate_call(call, device)
    if device.type == "cuda":
        room = CaptureRoom(device)
        room.warm_up(call)
        return GraphStopwatch(
            [call], _no_flush, call_s, room=room, states=(HOT,), check=_no_check, spoils=False
        )
    return CpuStopwatch([call], _no_flush, call_s)


def _no_flush() -> None:
    pass


def _no_check(_out: object) -> None:
    pass


class Roofs:
    """The roof of each dtype, measured when it is first asked for and again when it is old."""

    def __init__(
        self,
        device: torch.device,
        cache_bytes: int,
        *,
        known: dict[str, Ceiling] | None = None,
        measure: Callable[..., Ceiling] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self.cache_bytes = device, cache_bytes
        self.measure, self.clock = measure or measure_ceiling, clock
        self.given = dict(known or {})
        self.first: dict[str, Ceiling] = {}
        self.last: dict[str, Ceiling] = dict(self.given)
        self._at: dict[str, float] = {}

    def is_due(self, dtype: str) -> bool:
        """Tell whether asking for the roof of a dtype measures it."""
        if dtype in self.given:
            return False
        return dtype not in self._at or self.clock() - self._at[dtype] > AGAIN_SECONDS

    def of(self, dtype: str, *, again: bool = False) -> Ceiling:
        """Return the roof of a dtype as it was not long ago; measure it first where that is due."""
        if dtype in self.given or not (again or self.is_due(dtype)):
            return self.last[dtype]
        if dtype not in self.first:
            found = self.measure(self.device, dtype, self.cache_bytes)
            self.first[dtype] = found
        else:
            before = self.first[dtype]
            found = self.measure(self.device, dtype, self.cache_bytes, shapes=(before.shape,))
            found = replace(found, drift=found.flops_per_s / before.flops_per_s - 1)
        self.last[dtype], self._at[dtype] = found, self.clock()
        return found
