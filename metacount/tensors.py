"""Names of the types that modules run in, and the bytes that tensors hold."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Add up the logical bytes of tensors: values times the size of one."""
    return sum(t.numel() * t.element_size() for t in tensors)
