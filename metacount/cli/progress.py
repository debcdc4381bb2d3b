"""One line on a terminal's stderr while a command runs: what it does, how far it is, how long."""

from __future__ import annotations

import os
import sys
import time

from metacount.errors import EXIT_INTERRUPTED, interrupted

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    Item = TypeVar("Item")
    Result = TypeVar("Result")

FIRST, EVERY = 0.3, 0.25  # seconds until the line is there, and between two looks at it
_running: list[Running] = []


class Running:
    """Shows the line until its block ends, on a terminal that has one.

    A thread writes it again and again; the cursor stays at its beginning.
    """

    def __init__(self, text: str) -> None:
        from threading import Event, RLock, Thread

        self.text, self.is_shown, self.start = text, False, time.monotonic()
        self.ended, self.lock = Event(), RLock()
        self.thread = Thread(target=self._write, daemon=True)

    def __enter__(self) -> Running:
        if os.environ.get("TERM") != "dumb":
            _running.append(self)
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the line away for good."""
        if self in _running:
            _running.remove(self)
            self.ended.set()
            self.thread.join()
            self.clear()

    def _write(self) -> None:
        from metacount.cli.report import columns

        wait = FIRST
        while not self.ended.wait(wait):
            with self.lock:
                seconds = f"  {time.monotonic() - self.start:.0f} s"
                text = f"{self.text[: columns() - len(seconds) - 1]}{seconds}"
                sys.stderr.write(f"{text}\x1b[K\r")
                sys.stderr.flush()
                self.is_shown, wait = True, EVERY

    def clear(self) -> None:
        """Take the line away until it is written again."""
        with self.lock:
            if self.is_shown:
                sys.stderr.write("\x1b[K")
                sys.stderr.flush()
            self.is_shown = False


def say(text: str) -> None:
    """Say what is being done."""
    for line in _running:
        line.text = text


def clear() -> None:
    """Take the line away for what is written now."""
    for line in _running:
        line.clear()


def gathered(
    results: Iterable[Result], total: int, done: str, things: str
) -> tuple[list[Result], int, str]:
    """Collect results as they come, and say how many there are.

    Ctrl-C leaves fewer: the exit code and a sentence then say so.
    """
    come: list[Result] = []
    try:
        say(f"{done} 0 of {total} {things}")
        for result in results:
            come.append(result)
            say(f"{done} {len(come)} of {total} {things}")
    except KeyboardInterrupt:
        return come, EXIT_INTERRUPTED, interrupted(len(come), total, things)
    return come, 0, ""


def done_of(run: Callable[[Item], Result], items: Iterable[Item], doing: str) -> list[Result]:
    """Call `run` on each item, and say how many are done; Ctrl-C leaves fewer, if any is done."""
    results: list[Result] = []
    several = [*items]
    try:
        for item in several:
            say(f"{doing} {len(results) + 1} of {len(several)}" if len(several) > 1 else doing)
            results.append(run(item))
    except KeyboardInterrupt:
        if len(several) == 1:
            raise
    return results
