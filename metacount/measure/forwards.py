"""Forwards of one model over one workload: the whole of it, one token, one token more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from metacount.measure.counter import Book, FlopCounter, MeasuredCache, MeasuredRun

MakeCounter: TypeAlias = Callable[[Book], FlopCounter]


class Forwards(ABC):
    """What a kind of modules is given to run, and how a cache of theirs is measured.

    The workload's lengths may be symbols: nothing is asked of them.
    """

    kind: str  # decoder, encoder, encoder-decoder
    no_cache = ""  # why there is none
    decodes_first = True  # whether one more token may be the first

    def __init__(self, model: Any, workload: Any) -> None:
        self.model, self.workload = model, workload
        self.assumed: set[str] = set()  # of the last forward
        self.counter: MakeCounter = FlopCounter

    @abstractmethod
    def forward(
        self, length: int, *, cache: Any = None, counter: MakeCounter | None = None
    ) -> tuple[FlopCounter, Any]:
        """Run a forward over `length` tokens, perhaps from a cache; return counter and cache.

        `counter` makes one for this forward alone.
        """

    @abstractmethod
    def measure_cache(self, cache: Any) -> MeasuredCache:
        """Count the bytes of a cache."""

    def prefill(self, counter: MakeCounter | None = None) -> tuple[FlopCounter, Any]:
        """Run a forward over the whole workload; the cache is None where nothing is decoded."""
        return self.forward(self.workload.seq_len, counter=counter)

    def before_last(self) -> Any:
        """Return the cache of all tokens but the last."""
        return self.forward(self.workload.seq_len - 1)[1]

    def last_token(self, counter: MakeCounter | None = None) -> FlopCounter:
        """Run one more token, the last of the workload's."""
        return self.forward(1, cache=self.before_last(), counter=counter)[0]

    def why_none(self) -> str:
        """Say why a forward gave no cache; empty for an encoder, which keeps none."""
        return self.no_cache


def measured(run: Forwards) -> MeasuredRun:
    """Measure the prefill, one decoded token, and the cache that they leave."""
    prefill, cache = run.prefill()
    assumed = tuple(sorted(run.assumed | prefill.said))
    if cache is None:
        return MeasuredRun(
            kind=run.kind,
            prefill=prefill.report(),
            decode=None,
            cache=None,
            kv_bytes_per_token=None,
            assumed=assumed,
            no_cache=run.why_none(),
            counters=(prefill,),
        )
    found, single = run.measure_cache(cache), run.measure_cache(run.forward(1)[1])
    decodes = run.decodes_first or run.workload.seq_len > 1
    decode = run.last_token() if decodes else None
    return MeasuredRun(
        kind=run.kind,
        prefill=prefill.report(),
        decode=None if decode is None else decode.report(),
        cache=found,
        kv_bytes_per_token=(single.kv_bytes - single.cross_kv_bytes) // run.workload.batch_size,
        assumed=assumed,
        counters=(prefill,) if decode is None else (prefill, decode),
    )
