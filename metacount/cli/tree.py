"""`metacount tree`: the module tree of a model: what is inside what, with shapes and parameters."""

from __future__ import annotations

from metacount.cli.answer import Answer, prepare_for_torch
from metacount.cli.layout import GAP, bold, coloured, dim, draws_lines
from metacount.cli.options import (
    DEVICE,
    FORMATS,
    INPUT,
    MODEL,
    WORKLOAD,
    names,
    option,
    own_module,
    request_of,
    whole_number,
)
from metacount.cli.report import Formula, Grid, Lines, Notes, Share, shown, title
from metacount.errors import InputError, nearest
from metacount.errors import shown as shown_text
from metacount.frozen import frozen
from metacount.resolve import Model, find_any

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torch import Tensor

    from metacount.api import Outputs
    from metacount.cli.options import Option
    from metacount.cli.report import Block, Cell, Report
    from metacount.cli.tree_rows import Forms, Row
    from metacount.files import Json
    from metacount.measure.node import Node
    from metacount.resolve import OwnModule, TransformersOnly
    from metacount.spec import ModelSpec

# Every column that can be chosen, and what it says.
COLUMNS = {
    "shape": "[out, in] of a linear layer",
    "output": "what a module gives",
    "params": "of all copies",
    "one": "of one copy",
    "share": "of the first row's",
    "formula": "of one copy, from the textbook",
    "flops": "matmul_flops, of all copies",
    "active": "used for one token",
    "dtype": "of the tensors",
    "bytes": "of all copies",
}
DEFAULT = ("shape", "one", "params", "share")
LEFT = {"shape", "output", "formula", "dtype"}  # the others are numbers, and stand to the right
NARROWEST_NAME = 16
NARROWEST_FORMULA = 28
FEWEST_LETTERS = 5  # of a name, beside a note that must stay
# wide and narrow: a branch, the last one, what goes on beside them, and what does not
GUIDES = (("├─ ", "└─ ", "│  ", "   "), ("├ ", "└ ", "│ ", "  "))
PLAIN = (("|- ", "`- ", "|  ", "   "), ("| ", "` ", "| ", "  "))

BELONGS = (("--device", "--input"),)


def options() -> Sequence[Option]:
    return (
        *MODEL,
        INPUT,
        DEVICE,
        option("--only", "PATH", "a module by its path or the end of it: layers.0.self_attn"),
        option("--depth", "N", "levels below the first row (default all)", type=whole_number),
        option(
            "--columns",
            "NAMES",
            f"some of {', '.join(COLUMNS)}, with commas between them",
            type=names,
            words=lambda: COLUMNS,
        ),
        *FORMATS,
        *WORKLOAD,
    )


def run(args: argparse.Namespace) -> Answer:
    if args.depth is not None and args.depth < 0:
        raise InputError(f"--depth must be 0 or more: got {args.depth}; choose 1 or 2")
    chosen = None if args.columns is None else _chosen(args.columns)
    wanted = set(chosen or ())
    own = own_module(args, runs=bool({"flops", "output"} & wanted))
    if own is not None and chosen is None and args.input:
        chosen = ("shape", "output", "params", "flops")
        wanted = {*chosen}
    model = find_any(args.model, args.settings) if own is None else own
    prepare_for_torch()
    from metacount.api import tree

    inputs: Sequence[Tensor] = ()
    if own is not None:
        from metacount.summary.modules import typed_inputs

        inputs = typed_inputs(own.module, args.input)
    found = tree(
        model if own is None else own.module,
        request_of(args),
        only=args.only,
        flops="flops" in wanted,
        active="active" in wanted,
        outputs="output" in wanted,
        inputs=inputs,
        device=args.device,
    )
    forms = None
    if "formula" in wanted:
        if not isinstance(model, Model) or model.source is not None:
            raise InputError(
                "--columns formula: the rows of transformers' own modules and of yours have no "
                "formula here; choose a model of the catalog"
            )
        from metacount.cli.tree_rows import Forms

        forms = Forms(model.spec)
    drawn = Shown(
        root=found.root,
        depth=args.depth,
        chosen=chosen,
        made_by=found.made_by,
        run=found.run,
        forms=forms,
        outputs=found.outputs,
    )
    return Answer(
        report=lambda: report_of(model, drawn),
        data=lambda: _data(model, drawn),
        table=lambda: table_of(drawn),
        model=model,
        workload=found.workload,
    )


def _chosen(given: Sequence[str]) -> tuple[str, ...]:
    """Check the columns an option names; the formula, which may need lines, comes last."""
    columns = [name.lower() for name in given]
    for name in columns:
        if name not in COLUMNS:
            close = nearest(name, COLUMNS, f"choose some of {', '.join(COLUMNS)}")
            raise InputError(f"--columns: '{shown_text(name)}' is no column of a tree; {close}")
        if columns.count(name) > 1:
            raise InputError(f"--columns: {name} is given twice; leave one out")
    return tuple(sorted(columns, key=lambda name: name == "formula"))


def _data(model: Model | TransformersOnly | OwnModule, asked: Shown) -> Json:
    """Convert the tree to plain data, as deep as asked; with the formulas that were asked for."""
    from metacount.spec.model import left_out

    spec = model.spec if isinstance(model, Model) else None
    tree = asked.root.to_dict(asked.root.params)
    if asked.outputs:
        from metacount.api import with_outputs

        tree = with_outputs(tree, asked.outputs)
    _trim(tree, asked.root, asked, 0)
    return {
        "model": model.id,
        "name": model.name,
        "changes": model.changes if isinstance(model, Model) else {},
        "left_out": [] if spec is None else list(left_out(spec)),
        "source": asked.made_by,
        "tree": tree,
    }


@frozen
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
    outputs: Outputs | None = None

    @property
    def rows(self) -> list[Row]:
        """The rows, from the top down."""
        from metacount.cli.tree_rows import rows_of

        return rows_of(self.root, self.depth)


def report_of(model: Model | TransformersOnly | OwnModule, asked: Shown) -> Report:
    """Report title, one line per module and tensor, and how to read them."""
    from metacount.cli.layout import columns
    from metacount.spec.model import left_out

    rows = asked.rows
    chosen = asked.chosen or DEFAULT
    if asked.chosen is None and (
        not any(row.one is not None for row in rows) or _room(rows, chosen, asked, columns()) < 40
    ):
        chosen = tuple(name for name in chosen if name != "one")
    path = asked.root.path
    spec = model.spec if isinstance(model, Model) and not path else None
    apart = [("apart", text) for text in (() if spec is None else left_out(spec))]
    tied = [("tied", f"{name} is {place}, counted there") for name, place in _tied(asked.root)]
    mask = "" if spec is None or not isinstance(model, Model) or model.source else _windows(spec)
    last = Notes([*apart, *tied, ("mask", mask)])
    drawing = Lines(lambda width: _lines(rows, chosen, asked, width))
    notes = _notes(rows, chosen, asked)
    sections: list[list[Block]] = [[title(model.name, model.id, f": {path}" if path else "")]]
    sections += [[drawing], *notes]
    sections[-1] += [last]
    return sections


def tree_lines(root: Node, chosen: tuple[str, ...], *, most: int, width: int) -> list[str]:
    """Write a line for each module and tensor, `most` at the most, and then how many are left."""
    asked = Shown(root=root, depth=None, chosen=chosen, made_by="")
    lines = _lines(asked.rows, chosen, asked, width)
    return lines if len(lines) <= most else [*lines[:most], f"... {len(lines) - most} lines more"]


def table_of(asked: Shown) -> Grid:
    """Tabulate the rows of a tree by their paths, with the number of copies of each."""
    chosen = asked.chosen or DEFAULT
    align = "<>" + "".join("<" if name in LEFT else ">" for name in chosen)
    rows = asked.rows
    cells = [(row.place, row.count, *_cells(row, chosen, asked, rows[0])) for row in rows]
    return Grid(heads=("module", "copies", *chosen), rows=cells, align=align)


def _trim(data: Json, node: Node, asked: Shown, level: int) -> None:
    from metacount.cli.tree_rows import forms_of

    if asked.forms is not None:
        data["formula"] = asked.forms.of(forms_of(node)).text
    if asked.depth is not None and level >= asked.depth:
        data["children"] = []
    for below, child in zip(data["children"], node.children, strict=False):
        _trim(below, child, asked, level + 1)


def _cells(row: Row, chosen: Sequence[str], asked: Shown, first: Row) -> list[Cell]:
    from metacount.cli.tree_rows import OWN

    outputs = asked.outputs or {}
    values: Json = {
        "shape": row.shape,
        "output": ", ".join(
            map(str, outputs.get(row.path, []) if row.path or row is first else [])
        ),
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
    from metacount.cli.expressions import broken

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
    from metacount.cli.tree_rows import AS_IN

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


def _notes(rows: Sequence[Row], chosen: Sequence[str], asked: Shown) -> list[list[Block]]:
    """Say how to read what is there, and no more."""
    from metacount.cli.tree_rows import AS_IN

    said = []
    if any("×" in row.name for row in rows):
        said.append("×N: N alike, shown once")
    if any(row.note.startswith(AS_IN) for row in rows):
        said.append("as in X: the same as there")
    if any(row.name.endswith("…") for row in rows):
        said.append("…: with more width the whole name")
    said += [f"{name}: {COLUMNS[name]}" for name in chosen if name != "one" or len(rows) > 1]
    text = (
        "; ".join(said)
        + f". Read off the module as instantiated on the meta device ({asked.made_by})."
    )
    if {"flops", "output"} & {*chosen}:
        text += f" Run: {asked.run}."
    found: list[list[Block]] = [[Notes([("read", text)])]]
    if (forms := asked.forms) is not None:
        # the letters that the drawing above has used by then
        heads = ("letter", "name", "here", "meaning")

        def legend(width: int) -> list[str]:
            return Grid(heads=heads, rows=forms.legend(), align="<<>", prose=True).lines(width)

        found.append([Lines(legend)])
    return found


def _tied(root: Node) -> list[tuple[str, str]]:
    """List (full name, full name of the tensor that it is) of every tied tensor."""
    prefix = f"{root.path}." if root.path else ""
    found = [(f"{prefix}{name}", place) for name, place in root.tied.items()]
    for child in root.children:
        found += _tied(child)
    return found


def _windows(spec: ModelSpec) -> str:
    """Say how far blocks see: those with the same tensors may differ, which the tree would hide."""
    near = sum(map(spec.is_windowed_layer, range(spec.n_layers)))
    if not near:
        return ""
    kind = "chunks" if spec.window_kind == "chunked" else "windows"
    text = f"{near} of {spec.n_layers} blocks see {kind} of {spec.window} positions"
    text += f", {spec.n_layers - near} see everything before them" if near < spec.n_layers else ""
    return f"{text}."
