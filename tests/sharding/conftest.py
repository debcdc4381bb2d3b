"""Settings for the tests of sharding."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest


@pytest.fixture(autouse=True)
def nobody_asks_what_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite has frozen old objects; to ask so counts a million of them, for each mesh."""
    if "metacount.sharding.by_engine" in sys.modules:
        monkeypatch.setattr("metacount.sharding.by_engine.only_new_garbage", nullcontext)
