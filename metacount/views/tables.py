"""One table record, which every view can give, and a writer for each format that takes tables.

>>> both = Table(heads=("role", "params"), rows=(("a|b", 1000), ("c_d", None)), align="<>")
>>> print(markdown(both), end="")
| role | params |
| :--- | ---: |
| a\\|b | 1,000 |
| c_d | - |
>>> print(comma_separated(both), end="")
role,params
a|b,1000
c_d,
"""

from __future__ import annotations

from metacount import units
from metacount.errors import printable
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

DASH = "-"


@frozen
class Share:
    """A part of a whole: percent where people read, a number between 0 and 1 in CSV."""

    part: int
    whole: int


@frozen
class Formula:
    """An expression as plain text and as LaTeX."""

    text: str
    latex: str


if TYPE_CHECKING:
    # None: nothing is known. A number keeps all its digits in every format.
    Cell: TypeAlias = str | int | bool | Share | Formula | None


@frozen
class Table:
    """Rows of cells below their heads; `align` has one of < and > for each column."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    align: str


def shown(cell: Cell) -> str:
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
    return cell.text if isinstance(cell, Formula) else cell


def markdown(table: Table) -> str:
    """Write the table as GitHub's Markdown."""
    sides = [":---" if side == "<" else "---:" for side in table.align]
    rows = [[_in_markdown(shown(cell)) for cell in row] for row in (table.heads, *table.rows)]
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


def comma_separated(table: Table) -> str:
    """Write the table as CSV: whole numbers without commas, shares as numbers, nothing for None."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.heads)
    writer.writerows([[_in_csv(cell) for cell in row] for row in table.rows])
    return out.getvalue()


def _in_csv(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Share):
        return repr(cell.part / cell.whole) if cell.whole else ""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    return shown(cell)


def latex(table: Table) -> str:
    r"""Write the table as LaTeX's own `tabular`, which needs no package.

    >>> print(latex(Table(heads=("a_b",), rows=((5000,), ("7 % & x²",)), align=">")), end="")
    \begin{tabular}{r}
    \hline
    a\_b \\
    \hline
    5\,000 \\
    7 \% \& x$^{2}$ \\
    \hline
    \end{tabular}
    """
    sides = table.align.replace("<", "l").replace(">", "r")
    heads, *rows = (" & ".join(map(_in_latex, row)) + r" \\" for row in (table.heads, *table.rows))
    lines = [rf"\begin{{tabular}}{{{sides}}}", r"\hline", heads, r"\hline", *rows, r"\hline"]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


# What LaTeX takes for a command of its own, and signs that its plain fonts do not have.
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "→": r"$\to$",
    "²": "$^{2}$",
    "³": "$^{3}$",
    "⁴": "$^{4}$",
    "½": r"$\frac{1}{2}$",
    "√": r"$\sqrt{}$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "−": "$-$",
    "∞": r"$\infty$",
    "Σ": r"$\Sigma$",
    "σ": r"$\sigma$",
    "Φ": r"$\Phi$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "θ": r"$\theta$",
    "π": r"$\pi$",
    "⌈": r"$\lceil$",
    "⌉": r"$\rceil$",
    "⌊": r"$\lfloor$",
    "⌋": r"$\rfloor$",
    "⊙": r"$\odot$",
    "ᵀ": r"$^{T}$",
    "ε": r"$\epsilon$",
    "μ": r"$\mu$",
    "∂": r"$\partial$",
    "–": "--",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}


def _in_latex(cell: Cell) -> str:
    if isinstance(cell, Formula):
        return f"${cell.latex}$"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return units.exact(cell).replace(",", r"\,")
    plain = printable(" ".join(shown(cell).split()))
    return "".join(LATEX.get(sign, sign) for sign in plain)


WRITERS: dict[str, Callable[[Table], str]] = {
    "markdown": markdown,
    "csv": comma_separated,
    "latex": latex,
}
