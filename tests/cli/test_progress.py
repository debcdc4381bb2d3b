"""A command that takes longer says so on a terminal within a second, and leaves no trace."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

# the line is there at once: how fast the machine is decides nothing
AT_ONCE = (
    "import sys; from metacount.cli import main, progress; progress.FIRST = 0; "
    "sys.exit(main(sys.argv[1:]))"
)


def on_a_terminal(line: str, term: str = "xterm") -> tuple[bytes, str]:
    """What a command writes to stdout, and to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", AT_ONCE, *line.split()]
    env = {**os.environ, "TERM": term, "COLUMNS": "60"}
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=env).stdout
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # all is read
        while some := os.read(ours, 4096):
            said += some
    os.close(ours)
    return out, said.decode()


@pytest.mark.parametrize("line", ["tree gpt2", "claims mixtral-total", "plot gpt2 --html p.html"])
def test_a_line_that_is_gone_at_the_end(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, said = on_a_terminal(line)
    *lines, last = said.split("\r")
    assert out and lines and last == "\x1b[K"
    assert all(re.fullmatch(r"[\w ]+  \d+ s\x1b\[K", line) for line in lines)
    assert on_a_terminal("tree textbook-block", term="dumb")[1] == ""
