"""Writes text that comes in pieces, so that Ctrl-C falls between two of them."""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType


def write_pieces(pieces: Generator[str, None, None]) -> None:
    """Write each piece as it comes to stdout; one that is begun is written whole.

    A Ctrl-C meanwhile reaches `pieces` as a `KeyboardInterrupt` where it yielded, after what it
    yielded is out; what it yields then is written as well. A second one ends at once: the reader
    of a pipe may never take what is written.
    """
    piece = next(pieces, None)
    while piece is not None:
        interrupted = _written_under_interrupt(piece)
        try:
            piece = pieces.throw(KeyboardInterrupt) if interrupted else next(pieces)
        except StopIteration:
            return


def _written_under_interrupt(piece: str) -> bool:
    """Write a piece; return whether somebody pressed Ctrl-C meanwhile."""
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, where no interrupt arrives
        sys.stdout.write(piece)
        return False
    try:
        sys.stdout.write(piece)
    finally:
        signal.signal(signal.SIGINT, before)
    return bool(pressed)
