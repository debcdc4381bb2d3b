"""Runs attention of ranks that hold parts of each sequence: torch's context parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from metacount.measure.torch_private import ring_attention
from metacount.training.attention import by_flash

ATTENTION = F.scaled_dot_product_attention  # torch puts its own in its place


class RingAttention(TorchFunctionMode):
    """Inside, attention runs by flash attention's kernel of CUDA, which torch's ring takes."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run the kernel, or let torch."""
        run: Callable[..., object] = by_flash if func is ATTENTION else func
        return run(*args, **(kwargs or {}))


@contextmanager
def ring(mesh: DeviceMesh | None) -> Iterator[None]:
    """Let ranks of a mesh exchange keys and values until the block ends;
    without a mesh, change nothing.
    """
    if mesh is None:
        yield
        return
    with ring_attention(mesh):
        yield
