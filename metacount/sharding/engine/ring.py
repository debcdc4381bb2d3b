"""Runs attention of ranks that hold parts of each sequence: torch's context parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from metacount.errors import InputError
from metacount.measure.torch_private import ring_attention
from metacount.training.attention import by_flash

ATTENTION = F.scaled_dot_product_attention  # torch puts its own in its place

NOT_TAKEN = "inputs need to be redistributed"  # torch's own words


class RingAttention(TorchFunctionMode):
    """Inside, attention runs by flash attention's kernel of CUDA, which torch's ring takes."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run the kernel, or let torch.

        Raises `InputError` for heads that torch's ring does not take: with 2.11 DeepSeek-V2's.
        """
        if func is not ATTENTION:
            return func(*args, **(kwargs or {}))
        try:
            return by_flash(*args, **(kwargs or {}))
        except AssertionError as error:
            if str(error) != NOT_TAKEN:
                raise
            raise InputError(
                f"torch {torch.__version__} cannot run this model's attention on ranks that hold "
                "parts of a sequence; leave cp out, take --formula, or install torch 2.13"
            ) from None


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
