"""A command that takes longer says so on a terminal within a second, and leaves no trace."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

# the line is there at once: how fast the machine is decides nothing
AT_ONCE = (
    "import sys; from metacount.cli import main, progress; progress.FIRST = 0; "
    "sys.exit(main(sys.argv[1:]))"
)


def on_a_terminal(*arguments: str, term: str = "xterm") -> tuple[bytes, str]:
    """What a command writes to stdout, and to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", AT_ONCE, *arguments]
    env = {**os.environ, "TERM": term, "COLUMNS": "60"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=env)
    os.close(theirs)
    out = process.communicate()[0]
    said = b""
    try:
        while some := os.read(ours, 4096):
            said += some
    except OSError:  # all is read
        pass
    os.close(ours)
    return out, said.decode()


@pytest.mark.parametrize("arguments", ["tree gpt2", "claims mixtral-total", "verify gpt2 --seq 8"])
def test_a_line_that_is_gone_at_the_end(arguments: str) -> None:
    out, said = on_a_terminal(*arguments.split())
    assert out
    *lines, last = said.split("\r")
    assert last == "\x1b[K"
    assert all(re.fullmatch(r"[\w ]+  \d+ s\x1b\[K", line) for line in lines)


def test_none_where_there_is_no_terminal_for_it() -> None:
    assert on_a_terminal("tree", "textbook-block", term="dumb")[1] == ""
    done = subprocess.run(
        [sys.executable, "-m", "metacount", "tree", "textbook-block"], capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
