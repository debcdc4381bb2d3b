"""Bars beside a table, on a terminal that has room for them: shares seen at a glance."""

from __future__ import annotations

import os
import sys

from metacount.views.layout import GAP, columns

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

NARROWEST, WIDEST = 8, 40  # letters of a whole bar
EIGHTHS = " ▏▎▍▌▋▊▉"


def with_bars(lines: list[str], values: Sequence[int]) -> list[str]:
    """Add bars for the values to a table's lines, a head before the values and others after.

    Elsewhere than on a terminal, and where too little room is left, the lines as they are.
    """
    rows = lines[1 : 1 + len(values)]
    widest = max(map(len, rows), default=0)
    room = min(WIDEST, columns() - widest - len(GAP))
    if not rows or room < NARROWEST or not _is_terminal():
        return lines
    total = sum(values)
    drawn = (
        f"{row:<{widest}}{GAP}{bar(value, total, room)}".rstrip()
        for row, value in zip(rows, values, strict=True)
    )
    return [lines[0], *drawn, *lines[1 + len(values) :]]


def bar(value: int, total: int, room: int, blocks: bool | None = None) -> str:
    """Draw a bar whose whole is `room` letters, to an eighth of a letter; never empty for a value.

    >>> bar(1, 2, 8, blocks=True), bar(1, 3, 8, blocks=True), bar(1, 10**9, 8, blocks=True)
    ('████', '██▋', '▏')
    >>> bar(1, 2, 8, blocks=False), bar(1, 10**9, 8, blocks=False)
    ('####', '#')
    """
    if not value:
        return ""
    if not (_knows_blocks() if blocks is None else blocks):
        return "#" * max(1, value * room // total)
    whole, eighths = divmod(max(1, value * room * 8 // total), 8)
    return "█" * whole + (EIGHTHS[eighths] if eighths else "")


def _is_terminal() -> bool:
    return os.environ.get("TERM") != "dumb" and sys.stdout is not None and sys.stdout.isatty()


def _knows_blocks() -> bool:
    try:
        f"█{EIGHTHS}".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True
