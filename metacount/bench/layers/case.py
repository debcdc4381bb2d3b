"""What is timed: a case (one layer at one size), and the variants that compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..work import Work

Inputs = tuple[Tensor, ...]
Reference = Callable[[Inputs, list[int]], Tensor]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compute the layer. `module(*inputs)` gives [..., D].

    `reference(inputs, rows)` gives rows of the flattened output in float64. `compiled` puts the
    module under torch.compile. `reads_back` says that the host waits for a value of the device in
    the middle, which no CUDA graph can hold. Where `shows_mask` is set, the pairs that the mask
    keeps can be counted too, and must give `work.needed_flops`.
    """

    name: str
    module: nn.Module
    work: Work
    reference: Reference
    compiled: bool = False
    reads_back: bool = False
    shows_mask: bool = False


@dataclass(frozen=True, kw_only=True)
class Built:
    """A case with its tensors: input sets to rotate through, and variants that share weights."""

    inputs: list[Inputs]
    variants: list[Variant]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer of one model at one size; `build(device, n_sets)` allocates it.

    `variants` are the names in order, the first is the baseline. `needs_bytes` is a rough count of
    what the case allocates, `set_bytes` of one input set; `checked_rows` is how many of the `rows`
    of the output are compared with the reference.
    """

    topic: str
    model: str
    dtype: str
    sizes: dict[str, int]
    workload: dict[str, int | str]
    variants: tuple[str, ...]
    rows: int
    checked_rows: int
    needs_bytes: int
    set_bytes: int
    build: Callable[[torch.device, int], Built]

    @property
    def label(self) -> str:
        """The case in a few words: model, workload, dtype."""
        words = [f"{name} {value}" for name, value in self.workload.items()]
        return ", ".join((self.model, *words, self.dtype))


def weight(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    """A random matrix that keeps the size of what it multiplies: variance 1 / (last axis)."""
    drawn = torch.randn(shape, device=device, dtype=dtype).mul_(shape[-1] ** -0.5)
    return nn.Parameter(drawn, requires_grad=False)


def gain(width: int, device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    """The weight of a norm: around 1, so that leaving it out shows."""
    drawn = 1 + torch.randn(width, device=device, dtype=dtype) / 4
    return nn.Parameter(drawn, requires_grad=False)


def part(whole: Tensor, rows: slice) -> nn.Parameter:
    """Some rows of another variant's matrix as a parameter, in the same memory."""
    return nn.Parameter(whole[rows], requires_grad=False)
