"""A command's answer as a report: texts, tables and notes; and what writes it in each format.

A report is a list of sections, a section a list of `Text`, `Notes`, `Grid` and `Lines`. What wraps,
aligns and escapes is here alone.

>>> both = Grid(heads=("role", "params"), rows=(("a|b", 1000), ("c_d", None)), align="<>")
>>> print(markdown(both), end="")
| role | params |
| :--- | ---: |
| a\\|b | 1,000 |
| c_d | - |
>>> print(comma_separated(both), end="")
role,params
a|b,1000
c_d,
>>> print(in_text([[Text("two roles")], [both]]), end="")
two roles
<BLANKLINE>
role  params
a|b    1,000
c_d        -
"""

from __future__ import annotations

import os
import sys

from metacount import units
from metacount.errors import printable
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

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


# ---- the blocks of a report

DASH = "-"


@frozen
class Share:
    """A part of a whole: percent where people read, a number between 0 and 1 in CSV."""

    part: int
    whole: int


@frozen
class Formula:
    """An expression as plain text and as LaTeX, and what it comes to where that is known."""

    text: str
    latex: str
    value: int | None = None


class Amount:
    """A number that people read in short (`always`, or where digits have no room); every digit in
    CSV.
    """

    def __init__(
        self,
        value: int | None,
        short: Callable[[int], str],
        *,
        always: bool = False,
        sign: bool = False,
    ) -> None:
        self.value, self.short, self.always = value, short, always
        self.sign = "+" if sign and value is not None and value > 0 else ""

    def text(self, *, short: bool) -> str:
        """Write it with every digit, or in short."""
        if self.value is None:
            return DASH
        return self.sign + (self.short if short or self.always else units.exact)(self.value)


if TYPE_CHECKING:
    # None: nothing is known. A number keeps all its digits in every format.
    Cell: TypeAlias = str | int | bool | Share | Formula | Amount | None
    Block: TypeAlias = "Text | Notes | Grid | Lines"
    Report: TypeAlias = Sequence[Sequence[Block]]
else:
    Cell = Block = Report = object


class Text:
    """A sentence, wrapped at the width, or at `most`; where `style` says so in bold or faint."""

    def __init__(
        self,
        text: str,
        style: Callable[[str], str] | None = None,
        *,
        most: int = 0,
        unbroken: bool = False,
        indent: int = 0,
    ) -> None:
        self.text, self.style = text, style
        self.most, self.unbroken, self.indent = most, unbroken, indent

    def lines(self, width: int) -> list[str]:
        """Write the sentence; an `unbroken` one in one line, however long."""
        room = (min(width, self.most) if self.most else width) - self.indent
        lines = [self.text] if self.unbroken else wrapped(self.text, room)
        start = " " * self.indent
        return [start + (self.style(line) if self.style else line) for line in lines]


class Notes:
    """Labelled sentences; one without a text is left out. Labels are padded to `pad`."""

    def __init__(
        self,
        items: Iterable[tuple[str, str]],
        style: Callable[[str], str] = dim,
        *,
        pad: int = 0,
        indent: int = 0,
    ) -> None:
        self.items = [(label, text) for label, text in items if text]
        self.style, self.pad, self.indent = style, pad, indent

    def lines(self, width: int) -> list[str]:
        """Write each label with its sentence beside it."""
        return [
            " " * self.indent + line
            for label, text in self.items
            for line in paragraph(
                f"{label:{self.pad}}" if self.pad else label,
                text,
                width - self.indent,
                style=self.style,
            )
        ]


class Lines:
    """Lines of a drawing of its own, made for a width, of at most `most` columns if given.

    `html` makes what stands for it in a notebook.
    """

    def __init__(
        self,
        drawn: Callable[[int], Iterable[str]],
        most: int | None = None,
        html: Callable[[], str] | None = None,
    ) -> None:
        self.drawn, self.most, self.html = drawn, most, html

    def lines(self, width: int) -> Sequence[str]:
        """Draw it."""
        return [*self.drawn(width if self.most is None else min(width, self.most))]


@frozen
class Grid:
    """Rows of cells below their heads; `align` has one of < and > for each column.

    A row of no cells is a rule in text. `prose`: the last column is wrapped. `bars`: a value to be
    drawn beside each of the first rows. Where the width is too small, `drops` are left out, the
    first of them first, and then, with `blocks`, what does not fit goes below, with the first
    column again.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    align: str
    prose: bool = False
    bars: Sequence[int] = ()
    drops: Sequence[str] = ()
    blocks: bool = False
    indent: int = 0

    @property
    def sides(self) -> str:
        """One of < and > for each column, prose too."""
        return self.align.ljust(len(max((self.heads, *self.rows), key=len)), "<")

    def lines(self, width: int) -> list[str]:
        """Draw the table."""
        if not self.rows:
            return []
        width -= self.indent
        rows = [[shown(cell) for cell in row] for row in self.rows]
        if self.prose:
            lines = noted_table(self.heads, rows, self.align, width)
        else:
            heads = self.heads or ("",) * len(self.align)
            if width_of(heads, rows) > width:
                rows = [[shown(cell, short=True) for cell in row] for row in self.rows]
            parts = []
            for fitting in self._parts(heads, rows, width):
                body = [[row[i] for i in fitting] if row else row for row in rows]
                align = "".join(self.align[i] for i in fitting)
                parts.append(table([heads[i] for i in fitting], body, align))
            lines = parts[0]
            for part in parts[1:]:
                lines += ["", *part]
        if self.bars:
            lines = with_bars(lines, self.bars)
        return [" " * self.indent + line for line in lines] if self.indent else lines

    def shortens(self, width: int) -> bool:
        """Tell whether its numbers have no room for every digit."""
        return width_of(self.heads, [[shown(c) for c in row] for row in self.rows]) > width

    def dropped(self, width: int) -> list[str]:
        """List the heads of the columns that have no room."""
        rows = [[shown(cell, short=True) for cell in row] for row in self.rows]
        fitting = self._fitting(self.heads, rows, width)
        return [head for i, head in enumerate(self.heads) if i not in fitting]

    def _fitting(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], width: int
    ) -> list[int]:
        fitting = list(range(len(heads)))
        for gone in self.drops:
            body = [[row[i] for i in fitting] for row in rows if row]
            if width_of([heads[i] for i in fitting], body) <= width:
                break
            fitting = [i for i in fitting if heads[i] != gone]
        return fitting

    def _parts(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], width: int
    ) -> list[list[int]]:
        fitting = self._fitting(heads, rows, width)
        if not self.blocks:
            return [fitting]
        widths = [width_of([heads[i]], [[row[i]] for row in rows if row]) for i in fitting]
        parts: list[list[int]] = []
        room = 0
        for i in fitting[1:]:
            if not parts or room < widths[i] + len(GAP):
                parts.append([0])
                room = width - widths[0]
            parts[-1].append(i)
            room -= widths[i] + len(GAP)
        return parts


def shown(cell: Cell, *, short: bool = False) -> str:
    """Format a cell as people read it.

    >>> shown(1234567), shown(Share(part=1, whole=3)), shown(True), shown(None)
    ('1,234,567', '33.3 %', 'true', '-')
    """
    if cell is None:
        return DASH
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, int):
        return units.exact(cell)
    if isinstance(cell, Share):
        return units.share(cell.part, cell.whole)
    if isinstance(cell, Amount):
        return cell.text(short=short)
    return cell.text if isinstance(cell, Formula) else cell


def in_text(report: Report, width: int | None = None) -> str:
    """Write sections with an empty line between them; one without lines is left out."""
    wide = columns() if width is None else width
    parts = [[line for block in section for line in block.lines(wide)] for section in report]
    text = "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)
    return f"{text}\n" if text else ""


def title(name: str, id: str, more: str = "") -> Text:
    """Name a model: its name, and in brackets what it is found by."""
    return Text(bold(name) + (f"  ({id})" if id not in ("", name) else "") + more, unbroken=True)


def grids(report: Report) -> list[Grid]:
    """List the tables of a report."""
    return [block for section in report for block in section if isinstance(block, Grid)]


def _html_table(table: Grid) -> str:
    from html import escape

    sides = ["left" if side == "<" else "right" for side in table.sides]
    heads = [("th", table.heads)] if any(table.heads) else []
    rows = []
    for kind, row in (*heads, *(("td", row) for row in table.rows if row)):
        cells = zip(sides, row, strict=True)
        rows.append(
            "".join(
                f'<{kind} style="text-align:{side}">{escape(shown(cell))}</{kind}>'
                for side, cell in cells
            )
        )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def in_html(report: Report) -> str:
    """Write a report for a notebook: its tables as tables, the rest as it stands in a terminal."""
    from html import escape

    parts = []
    for block in (block for section in report for block in section):
        if isinstance(block, Grid):
            parts.append(_html_table(block))
        elif isinstance(block, Lines) and block.html is not None:
            parts.append(block.html())
        elif lines := "\n".join(block.lines(WIDEST_TEXT)):
            parts.append(f"<pre>{escape(lines)}</pre>")
    return "".join(parts)


def markdown(table: Grid) -> str:
    """Write the table as GitHub's Markdown."""
    sides = [":---" if side == "<" else "---:" for side in table.sides]
    rows = [
        [_in_markdown(shown(cell)) for cell in row] for row in (table.heads, *table.rows) if row
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], sides, *rows[1:]))


def _in_markdown(text: str) -> str:
    """Escape a text for a cell: on one line, no bar ends the cell, no < or `*` starts markup.

    >>> _in_markdown("2*d*m < |x|"), _in_markdown("2·N_e")
    ('2\\\\*d\\\\*m &lt; \\\\|x\\\\|', '2·N_e')
    """
    plain = printable(" ".join(text.split())).replace("\\", "\\\\").replace("&", "&amp;")
    for sign in "|*`[]":
        plain = plain.replace(sign, "\\" + sign)
    return plain.replace("<", "&lt;").replace(">", "&gt;")


def comma_separated(table: Grid) -> str:
    """Write the table as CSV: whole numbers without commas, shares as numbers, nothing for None."""
    import csv
    import io

    out = io.StringIO()
    rows = [row for row in table.rows if row]
    # a column without a head writes the numbers before it in short
    columns = [
        i
        for i, head in enumerate(table.heads or table.sides)
        if head or not all(isinstance(row[i], Amount) for row in rows)
    ]
    writer = csv.writer(out, lineterminator="\n")
    if table.heads:
        writer.writerow([table.heads[i] for i in columns])
    writer.writerows([[_in_csv(row[i]) for i in columns] for row in rows])
    return out.getvalue()


def _in_csv(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Amount):
        return "" if cell.value is None else str(cell.value)
    if isinstance(cell, Share):
        return repr(cell.part / cell.whole) if cell.whole else ""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    return shown(cell)


def latex(table: Grid) -> str:
    r"""Write the table as LaTeX's own `tabular`, which needs no package.

    >>> print(latex(Grid(heads=("a_b",), rows=((5000,), ("7 % & x²",)), align=">")), end="")
    \begin{tabular}{r}
    \hline
    a\_b \\
    \hline
    5\,000 \\
    7 \% \& x$^{2}$ \\
    \hline
    \end{tabular}
    """
    sides = table.sides.replace("<", "l").replace(">", "r")
    heads, *rows = (
        " & ".join(map(_in_latex, row)) + r" \\" for row in (table.heads, *table.rows) if row
    )
    lines = [rf"\begin{{tabular}}{{{sides}}}", r"\hline", heads, r"\hline", *rows, r"\hline"]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


# What LaTeX takes for a command of its own, and signs that its plain fonts do not have.
LATEX = dict(
    pair.split(" ", 1)
    for line in r"""
    \ \textbackslash{}  { \{  } \}  & \&  % \%  $ \$  # \#  _ \_  ~ \textasciitilde{}
    ^ \textasciicircum{}  < $<$  > $>$  | $|$  × $\times$  · $\cdot$  → $\to$  ² $^{2}$
    ³ $^{3}$  ⁴ $^{4}$  ½ $\frac{1}{2}$  √ $\sqrt{}$  ≤ $\leq$  ≥ $\geq$  ≠ $\neq$
    ≈ $\approx$  − $-$  ∞ $\infty$  Σ $\Sigma$  σ $\sigma$  Φ $\Phi$  α $\alpha$  β $\beta$
    γ $\gamma$  θ $\theta$  π $\pi$  ⌈ $\lceil$  ⌉ $\rceil$  ⌊ $\lfloor$  ⌋ $\rfloor$
    ⊙ $\odot$  ᵀ $^{T}$  ε $\epsilon$  μ $\mu$  ∂ $\partial$  – --  “ ``  ” ''  … \ldots{}
    """.splitlines()
    for pair in line.split("  ")
    if pair
)


def _in_latex(cell: Cell) -> str:
    if isinstance(cell, Formula):
        return f"${cell.latex}$"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return units.exact(cell).replace(",", r"\,")
    plain = printable(" ".join(shown(cell).split()))
    return "".join(LATEX.get(sign, sign) for sign in plain)


WRITERS: dict[str, Callable[[Grid], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
    "latex": latex,
}
