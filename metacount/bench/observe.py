"""What a variant does before it is timed: FLOPs and bytes by operator, memory, and its result."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from metacount.bench.case import Expected, Pick, Variant, rows_of
from metacount.measure.ours import reference_counter
from metacount.measure.torch_private import (
    DispatchMode,
    returns_its_input,
    storage_key,
    tree_leaves,
)

if TYPE_CHECKING:
    from metacount.bench.case import Output
    from metacount.measure.torch_private import OpOverload

# Largest relative error that rounding explains, as ‖y - reference‖ / ‖reference‖ over the rows
# compared. bf16 and fp16 products add up in float32 and round each result once: half a unit in the
# last place, 2^-8 and 2^-11. A layer rounds up to about ten times on the way (projections, scores,
# weights, activation, product, sum), with random signs, and most of them matter little; 4 such
# roundings are allowed, and layers come to about one. A product in tf32 rounds what it multiplies
# to the digits of fp16. In fp32 the sums round as well, thousands of terms at 2^-24: 1e-5 allows
# about 170. A wrong layer (an activation left out, a head or an expert swapped) is off by more than
# 0.1.
TOLERANCE = {"fp32": 1e-5, "tf32": 4 * 2**-11, "fp16": 4 * 2**-11, "bf16": 4 * 2**-8}

UNWRITTEN = (
    "aten.empty",
    "aten.empty_like",
    "aten.empty_strided",
    "aten.new_empty",
    "aten._unsafe_view",
)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One eager forward. `masked_flops` is None where no mask was seen.

    `operator_bytes` is the size of what every operator is given and makes, each tensor once per
    operator: the traffic of a layer that fuses nothing (a grouped product may read less of its
    matrices). `held_bytes` is what was there before and was used,
    weights and inputs; `working_bytes` the most that was alive of what the forward itself made.
    `operators` are those that cost FLOPs: they say which attention kernel ran.
    """

    matmul_flops: int
    operators: dict[str, int]
    masked_flops: int | None
    operator_bytes: int
    held_bytes: int
    working_bytes: int


class _Traffic(DispatchMode):
    """Adds up the bytes of every operator's tensors, and follows which storages are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.held = self.alive = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        given = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, Tensor)]
        for tensor in given:
            storage = tensor.untyped_storage()
            if storage_key(storage) not in self._known:
                self._known.add(storage_key(storage))
                self.held += storage.nbytes()
        out = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if not returns_its_input(func) and str(func.overloadpacket) not in UNWRITTEN:
            self.bytes += sum(map(touched_bytes, given)) + sum(map(touched_bytes, made))
        for tensor in made:
            self._follow(tensor)
        return out

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        name = storage_key(storage)
        if name in self._known:
            return
        self._known.add(name)
        self.alive += storage.nbytes()
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._gone, name, storage.nbytes())

    def _gone(self, name: int, size: int) -> None:
        self._known.discard(name)
        self.alive -= size


def touched_bytes(tensor: Tensor) -> int:
    """Count the bytes of a tensor's values; an axis that only repeats them counts once."""
    count = tensor.element_size() if tensor.numel() else 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count


def observe(variant: Variant) -> Observed:
    """Run the module once, uncompiled, and count. `UncountedOp` for an operator nobody priced."""
    counter, traffic = reference_counter(), _Traffic()
    module = variant.stand_in or variant.module
    with traffic, counter.watching(module):
        module(*variant.inputs[0])
    report = counter.report()
    return Observed(
        matmul_flops=report.matmul_flops,
        operators=report.by_operator,
        masked_flops=report.causal_matmul_flops if variant.shows_mask else None,
        operator_bytes=traffic.bytes,
        held_bytes=traffic.held,
        working_bytes=traffic.peak,
    )


def error_in(out: Output, rows: list[int], expected: Expected, pick: Pick = rows_of) -> float:
    """Find the largest ‖got - expected‖ / ‖expected‖ of the blocks compared.

    Not a number where any value is not finite, also one that is not compared.
    """
    for tensor in out if isinstance(out, tuple) else (out,):
        if not bool(torch.isfinite(tensor).all()):
            return math.nan
    pairs = zip(pick(out, rows), expected, strict=True)
    errors = [float((got.double() - wanted).norm() / wanted.norm()) for got, wanted in pairs]
    return math.nan if any(map(math.isnan, errors)) else max(errors)
