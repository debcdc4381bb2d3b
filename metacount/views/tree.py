"""The module tree as text: what is inside what, with shapes, parameters, shares and formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metacount.resolve import Model
from metacount.spec.model import left_out
from metacount.views.layout import (
    GAP,
    bold,
    coloured,
    columns,
    dim,
    draws_lines,
    noted_table,
    paragraph,
)
from metacount.views.tables import Formula, Share, Table, shown
from metacount.views.tree_columns import COLUMNS, DEFAULT, LEFT
from metacount.views.tree_labels import AS_IN
from metacount.views.tree_rows import OWN, Row, forms_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.measure.node import Node
    from metacount.resolve import TransformersOnly
    from metacount.spec import ModelSpec
    from metacount.views.tables import Cell
    from metacount.views.tree_forms import Forms

NARROWEST_NAME = 16
NARROWEST_FORMULA = 28
FEWEST_LETTERS = 5  # of a name, beside a note that must stay
# wide and narrow: a branch, the last one, what goes on beside them, and what does not
GUIDES = (("├─ ", "└─ ", "│  ", "   "), ("├ ", "└ ", "│ ", "  "))
PLAIN = (("|- ", "`- ", "|  ", "   "), ("| ", "` ", "| ", "  "))


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is shown: a tree or a part of it, how deep, with which columns; None: what fits.

    `forms` writes the formulas: it gives the text of a row's, and the legend of all.
    """

    root: Node
    depth: int | None
    chosen: tuple[str, ...] | None
    made_by: str
    run: str = ""
    forms: Forms | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows, from the top down."""
        return rows_of(self.root, self.depth)


def tree_text(model: Model | TransformersOnly, asked: Shown) -> str:
    """Write title, one line per module and tensor, and how to read them."""
    rows, width = asked.rows, columns()
    chosen = asked.chosen or DEFAULT
    if asked.chosen is None and (
        not any(row.one is not None for row in rows) or _room(rows, chosen, asked, width) < 40
    ):
        chosen = tuple(name for name in chosen if name != "one")
    title = bold(model.name) + (f"  ({model.id})" if model.id != model.name else "")
    if asked.root.path:
        title += f": {asked.root.path}"
    lines = [title, "", *_lines(rows, chosen, asked, width), ""]
    lines += _notes(rows, chosen, asked, width)
    for said in left_out(model.spec) if isinstance(model, Model) and not asked.root.path else ():
        lines += paragraph("apart", said, width)
    for name, place in _tied(asked.root):
        lines += paragraph("tied", f"{name} is {place}, counted there", width)
    if model.source is None and not asked.root.path:
        lines += _windows(model.spec, width)
    return "\n".join(lines) + "\n"


def tree_lines(root: Node, chosen: tuple[str, ...], *, most: int, width: int) -> list[str]:
    """Write a line for each module and tensor, `most` at the most, and then how many are left."""
    asked = Shown(root=root, depth=None, chosen=chosen, made_by="")
    lines = _lines(asked.rows, chosen, asked, width)
    return lines if len(lines) <= most else [*lines[:most], f"... {len(lines) - most} lines more"]


def tree_table(asked: Shown) -> Table:
    """Tabulate the rows of a tree by their paths, with the number of copies of each."""
    chosen = asked.chosen or DEFAULT
    heads = ("module", "copies", *chosen)
    align = "<>" + "".join("<" if name in LEFT else ">" for name in chosen)
    rows = asked.rows
    cells = tuple((row.place, row.count, *_cells(row, chosen, asked, rows[0])) for row in rows)
    return Table(heads=heads, rows=cells, align=align)


def tree_data(asked: Shown) -> Json:
    """Convert the tree to plain data, as deep as asked; with the formulas that were asked for."""
    data = asked.root.to_dict(asked.root.params)
    _trim(data, asked.root, asked, 0)
    return data


def _trim(data: Json, node: Node, asked: Shown, level: int) -> None:
    if asked.forms is not None:
        data["formula"] = asked.forms.of(forms_of(node)).text
    if asked.depth is not None and level >= asked.depth:
        data["children"] = []
    for below, child in zip(data["children"], node.children, strict=False):
        _trim(below, child, asked, level + 1)


def _cells(row: Row, chosen: Sequence[str], asked: Shown, first: Row) -> list[Cell]:
    values: Json = {
        "shape": row.shape,
        "params": row.params,
        "one": row.one,
        "share": Share(part=row.params, whole=first.params),
        "flops": row.flops,
        "active": row.active,
        "dtype": row.dtype,
        "bytes": row.bytes,
        "formula": "",
    }
    if not row.params:
        values |= {"share": None} if row.shape else dict.fromkeys(("share", "active", "bytes"))
    if row.name == OWN:
        values["params"] = None
    if asked.forms is not None and row.forms:
        form = asked.forms.of(row.forms)
        values["formula"] = Formula(text=form.text, latex=form.latex)
    return [values[name] for name in chosen]


def _texts(row: Row, chosen: Sequence[str], asked: Shown, first: Row) -> list[str]:
    cells = _cells(row, chosen, asked, first)
    return ["" if cell is None else shown(cell) for cell in cells]


def _fixed(rows: Sequence[Row], chosen: Sequence[str], asked: Shown) -> list[int]:
    """Find the width of every column but the formula's, which takes what is left."""
    narrow = [name for name in chosen if name != "formula"]
    cells = [list(narrow), *(_texts(row, narrow, asked, rows[0]) for row in rows)]
    return [max(len(line[i]) for line in cells) for i in range(len(narrow))]


def _room(rows: Sequence[Row], chosen: Sequence[str], asked: Shown, width: int) -> int:
    """Count the characters that are left for the names."""
    fixed = _fixed(rows, chosen, asked)
    formula = NARROWEST_FORMULA + len(GAP) if "formula" in chosen else 0
    return max(NARROWEST_NAME, width - sum(fixed) - len(GAP) * len(fixed) - formula)


def _lines(rows: Sequence[Row], chosen: Sequence[str], asked: Shown, width: int) -> list[str]:
    """Write head and rows. Names give way to numbers; a formula goes on below itself."""
    narrow = [name for name in chosen if name != "formula"]
    fixed = _fixed(rows, chosen, asked)
    room = _room(rows, chosen, asked, width)
    guides, narrow_guides = GUIDES if draws_lines() else PLAIN
    if any(len(_guide(row.last, guides) + row.name) > room for row in rows):
        guides = narrow_guides
    labels = [_label(row, guides, room) for row in rows]
    name_width = max(len("module"), *(len(guide + name + note) for guide, name, note in labels))
    head = GAP.join(
        [f"{'module':<{name_width}}", *map(_padded, narrow, narrow, fixed)]
        + (["formula"] if "formula" in chosen else [])
    )
    lines = [bold(head.rstrip())]
    start = name_width + sum(fixed) + len(GAP) * (len(fixed) + 1)
    for row, (guide, name, note) in zip(rows, labels, strict=True):
        cells = _texts(row, narrow, asked, rows[0])
        line = GAP.join(
            [" " * (name_width - len(guide + name + note)), *map(_padded, narrow, cells, fixed)]
        )[0:]
        label = guide + coloured(name, row.role) + dim(note)
        first, *rest = _formula(row, chosen, asked, width - start)
        lines.append((label + (f"{line}{GAP}{first}" if first else line)).rstrip())
        below = _guide_below(row, rows, guides)
        lines += [f"{below:<{start}}{more}" for more in rest]
    return lines


def _padded(name: str, cell: str, width: int) -> str:
    return f"{cell:<{width}}" if name in LEFT else f"{cell:>{width}}"


def _formula(row: Row, chosen: Sequence[str], asked: Shown, room: int) -> list[str]:
    if "formula" not in chosen or asked.forms is None or not row.forms:
        return [""]
    from metacount.views.formula import broken

    return broken(asked.forms.of(row.forms).text, max(room, NARROWEST_FORMULA))


def _guide(last: tuple[bool, ...], guides: tuple[str, ...]) -> str:
    """Draw the lines that lead from a row to what it is in."""
    if not last:
        return ""
    branch, end, on, over = guides
    return "".join(over if done else on for done in last[:-1]) + (end if last[-1] else branch)


def _guide_below(row: Row, rows: Sequence[Row], guides: tuple[str, ...]) -> str:
    """Draw the lines beside the second line of a row, down to the rows that follow."""
    *_, on, over = guides
    after = rows[rows.index(row) + 1 :]
    inside = bool(after) and len(after[0].last) > len(row.last)
    return "".join(over if done else on for done in row.last) + (on if inside else "")


def _label(row: Row, guides: tuple[str, ...], room: int) -> tuple[str, str, str]:
    """Fit guide, name and note in `room`: the note gives way first, an `as in` after the name."""
    guide = _guide(row.last, guides)
    name, note, left = row.name, row.note, room - len(guide)
    if note.startswith(AS_IN):
        # it says why nothing is below: the name gives way first
        name = _cut(name, max(left - len(GAP + note), FEWEST_LETTERS))
        return guide, name, _cut(GAP + note, left - len(name))
    name = _cut(name, left)
    while note and len(name) + len(GAP) + len(note) > left:
        note = note.rpartition(", ")[0]
    return guide, name, f"{GAP}{note}" if note else ""


def _cut(text: str, room: int) -> str:
    """Cut a text to the room that there is.

    >>> _cut("post_attention_layernorm", 12), _cut("norm", 12)
    ('post_attent…', 'norm')
    """
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def _notes(rows: Sequence[Row], chosen: Sequence[str], asked: Shown, width: int) -> list[str]:
    """Say how to read what is there, and no more."""
    said = []
    if any("×" in row.name for row in rows):
        said.append("×N: N alike, shown once")
    if any(row.note.startswith(AS_IN) for row in rows):
        said.append("as in X: the same as there")
    if any(row.name.endswith("…") for row in rows):
        said.append("…: with more width the whole name")
    told = [name for name in chosen if not (name == "one" and len(rows) == 1)]
    said += [f"{name}: {COLUMNS[name]}" for name in told]
    text = (
        "; ".join(said)
        + f". Read off the module as instantiated on the meta device ({asked.made_by})."
    )
    if "flops" in chosen:
        text += f" Run: {asked.run}."
    lines = paragraph("read", text, width)
    if asked.forms is not None:
        legend = asked.forms.legend()
        if legend:
            lines += ["", *noted_table(("letter", "name", "here", "meaning"), legend, "<<>", width)]
    return lines


def _tied(root: Node) -> list[tuple[str, str]]:
    """List (full name, full name of the tensor that it is) of every tied tensor."""
    prefix = f"{root.path}." if root.path else ""
    found = [(f"{prefix}{name}", place) for name, place in root.tied.items()]
    for child in root.children:
        found += _tied(child)
    return found


def _windows(spec: ModelSpec, width: int) -> list[str]:
    """Say how far blocks see: those with the same tensors may differ, which the tree would hide."""
    near = sum(map(spec.is_windowed_layer, range(spec.n_layers)))
    if not near:
        return []
    kind = "chunks" if spec.window_kind == "chunked" else "windows"
    text = f"{near} of {spec.n_layers} blocks see {kind} of {spec.window} positions"
    text += f", {spec.n_layers - near} see everything before them" if near < spec.n_layers else ""
    return paragraph("mask", text + ".", width)
