"""How results of the Python API show themselves: text in a terminal, HTML in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from metacount import units
from metacount.cli.report import (
    Grid,
    Lines,
    Notes,
    Share,
    Text,
    bold,
    in_html,
    in_text,
    markdown,
)
from metacount.cli.tree import View, rows_of, tree_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from metacount.api import Tree
    from metacount.cli.report import Cell, Report
    from metacount.cli.tree import Row
    from metacount.measure.node import Node
    from metacount.summary.summary import Summary
    from metacount.textbook.count import Count
    from metacount.textbook.training import TrainingCount

UNKNOWN = "unknown"
LINES = 45  # of a tree in a terminal
CHOSEN = ("shape", "params", "share")
STYLE = ' style="margin-left:1.2em"'


def text_of(result: object) -> str:
    """Write a result as its command does."""
    return in_text(_report_of(result)).rstrip("\n")


def html_of(result: object) -> str:
    """Render a result for a notebook: a tree folded, to be opened module by module."""
    return in_html(_report_of(result))


def _report_of(result: Any) -> Report:
    from metacount.cli import audit, check, claims, diff, fit, flow, shard, train, verify

    reports: dict[str, Callable[[Any], Report]] = {
        "Audits": lambda result: audit.audits_report(result, outside=True),
        "Count": _count_report,
        "Diff": diff.report_of,
        "Fits": fit.report_of,
        "Flow": flow.report_of,
        "Judgement": lambda result: check.report_of(result, result.model),
        "Sharded": shard.report_of,
        "Training": train.report_of,
        "TrainingCount": _training_report,
        "Tree": _tree_report,
        "Verdict": claims.verdict_report,
        "Verification": lambda result: verify.report_of(result, result.model),
    }
    return reports.get(type(result).__name__, summary_report)(result)


def _count_report(result: Count) -> Report:
    from metacount.cli.count import figures_report

    notes = [("warning", text) for text in result.warnings]
    notes += [("config", text) for text in result.notes]
    return [*figures_report(result.to_dict()), [Notes(notes)]]


def _training_report(step: TrainingCount) -> Report:
    from metacount.cli.count import figure_row
    from metacount.figures import FIGURES
    from metacount.textbook.count import run_text

    rows = [figure_row(name, getattr(step, name, None)) for name in FIGURES]
    reasons: dict[str, list[str]] = {}
    for name, why in step.uncovered.items():
        reasons.setdefault(why, []).append(name)
    ways = f"{step.attention} attention, {step.optimizer}, checkpointing {step.checkpointing}"
    return [
        [Text(f"a training step: {run_text(step.workload)}; {ways}", bold)],
        [Grid(heads=(), rows=[row for row in rows if row[1] is not None], align="<>", prose=True)],
        [Notes(("no formula", f"{', '.join(those)}: {why}") for why, those in reasons.items())],
    ]


def _tree_report(tree: Tree) -> Report:
    return [[_tree(tree.root)], [Notes([("read", f"{tree.made_by}; {tree.run}")])]]


def _tree(root: Node) -> Lines:
    return Lines(
        lambda width: tree_lines(root, CHOSEN, most=LINES, width=width),
        html=lambda: tree_html(rows_of(root), style=STYLE),
    )


def summary_report(summary: Summary) -> Report:
    """Report figures, roles, and the tree."""
    notes = Notes(("note", note) for note in _notes(summary))
    tables = ([table] for table in _tables(summary))
    return [[Text(summary.name, bold, unbroken=True)], *tables, [_tree(summary.tree)], [notes]]


def summary_markdown(summary: Summary) -> str:
    """Write figures, roles and tree as tables of Markdown."""
    name = Grid(heads=(summary.name,), rows=(), align="<")
    title = markdown(name).partition("\n")[0].strip("| ")  # with somebody else's marks escaped
    tables = (*_tables(summary), View(summary.tree, chosen=CHOSEN).table())
    notes = "".join(f"* {note}\n" for note in _notes(summary))
    return "\n".join([f"## {title}\n", *map(markdown, tables), notes])


def _tables(summary: Summary) -> Iterator[Grid]:
    active, roles = summary.active_params, summary.by_role or {}
    figures: dict[str, Cell] = {
        "params": summary.params,
        "active_params": UNKNOWN if active is None else active,
    }
    if summary.buffers:
        figures["values in buffers"] = summary.buffers
    if not roles:
        figures["by role"] = UNKNOWN
    yield Grid(heads=("figure", "value"), rows=[*figures.items()], align="<>")
    if roles:
        rows = [(role, n, Share(part=n, whole=summary.params)) for role, n in roles.items() if n]
        yield Grid(heads=("role", "params", "share"), rows=rows, align="<>>")


def _notes(summary: Summary) -> list[str]:
    return [f"counted by {summary.source}", *summary.notes]


def tree_html(rows: Sequence[Row], open_depth: int = 1, style: str = "") -> str:
    """Render the rows of a tree, folded below `open_depth` levels; `style` is of each."""
    parts = []
    depths = [*(len(row.last) for row in rows), 0]
    for row, depth, below in zip(rows, depths, depths[1:], strict=False):
        note, share = f"{row.note} {row.shape}".strip(), units.share(row.params, rows[0].params)
        text = f"<code>{escape(row.name)}</code> {escape(note)} {units.exact(row.params)}"
        text += f" {share}" if row.params else ""
        opened = " open" if depth < open_depth else ""
        if below > depth:
            parts.append(f"<details{opened}{style}><summary>{text}</summary>")
        else:
            parts.append(f"<div{style}>{text}</div>{'</details>' * (depth - below)}")
    return "".join(parts)
