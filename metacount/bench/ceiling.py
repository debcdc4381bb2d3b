"""The roof, measured in the same run: the best matrix product of a sweep, a large copy and read.

It is measured again while the run goes on: a device that warms up loses some of its clock, and a
share is of what the device could do at that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from metacount.bench import device as devices
from metacount.bench.case import DTYPES, product_precision
from metacount.bench.rows import Ceiling
from metacount.bench.timing import HOT, Call, CaptureRoom, GraphStopwatch, Stopwatch, estimate_call

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
    cuda, rates = device.type == "cuda", {}
    prefer: Any = torch.backends.cuda.preferred_blas_library
    before = prefer() if cuda else None
    try:
        with product_precision(dtype):
            for library in LIBRARIES if cuda else (None,):
                if cuda:
                    prefer(library)
                for n, k, m in shapes or (CUDA_SHAPES if cuda else CPU_SHAPES):
                    seconds = _product_seconds(device, (n, k, m), dtype, rounds)
                    # 2 FLOPs per multiply-add
                    rates[(n, k, m), library] = 2 * n * k * m / seconds
    finally:
        if cuda:
            prefer(before)
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
    watch = Stopwatch([call], _nothing, estimate_call(call, device), device)
    if device.type == "cuda":
        room = CaptureRoom(device)
        room.warm_up(call)
        watch = GraphStopwatch(
            [call], _nothing, watch.call_s, room=room, states=(HOT,), check=_nothing, spoils=False
        )
    samples: list[float] = []
    with watch.turn():
        while len(samples) < rounds:
            samples += watch.burst(HOT)
    return median(samples)


def _nothing(*_: object) -> None:
    pass


class Roofs:
    """The roof of each dtype in `last`, measured when first asked for and again when it is old."""

    def __init__(
        self,
        device: torch.device,
        *,
        measure: Callable[..., Ceiling] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self.cache_bytes = device, devices.cache_bytes_of(device)
        self.measure, self.clock = measure or measure_ceiling, clock
        self.first: dict[str, Ceiling] = {}
        self.last: dict[str, Ceiling] = {}
        self._at: dict[str, float] = {}

    def is_due(self, dtype: str) -> bool:
        """Tell whether asking for the roof of a dtype measures it."""
        return dtype not in self._at or self.clock() - self._at[dtype] > AGAIN_SECONDS

    def of(self, dtype: str, *, again: bool = False) -> Ceiling:
        """Return the roof of a dtype as it was not long ago; measure it first where that is due."""
        if not again and not self.is_due(dtype):
            return self.last[dtype]
        before = self.first.get(dtype)
        shapes = None if before is None else (before.shape,)
        roof = self.measure(self.device, dtype, self.cache_bytes, shapes=shapes)
        if before is not None:
            roof = replace(roof, drift=roof.flops_per_s / before.flops_per_s - 1)
        self.first.setdefault(dtype, roof)
        self.last[dtype], self._at[dtype] = roof, self.clock()
        return roof
