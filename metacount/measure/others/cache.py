"""Measures what a cache object of others' code holds, in bytes."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from metacount.measure.result import MeasuredCache
from metacount.tensors import tensor_bytes

# Attributes of a cache that hold keys and values of tokens; anything else is recurrent state.
TOKEN_TENSORS = frozenset(
    [
        "keys",
        "values",
        "indexer_keys",
        "idx_keys",
        "compressed_kv",
        "mems",
        "buckets_cache",
        "states_cache",
    ]
)
CROSS = "cross_attention_cache"
CONTAINERS = frozenset(["layers", "self_attention_cache", CROSS])


def measure_cache(cache: object) -> MeasuredCache:
    """Count the bytes of every tensor that a cache object holds, once each;
    single numbers are not state.
    """
    kv = cross = state = heads = 0
    by_name: dict[str, int] = {}
    for path, tensor in _held(cache, (), set()):
        size = tensor_bytes([tensor])
        names = [name for name in path if not name.isdecimal() and name not in CONTAINERS]
        name = names[0] if names else "state"
        by_name[name] = by_name.get(name, 0) + size
        if name == "keys" and tensor.dim() == 4:
            heads = max(heads, tensor.shape[1])
        if name in TOKEN_TENSORS and CROSS in path:
            cross += size
        elif name in TOKEN_TENSORS:
            kv += size
        else:
            state += size
    return MeasuredCache(
        kv_bytes=kv + cross,
        cross_kv_bytes=cross,
        state_bytes=state,
        by_name=by_name,
        key_heads=heads,
    )


def holds_tensors(cache: object) -> bool:
    """Tell whether a cache object holds any tensor; single numbers do not count."""
    return next(_held(cache, (), set()), None) is not None


def _is_number(tensor: Tensor) -> bool:
    """Tell whether a tensor is a single number; of whole numbers, also in an axis (xLSTM's)."""
    counts = tensor.numel() == 1 and not tensor.is_floating_point()
    return tensor.dim() == 0 or counts


def _held(
    value: object, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    if id(value) in seen:
        return
    if isinstance(value, Tensor):
        seen.add(id(value))
        if not _is_number(value):
            yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _held(item, (*path, str(key)), seen)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _held(item, (*path, str(index)), seen)
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        seen.add(id(value))
        if not hasattr(value, "to_diff_dict"):  # a config holds no cache
            yield from _held(vars(value), path, seen)
