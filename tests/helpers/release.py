"""Choose which cases of a long list every run tries; `make release` tries the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

ONLY = pytest.mark.release


def one_in(n: int, cases: Iterable[Any], *, first: int = 0) -> list[Any]:
    """Parameters of a test: every n-th case always, from `first` on, the others by `make release`.

    A case of several values is a tuple.
    """
    return [
        case if i % n == first else pytest.param(*_values(case), marks=ONLY)
        for i, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
