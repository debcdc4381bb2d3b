"""Plain tables and paragraphs, as wide as the terminal. Numbers are never cut or broken.

A table library takes longer to import than the whole count takes; this is all that is needed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NARROWEST = 40
WIDEST_TEXT = 100  # characters of a line of prose
WIDEST_LINE = 140  # of a table with prose in its last column
DEFAULT_WIDTH = 80
GAP = "  "
NARROWEST_NOTE = 24  # a note with less room goes on lines of its own
NARROWEST_BAR, WIDEST_BAR = 8, 40  # letters of a whole bar
EIGHTHS = " ▏▎▍▌▋▊▉"
FIRST_WIDE = "\u1100"  # no character below takes two cells
NOT_FIRST = frozenset("，。、；：？！）》”’%)]},.;:?!")  # marks that no line begins with
NOT_LAST = ("（", "《", "“", "‘", "(")  # and none ends with


def columns() -> int:
    """Find how many characters a line has: $COLUMNS, the terminal's, or 80."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and asked.isascii() and len(asked) < 6 and int(asked) > 0:
        return max(NARROWEST, int(asked))
    try:
        width = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1).columns
    except (OSError, ValueError):
        return DEFAULT_WIDTH
    return max(NARROWEST, width) if width else DEFAULT_WIDTH


def bold(text: str) -> str:
    """Format `text` in bold on a terminal; elsewhere as it is."""
    return f"\x1b[1m{text}\x1b[0m" if text and is_terminal() else text


def dim(text: str) -> str:
    """Format `text` in faint letters on a terminal; elsewhere as it is."""
    return f"\x1b[2m{text}\x1b[0m" if text and is_terminal() else text


# ANSI's eight colours; every terminal has its own idea of them that is legible on its background.
COLOURS = {
    "embedding": 36,
    "position": 36,
    "attention": 34,
    "recurrent": 31,
    "ffn": 32,
    "moe": 35,
    "norm": 33,
    "head": 31,
}


def coloured(text: str, role: str | None) -> str:
    """Format `text` in a role's colour on a terminal that takes colours; elsewhere as it is."""
    code = COLOURS.get(role or "")
    return f"\x1b[{code}m{text}\x1b[0m" if text and code and is_terminal() else text


def draws_lines() -> bool:
    """Tell whether stdout can show the characters that lines and bars are drawn with."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return encoding.lower().startswith("utf")


def is_terminal() -> bool:
    """Tell whether stdout is a terminal that shows colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def cells(text: str) -> int:
    """Count the cells that `text` takes on a terminal: a Chinese character takes two.

    >>> cells("d² · m"), cells("参数 d")
    (6, 6)
    """
    if not text or max(text) < FIRST_WIDE:
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def wrapped(text: str, width: int) -> list[str]:
    """Break `text` at spaces into lines of at most `width`; a longer word keeps a line to itself.

    Chinese has no spaces: it is broken between characters, but not before a mark that ends a
    phrase.

    >>> wrapped("attention over the pairs that the mask keeps", 20)
    ['attention over the', 'pairs that the mask', 'keeps']
    >>> wrapped("每个词元都有自己的键，也有自己的值。", 18)
    ['每个词元都有自己的', '键，也有自己的值。']
    """
    lines: list[str] = []
    for gap, word in _words(text):
        if lines and cells(lines[-1]) + len(gap) + cells(word) <= width:
            lines[-1] += gap + word
        else:
            lines.append(word)
    return lines


def _words(text: str) -> Iterable[tuple[str, str]]:
    """Yield the pieces that must stay together, each with the space before it."""
    for word in text.split():
        if max(word) < FIRST_WIDE:
            yield " ", word
            continue
        gap, piece = " ", ""
        for char in word:
            joined = char in NOT_FIRST or piece[-1:] in NOT_LAST
            if piece and not joined and (cells(char) > 1 or cells(piece[-1]) > 1):
                yield gap, piece
                gap, piece = "", ""
            piece += char
        yield gap, piece


def paragraph(label: str, text: str, width: int, *, style: Callable[[str], str] = dim) -> list[str]:
    """Write `label` and `text`, continued under the text; `style` is of the label.

    >>> paragraph("source", "arXiv:2302.13971, Table 2", 24)
    ['source  arXiv:2302.13971,', '        Table 2']
    """
    indent = " " * (cells(label) + len(GAP))
    lines = wrapped(text, min(width, WIDEST_TEXT) - len(indent))
    if not lines:
        return []
    return [style(label) + GAP + lines[0], *(indent + line for line in lines[1:])]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> list[str]:
    """Write columns as wide as their widest cell; `align` has one of < and > for each column.

    A row of no cells is a rule. Trailing spaces are left out.

    >>> table(("role", "exact"), [("norm", "1"), ("ffn", "23"), (), ("total", "24")], "<>")
    ['role   exact', 'norm       1', 'ffn       23', '------------', 'total     24']
    """
    rows = list(rows)
    widths = _widths(heads, rows)
    rule = "-" * (sum(widths) + len(GAP) * (len(widths) - 1))
    top = [bold(_line(heads, widths, align))] if any(heads) else []
    return top + [_line(row, widths, align) if row else dim(rule) for row in rows]


def noted_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int
) -> list[str]:
    """Write a table whose last column is prose: wrapped to the width that the others leave.

    >>> noted_table((), [("params", "7", "distinct stored parameters, tied ones once")], "<>", 40)
    ['params  7  distinct stored parameters,', '           tied ones once']
    """
    firsts = [row[:-1] for row in rows]
    widths = _widths(heads[:-1] or firsts[0], firsts)
    indent = sum(widths) + len(GAP) * len(widths)
    room = min(width, WIDEST_LINE) - indent
    below = room < NARROWEST_NOTE
    lines = []
    if heads:
        top = _line(heads[:-1], widths, align)
        lines.append(bold(top if below else _padded(top, "<", indent) + heads[-1]))
    for row in rows:
        start = _line(row[:-1], widths, align)
        first, *rest = wrapped(row[-1], width - 4 if below else room) or [""]
        if below:
            lines += [start, *(" " * 4 + dim(line) for line in (first, *rest) if line)]
        else:
            lines += [(_padded(start, "<", indent) + dim(first)).rstrip()]
            lines += [" " * indent + dim(line) for line in rest]
    return lines


def width_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Count the characters of the widest line of `table`."""
    widths = _widths(heads, rows)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    everything = [heads, *(row for row in rows if row)]
    return [max(cells(row[i]) for row in everything) for i in range(len(heads))]


def _line(row: Sequence[str], widths: Sequence[int], align: str) -> str:
    parts = zip(row, widths, align, strict=True)
    return GAP.join(_padded(cell, side, width) for cell, width, side in parts).rstrip()


def _padded(text: str, side: str, width: int) -> str:
    """Pad `text` to `width` cells, with the text at the left (<) or at the right (>)."""
    room = " " * (width - cells(text))
    return text + room if side == "<" else room + text


def with_bars(lines: list[str], values: Sequence[int]) -> list[str]:
    """Add bars for the values to a table's lines, a head before the values and others after.

    Elsewhere than on a terminal, and where too little room is left, the lines as they are.
    """
    rows = lines[1 : 1 + len(values)]
    widest = max(map(len, rows), default=0)
    room = min(WIDEST_BAR, columns() - widest - len(GAP))
    stdout, is_plain = sys.stdout, os.environ.get("TERM") == "dumb"
    if not rows or room < NARROWEST_BAR or is_plain or stdout is None or not stdout.isatty():
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
    if not (draws_lines() if blocks is None else blocks):
        return "#" * max(1, value * room // total)
    full, eighths = divmod(max(1, value * room * 8 // total), 8)
    return "█" * full + (EIGHTHS[eighths] if eighths else "")
