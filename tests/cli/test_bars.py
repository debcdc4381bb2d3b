"""Bars beside the roles of `count`: on a terminal with room, and nowhere else."""

from __future__ import annotations

import sys

import pytest
from helpers.command_line import run

from metacount.cli import main

BLOCKS = "█▏▎▍▌▋▊▉"


def on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> list[str]:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_bars_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = on_a_terminal(capsys, monkeypatch, "count", "mixtral-8x7b")
    rows = {line.split()[0]: line for line in lines if {*line} & {*BLOCKS}}
    assert list(rows) == ["embedding", "attention", "moe", "norm", "head"]
    assert rows["moe"].count("█") > 10 and rows["norm"].endswith("▏")
    assert max(map(len, lines)) <= 80
    # the bars stand below each other
    assert len({min(line.find(c) for c in BLOCKS if c in line) for line in rows.values()}) == 1


def test_no_bars_where_there_is_no_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert "█" not in "\n".join(on_a_terminal(capsys, monkeypatch, "count", "mixtral-8x7b"))


def test_no_bars_in_a_pipe_or_on_a_plain_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "█" not in run(capsys, "count", "mixtral-8x7b")
    monkeypatch.setenv("TERM", "dumb")
    assert "█" not in "\n".join(on_a_terminal(capsys, monkeypatch, "count", "mixtral-8x7b"))
