"""Run a program that starts others: when its time is up, all of them end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


def in_a_group(
    command: Sequence[str], seconds: float, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Its exit code and what it and its children wrote.

    They write to a file: a child that outlives the program would keep a pipe open, and whoever
    reads it waiting.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as written:
        process = subprocess.Popen(
            command, stdout=written, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):  # none may be left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        written.seek(0)
        return code, written.read()


def left_of_group(leader: int) -> list[int]:
    """Processes of a group that are still there after a while; those that ended do not count."""
    return _left(lambda: [pid for pid, group in _running().items() if group == leader])


def still_running(pids: Iterable[int]) -> list[int]:
    """Those that are still there after a while."""
    asked = {*pids}
    return _left(lambda: sorted(asked & _running().keys()))


def _left(look: Callable[[], list[int]], seconds: float = 10.0) -> list[int]:
    until = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _running() -> dict[int, int]:
    """The group of each process that has not ended."""
    running = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, _, group = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:3]
            running |= {int(name): int(group)} if state != "Z" else {}
    return running
