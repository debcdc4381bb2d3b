"""Follows every storage of a step from the operator that makes it to the moment nobody holds it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from metacount.measure.torch_private import storage_key


class Mark(NamedTuple):
    """From which event on a phase and a place of the model are at work."""

    event: int
    phase: str
    place: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of the step: bytes alive when it began and ended, and the most in between."""

    phase: str
    place: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int


class Ledger:
    """Bytes of distinct storages, as they come and go.

    A storage has a number from the first time it is seen until nobody holds it; another that comes
    to lie in its place has another.
    """

    def __init__(self) -> None:
        self.bytes: list[int] = []  # of each storage, by its number
        self.alive: dict[int, int] = {}  # a storage's key -> its number
        self._held: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._events: list[int] = []  # n + 1: storage n came; -(n + 1): it went
        self._marks: list[Mark] = []

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor's storage, a new one if the storage was not seen before."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        known = self.alive.get(key)
        if known is not None:
            return known
        number = len(self.bytes)
        self.bytes.append(storage.nbytes())
        self.alive[key] = number
        self._events.append(number + 1)
        self._held[key] = weakref.ref(storage, lambda _: self._gone(key))
        return number

    def numbers(self, tensors: Iterable[Tensor]) -> set[int]:
        """Return the numbers of the storages of tensors."""
        return {self.number(tensor) for tensor in tensors}

    def erase(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of tensors as if they had never been there."""
        for number in self.numbers(tensors):
            self.bytes[number] = 0

    def _gone(self, key: int) -> None:
        self._events.append(-self.alive.pop(key) - 1)
        del self._held[key]

    def living(self) -> set[int]:
        """Return the numbers of the storages that somebody holds."""
        return set(self.alive.values())

    def sum(self, numbers: Iterable[int]) -> int:
        """Sum the bytes of storages."""
        return sum(self.bytes[number] for number in numbers)

    def mark(self, phase: str, place: str) -> None:
        """Note that from now on `place` is at work, in `phase`."""
        if not self._marks or self._marks[-1][1:] != (phase, place):
            self._marks.append(Mark(len(self._events), phase, place))

    def _totals(self) -> Iterator[int]:
        """Yield the bytes alive after each event."""
        total = 0
        for event in self._events:
            total += self.bytes[event - 1] if event > 0 else -self.bytes[-event - 1]
            yield total

    def spans(self) -> list[Span]:
        """Cut the step at its marks, from the first on, into spans where anything came or went."""
        totals = [0, *self._totals()]
        ends = [mark.event for mark in self._marks[1:]] + [len(self._events)]
        return [
            Span(
                phase=mark.phase,
                place=mark.place,
                start_bytes=totals[mark.event],
                peak_bytes=max(totals[mark.event : end + 1]),
                end_bytes=totals[end],
            )
            for mark, end in zip(self._marks, ends, strict=True)
            if mark.event < end
        ]

    def peak(self) -> tuple[Mark, set[int]]:
        """Find the mark and storages where the most bytes are alive, from the first mark on."""
        start = self._marks[0].event
        totals = [0, *self._totals()]
        top = max(range(start, len(totals)), key=totals.__getitem__)
        alive: set[int] = set()
        for event in self._events[:top]:
            if event > 0:
                alive.add(event - 1)
            else:
                alive.remove(-event - 1)
        # the event that made the peak belongs to the mark before it
        at = max((m for m in self._marks if m.event < top), default=self._marks[0])
        return at, alive

    def close(self) -> None:
        """Forget the storages that are alive: what becomes of them is no part of the step."""
        self._held.clear()
