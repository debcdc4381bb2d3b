"""FLOPs of a forward: every operator that runs, priced by its shapes, put to a module's account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ..modules.attention import ScaledDotProduct, Visibility
from ..modules.block import Block
from ..modules.cache import LayerCache
from ..modules.position import RelativeScores
from .operators import flops_of
from .quick_meta import without_compiler
from .roles import ROLES, role_of

# Above this many pairs the mask is not laid out to be counted; the answer is then None.
MAX_PAIRS = 2**30


@dataclass(frozen=True, kw_only=True)
class FlopReport:
    """FLOPs of one forward, 2 per multiply-add, attention over all pairs.

    `causal_by_role` counts the attention products only over pairs that the mask keeps; None where
    the mask is too large to be laid out and counted.
    """

    by_role: dict[str, int]
    by_operator: dict[str, int]
    causal_by_role: dict[str, int] | None

    @property
    def matmul_flops(self) -> int:
        """Sum over roles."""
        return sum(self.by_role.values())

    @property
    def causal_matmul_flops(self) -> int | None:
        """Sum over roles of what the masks keep."""
        return None if self.causal_by_role is None else sum(self.causal_by_role.values())


class FlopCounter(TorchDispatchMode):
    """Counts inside `with counter.watching(model):`. Raises `UncountedOp` rather than guess.

    `ops` counts FLOPs by (role, operator, visibility); the visibility is that of the attention
    product being computed, None elsewhere.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.ops: Counter[tuple[str | None, str, Visibility | None]] = Counter()
        self._path: list[nn.Module] = []
        self._visibility: list[Visibility] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler (a second) to keep it away from this mode; nothing is
        # compiled here. Torch's own hook for modes that opt out.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, then charge for it."""
        out = func(*args, **(kwargs or {}))
        flops = flops_of(func, args, out)
        if flops:
            pairwise = self._path and isinstance(self._path[-1], ScaledDotProduct | RelativeScores)
            sees = self.hashable(self._visibility[-1]) if pairwise else None
            self.ops[role_of(self._path), str(func.overloadpacket), sees] += flops
        return out

    def hashable(self, value: Any) -> Any:
        """What stands for shapes and visibilities in a key: themselves, where sizes are ints."""
        return value

    def credit(self, block: Block, cost: Counter[Any]) -> None:
        """Put to the account what one block cost."""
        self.ops += cost

    def spent_in(self, block: Block, run: Callable[[], Tensor]) -> tuple[Tensor, Counter[Any]]:
        """What a run of a block gives, and what it cost, which is credited."""
        outside, self.ops = self.ops, Counter()
        try:
            out, cost = run(), self.ops
        finally:
            self.ops = outside
        self.credit(block, cost)
        return out, cost

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[Self]:
        """Count what runs inside, knowing at each operator which module runs it."""
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        blocks = [m for m in model.modules() if isinstance(m, Block)]
        record: dict[Any, _Replay] = {}
        for block in blocks:
            vars(block)["forward"] = _once(block, self, record)
        try:
            with without_compiler(), self:
                yield self
        finally:
            for handle in handles:
                handle.remove()
            for block in blocks:
                del vars(block)["forward"]

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._path.append(module)
        self._visibility += [a for a in args if isinstance(a, Visibility)][:1]

    def _leave(self, module: nn.Module, args: tuple[Any, ...], _out: Any) -> None:
        self._path.pop()
        if any(isinstance(a, Visibility) for a in args):
            self._visibility.pop()

    def report(self) -> FlopReport:
        """What was counted so far, by role and by operator."""
        by_role: dict[str, int] = dict.fromkeys(ROLES, 0)
        causal: dict[str, int] | None = dict.fromkeys(ROLES, 0)
        by_operator: Counter[str] = Counter()
        for (role, operator, sees), flops in self.ops.items():
            by_role[role or "other"] += flops
            by_operator[operator] += flops
            kept = flops if sees is None else _kept(flops, sees)
            if kept is None:
                causal = None
            elif causal is not None:
                causal[role or "other"] += kept
        return FlopReport(by_role=by_role, by_operator=dict(by_operator), causal_by_role=causal)


@dataclass(frozen=True, kw_only=True)
class _Replay:
    ops: Counter[Any]
    out: Tensor
    cached: tuple[tuple[tuple[Tensor, ...], int], ...]  # tensors kept, positions added


def _once(block: Block, counter: FlopCounter, record: dict[Any, _Replay]) -> Any:
    """The block's forward, run once for each kind of block and shape of input, on meta only.

    Two blocks are of one kind when their class says so (`kind`), when their parameters have the
    same names and shapes, and when they get inputs of the same shapes.
    """
    forward = type(block).forward

    def run(x_BSD: Tensor, visibility: Visibility, **rest: Any) -> Tensor:
        caches = [c for c in rest.values() if isinstance(c, LayerCache)]
        if not x_BSD.is_meta:
            return forward(block, x_BSD, visibility, **rest)
        given = tuple(
            (name, tuple(value.shape)) if isinstance(value, Tensor) else (name, value)
            for name, value in sorted(rest.items())
            if not isinstance(value, LayerCache)
        )
        held = tuple((c.keep, c.length, tuple(t.shape for t in c.tensors)) for c in caches)
        shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
        key = counter.hashable(
            (block.kind, shapes, tuple(x_BSD.shape), x_BSD.dtype, visibility, given, held)
        )
        replay = record.get(key)
        if replay is None:
            lengths = [c.length for c in caches]
            out, cost = counter.spent_in(block, lambda: forward(block, x_BSD, visibility, **rest))
            cached = tuple((c.tensors, c.length - n) for c, n in zip(caches, lengths, strict=True))
            record[key] = _Replay(ops=cost, out=out, cached=cached)
            return out
        counter.credit(block, replay.ops)
        for cache, (tensors, added) in zip(caches, replay.cached, strict=True):
            cache.tensors = tuple(torch.empty_like(t) for t in tensors)
            cache.length += added
        return replay.out

    return run


_KEPT: dict[Visibility, int] = {}


def kept_pairs(sees: Visibility) -> int | None:
    """Pairs that the mask keeps, by laying it out (in slices) and adding it up."""
    total = sees.n_queries * sees.n_keys
    if total > MAX_PAIRS:
        return None
    if sees not in _KEPT:
        rows = max(1, 2**22 // sees.n_keys)
        # outside of any counter: this is bookkeeping, not the model's work
        with torch.utils._python_dispatch._disable_current_modes():
            _KEPT[sees] = sum(
                int(sees.keep(torch.device("cpu"), slice(i, i + rows)).sum())
                for i in range(0, sees.n_queries, rows)
            )
    return _KEPT[sees]


def _kept(flops: int, sees: Visibility) -> int | None:
    pairs = kept_pairs(sees)
    if pairs is None:
        return None
    per_pair, rest = divmod(flops, sees.n_queries * sees.n_keys)
    if rest:
        raise ValueError(f"{flops} FLOPs are not a multiple of the pairs of {sees}")
    return per_pair * pairs
