"""What is timed: a case (one layer at one size), the variants that compute it, and their work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from metacount.bench.rows import FORWARD, Work
from metacount.modules import build

Inputs = tuple[Tensor, ...]
# what is compared: one tensor [.., D], or several where a call gives several
Expected = Sequence[Tensor]
Reference = Callable[[Inputs, list[int]], Expected]
Output = Tensor | tuple[Tensor, ...]  # what a call gives
Pick = Callable[[Output, list[int]], Expected]

TF32 = "tf32"  # float32 tensors, products in the tensor cores' short form
DTYPES = {**build.DTYPES, TF32: torch.float32}


@contextmanager
def product_precision(dtype: str) -> Iterator[None]:
    """Compute the block's float32 products as the dtype says: tf32 short, fp32 full; undo after."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == TF32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rows_of(out: Output, rows: list[int]) -> Expected:
    """Take rows of the flattened output, which is one tensor [..., D]."""
    assert isinstance(out, Tensor)
    y_ND = out.flatten(0, -2)
    return (y_ND[rows],)


class Refused(Exception):
    """A variant that is not timed: the status of its row, why, and what is known of it."""

    def __init__(self, status: str, reason: str, **known: object) -> None:
        super().__init__(reason)
        self.status, self.reason, self.known = status, reason, known


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compute the layer. `module(*inputs)` gives what `pick` takes rows of.

    `reference(inputs, rows)` gives the same in float64. `inputs` are sets to rotate through.
    `reads_back` says that the host waits for a value of the device in the middle, which no CUDA
    graph can hold. Where `shows_mask` is set, the pairs that the mask keeps can be counted too, and
    must give `work.needed_flops`. `missing` says how to get what the variant needs and is not here;
    `foreign` code may raise anything, which is a row. Where a kernel shows no operators, FLOPs are
    counted on `stand_in`, of the same shapes. Ratios are to the fastest `baseline`.
    """

    name: str
    module: nn.Module
    work: Work
    reference: Reference
    inputs: list[Inputs]
    compiled: bool = False
    reads_back: bool = False
    shows_mask: bool = False
    missing: str | None = None
    foreign: bool = False
    stand_in: nn.Module | None = None
    stand_in_name: str | None = None
    pick: Pick = rows_of
    baseline: bool = False
    direction: str = FORWARD

    def may_raise(self, error: BaseException) -> bool:
        """Tell whether an error is a row, of a device, a compiler or other people's code; every
        other one is a mistake of this program.
        """
        expected = isinstance(error, RuntimeError | MemoryError | Refused)
        return expected or self.foreign or self.compiled


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer of one model at one size; `build(device, n_sets)` allocates its variants.

    `needs_bytes` is a rough count of what the case allocates, one variant at a time, `set_bytes` of
    one input set; `checked_rows` is how many of the `rows` of the output are compared with the
    reference.
    """

    topic: str
    model: str
    dtype: str
    sizes: dict[str, int]
    workload: dict[str, int | str]
    rows: int
    checked_rows: int
    needs_bytes: int
    set_bytes: int
    build: Callable[[torch.device, int], list[Variant]]

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """Their names in order, from a build on meta, which costs nothing."""
        with torch.random.fork_rng(devices=[]):
            built = self.build(torch.device("meta"), 1)
        return tuple(dict.fromkeys(variant.name for variant in built))

    @property
    def label(self) -> str:
        """The case in a few words: model, workload, dtype."""
        words = [f"{name} {value}" for name, value in self.workload.items()]
        return ", ".join((self.model, *words, self.dtype))


def rows_to_check(n_rows: int, wanted: int) -> list[int]:
    """Choose at most `wanted` rows, spread evenly, the first and the last among them.

    >>> rows_to_check(3, 8), rows_to_check(100, 4)
    ([0, 1, 2], [0, 33, 66, 99])
    """
    if n_rows <= wanted:
        return list(range(n_rows))
    return [i * (n_rows - 1) // (wanted - 1) for i in range(wanted)]
