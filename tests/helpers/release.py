"""Choose which cases of a long list every run tries; `make release` tries the others.

`make test` tries some of the others as well, another choice each day: all of them in `DAYS` days.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from datetime import date
from typing import Any

import pytest

ONLY = pytest.mark.release
DAYS = 240
DAY = "METACOUNT_TEST_DAY"  # set to a date, the cases of that day are tried


def is_of_the_day(name: str) -> bool:
    """Whether a test that `make release` runs is run today, too."""
    day = date.fromisoformat(os.environ[DAY]).toordinal()
    return (zlib.crc32(name.encode()) + day) % DAYS == 0


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
