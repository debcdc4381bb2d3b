"""Settings for every test; loads nothing heavy."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))  # for `miniatures` and the like
os.environ.setdefault("COLUMNS", "100")

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A file that describes the miniature `TINY`."""
    from miniatures import TINY

    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(TINY))
    return str(file)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Any]:
    """A hub on loopback; it serves the files of its `folder`."""
    from hub_server import serving

    with serving(tmp_path) as server:
        yield server
