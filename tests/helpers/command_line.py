"""The command line as a test meets it: what it prints, what it refuses, and whether that fits."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from metacount.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard output of a command that succeeds and says nothing else."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a wrong request gets."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    if "--json" in arguments:
        err = f"metacount: error: {json.loads(err)['error']}\n"
    assert err.startswith("metacount: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert err.isprintable() or err[:-1].isprintable()
    return err


def number(text: str) -> int:
    assert re.fullmatch(r"\d{1,3}(,\d{3})*", text)
    return int(text.replace(",", ""))


def assert_readable(lines: list[str], width: int) -> None:
    """No line is too wide, unless it is one long word of a source; nothing is cut short."""
    for line in lines:
        assert len(line) <= width or max(map(len, line.split())) > width // 2, line
        assert line == line.rstrip()
        assert "…" not in line
        assert "..." not in line or not re.search(r"\d[\d,]*\.\.\.", line)
