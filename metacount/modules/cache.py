"""The KV cache: what attention keeps of past tokens, as plain tensors that can be measured."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class LayerCache:
    """What one attention layer keeps: tensors whose axis `-2` is the position.

    `keep` is the number of positions that a later token can still see (None: all of them).
    """

    def __init__(self, keep: int | None = None) -> None:
        self.keep = keep
        self.length = 0  # positions seen so far
        self.tensors: tuple[Tensor, ...] = ()
        self.kept: dict[str, Tensor] = {}  # what a compressor keeps beside them

    @property
    def start(self) -> int:
        """Position of the first row still kept."""
        return self.length - (self.tensors[0].shape[-2] if self.tensors else 0)

    def update(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append `new`; return all rows the new tokens may see; keep what later ones may see."""
        if self.tensors:
            new = tuple(torch.cat(pair, dim=-2) for pair in zip(self.tensors, new, strict=True))
        seen = self.start + new[0].shape[-2]
        self.tensors, self.length = new, seen
        if self.keep is not None and new[0].shape[-2] > self.keep:
            first = new[0].shape[-2] - self.keep
            # clone: a slice alone would keep the whole storage alive
            self.tensors = tuple(t[..., first:, :].clone() for t in new)
        return new


class Lent:
    """Keys and values that layers of one forward leave to later ones, of a window or of everything.

    A layer that makes some leaves them in the place of those of the layer before it that sees as
    far: who borrows has the last. So it is with what an indexer chose.
    """

    def __init__(self) -> None:
        self.tensors: dict[bool, tuple[Tensor, ...]] = {}  # by whether a window limits the layer
        self.chosen_BST: Tensor | None = None


class StateCache:
    """What one mixer keeps that has a state of fixed size: tensors by name, such as `conv`.

    `length` is the number of tokens seen so far; a mixer adds those that it reads.
    """

    def __init__(self) -> None:
        self.length = 0
        self.states: dict[str, Tensor] = {}

    def keep(self, n_tokens: int, **states: Tensor) -> None:
        """Keep what `n_tokens` more tokens leave."""
        self.states |= states
        self.length += n_tokens


class Cache:
    """One `LayerCache` per self-attention and, in an encoder-decoder, per cross-attention.

    `keeps` has an item a layer. `states` is a `StateCache` a layer, unused where a layer has no
    mixer with a state.
    """

    def __init__(self, keeps: list[int | None], *, cross: bool = False) -> None:
        self.layers = [LayerCache(keep) for keep in keeps]
        self.cross = [LayerCache() for _ in keeps] if cross else []
        self.states = [StateCache() for _ in keeps]

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        attending = max((each.length for each in self.layers), default=0)
        return max(attending, max((each.length for each in self.states), default=0))

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of keys and values that is kept."""
        for layer in (*self.layers, *self.cross):
            yield from layer.tensors
            yield from layer.kept.values()

    def state_tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of a state that is kept, convolutions included."""
        for layer in self.states:
            yield from layer.states.values()
