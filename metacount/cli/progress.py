"""One line on a terminal's stderr while a command runs: what it does, how far it is, how long."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    Item = TypeVar("Item")
    Found = TypeVar("Found")

FIRST, EVERY = 0.3, 0.25  # seconds until the line is there, and between two looks at it
_now: list[_Line] = []


class _Line:
    """The line, which a thread writes again and again; the cursor stays at its beginning."""

    def __init__(self, text: str) -> None:
        from threading import Event, RLock, Thread

        self.text, self.shown, self.start = text, False, time.monotonic()
        self.ended, self.lock = Event(), RLock()
        self.thread = Thread(target=self._write, daemon=True)
        self.thread.start()

    def _write(self) -> None:
        from metacount.cli.layout import columns

        wait = FIRST
        while not self.ended.wait(wait):
            with self.lock:
                seconds = f"  {time.monotonic() - self.start:.0f} s"
                text = f"{self.text[: columns() - len(seconds) - 1]}{seconds}"
                sys.stderr.write(f"{text}\x1b[K\r")
                sys.stderr.flush()
                self.shown, wait = True, EVERY

    def clear(self) -> None:
        """Take the line away until it is written again."""
        with self.lock:
            if self.shown:
                sys.stderr.write("\x1b[K")
                sys.stderr.flush()
            self.shown = False


class Running:
    """Shows the line until its block ends, on a terminal that has one."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> Running:
        if os.environ.get("TERM") != "dumb":
            _now.append(_Line(self.text))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the line away for good."""
        while _now:
            line = _now.pop()
            line.ended.set()
            line.thread.join()
            line.clear()


def say(text: str) -> None:
    """Say what is being done."""
    for line in _now:
        line.text = text


def clear() -> None:
    """Take the line away for what is written now."""
    for line in _now:
        line.clear()


def done_of(run: Callable[[Item], Found], items: Iterable[Item], doing: str) -> list[Found]:
    """Call `run` on each item, and say how many are done; Ctrl-C leaves fewer, if any is done."""
    found: list[Found] = []
    several = [*items]
    try:
        for item in several:
            say(f"{doing} {len(found) + 1} of {len(several)}" if len(several) > 1 else doing)
            found.append(run(item))
    except KeyboardInterrupt:
        if len(several) == 1:
            raise
    return found
