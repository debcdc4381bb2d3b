"""Layers that are proven alike run once: the others take the first one's cost, output and cache.

A layer is a child of a `ModuleList` of at least two children of one class. Two are alike when
nothing that a forward could read differs: class, parameters and buffers by name and shape, every
plain attribute of every module inside but the layer's own number, what a config's per-layer lists
say at that number, and the inputs by shape and value with the state of the layer's own cache. A
layer whose run changes anything else that it was given is never folded.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

LAYER_NUMBERS = ("layer_idx", "layer_id", "layer_number", "layer_index", "block_idx", "layer")
PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device)
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
COMPARED = (*PLAIN, *SYMBOLIC)


def _shape(tensor: Tensor) -> tuple[Any, ...]:
    """A shape that can be compared and hashed; sizes may be symbols."""
    return tuple(_size(size) for size in tensor.shape)


def _size(size: Any) -> Any:
    # an expression is compared as it is written: what is written differently is run
    return size.node.expr if isinstance(size, SYMBOLIC) else size


class _Unlike(Exception):
    """Something that cannot be compared: the layer runs in full."""


class Folding:
    """Replays of one model; lives as long as its forwards are replaced."""

    def __init__(self) -> None:
        self.counter: Any = None
        self._replays: dict[Any, Any] = {}
        self._never: set[type] = set()
        self.ran = self.replayed = 0

    @contextmanager
    def counting(self, counter: Any) -> Iterator[None]:
        """Costs of replayed layers go to `counter`."""
        self.counter = counter
        try:
            yield
        finally:
            self.counter = None

    def run(self, layer: nn.Module, alike: Any, number: int | None, forward: Any, args: Any,
            kwargs: Any) -> Any:  # fmt: skip
        """The layer's forward, or the replay of one like it."""
        if self.counter is None or type(layer) in self._never:
            return forward(*args, **kwargs)
        caches = [c for v in (*args, *kwargs.values()) for c in _parts(v)]
        pairs = [v for v in (*args, *kwargs.values()) if _is_pair(v)]
        try:
            given = _shape_of((args, kwargs), number)
        except _Unlike:
            self._never.add(type(layer))
            return forward(*args, **kwargs)
        key = (alike, given)
        found = self._replays.get(key)
        if found is not None and number is not None:
            self.replayed += 1
            ran, out, cost, states, updated = found
            self.counter.replay(cost, ran, layer)
            for cache, state in zip(caches, states, strict=True):
                _put_state(cache, number, state)
            for pair in pairs:
                pair.is_updated[number] = updated
            return out
        others = [_other_states(cache, number) for cache in caches]
        out, cost = self.counter.spent_in(lambda: forward(*args, **kwargs))
        self.ran += 1
        try:
            unchanged = others == [_other_states(cache, number) for cache in caches]
            after = _shape_of((args, kwargs), number, own=False)
            same = unchanged and after == _without_own(given)
        except _Unlike:
            same = False
        if not same:
            self._never.add(type(layer))
            return out
        states = [_take_state(cache, number) for cache in caches]
        updated = any(pair.is_updated.get(number, False) for pair in pairs)
        self._replays[key] = (layer, out, cost, states, updated)
        return out


@contextmanager
def folded(model: nn.Module, *, enabled: bool = True) -> Iterator[Folding]:
    """Inside, alike layers of `model` run once."""
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


def _replacement(folding: Folding, layer: nn.Module, alike: Any, number: int | None) -> Any:
    forward = layer.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        return folding.run(layer, alike, number, forward, args, kwargs)

    return run


def _layers(model: nn.Module) -> Iterator[tuple[nn.Module, int | None, Any]]:
    """(layer, its number, what it must share with another to be alike) of every foldable layer."""
    inside: set[int] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList) or id(module) in inside or len(module) < 2:
            continue
        inside |= {id(m) for m in module.modules()}
        classes = Counter(type(child) for child in module)
        for layer in module:
            if classes[type(layer)] < 2 or "forward" in vars(layer):
                continue
            number = _number(layer)
            try:
                alike = (id(module), _signature(layer, number, len(module)))
            except _Unlike:
                continue
            yield layer, number, alike


def _number(layer: nn.Module) -> int | None:
    found = set()
    for module in layer.modules():
        for name in LAYER_NUMBERS:
            value = vars(module).get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                found.add(value)
    return found.pop() if len(found) == 1 else None


_INTERNAL = frozenset(nn.Module().__dict__) - {"training"}


def _signature(layer: nn.Module, number: int | None, n_layers: int) -> Any:
    parts: list[Any] = []
    configs: dict[int, Any] = {}
    for path, module in layer.named_modules():
        plain = []
        for name, value in vars(module).items():
            if name in _INTERNAL or name in LAYER_NUMBERS:
                continue
            if hasattr(value, "to_diff_dict"):
                configs[id(value)] = value
                plain.append((name, id(value)))
            else:
                plain.append((name, _plain(value)))
        tensors = tuple(
            (name, _shape(t), t.dtype)
            for name, t in (*module._parameters.items(), *module._buffers.items())
            if t is not None
        )
        hooked = bool(module._forward_hooks or module._forward_pre_hooks)
        parts.append((path, type(module), hooked, tuple(plain), tensors))
    lists = tuple(_at_number(config, number, n_layers) for config in configs.values())
    return tuple(parts), lists


def _plain(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _plain(item)) for key, item in value.items())
    if isinstance(value, Tensor):
        return _shape(value), value.dtype
    if isinstance(value, SYMBOLIC):
        return type(value), _size(value)
    if isinstance(value, functools.partial):
        return id(value.func), _plain(value.args), _plain(value.keywords)
    if isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
        # a method of a module inside the layer, whose own state is compared in its place
        return id(value.__func__), type(value.__self__)
    # functions, classes and objects are alike only when they are the same one
    return id(value)


def _at_number(config: Any, number: int | None, n_layers: int) -> Any:
    """What the lists of a config that go by layer say of this one."""
    if number is None:
        return ()
    found = []
    for name, value in sorted(vars(config).items()):
        by_layer = isinstance(value, list | tuple) and len(value) == n_layers
        # a list of layers' numbers says nothing else of each than that it is in the list
        if by_layer and list(value) != list(range(n_layers)):
            found.append((name, repr(value[number])))
    return tuple(found)


def _is_cache(value: Any) -> bool:
    return isinstance(getattr(value, "layers", None), list) and hasattr(value, "get_seq_length")


def _is_pair(value: Any) -> bool:
    return hasattr(value, "self_attention_cache") and hasattr(value, "is_updated")


def _parts(value: Any) -> list[Any]:
    """The caches of layers in an argument: none, one, or an encoder-decoder's two."""
    if _is_pair(value):
        return [value.self_attention_cache, value.cross_attention_cache]
    return [value] if _is_cache(value) else []


def _shape_of(value: Any, number: int | None, *, own: bool = True) -> Any:
    """A value as it can be compared: a tensor by its shape, a cache by its state."""
    if isinstance(value, Tensor):
        return "tensor", _shape(value), value.dtype
    if isinstance(value, SYMBOLIC):
        return type(value), _size(value)
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, list | tuple):
        return tuple(_shape_of(item, number, own=own) for item in value)
    if isinstance(value, dict):
        return tuple((key, _shape_of(item, number, own=own)) for key, item in value.items())
    if _is_pair(value):
        known = value.is_updated.get(number, False) if own else None
        return known, tuple(_shape_of(part, number, own=own) for part in _parts(value))
    if _is_cache(value):
        return ("cache", type(value), _take_shape(value, number)) if own else ("cache", type(value))
    if hasattr(value, "to_diff_dict") or isinstance(value, nn.Module) or callable(value):
        return id(value)
    raise _Unlike


def _without_own(given: Any) -> Any:
    if isinstance(given, tuple):
        if len(given) == 3 and given[0] == "cache":
            return given[:2]
        if len(given) == 2 and isinstance(given[0], bool):
            return None, _without_own(given[1])
        return tuple(_without_own(item) for item in given)
    return given


def _state_shape(layer: Any) -> Any:
    return type(layer), tuple(
        (name, _state_value(value)) for name, value in sorted(vars(layer).items())
    )


def _state_value(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _state_value(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_state_value(item) for item in value)
    if isinstance(value, Tensor):
        return _shape(value), value.dtype
    if isinstance(value, SYMBOLIC):
        return _size(value)
    if isinstance(value, PLAIN):
        return value
    raise _Unlike


def _take_shape(cache: Any, number: int | None) -> Any:
    if number is None:
        raise _Unlike
    if len(cache.layers) <= number:
        # layers are appended as they are met
        return len(cache.layers) == number
    return _state_shape(cache.layers[number])


def _other_states(cache: Any, number: int | None) -> Any:
    own = {k: v for k, v in vars(cache).items() if k != "layers"}
    plain = tuple((k, _size(v)) for k, v in sorted(own.items()) if isinstance(v, COMPARED))
    return plain, tuple(_state_shape(layer) for i, layer in enumerate(cache.layers) if i != number)


def _copied(value: Any, made: dict[int, Tensor]) -> Any:
    """A copy; one tensor under two names stays one."""
    if isinstance(value, Tensor):
        return made.setdefault(id(value), torch.empty_like(value))
    if isinstance(value, dict):
        return {key: _copied(item, made) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item, made) for item in value]
    return value


def _take_state(cache: Any, number: int | None) -> Any:
    if number is None or len(cache.layers) <= number:
        return None
    layer = cache.layers[number]
    return type(layer), _copied(vars(layer), {})


def _put_state(cache: Any, number: int, state: Any) -> None:
    if state is None:
        return
    kind, values = state
    layer = kind.__new__(kind)
    vars(layer).update(_copied(values, {}))
    if len(cache.layers) == number:
        cache.layers.append(layer)
    else:
        cache.layers[number] = layer
