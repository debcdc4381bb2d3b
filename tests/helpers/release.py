"""Choose what every run tries; `make release` tries all, and all that `make test` leaves out.

`make test` tries some of what is left out each day: of cases that only `make release` has all in
`DAYS` days, of `daily(n)` and `one_day_in(n)` all in n days.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Any

import pytest

ONLY = pytest.mark.release
DAYS = 240
DAY = "METACOUNT_TEST_DAY"  # set to a date, the cases of that day are tried


def daily(n: int) -> pytest.MarkDecorator:
    """Mark a test: of its cases one in n is tried a day, at least one."""
    return pytest.mark.daily(n, 1)


def one_day_in(n: int) -> pytest.MarkDecorator:
    """Mark a test that is tried on one day in n, together with the others of its file."""
    return pytest.mark.daily(n, 0)


def not_today(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests marked `daily` that are for other days."""
    cases = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("daily")) and not item.get_closest_marker("release"):
            cases[item.nodeid.partition("[")[0], mark.args].append(item)
    for (name, (n, least)), each in cases.items():
        n, name = (min(n, len(each)), name) if least else (n, name.partition("::")[0])
        first = (zlib.crc32(name.encode()) + _today()) % n
        yield from (item for i, item in enumerate(each) if i % n != first)


def is_of_the_day(name: str) -> bool:
    """Whether a test that `make release` runs is run today, too."""
    return (zlib.crc32(name.encode()) + _today()) % DAYS == 0


def _today() -> int:
    return date.fromisoformat(os.environ[DAY]).toordinal()


def one_in(n: int, cases: Iterable[Any], *, first: int = 0) -> list[Any]:
    """Parameters of a test: every n-th case always, from `first` on, the others by `make release`.

    A case of several values is a tuple.
    """
    return chosen(cases, lambda i: i % n == first)


def chosen(cases: Iterable[Any], always: Callable[[int], bool]) -> list[Any]:
    """Parameters of a test: the cases of these numbers always, the others by `make release`."""
    return [
        case if always(i) else pytest.param(*_values(case), marks=ONLY)
        for i, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
