"""One thread: the tensors are tiny; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from metacount.bench.clocks import stopwatch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch.manual_seed(20)
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def short_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of tiny layers on a busy machine are worth nothing: take few of them."""
    monkeypatch.setattr(stopwatch, "SAMPLE_SECONDS", 1e-5)
    monkeypatch.setattr(stopwatch, "BURST_SECONDS", 1e-5)
