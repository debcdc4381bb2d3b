"""Is the stopwatch right? On a CUDA device: against the profiler, and against itself.

* one small kernel, hot, with 1, 3 and 16 input sets: the three must agree, and with the profiler;
* the same after a flush that only reads, and after one that writes: lines that were changed are
  written back while the next call is timed, and the difference says how much that takes;
* a copy beside a sum; the best product at the beginning and under load; clocks and power meanwhile.

Prints a table and appends a line of JSON to `benchmarks/results/gpu-calibration.jsonl`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from metacount.bench.device import (
    cache_bytes_of,
    environment,
    flush_bytes,
    measure_ceiling,
    monitor_of,
)
from metacount.bench.rows import median_interval
from metacount.bench.timing import COLD, HOT, CaptureRoom, GraphStopwatch, Stopwatch, flusher

FILE = Path(__file__).resolve().parent / "results" / "gpu-calibration.jsonl"
SIZES = (2**16, 2**20, 2**24, 2**28)  # float32 values: two in the L2, two beyond it
BURSTS = 12
LOAD_SECONDS = 8.0

Call = Callable[[], Any]


def read(watch: Any, state: str) -> list[float]:
    """A median a turn, so that captures vary too."""
    found = []
    for _ in range(BURSTS):
        with watch.turn():
            found.append(median(watch.burst(state)))
    return found


def graph_watch(calls: list[Call], flush: Call, device: torch.device) -> GraphStopwatch:
    """The stopwatch as the benchmarks have it, without a reference to compare with."""
    room = CaptureRoom(device)
    room.warm_up(calls[0])
    return GraphStopwatch(calls, flush, 1e-4, room=room, states=(HOT, COLD), check=lambda out: None)


def profiled(call: Call) -> float:
    """The kernel's own time, by the profiler, launched again and again."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(20):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(100):
            call()
        torch.cuda.synchronize()
    return median([e.device_time for e in seen.events() if e.device_time > 0]) * 1e-6


def small_kernel(device: torch.device, n: int) -> dict[str, Any]:
    """One elementwise kernel over `n` values, in every way."""
    tensors = [torch.randn(n, device=device) for _ in range(16)]
    calls: list[Call] = [partial(torch.add, x, 1) for x in tensors]
    cache = cache_bytes_of(device)
    size = flush_bytes(device, cache)
    reads = flusher(device, size)
    buffer = torch.zeros(size // 4, dtype=torch.int32, device=device)
    found: dict[str, Any] = {"values": n, "profiler_s": profiled(calls[0])}
    for sets in (1, 3, 16):
        values = read(graph_watch(calls[:sets], reads, device), HOT)
        found[f"hot_{sets}_s"], found[f"hot_{sets}_interval_s"] = (
            median(values),
            median_interval(values),
        )
    found["cold_after_reading_s"] = median(read(graph_watch(calls[:3], reads, device), COLD))
    writes = partial(buffer.add_, 1)
    found["cold_after_writing_s"] = median(read(graph_watch(calls[:3], writes, device), COLD))
    found["eager_s"] = median(read(Stopwatch(calls[:3], reads, 1e-5, device), HOT))
    return found


def under_load(device: torch.device) -> dict[str, Any]:
    """The best product cold and after some seconds of products, with clocks and power."""
    cache = cache_bytes_of(device)
    first = measure_ceiling(device, "bf16", cache)
    n, k, m = first.shape
    a = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    b = torch.randn(k, m, device=device, dtype=torch.bfloat16)
    found: dict[str, Any] = {"ceiling": vars(first)}
    monitor = monitor_of(device)
    if monitor is None:
        return found | {"clocks": "pip install nvidia-ml-py"}
    with monitor:
        began = time.perf_counter()
        while time.perf_counter() - began < LOAD_SECONDS:
            for _ in range(50):
                torch.mm(a, b)
            torch.cuda.synchronize(device)
        late = (began + LOAD_SECONDS / 2, time.perf_counter())
        found["clocks"] = monitor.of([late], 2 * n * k * m / first.flops_per_s)
    return found | {"ceiling_after": vars(measure_ceiling(device, "bf16", cache))}


def verdicts(kernels: list[dict[str, Any]]) -> list[str]:
    """What is not as it should be, in words."""
    wrong = []
    for one in kernels:
        hot = [one[f"hot_{sets}_s"] for sets in (1, 3, 16)]
        size = f"{one['values']} values"
        # from the L2 and beyond it a kernel takes different times; within it sets must not matter
        if one["values"] == SIZES[0] and max(hot) > 1.05 * min(hot):
            wrong.append(f"{size}: hot with 1, 3 and 16 sets apart by more than 5 %: {hot}")
        if not 0.85 * one["profiler_s"] < hot[0] < 1.15 * one["profiler_s"] + 1e-6:
            wrong.append(f"{size}: hot {hot[0]}, the profiler says {one['profiler_s']}")
        if one["cold_after_reading_s"] < 0.98 * hot[0]:
            wrong.append(f"{size}: faster cold than hot")
    return wrong


def main() -> int:
    """Measure, print, save; 1 where something is not as it should be."""
    if not torch.cuda.is_available():
        print("no CUDA device here", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    with torch.no_grad():
        kernels = [small_kernel(device, n) for n in SIZES]
        load = under_load(device)
    names = [name for name in kernels[0] if name.endswith("_s") and "interval" not in name]
    for name in names:
        print(f"{name:<22}" + "".join(f"{1e6 * one[name]:>12.2f} µs" for one in kernels))
    print(json.dumps(load, indent=1))
    wrong = verdicts(kernels)
    line = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **environment(device),
        "kernels": kernels,
        "load": load,
        "wrong": wrong,
    }
    with FILE.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
    for text in wrong:
        print(f"WRONG: {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
