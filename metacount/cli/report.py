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

from metacount import units
from metacount.cli.layout import (
    GAP,
    WIDEST_TEXT,
    bold,
    columns,
    dim,
    noted_table,
    paragraph,
    table,
    width_of,
    with_bars,
    wrapped,
)
from metacount.errors import printable
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

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
        self.most, self.whole, self.indent = most, unbroken, indent

    def lines(self, width: int) -> list[str]:
        """Write the sentence; an `unbroken` one in one line, however long."""
        room = (min(width, self.most) if self.most else width) - self.indent
        lines = [self.text] if self.whole else wrapped(self.text, room)
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
