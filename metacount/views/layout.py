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


def columns() -> int:
    """Characters of a line: $COLUMNS, the terminal's, or 80."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and asked.isascii() and len(asked) < 6 and int(asked) > 0:
        return max(NARROWEST, int(asked))
    try:
        found = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1).columns
    except (OSError, ValueError):
        return DEFAULT_WIDTH
    return max(NARROWEST, found) if found else DEFAULT_WIDTH


def bold(text: str) -> str:
    """`text` in bold on a terminal, as it is elsewhere."""
    return f"\x1b[1m{text}\x1b[0m" if text and is_terminal() else text


def dim(text: str) -> str:
    """`text` in faint letters on a terminal, as it is elsewhere."""
    return f"\x1b[2m{text}\x1b[0m" if text and is_terminal() else text


# ANSI's eight colours; every terminal has its own idea of them that is legible on its background.
COLOURS = {"embedding": 36, "position": 36, "attention": 34, "ffn": 32, "moe": 35, "norm": 33,
           "head": 31}  # fmt: skip


def coloured(text: str, role: str | None) -> str:
    """`text` in the colour of a role on a terminal that takes colours, as it is elsewhere."""
    code = COLOURS.get(role or "")
    return f"\x1b[{code}m{text}\x1b[0m" if text and code and is_terminal() else text


def draws_lines() -> bool:
    """Whether stdout can show the characters that lines are drawn with."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return encoding.lower().startswith("utf")


def is_terminal() -> bool:
    """Whether stdout is a terminal that shows colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout is not None and sys.stdout.isatty()


def wrapped(text: str, width: int) -> list[str]:
    """`text` broken at spaces into lines of at most `width`; a longer word keeps a line to itself.

    >>> wrapped("attention over the pairs that the mask keeps", 20)
    ['attention over the', 'pairs that the mask', 'keeps']
    """
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def paragraph(label: str, text: str, width: int, *, style: Callable[[str], str] = dim) -> list[str]:
    """`label` and `text`, continued under the text; `style` is of the label.

    >>> paragraph("source", "arXiv:2302.13971, Table 2", 24)
    ['source  arXiv:2302.13971,', '        Table 2']
    """
    indent = " " * (len(label) + len(GAP))
    lines = wrapped(text, min(width, WIDEST_TEXT) - len(indent))
    if not lines:
        return []
    return [style(label) + GAP + lines[0], *(indent + line for line in lines[1:])]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> list[str]:
    """Columns as wide as their widest cell; `align` has one of < and > for each column.

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
    """A table whose last column is prose: wrapped to the width that the others leave.

    >>> noted_table((), [("params", "7", "distinct stored parameters, tied ones once")], "<>", 40)
    ['params  7  distinct stored parameters,', '           tied ones once']
    """
    firsts = [row[:-1] for row in rows]
    widths = _widths(heads[:-1] or firsts[0], firsts)
    indent = sum(widths) + len(GAP) * len(widths)
    beside = min(width, WIDEST_LINE) - indent
    below = beside < NARROWEST_NOTE
    lines = []
    if heads:
        top = _line(heads[:-1], widths, align)
        lines.append(bold(top if below else f"{top:<{indent}}{heads[-1]}"))
    for row in rows:
        start = _line(row[:-1], widths, align)
        first, *rest = wrapped(row[-1], width - 4 if below else beside) or [""]
        if below:
            lines += [start, *(" " * 4 + dim(line) for line in (first, *rest) if line)]
        else:
            lines += [f"{start:<{indent}}{dim(first)}".rstrip()]
            lines += [" " * indent + dim(line) for line in rest]
    return lines


def width_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Characters of the widest line of `table`."""
    widths = _widths(heads, rows)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    cells = [heads, *(row for row in rows if row)]
    return [max(len(row[i]) for row in cells) for i in range(len(heads))]


def _line(row: Sequence[str], widths: Sequence[int], align: str) -> str:
    parts = zip(row, widths, align, strict=True)
    return GAP.join(f"{cell:{side}{width}}" for cell, width, side in parts).rstrip()
