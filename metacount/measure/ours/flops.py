"""Counts FLOPs of our own modules: by role and operator, and over the pairs that a mask keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from metacount.measure.counter import Cost, FlopCounter
from metacount.measure.ours.roles import role_of
from metacount.measure.result import MeasuredFlops
from metacount.measure.roles import ROLES
from metacount.measure.torch_private import unwatched
from metacount.modules.attention import ScaledDotProduct, Visibility
from metacount.modules.block import Block
from metacount.modules.cache import LayerCache, StateCache
from metacount.modules.indexer import BlockScores, IndexScores
from metacount.modules.position import RelativeScores

if TYPE_CHECKING:
    from collections.abc import Callable

# Modules that run nothing but products between positions.
PAIRWISE = (ScaledDotProduct, RelativeScores, IndexScores, BlockScores)
# Above this many pairs the mask is not laid out to be counted; the answer is then None.
MAX_PAIRS = 2**30


class ReferenceCounter(FlopCounter):
    """Counts inside `with counter.watching(model):` what our own modules run.

    A charge's detail is the visibility of the attention product being computed, None elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self._visibility: list[Visibility] = []

    def role_and_detail(self, path: list[nn.Module]) -> tuple[str | None, object]:
        """Return the role of the owner, and which pairs an attention product computes."""
        pairwise = path and isinstance(path[-1], PAIRWISE)
        return role_of(path), self.hashable(self._visibility[-1]) if pairwise else None

    def hashable(self, value: object) -> object:
        """Return what stands for shapes and visibilities in a key:
        themselves, where sizes are ints.
        """
        return value

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[Self]:
        """Count what runs inside; on meta, blocks that are alike run once."""
        blocks = [m for m in model.modules() if isinstance(m, Block)]
        record: dict[object, _Replay] = {}
        for block in blocks:
            vars(block)["forward"] = _once(block, self, record)
        try:
            with super().watching(model):
                yield self
        finally:
            for block in blocks:
                del vars(block)["forward"]

    def entered(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """Note that a module's forward begins, perhaps with a visibility."""
        super().entered(module, args)
        self._visibility += [a for a in args if isinstance(a, Visibility)][:1]

    def left(self, module: nn.Module, args: tuple[object, ...], out: object) -> None:
        """Note that a module's forward ends."""
        super().left(module, args, out)
        if any(isinstance(a, Visibility) for a in args):
            self._visibility.pop()

    def report(self) -> MeasuredFlops:
        """Report what was counted so far, by role and by operator."""
        causal: dict[str, int] | None = dict.fromkeys(ROLES, 0)
        for charge, flops in self.totals().items():
            kept = flops if charge.detail is None else _kept(flops, charge.detail)
            if kept is None:
                causal = None
            elif causal is not None:
                causal[charge.role or "other"] += kept
        return MeasuredFlops(
            by_role=self.by_role(),
            by_operator=self.by_operator(),
            by_module=self.by_module(),
            causal_by_role=causal,
        )


@dataclass(frozen=True, kw_only=True)
class _Replay:
    ran: Block  # whose cost it is
    cost: Cost
    out: object
    cached: tuple[tuple[tuple[Tensor, ...], int], ...]  # tensors kept, positions added
    states: tuple[tuple[dict[str, Tensor], int], ...]  # the same of mixers with a state


def _once(
    block: Block, counter: ReferenceCounter, record: dict[object, _Replay]
) -> Callable[..., object]:
    """Wrap the block's forward to run once for each kind of block and shape of input, on meta only.

    Two blocks are of one kind when their class says so (`kind`), when their parameters have the
    same names and shapes, and when they get inputs of the same shapes.
    """
    forward = type(block).forward

    def run(x_BSD: Tensor, visibility: Visibility, **rest: Any) -> object:
        caches = [c for c in rest.values() if isinstance(c, LayerCache)]
        states = [c for c in rest.values() if isinstance(c, StateCache)]
        if not x_BSD.is_meta:
            return forward(block, x_BSD, visibility, **rest)
        given = tuple(
            (name, tuple(value.shape)) if isinstance(value, Tensor) else (name, value)
            for name, value in sorted(rest.items())
            if not isinstance(value, LayerCache | StateCache)
        )
        held = tuple((c.keep, c.length, tuple(t.shape for t in c.tensors)) for c in caches)
        read = tuple(
            (c.length, tuple((name, t.shape) for name, t in sorted(c.states.items())))
            for c in states
        )
        shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
        key = counter.hashable(
            (block.kind, shapes, tuple(x_BSD.shape), x_BSD.dtype, visibility, given, held, read)
        )
        replay = record.get(key)
        if replay is None:
            before, read_before = [c.length for c in caches], [c.length for c in states]
            out, cost = counter.spent_in(lambda: forward(block, x_BSD, visibility, **rest))
            cached = tuple((c.tensors, c.length - n) for c, n in zip(caches, before, strict=True))
            kept = tuple(
                ({**c.states}, c.length - n) for c, n in zip(states, read_before, strict=True)
            )
            record[key] = _Replay(ran=block, cost=cost, out=out, cached=cached, states=kept)
            return out
        counter.replay(replay.cost, replay.ran, block)
        for cache, (tensors, added) in zip(caches, replay.cached, strict=True):
            cache.tensors = tuple(torch.empty_like(t) for t in tensors)
            cache.length += added
        for state, (by_name, added) in zip(states, replay.states, strict=True):
            state.states = {name: torch.empty_like(t) for name, t in by_name.items()}
            state.length += added
        return replay.out

    return run


_KEPT: dict[Visibility, int] = {}


def kept_pairs(sees: Visibility) -> int | None:
    """Count the pairs that the mask keeps, by laying it out (in slices) and adding it up."""
    total = sees.n_queries * sees.n_keys
    if total > MAX_PAIRS:
        return None
    if sees not in _KEPT:
        rows = max(1, 2**22 // sees.n_keys)
        # outside of any counter: this is bookkeeping, not the model's work
        with unwatched():
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
