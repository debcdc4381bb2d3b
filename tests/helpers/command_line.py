"""The command line as a test meets it: what it prints, what it refuses, and whether that fits."""

from __future__ import annotations

import json
import re
import shlex
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


class Ask:
    """Asks a command line, in one string and words that are not split; 80 columns wide."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, line: str, *more: str, width: int = 80) -> str:
        """What a command prints that succeeds and says nothing on stderr."""
        self.monkeypatch.setenv("COLUMNS", str(width))
        return run(self.capsys, *shlex.split(line), *more)

    def json(self, line: str, *more: str) -> Any:
        return run_json(self.capsys, *shlex.split(line), *more)

    def refused(self, line: str, *more: str) -> str:
        return refused(self.capsys, *shlex.split(line), *more)

    def all(self, line: str, *more: str, width: int = 80) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        self.monkeypatch.setenv("COLUMNS", str(width))
        code = main([*shlex.split(line), *more])
        return code, *self.capsys.readouterr()

    def on_a_terminal(self, line: str, *, width: int = 80, **environment: str) -> str:
        """What it prints on a terminal, with NO_COLOR or TERM where they are given."""
        with self.monkeypatch.context() as patch:
            patch.setattr("sys.stdout.isatty", lambda: True)
            patch.setenv("TERM", "xterm")
            for name, value in environment.items():
                patch.setenv(name, value)
            return self(line, width=width)


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
