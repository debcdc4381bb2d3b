"""What the tests of commands share."""

from __future__ import annotations

import pytest
from helpers.command_line import Ask


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    return Ask(capsys, monkeypatch)
