"""Rounds: every variant gives one burst, in a fresh random order, until the medians are precise.

What drifts (clocks, temperature, other load) does so for all of a round alike, so that two variants
are compared within each round. A round's median is one value: samples of a burst are neighbours and
say little about each other's noise.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metacount.bench.statistics import FEWEST_FOR_INTERVAL, half_width, median
from metacount.bench.stopwatch import Stopwatch

FEWEST_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Until:
    """When to stop: every half-width is at most `precision`, or after `rounds` or `seconds`.

    `seconds` are meant for each variant and state; three rounds are taken whatever they last.
    """

    rounds: int
    seconds: float
    precision: float
    states: tuple[str, ...]
    warm_up_seconds: float


@dataclass(kw_only=True)
class Entrant:
    """One variant launched in one way. `windows` are its turns on the host's clock.

    `failed` is set where a turn raised; it takes none after that.
    """

    name: str
    watch: Stopwatch
    rounds: dict[str, list[list[float]]] = field(default_factory=dict)
    windows: list[tuple[float, float]] = field(default_factory=list)
    failed: BaseException | None = None

    def medians(self, state: str) -> list[float]:
        """Return one value for each round, the median of its samples."""
        return [median(burst) for burst in self.rounds[state]]


def take_turns(
    entrants: Sequence[Entrant],
    until: Until,
    *,
    seed: int,
    is_ours: Callable[[Entrant, BaseException], bool],
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Fill `rounds` of every entrant; return how many rounds it took.

    An error of a turn ends that entrant's part, unless `is_ours` says that it is our mistake.
    """
    order = random.Random(seed)
    _warm_up(entrants, until, is_ours, clock)
    began, done = clock(), 0
    allowed = until.seconds * len(entrants) * len(until.states)
    while done < max(until.rounds, FEWEST_ROUNDS):
        running = [one for one in entrants if one.failed is None]
        if not running:
            break
        if done >= FEWEST_ROUNDS and clock() - began >= allowed:
            break
        if done >= FEWEST_FOR_INTERVAL and _precise(running, until):
            break
        order.shuffle(running)
        for one in running:
            _one_turn(one, until.states, is_ours, clock)
        done += 1
    return done


def _one_turn(
    one: Entrant,
    states: Sequence[str],
    is_ours: Callable[[Entrant, BaseException], bool],
    clock: Callable[[], float],
    *,
    keep: bool = True,
) -> None:
    try:
        with one.watch.turn():
            start = clock()
            found = {state: one.watch.burst(state) for state in states}
            end = clock()
    except Exception as error:
        if is_ours(one, error):
            raise
        one.failed = error
        return
    if keep:
        one.windows.append((start, end))
        for state, burst in found.items():
            one.rounds.setdefault(state, []).append(burst)


def _warm_up(
    entrants: Sequence[Entrant],
    until: Until,
    is_ours: Callable[[Entrant, BaseException], bool],
    clock: Callable[[], float],
) -> None:
    """Warm up by the case's work before any sample: clocks ramp up, caches, allocators settle."""
    began = clock()
    while clock() - began < until.warm_up_seconds:
        running = [one for one in entrants if one.failed is None]
        if not running:
            return
        for one in running:
            _one_turn(one, until.states[:1], is_ours, clock, keep=False)


def _precise(entrants: Sequence[Entrant], until: Until) -> bool:
    widths = [half_width(one.medians(state)) for one in entrants for state in until.states]
    return max(widths, default=math.inf) <= until.precision
