"""A summary as text, as Markdown and as HTML with a tree to unfold."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import bold, columns, paragraph, table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.measure.ours.tree import Node
    from metacount.summary.summary import Summary

UNKNOWN = "unknown"
LINES = 40  # of a tree in a terminal
STYLE = "margin-left:1.2em"


def summary_text(summary: Summary) -> str:
    """Figures, roles, and the tree."""
    width = columns()
    parts = [[bold(summary.name)], table(("", ""), _figures(summary), "<>")]
    if summary.by_role:
        rows = [(role, units.exact(n), units.share(n, summary.params))
                for role, n in summary.by_role.items() if n]  # fmt: skip
        parts.append(table(("role", "params", "share"), rows, "<>>"))
    lines = [(label, shape, figures) for label, shape, figures in _rows(summary.tree, 0)]
    rows = [(label, shape, figures) for label, shape, figures in lines[:LINES]]
    parts.append(table(("module", "shape", "params"), _fitting(rows, width), "<<>"))
    notes = []
    if len(lines) > LINES:
        notes += paragraph("more", f"{len(lines) - LINES} modules further in `.tree`", width)
    for note in (f"measured: {summary.source}", *summary.notes):
        notes += paragraph("note", note, width)
    return "\n\n".join("\n".join(part) for part in [*parts, notes]) + "\n"


def _figures(summary: Summary) -> list[tuple[str, str]]:
    active = summary.active_params
    rows = [
        ("params", units.exact(summary.params)),
        ("active_params", UNKNOWN if active is None else units.exact(active)),
    ]
    if summary.buffers:
        rows.append(("values in buffers", units.exact(summary.buffers)))
    if not summary.by_role:
        rows.append(("by role", UNKNOWN))
    return rows


def _rows(node: Node, depth: int, copies: int = 1) -> Iterator[tuple[str, str, str]]:
    """(name and class, shape, parameters of all copies) of a module and of those inside."""
    copies *= node.count
    yield "  " * depth + _label(node), _shape(node), units.exact(node.params * copies)
    for child in node.children:
        yield from _rows(child, depth + 1, copies)


def _label(node: Node) -> str:
    times = f" ×{node.count}" if node.count > 1 else ""
    kind = "" if node.module in ("Linear", node.name) else f" ({node.module})"
    return f"{node.name}{times}{kind}"


def _shape(node: Node) -> str:
    weight = node.tensors.get("weight")
    if weight is not None:
        return "[" + ", ".join(map(str, weight)) + "]"
    return "tied" if node.tied and not node.tensors else ""


def _fitting(rows: list[tuple[str, str, str]], width: int) -> list[tuple[str, str, str]]:
    """Without the class where a line would be too wide: names shorten before numbers do."""
    others = max((len(shape) for _, shape, _ in rows), default=0) + 4
    others += max((len(number) for _, _, number in rows), default=0)
    return [(label if len(label) + others <= width else label.partition(" (")[0], shape, number)
            for label, shape, number in rows]  # fmt: skip


def summary_markdown(summary: Summary) -> str:
    """Figures and tree as tables of Markdown."""
    roles = [(f"of these {role}", units.exact(n)) for role, n in (summary.by_role or {}).items()
             if n]  # fmt: skip
    lines = [f"## {_plain(summary.name)}", "", "| figure | |", "|---|--:|"]
    lines += [f"| {name} | {text} |" for name, text in (*_figures(summary), *roles)]
    lines += ["", "| module | shape | params |", "|---|---|--:|"]
    for label, shape, number in _rows(summary.tree, 0):
        indent = "&nbsp;" * (len(label) - len(label.lstrip()))
        lines.append(f"| {indent}{_plain(label.lstrip())} | {shape} | {number} |")
    lines += ["", *(f"* {_plain(note)}" for note in (f"measured: {summary.source}",
                                                     *summary.notes))]  # fmt: skip
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Somebody else's names, so that Markdown reads none of its marks in them."""
    return "".join("\\" + c if c in "\\`*_{}[]<>|#" else c for c in text)


def summary_html(summary: Summary) -> str:
    """The same for a notebook: folded, to be opened module by module. No script, no style sheet."""
    from html import escape

    roles = [(f"of these {role}", units.exact(n)) for role, n in (summary.by_role or {}).items()
             if n]  # fmt: skip
    rows = "".join(
        f'<tr><td style="text-align:left">{escape(name)}</td>'
        f'<td style="text-align:right">{escape(text)}</td></tr>'
        for name, text in (*_figures(summary), *roles)
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in
                    (f"measured: {summary.source}", *summary.notes))  # fmt: skip
    return (
        f"<div><b>{escape(summary.name)}</b><table>{rows}</table>"
        f"{_details(summary.tree, 0)}<ul>{notes}</ul></div>"
    )


def _details(node: Node, depth: int, copies: int = 1) -> str:
    from html import escape

    copies *= node.count
    shape = _shape(node)
    text = (f"<code>{escape(_label(node))}</code> {escape(shape)} "
            f"{units.exact(node.params * copies)}")  # fmt: skip
    inside = "".join(_details(child, depth + 1, copies) for child in node.children)
    if not inside:
        return f'<div style="{STYLE}">{text}</div>'
    is_open = " open" if depth == 0 else ""
    return f'<details{is_open} style="{STYLE}"><summary>{text}</summary>{inside}</details>'
