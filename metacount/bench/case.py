"""What is timed: a case (one layer at one size), the variants that compute it, and their work.

Bytes that must move are every weight that is used, the input, the output and, with a KV cache,
what is read from it and written to it, each once. What lies between two operators of a layer is
not among them: a fused kernel can keep it on the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from metacount.bench.rows import FORWARD, Work
from metacount.formulas.masks import causal_pairs
from metacount.frozen import frozen
from metacount.modules import build

Inputs = tuple[Tensor, ...]
# what is compared: one tensor [.., D], or several where a call gives several
Expected = Sequence[Tensor]
Reference = Callable[[Inputs, list[int]], Expected]
Output = Tensor | tuple[Tensor, ...]  # what a call gives
Pick = Callable[[Output, list[int]], Expected]
Module = TypeVar("Module", bound=nn.Module)

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


@frozen
class Positions:
    """`batch_size` sequences of `seq_len` new tokens that attend to `kv_len` positions, causally.

    Prefill has kv_len = seq_len, decode seq_len = 1.
    """

    batch_size: int
    seq_len: int
    kv_len: int

    @property
    def past(self) -> int:
        """Positions before the new tokens."""
        return self.kv_len - self.seq_len

    @property
    def n_tokens(self) -> int:
        """New tokens in all sequences."""
        return self.batch_size * self.seq_len

    @property
    def all_pairs(self) -> int:
        """Pairs of a query and a position, the mask ignored."""
        return self.batch_size * self.seq_len * self.kv_len

    @property
    def kept_pairs(self) -> int:
        """Pairs that the causal mask keeps: all, less the triangle ahead of the new tokens.

        >>> Positions(batch_size=1, seq_len=5, kv_len=5).kept_pairs  # 1 + 2 + 3 + 4 + 5
        15
        >>> Positions(batch_size=3, seq_len=1, kv_len=7).kept_pairs
        21
        """
        ahead = causal_pairs(self.seq_len) - self.seq_len
        return int(self.batch_size * (self.seq_len * self.kv_len - ahead))

    @property
    def workload(self) -> dict[str, int | str]:
        """The positions under their public names, with the phase."""
        phase = "decode" if self.seq_len == 1 and self.kv_len > 1 else "prefill"
        sizes = {name: getattr(self, name) for name in ("batch_size", "seq_len", "kv_len")}
        return {"phase": phase, **sizes}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compute the layer. `module(*inputs)` gives what `pick` takes rows of.

    `reference(inputs, rows)` gives the same in float64. `inputs` are sets to rotate through.
    `compiled` names a mode of torch.compile (`default`, `max-autotune-no-cudagraphs`).
    `reads_back` says that the host waits for a value of the device in the middle, which no CUDA
    graph can hold. Where `shows_mask` is set, the pairs that the mask keeps can be counted too, and
    must give `work.needed_flops`. `missing` says how to get what the variant needs and is not here;
    `foreign` code may raise anything, which is a row. Where a kernel shows no operators, FLOPs are
    counted on `stand_in`, of the same shapes. A `part` of the layer has no ratio; ratios are to the
    fastest `baseline`. `d_ff` is given where times are compared over widths.
    """

    name: str
    module: nn.Module
    work: Work
    reference: Reference
    inputs: list[Inputs]
    compiled: str | None = None
    reads_back: bool = False
    shows_mask: bool = False
    missing: str | None = None
    foreign: bool = False
    stand_in: nn.Module | None = None
    stand_in_name: str | None = None
    pick: Pick = rows_of
    part: bool = False
    baseline: bool = False
    direction: str = FORWARD
    d_ff: int | None = None

    def may_raise(self, error: BaseException) -> bool:
        """Tell whether an error is a row, of a device, a compiler or other people's code; every
        other one is a mistake of this program.
        """
        expected = isinstance(error, RuntimeError | MemoryError | Refused)
        return expected or self.foreign or self.compiled is not None


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


def weight(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    """Draw random values that keep the size of what they multiply: a matrix of variance 1 / (last
    axis), the weight of a norm around 1, so that leaving it out shows.
    """
    drawn = torch.randn(shape, device=device, dtype=dtype)
    drawn = 1 + drawn / 4 if len(shape) == 1 else drawn.mul_(shape[-1] ** -0.5)
    return nn.Parameter(drawn, requires_grad=False)


def with_weights(module: Module, weights: Mapping[str, nn.Parameter]) -> Module:
    """Give a module, built on meta, these parameters by their paths; return it."""
    for path, values in weights.items():
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, values)
    return module


class Apply(nn.Module):
    """A function of the inputs and of what is given here, weights for example."""

    def __init__(self, function: Callable[..., Any], *given: object) -> None:
        super().__init__()
        self.function, self.given = function, given
        self.weights = nn.ParameterList(x for x in given if isinstance(x, nn.Parameter))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the function."""
        y: Tensor = self.function(*inputs, *self.given)
        return y


def work_of(flops: int, *moved: Tensor, needed: int | None = None, more: int = 0) -> Work:
    """Count the work of so many FLOPs (`needed`: all of them), these tensors and `more` bytes."""
    return Work(
        matmul_flops=flops,
        needed_flops=flops if needed is None else needed,
        moved_bytes=sum(t.nbytes for t in moved) + more,
    )


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
    """Say what to install for a way to run; None where it is here, or needs nothing."""
    module, package = PACKAGES.get(way, ("", ""))
    return f"pip install {package}" if module and find_spec(module) is None else None
