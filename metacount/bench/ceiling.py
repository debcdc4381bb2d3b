"""The roof, measured in the same run: the best matrix product of a sweep, and a large copy."""

from __future__ import annotations

from functools import partial

import torch

from ..build import DTYPES
from .rows import Ceiling, quantile
from .timing import Call, CaptureRoom, CpuStopwatch, CudaStopwatch, Stopwatch

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
# a copy this many times the last cache, so that no part of it stays there
COPY_CACHES = 8
CUDA_COPY_BYTES = 2**30
CUDA_REPEATS = 4


def measure_ceiling(
    device: torch.device,
    dtype: str,
    cache_bytes: int,
    *,
    shapes: tuple[Shape, ...] | None = None,
    copy_bytes: int | None = None,
    rounds: int = 10,
) -> Ceiling:
    """Random data, warmed up; the median of `rounds` of each shape, then the best shape."""
    cuda = device.type == "cuda"
    rates: dict[Shape, float] = {}
    for n, k, m in shapes or (CUDA_SHAPES if cuda else CPU_SHAPES):
        a = torch.randn(n, k, device=device, dtype=DTYPES[dtype])
        # as a linear layer has it: the second matrix is stored transposed
        b = torch.randn(m, k, device=device, dtype=DTYPES[dtype]).T
        out = torch.empty(n, m, device=device, dtype=DTYPES[dtype])
        watch = _watch(device, partial(torch.mm, a, b, out=out))
        # 2 FLOPs per multiply-add
        rates[n, k, m] = 2 * n * k * m / quantile([watch.hot() for _ in range(rounds)], 0.5)
    shape = max(rates, key=lambda found: rates[found])
    if copy_bytes is None:
        copy_bytes = max(CUDA_COPY_BYTES if cuda else 0, COPY_CACHES * cache_bytes)
    source = torch.randint(2**31 - 1, (copy_bytes // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    watch = _watch(device, partial(target.copy_, source))
    copy_s = quantile([watch.hot() for _ in range(rounds)], 0.5)
    return Ceiling(
        dtype=dtype,
        flops_per_s=rates[shape],
        shape=shape,
        bytes_per_s=2 * source.nbytes / copy_s,  # read once, written once
    )


def _watch(device: torch.device, call: Call) -> Stopwatch:
    if device.type == "cuda":
        # several in one graph, so that the events around them weigh little
        return CudaStopwatch(
            [call] * CUDA_REPEATS, lambda: None, room=CaptureRoom(device), capture=True
        )
    return CpuStopwatch([call], lambda: None)
