"""Bytes that tensors hold."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Add up the logical bytes of tensors: values times the size of one."""
    return sum(t.numel() * t.element_size() for t in tensors)
