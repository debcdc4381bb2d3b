"""Rounds: turns in an order drawn anew, when they stop, and who fails on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.one_thread import no_gradients  # noqa: F401  # a fixture for every test here

from metacount.bench.rounds import Entrant, Until, take_turns


class Script:
    """A stopwatch that says what it is asked, and takes a second for each burst."""

    launch, sets, calls_per_sample, nodes = "eager", 3, 3, None

    def __init__(self, name: str, diary: list[str], seconds: Any = lambda: 1.0) -> None:
        self.name, self.diary, self.seconds = name, diary, seconds

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.diary.append(f"{self.name} begins")
        yield
        self.diary.append(f"{self.name} ends")

    def burst(self, state: str) -> list[float]:
        self.diary.append(f"{self.name} {state}")
        NOW[0] += 1.0
        return [self.seconds()]


NOW = [0.0]


def turns(
    found: list[Entrant],
    *,
    rounds: int = 100,
    seconds: float = 1000.0,
    precision: float = -1.0,
    warm: float = 0.0,
    states: tuple[str, ...] = ("hot",),
    ours: bool = False,
) -> int:
    until = Until(
        rounds=rounds, seconds=seconds, precision=precision, states=states, warm_up_seconds=warm
    )
    return take_turns(found, until, seed=1, is_ours=lambda *_: ours, clock=lambda: NOW[0])


def scripted(diary: list[str], *names: str, **rest: Any) -> list[Entrant]:
    return [Entrant(name=name, watch=Script(name, diary, **rest)) for name in names]


def test_every_variant_has_a_turn_in_each_round_in_an_order_drawn_anew() -> None:
    diary: list[str] = []
    found = scripted(diary, *"abcde")
    assert turns(found, rounds=12, states=("hot", "cold")) == 12
    orders = [
        "".join(word[0] for word in diary[i : i + 20] if word.endswith("hot"))
        for i in range(0, len(diary), 20)
    ]
    assert all(sorted(order) == list("abcde") for order in orders)
    assert len(set(orders)) > 8 and len({order[0] for order in orders}) > 2
    assert all(len(one.rounds[state]) == 12 for one in found for state in ("hot", "cold"))


def test_the_first_variants_work_comes_before_the_first_sample() -> None:
    diary: list[str] = []
    found = scripted(diary, "a", "b")
    turns(found, rounds=3, warm=3.5)
    # two turns of a second each, twice, until 3.5 seconds are over; none of them is kept
    assert len(diary) == 3 * (2 * 2 + 3 * 2)
    assert [len(one.rounds["hot"]) for one in found] == [3, 3]
    diary.clear()
    turns(scripted(diary, "a", "b"), rounds=3)
    assert len(diary) == 3 * 3 * 2


def test_it_stops_when_the_medians_are_precise() -> None:
    # all alike: six rounds are the fewest that have an interval
    assert turns(scripted([], "a", "b"), precision=0.005) == 6
    # 1 % up and down: an interval of half a percent needs the middle of many
    values = iter([1.0, 1.01, 0.99] * 1000)
    n = turns(scripted([], "a", seconds=lambda: next(values)), precision=0.005, rounds=500)
    assert 6 < n < 500
    wild = iter([1.0, 2.0] * 1000)
    assert turns(scripted([], "a", seconds=lambda: next(wild)), precision=0.005, rounds=50) == 50


def test_it_stops_when_time_is_over_but_not_before_three_rounds() -> None:
    assert turns(scripted([], "a", "b"), seconds=0.0) == 3
    # a second a turn, two variants: ten seconds for each are ten rounds
    assert turns(scripted([], "a", "b"), seconds=10.0) == 10


def test_who_fails_has_no_more_turns_and_harms_nobody() -> None:
    diary: list[str] = []
    values = iter([1.0, 1.0, RuntimeError("out of order")])

    def fails() -> float:
        value = next(values)
        if isinstance(value, RuntimeError):
            raise value
        return value

    found = [*scripted(diary, "a"), Entrant(name="b", watch=Script("b", diary, fails))]
    assert turns(found, rounds=5) == 5
    assert found[0].failed is None and len(found[0].rounds["hot"]) == 5
    assert str(found[1].failed) == "out of order" and len(found[1].rounds["hot"]) == 2
    with pytest.raises(RuntimeError, match="ours"):
        turns(scripted([], "a", seconds=lambda: _raise("ours")), rounds=5, ours=True)


def _raise(text: str) -> float:
    raise RuntimeError(text)
