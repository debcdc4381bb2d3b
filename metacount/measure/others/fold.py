"""Layers that are alike run once: the others take the first one's cost, output and cache.

A layer is a child of a `ModuleList` of at least two children of one class. Two are alike when
nothing that a forward could read differs: class, parameters and buffers by name and shape, every
plain attribute of every module inside but the layer's own number, what a config's per-layer lists
say at that number, and the inputs by shape and value with the state of the layer's own cache. Its
own number may be among them where its code is not seen to ask anything of it, and the second layer
that is handed its own was run, too, and gave and cost the same: code that makes a difference from
the third on without a question to the number (a slice that torch cuts) would not be noticed. A run
that is seen to change anything else that the layer was given (Gemma 3n's layers write keys for
others) stands for no other, and those before it stand for none after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from metacount.measure.others.alike import (
    Unlike,
    caches_in,
    handed,
    is_pair,
    number_of,
    other_states,
    shape_of,
    signature,
    without_own,
)

if TYPE_CHECKING:
    from metacount.measure.counter import Cost, FlopCounter
    from metacount.measure.others.alike import LayeredCache

State: TypeAlias = tuple[
    type[object], dict[str, object]
]  # of one layer's cache: its class, its attributes


class _Ran(NamedTuple):
    """What a layer gave and cost, and what it left in its caches."""

    layer: nn.Module
    out: object
    cost: Cost
    states: list[State | None]
    updated: bool


class Folding:
    """Replays of one model; lives as long as its forwards are replaced."""

    def __init__(self) -> None:
        self.counter: FlopCounter | None = None
        self._replays: dict[tuple[object, object], _Ran] = {}
        # of layers that are handed their number
        self._confirmed: set[tuple[object, object]] = set()
        self._never: set[type] = set()
        self.ran = self.replayed = 0

    @contextmanager
    def counting(self, counter: FlopCounter) -> Iterator[None]:
        """Charge the costs of replayed layers to `counter` until the block ends."""
        self.counter = counter
        try:
            yield
        finally:
            self.counter = None

    def run(
        self,
        layer: nn.Module,
        alike: object,
        number: int | None,
        forward: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        """Run the layer's forward, or replay that of one like it."""
        if self.counter is None or type(layer) in self._never:
            return forward(*args, **kwargs)
        caches = [c for v in (*args, *kwargs.values()) for c in caches_in(v)]
        pairs = [v for v in (*args, *kwargs.values()) if is_pair(v)]
        args, kwargs, own = handed(layer, number, args, kwargs)
        try:
            given = shape_of((args, kwargs), number)
        except Unlike:
            self._never.add(type(layer))
            return forward(*args, **kwargs)
        key = (alike, given)
        found = self._replays.get(key)
        if found is not None and number is not None and (not own or key in self._confirmed):
            self.replayed += 1
            ran, out, cost, states, updated = found
            self.counter.replay(cost, ran, layer)
            for cache, state in zip(caches, states, strict=True):
                _put_state(cache, number, state)
            for pair in pairs:
                pair.is_updated[number] = updated
            return out
        others = [other_states(cache, number) for cache in caches]
        out, cost = self.counter.spent_in(lambda: forward(*args, **kwargs))
        self.ran += 1
        try:
            after = shape_of((args, kwargs), number, own=False)
            unchanged = after == without_own(given)
            unchanged &= others == [other_states(cache, number) for cache in caches]
            same = not any(each.asked for each in own)
            if found is not None:  # the second that is handed its number
                same = same and _left(found.out, found.cost) == _left(out, cost)
                self._confirmed.add(key)
        except Unlike:
            same = unchanged = False
        if not same:
            self._never.add(type(layer))
        if not unchanged:  # what ran before may run differently now
            self._replays.clear()
            self._confirmed.clear()
        if not (same and unchanged):
            return out
        states = [_take_state(cache, number) for cache in caches]
        updated = any(pair.is_updated.get(number, False) for pair in pairs)
        self._replays[key] = _Ran(layer, out, cost, states, updated)
        return out


@contextmanager
def folded(model: nn.Module, *, enabled: bool = True) -> Iterator[Folding]:
    """Make alike layers of `model` run once until the block ends."""
    folding = Folding()
    changed: list[nn.Module] = []
    if enabled:
        for layer, number, alike in _layers(model):
            layer.forward = _replacement(folding, layer, alike, number)
            changed.append(layer)
    try:
        yield folding
    finally:
        for layer in changed:
            del layer.forward


def _replacement(
    folding: Folding, layer: nn.Module, alike: object, number: int | None
) -> Callable[..., object]:
    forward = layer.forward

    def run(*args: object, **kwargs: object) -> object:
        return folding.run(layer, alike, number, forward, args, kwargs)

    return run


def _layers(model: nn.Module) -> Iterator[tuple[nn.Module, int | None, object]]:
    """Yield each foldable layer, its number, and what it must share with another to be alike."""
    inside: set[int] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList) or id(module) in inside or len(module) < 2:
            continue
        inside |= {id(m) for m in module.modules()}
        classes = Counter(type(child) for child in module)
        for layer in module:
            if classes[type(layer)] < 2 or "forward" in vars(layer):
                continue
            number = number_of(layer)
            try:
                alike = (id(module), signature(layer, number, len(module)))
            except Unlike:
                continue
            yield layer, number, alike


def _left(out: object, cost: Cost) -> tuple[object, object]:
    """Return what a layer gave and cost, without its name, in a form that can be compared."""
    spent = Counter(
        (charge._replace(module=""), shape_of(flops, None)) for charge, flops in cost.items()
    )
    return shape_of(out, None), spent


def _copied(value: object, made: dict[int, Tensor]) -> object:
    """Copy a value; one tensor under two names stays one."""
    if isinstance(value, Tensor):
        return made.setdefault(id(value), torch.empty_like(value))
    if isinstance(value, dict):
        return {key: _copied(item, made) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item, made) for item in value]
    return value


def _copy_of(values: dict[str, object]) -> dict[str, object]:
    made: dict[int, Tensor] = {}
    return {name: _copied(value, made) for name, value in values.items()}


def _take_state(cache: LayeredCache, number: int | None) -> State | None:
    if number is None or len(cache.layers) <= number:
        return None
    layer = cache.layers[number]
    return type(layer), _copy_of(vars(layer))


def _put_state(cache: LayeredCache, number: int, state: State | None) -> None:
    if state is None:
        return
    kind, values = state
    layer = kind.__new__(kind)
    vars(layer).update(_copy_of(values))
    if len(cache.layers) == number:
        cache.layers.append(layer)
    else:
        cache.layers[number] = layer
