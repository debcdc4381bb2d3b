"""A summary as text, as Markdown and as HTML with a tree to unfold."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import bold, columns, paragraph
from metacount.views.layout import table as drawn
from metacount.views.tables import Share, Table, markdown, shown
from metacount.views.tree import Shown, tree_lines, tree_table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.measure.ours.tree import Node
    from metacount.summary.summary import Summary
    from metacount.views.tables import Cell

UNKNOWN = "unknown"
LINES = 45  # of a tree in a terminal
CHOSEN = ("shape", "params", "share")
STYLE = "margin-left:1.2em"


def summary_text(summary: Summary) -> str:
    """Write a summary: figures, roles, and the tree."""
    width = columns()
    parts = [[bold(summary.name)], *(_drawn(table) for table in _tables(summary))]
    parts.append(tree_lines(summary.tree, CHOSEN, most=LINES, width=width))
    parts.append([line for note in _notes(summary) for line in paragraph("note", note, width)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _drawn(table: Table) -> list[str]:
    return drawn(table.heads, [[shown(cell) for cell in row] for row in table.rows], table.align)


def _tables(summary: Summary) -> list[Table]:
    """Tabulate the figures, and parameters by role where roles are known."""
    active = summary.active_params
    figures: list[tuple[Cell, ...]] = [
        ("params", summary.params),
        ("active_params", UNKNOWN if active is None else active),
    ]
    if summary.buffers:
        figures.append(("values in buffers", summary.buffers))
    if not summary.by_role:
        figures.append(("by role", UNKNOWN))
    tables = [Table(heads=("figure", "value"), rows=tuple(figures), align="<>")]
    if summary.by_role:
        roles = tuple(
            (role, n, Share(part=n, whole=summary.params))
            for role, n in summary.by_role.items()
            if n
        )
        tables.append(Table(heads=("role", "params", "share"), rows=roles, align="<>>"))
    return tables


def _notes(summary: Summary) -> list[str]:
    return [f"counted by {summary.source}", *summary.notes]


def summary_markdown(summary: Summary) -> str:
    """Write figures, roles and tree as tables of Markdown."""
    name = Table(heads=(summary.name,), rows=(), align="<")
    title = markdown(name).partition("\n")[0].strip("| ")  # with somebody else's marks escaped
    tree = tree_table(Shown(root=summary.tree, depth=None, chosen=CHOSEN, made_by=""))
    notes = "".join(f"* {note}\n" for note in _notes(summary))
    parts = [f"## {title}\n", *(markdown(table) for table in (*_tables(summary), tree)), notes]
    return "\n".join(parts)


def summary_html(summary: Summary) -> str:
    """Render for a notebook: folded, to be opened module by module. No script, no style sheet."""
    from html import escape

    tables = "".join(_html(table) for table in _tables(summary))
    notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(summary))
    return (
        f"<div><b>{escape(summary.name)}</b>{tables}"
        f"{_details(summary.tree, 0)}<ul>{notes}</ul></div>"
    )


def _html(table: Table) -> str:
    from html import escape

    sides = ["left" if side == "<" else "right" for side in table.align]
    rows = []
    for kind, row in (("th", table.heads), *(("td", row) for row in table.rows)):
        cells = zip(sides, row, strict=True)
        rows.append(
            "".join(
                f'<{kind} style="text-align:{side}">{escape(shown(cell))}</{kind}>'
                for side, cell in cells
            )
        )
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _details(node: Node, depth: int, copies: int = 1) -> str:
    """Render a module and, to be opened, those inside it, with the parameters of all copies."""
    from html import escape

    copies *= node.count
    times = f" ×{node.count}" if node.count > 1 else ""
    kind = "" if node.module in ("Linear", node.name) else f" ({node.module})"
    weight = node.tensors.get("weight")
    shape = "" if weight is None else "[" + ", ".join(map(str, weight)) + "]"
    shape = "tied" if node.tied and not node.tensors else shape
    text = (
        f"<code>{escape(node.name + times + kind)}</code> {escape(shape)} "
        f"{units.exact(node.params * copies)}"
    )
    inside = "".join(_details(child, depth + 1, copies) for child in node.children)
    if not inside:
        return f'<div style="{STYLE}">{text}</div>'
    is_open = " open" if depth == 0 else ""
    return f'<details{is_open} style="{STYLE}"><summary>{text}</summary>{inside}</details>'
