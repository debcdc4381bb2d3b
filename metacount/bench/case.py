"""What is timed: a case (one layer at one size), and the variants that compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from metacount.bench.rows import FORWARD
from metacount.bench.work import Work
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


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compute the layer. `module(*inputs)` gives what `pick` takes rows of.

    `reference(inputs, rows)` gives the same in float64. `compiled` names a mode of torch.compile
    (`default`, `max-autotune-no-cudagraphs`). `reads_back` says that the host waits for a value of
    the device in the middle, which no CUDA graph can hold. Where `shows_mask` is set, the pairs
    that the mask keeps can be counted too, and must give `work.needed_flops`. `missing` says how to
    get what the variant needs and is not here; `foreign` code may raise anything, which is a row.
    Where a kernel shows no operators, FLOPs are counted on `stand_in`, of the same shapes.
    `inputs` are the variant's own, where it is a part of the layer (`part`) or needs more.
    """

    name: str
    module: nn.Module
    work: Work
    reference: Reference
    compiled: str | None = None
    reads_back: bool = False
    shows_mask: bool = False
    missing: str | None = None
    foreign: bool = False
    stand_in: nn.Module | None = None
    stand_in_name: str = ""
    pick: Pick = rows_of
    inputs: list[Inputs] | None = None
    part: bool = False
    direction: str = FORWARD
    d_ff: int | None = None  # of a gated block, where its time is compared over widths

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the others of its case."""
        return self.name, self.direction


@dataclass(frozen=True, kw_only=True)
class Built:
    """A case with its tensors: input sets to rotate through, and variants that share weights."""

    inputs: list[Inputs]
    variants: list[Variant]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer of one model at one size; `build(device, n_sets)` allocates it.

    `variants` are the names in order; `baselines` those that the fastest of is the baseline (the
    first variant, where none are named). `needs_bytes` is a rough count of what the case allocates,
    one variant at a time, `set_bytes` of one input set; `checked_rows` is how many of the `rows`
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
    baselines: tuple[str, ...] = ()

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


def weight(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    """Draw a random matrix that keeps the size of what it multiplies: variance 1 / (last axis)."""
    drawn = torch.randn(shape, device=device, dtype=dtype).mul_(shape[-1] ** -0.5)
    return nn.Parameter(drawn, requires_grad=False)


def gain(width: int, device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    """Draw the weight of a norm: around 1, so that leaving it out shows."""
    drawn = 1 + torch.randn(width, device=device, dtype=dtype) / 4
    return nn.Parameter(drawn, requires_grad=False)


def part(whole: Tensor, rows: slice) -> nn.Parameter:
    """Return some rows of another variant's matrix as a parameter, in the same memory."""
    return nn.Parameter(whole[rows], requires_grad=False)


# way: the module it needs, and the package that holds it
PACKAGES = {
    "-liger": ("liger_kernel", "liger-kernel"),
    "-triton": ("triton", "triton"),
    "-fa3": (
        "flash_attn_interface",
        "git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper",
    ),
    "-flashinfer": ("flashinfer", "flashinfer-python"),
    "-flashmla": ("flash_mla", "git+https://github.com/deepseek-ai/FlashMLA"),
}


def missing_package(way: str) -> str | None:
    """Say what to install for a way to run, or None where it is here."""
    module, package = PACKAGES[way]
    return None if find_spec(module) is not None else f"pip install {package}"
