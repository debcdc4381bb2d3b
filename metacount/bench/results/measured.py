"""What the rounds gave, put into rows: times, rates, ratios to the baseline, derived results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from metacount.bench.clocks.power import Monitor
from metacount.bench.clocks.rounds import Entrant
from metacount.bench.clocks.statistics import median, median_interval
from metacount.bench.layers.case import Case, Variant
from metacount.bench.prepare import Ready
from metacount.bench.results.rows import (
    BACKWARD,
    BOTH,
    FORWARD,
    NOT_AVAILABLE,
    Ceiling,
    Row,
    compared,
    rates,
    times,
    timing_of,
)
from metacount.bench.work import Work, backward_work

if TYPE_CHECKING:
    from metacount.files import Json

EQUAL_TIME_MARK = "@"  # in the name of a variant that is there to find the width of equal time


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One variant launched in one way: its rounds by state, and what is known of it."""

    variant: Variant
    direction: str
    launch: str
    work: Work
    rounds: dict[str, list[list[float]]]
    known: Json
    windows: list[tuple[float, float]]

    @classmethod
    def of(cls, entrant: Entrant, ready: Ready) -> Self:
        """Join an entrant that took its turns with what is known of its variant."""
        watch = entrant.watch
        known = ready.known | {
            "input_sets": watch.sets,
            "calls_per_sample": watch.calls_per_sample,
            "graph_nodes": watch.nodes,
        }
        return cls(
            variant=ready.variant,
            direction=ready.variant.direction,
            launch=watch.launch,
            work=ready.variant.work,
            rounds=entrant.rounds,
            known=known,
            windows=entrant.windows,
        )

    def medians(self, state: str) -> list[float]:
        """Return one value a round, the median of its samples."""
        return [median(burst) for burst in self.rounds[state]]


def rows_of_case(
    measured: Sequence[Measured],
    case: Case,
    ceiling: Ceiling | None,
    blank: Callable[..., Row],
    states: Sequence[str],
    monitor: Monitor | None,
    clock_mhz: int | None,
) -> Iterator[Row]:
    """Yield a row per variant, launch and state; the backward alone where both ways were timed."""
    everything = [*measured, *_backwards(measured)]
    for one in everything:
        for state in states:
            label = {
                "variant": one.variant.name,
                "direction": one.direction,
                "state": state,
                "launch": one.launch,
            }
            values = one.medians(state)
            if min(values) <= 0:
                yield blank(
                    **label,
                    status=NOT_AVAILABLE,
                    reason="the forward took as long as forward and backward",
                )
                continue
            timing = timing_of(one.rounds[state])
            against = _baseline(everything, one, case, state)
            ratio = (
                {}
                if against is None
                else {"baseline": against.variant.name, **compared(values, against.medians(state))}
            )
            seen = {"clock_mhz": clock_mhz}
            if monitor is not None:
                seen |= monitor.of(one.windows, timing.median_s)
            equal = _equal_time(everything, one, against, state)
            yield blank(
                **label,
                **one.known,
                **times(timing),
                **rates(one.work, timing, ceiling),
                **ratio,
                **seen,
                **equal,
            )


def _baseline(
    everything: Sequence[Measured], one: Measured, case: Case, state: str
) -> Measured | None:
    """Find the fastest of the case's baselines, of the same launch and direction."""
    if one.variant.part:
        return None
    names = case.baselines or case.variants[:1]
    found = [
        other
        for other in everything
        if other.variant.name in names
        and (other.launch, other.direction) == (one.launch, one.direction)
    ]
    return min(found, key=lambda other: median(other.medians(state)), default=None)


def _backwards(measured: Sequence[Measured]) -> Iterator[Measured]:
    """Yield each backward: forward and backward less the forward of the same round."""
    forwards = {(m.variant.name, m.launch): m for m in measured if m.direction == FORWARD}
    for both in measured:
        forward = forwards.get((both.variant.name, both.launch))
        if both.direction != BOTH or forward is None:
            continue
        rounds = {
            state: [
                [whole - part]
                for whole, part in zip(both.medians(state), forward.medians(state), strict=True)
            ]
            for state in both.rounds
        }
        work = backward_work(forward.work, both.work)
        kept = ("relative_error", "input_sets", "calls_per_sample")
        yield Measured(
            variant=both.variant,
            direction=BACKWARD,
            launch=both.launch,
            work=work,
            rounds=rounds,
            known={name: both.known[name] for name in kept}
            | {
                "matmul_flops": work.matmul_flops,
                "needed_flops": work.needed_flops,
                "moved_bytes": work.moved_bytes,
                "intensity": work.intensity,
                "note": "forward and backward less the forward of the same round",
            },
            windows=both.windows,
        )


def _equal_time(
    everything: Sequence[Measured], one: Measured, against: Measured | None, state: str
) -> Json:
    """Find the width at which the gated block takes the baseline's time, for the rule's row.

    Read off each round between the two widths on either side, then the median over rounds.
    """
    wide = [
        other
        for other in everything
        if other.variant.d_ff is not None
        and (other.launch, other.direction) == (one.launch, one.direction)
    ]
    searched = any(EQUAL_TIME_MARK in other.variant.name for other in wide)
    if against is None or not searched or one.variant.name != "swiglu":
        return {}
    widths = [other.variant.d_ff or 0 for other in wide]
    found = []
    for values in zip(against.medians(state), *(w.medians(state) for w in wide), strict=True):
        width = crossing(sorted(zip(widths, values[1:], strict=True)), values[0])
        if width is not None:
            found.append(width)
    if 2 * len(found) <= len(one.medians(state)):
        return {}
    low, high = median_interval(found) or (min(found), max(found))
    return {"equal_time_d_ff": median(found), "equal_time_low": low, "equal_time_high": high}


def crossing(points: Sequence[tuple[int, float]], level: float) -> float | None:
    """Find where a line through neighbouring points first reaches `level` from below, or None.

    >>> crossing([(100, 1.0), (200, 2.0), (300, 4.0)], 3.0)
    250.0
    >>> crossing([(100, 1.0), (200, 2.0)], 3.0) is None
    True
    """
    for (x, low), (right, high) in itertools.pairwise(points):
        if low <= level <= high and low < high:
            return x + (right - x) * (level - low) / (high - low)
    return None
