"""A function of ours with other words in its source, wherever it is known: as a slip would be."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest


def plant(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], right: str, wrong: str
) -> None:
    """Run `wrong` in place of `right` until the test ends."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(right) == 1
    made: dict[str, Any] = {}
    exec(source.replace(right, wrong), {**function.__globals__}, made)
    monkeypatch.setattr(function, "__code__", made[function.__name__].__code__)
