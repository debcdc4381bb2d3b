"""One thread: the tensors are tiny; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch.manual_seed(20)
    with torch.no_grad():
        yield
