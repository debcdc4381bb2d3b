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

import inspect
from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn

from metacount.measure.counter import summed
from metacount.measure.torch_private import is_hooked, tensors_of, unwatched

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.measure.counter import Cost, FlopCounter


LAYER_NUMBERS = ("layer_idx", "layer_id", "layer_number", "layer_index", "block_idx", "layer")
PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
COMPARED = (*PLAIN, *SYMBOLIC)


def _shape(tensor: Tensor) -> tuple[object, ...]:
    """Return a tensor's shape in a form that can be compared and hashed; sizes may be symbols."""
    return tuple(_size(size) for size in tensor.shape)


def _size(size: object) -> object:
    # an expression is compared as it is written: what is written differently is run
    return size.node.expr if isinstance(size, SYMBOLIC) else size


# Classes of what a layer is handed: a cache of its own; what all layers read, or leave to others.
OF_LAYER: set[type] = set()
SHARED: set[type] = {UserDict}


class LayeredCache(Protocol):
    """A cache of keys and values with a part for each layer."""

    layers: list[object]


class CachePair(Protocol):
    """The two caches of an encoder-decoder; `is_updated` says of a layer that it has read."""

    self_attention_cache: LayeredCache
    cross_attention_cache: LayeredCache
    is_updated: dict[int | None, bool]


class Unlike(Exception):
    """Something that cannot be compared: the layer runs in full."""


def number_of(layer: nn.Module) -> int | None:
    numbers = set()
    for module in layer.modules():
        for name in LAYER_NUMBERS:
            value = vars(module).get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                numbers.add(value)
    return numbers.pop() if len(numbers) == 1 else None


class OwnNumber(int):
    """A layer's own number as its forward is handed it; `asked` once anything is asked of it.

    To be an index of a list, or to be handed on, is no question. What is written in C may take the
    number without asking: so the second of two alike layers runs, too (`fold.Folding`).
    """

    asked = False


def _noted(name: str) -> Callable[..., object]:
    def operation(self: OwnNumber, *others: object) -> object:
        self.asked = True
        return getattr(int, name)(int.__index__(self), *others)

    return operation


COMPARISONS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
QUESTIONS = {*COMPARISONS, "__str__", "__repr__", "__format__"}
NO_QUESTION = frozenset(dir(object)) - QUESTIONS
for _name in set(dir(int)) - NO_QUESTION - {"__index__", "__getnewargs__"}:
    if _name.startswith("__"):
        setattr(OwnNumber, _name, _noted(_name))


@lru_cache(maxsize=256)
def _parameters(forward: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of what a forward takes, without `self`; none if it does not say."""
    try:
        return tuple(inspect.signature(forward).parameters)[1:]
    except (TypeError, ValueError):
        return ()


def handed(
    layer: nn.Module, number: int | None, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object], list[OwnNumber]]:
    """Put an `OwnNumber` in the place of a layer's own number (Zamba2's are handed theirs)."""
    made: list[OwnNumber] = []

    def watched(name: str | None, value: object) -> object:
        if name not in LAYER_NUMBERS or type(value) is not int or value != number:
            return value
        made.append(OwnNumber(value))
        return made[-1]

    names = (*_parameters(type(layer).forward), *[None] * len(args))  # for more than it names
    return (
        tuple(watched(name, value) for name, value in zip(names, args, strict=False)),
        {name: watched(name, value) for name, value in kwargs.items()},
        made,
    )


_INTERNAL = frozenset(nn.Module().__dict__) - {"training"}


def signature(layer: nn.Module, number: int | None, n_layers: int) -> tuple[object, ...]:
    parts: list[object] = []
    configs: dict[int, object] = {}
    for path, module in layer.named_modules():
        plain: list[tuple[str, object]] = []
        for name, value in vars(module).items():
            if name in _INTERNAL or name in LAYER_NUMBERS:
                continue
            if hasattr(value, "to_diff_dict"):
                configs[id(value)] = value
                plain.append((name, id(value)))
            else:
                plain.append((name, _plain(value)))
        tensors = tuple((name, _shape(t), t.dtype) for name, t in tensors_of(module).items())
        hooked = is_hooked(module)
        parts.append((path, type(module), hooked, tuple(plain), tensors))
    lists = tuple(_at_number(config, number, n_layers) for config in configs.values())
    return tuple(parts), lists


def _plain(value: object) -> object:
    try:
        return shape_of(value, None)
    except Unlike:
        return id(value)  # an object is alike only to itself


def _at_number(config: object, number: int | None, n_layers: int) -> tuple[object, ...]:
    """Return what the lists of a config with an entry for each layer say of this layer."""
    if number is None:
        return ()
    values = []
    for name, value in sorted(vars(config).items()):
        by_layer = isinstance(value, list | tuple) and len(value) == n_layers
        # a list of layers' numbers says nothing else of each than that it is in the list
        if by_layer and list(value) != list(range(n_layers)):
            values.append((name, repr(value[number])))
    return tuple(values)


def _is_cache(value: object) -> TypeGuard[LayeredCache]:
    return isinstance(getattr(value, "layers", None), list) and hasattr(value, "get_seq_length")


def is_pair(value: object) -> TypeGuard[CachePair]:
    return hasattr(value, "self_attention_cache") and hasattr(value, "is_updated")


def caches_in(value: object) -> list[LayeredCache]:
    """Return the caches of layers in an argument: none, one, or an encoder-decoder's two."""
    if is_pair(value):
        return [value.self_attention_cache, value.cross_attention_cache]
    return [value] if _is_cache(value) else []


def shape_of(value: object, number: int | None, *, own: bool = True) -> object:
    """Reduce a value to what can be compared: a tensor to its shape, a cache to its state."""
    if isinstance(value, Tensor):
        return "tensor", _shape(value), value.dtype
    if isinstance(value, SYMBOLIC):
        return type(value), _size(value)
    if isinstance(value, OwnNumber):
        return OwnNumber
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, list | tuple):
        return tuple(shape_of(item, number, own=own) for item in value)
    if isinstance(value, dict):
        return tuple((key, shape_of(item, number, own=own)) for key, item in value.items())
    if isinstance(value, tuple(SHARED)):
        return type(value), shape_of(vars(value), number, own=own)
    if is_pair(value):
        known = value.is_updated.get(number, False) if own else None
        return known, tuple(shape_of(part, number, own=own) for part in caches_in(value))
    if type(value) in OF_LAYER or _is_cache(value):
        return ("cache", type(value), *([_take_shape(value, number)] if own else []))
    if isinstance(value, partial):
        return id(value.func), shape_of((value.args, value.keywords), number, own=own)
    if isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
        # a method of a module inside the layer, whose own state is compared in its place
        return id(value.__func__), type(value.__self__)
    if hasattr(value, "to_diff_dict") or isinstance(value, nn.Module) or callable(value):
        return id(value)  # functions, classes and configs are alike only when they are the same one
    raise Unlike


def without_own(given: object) -> object:
    if isinstance(given, tuple):
        if len(given) == 3 and given[0] == "cache":
            return given[:2]
        if len(given) == 2 and isinstance(given[0], bool):
            return None, without_own(given[1])
        return tuple(without_own(item) for item in given)
    return given


def _state_shape(layer: object) -> object:
    return type(layer), shape_of(dict(sorted(vars(layer).items())), None)


def _take_shape(cache: Any, number: int | None) -> object:
    if type(cache) in OF_LAYER:
        return _state_shape(cache)
    if number is None:
        raise Unlike
    if len(cache.layers) <= number:
        # layers are appended as they are met
        return len(cache.layers) == number
    return _state_shape(cache.layers[number])


def other_states(cache: LayeredCache, number: int | None) -> object:
    own = {k: v for k, v in vars(cache).items() if k != "layers"}
    plain = tuple((k, _size(v)) for k, v in sorted(own.items()) if isinstance(v, COMPARED))
    return plain, tuple(_state_shape(layer) for i, layer in enumerate(cache.layers) if i != number)


State: TypeAlias = tuple[
    type[object], dict[str, object]
]  # of one layer's cache: its class, its attributes


class _Ran(NamedTuple):
    """What a layer gave and cost, and what it left in its caches."""

    layer: nn.Module
    out: object
    cost: Cost
    states: list[State | None]
    kept: list[dict[str, object]]  # what is the layer's alone
    updated: bool


# Layers that may be alike, each with its number and what it must share with others.
Layers: TypeAlias = Iterable[tuple[nn.Module, int | None, object]]


class Folding:
    """Replays of one model, through all of its forwards."""

    def __init__(self, layers: Layers) -> None:
        self._layers = list(layers)
        self._replays: dict[tuple[object, object], _Ran] = {}
        # of layers that are handed their number
        self._confirmed: set[tuple[object, object]] = set()
        self._never: set[type] = set()
        self.ran = self.replayed = 0

    @contextmanager
    def counting(self, counter: FlopCounter) -> Iterator[None]:
        """Run layers that are alike once until the block ends; charge the others to `counter`."""
        self._counter = counter
        for layer, number, alike in self._layers:
            layer.forward = partial(self.run, layer, alike, number, layer.forward)
        try:
            yield
        finally:
            for layer, _, _ in self._layers:
                del layer.forward

    def run(
        self,
        layer: nn.Module,
        alike: object,
        number: int | None,
        forward: Callable[..., object],
        *args: object,
        **kwargs: object,
    ) -> object:
        """Run the layer's forward, or replay that of one like it."""
        if type(layer) in self._never:
            return forward(*args, **kwargs)
        caches = [c for v in (*args, *kwargs.values()) for c in caches_in(v)]
        pairs = [v for v in (*args, *kwargs.values()) if is_pair(v)]
        of_layer = [v for v in (*args, *kwargs.values()) if type(v) in OF_LAYER]
        args, kwargs, own = handed(layer, number, args, kwargs)
        try:
            given = shape_of((args, kwargs), number)
        except Unlike:
            self._never.add(type(layer))
            return forward(*args, **kwargs)
        key = (alike, given)
        replay = self._replays.get(key)
        if replay is not None and number is not None and (not own or key in self._confirmed):
            self.replayed += 1
            ran, out, cost, states, own_states, updated = replay
            self._counter.replay(cost, ran, layer)
            with unwatched():  # copies of a cache are nobody's work
                for cache, state in zip(caches, states, strict=True):
                    _put_state(cache, number, state)
                for own_cache, values in zip(of_layer, own_states, strict=True):
                    vars(own_cache).update(_copy_of(values))
            for pair in pairs:
                pair.is_updated[number] = updated
            return out
        others = [other_states(cache, number) for cache in caches]
        out, cost = self._counter.spent_in(lambda: forward(*args, **kwargs))
        self.ran += 1
        try:
            after = shape_of((args, kwargs), number, own=False)
            unchanged = after == without_own(given)
            unchanged &= others == [other_states(cache, number) for cache in caches]
            same = not any(each.asked for each in own)
            if replay is not None:  # the second that is handed its number
                same = same and _left(replay.out, replay.cost) == _left(out, cost)
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
        updated = any(pair.is_updated.get(number, False) for pair in pairs)
        with unwatched():
            states = [_take_state(cache, number) for cache in caches]
            own_states = [_copy_of(vars(own_cache)) for own_cache in of_layer]
        self._replays[key] = _Ran(layer, out, cost, states, own_states, updated)
        return out


def layers_in_lists(model: nn.Module) -> Layers:
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
        (charge._replace(module=""), shape_of(flops, None))
        for charge, flops in summed(cost).items()
    )
    return shape_of(out, None), spent


def _copied(value: object, made: dict[int, Tensor]) -> object:
    """Copy a value; one tensor under two names stays one."""
    if isinstance(value, Tensor):
        if id(value) not in made:
            made[id(value)] = value.new_empty_strided(value.shape, value.stride())
        return made[id(value)]
    if isinstance(value, dict):
        return {key: _copied(item, made) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_copied(item, made) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
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
