"""One thread (the tensors are tiny) and the same random numbers for every test."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Inputs are drawn with `torch.randn` in the tests; each test starts from one seed."""
    torch.manual_seed(20)
