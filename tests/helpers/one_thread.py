"""One thread and a clock of its own: the tensors are tiny; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from metacount.bench import rows, timing
from metacount.bench.layers import ForwardBackward

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch.manual_seed(20)
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def short_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of tiny layers are worth nothing: few samples, on a clock that ticks when it is asked,
    once more for a backward.
    """
    ticks, both = count(), ForwardBackward.forward
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 1024, process_time=lambda: 0.0)
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(ForwardBackward, "forward", lambda *x: (next(ticks), both(*x))[1])
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-5)
    monkeypatch.setattr(timing, "BURST_SECONDS", 1e-5)
    monkeypatch.setattr(rows, "MOST_SPREAD", float("inf"))
    monkeypatch.setattr(rows, "MOST_SHARE", float("inf"))
    monkeypatch.setattr(rows, "LEAST_OF_A_CORE", 0.0)
