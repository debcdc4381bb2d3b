"""`metacount tree`: the module tree of a model: what is inside what, with shapes and parameters."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from math import prod

from metacount import units
from metacount.algebra.text import in_letters
from metacount.cli.answer import Answer, prepare_for_torch
from metacount.cli.options import own_module, request_of
from metacount.cli.report import (
    GAP,
    Block,
    Cell,
    Formula,
    Grid,
    Lines,
    Notes,
    Report,
    Share,
    bold,
    coloured,
    columns,
    dim,
    draws_lines,
    shown,
    title,
)
from metacount.errors import InputError, nearest
from metacount.errors import shown as shown_text
from metacount.measure.node import PERIOD, Node, total, walk
from metacount.resolve import Model, OwnModule, TransformersOnly, find_any
from metacount.spec import ModelSpec, legend
from metacount.spec.model import left_out
from metacount.textbook.closed_form import LAYERS, layers_of, named_layers, readable
from metacount.textbook.rows import Rows

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from metacount.api import Outputs, Tree
    from metacount.files import Json

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

AS_IN = "as in "
BUFFER = "buffer"
# Classes that say nothing beside the name of the module or its shape.
UNTOLD = ("Linear", "ModuleList", "Embedding")
# Three projections of one input: their sum is what textbooks call QKV.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"))
TIED = "tied"
MANY = 48  # rows: with a title and notes, 60 lines
OWN = "(own products)"  # FLOPs of a module that has rows of its own below it


def run(args: argparse.Namespace) -> Answer:
    if args.depth is not None and args.depth < 0:
        raise InputError(f"--depth must be 0 or more: got {args.depth}; choose 1 or 2")
    chosen = None if args.columns is None else _chosen(args.columns)
    own = own_module(args, runs=bool({"flops", "output"} & {*(chosen or ())}))
    if own is not None and chosen is None and args.input:
        chosen = ("shape", "output", "params", "flops")
    wanted = {*(chosen or ())}
    model = find_any(args.model, args.settings) if own is None else own
    prepare_for_torch()
    from metacount.api import tree
    from metacount.summary.modules import typed_inputs

    result = tree(
        model if own is None else own.module,
        request_of(args),
        only=args.only,
        flops="flops" in wanted,
        active="active" in wanted,
        outputs="output" in wanted,
        inputs=() if own is None else typed_inputs(own.module, args.input),
        device=args.device,
    )
    forms = None
    if "formula" in wanted:
        if not isinstance(model, Model) or model.source is not None:
            raise InputError(
                "--columns formula: the rows of transformers' own modules and of yours have no "
                "formula here; choose a model of the catalog"
            )
        forms = Forms(model.spec)
    view = View(result.root, args.depth, chosen or DEFAULT, result.outputs, forms)
    return Answer(
        report=lambda: report_of(model, result, view, fits=chosen is not None),
        data=lambda: _data(model, result, view),
        table=view.table,
        model=model,
        workload=result.workload,
    )


def _chosen(given: Sequence[str]) -> tuple[str, ...]:
    columns = [name.lower() for name in given]
    for name in columns:
        if name not in COLUMNS:
            close = nearest(name, COLUMNS, f"choose some of {', '.join(COLUMNS)}")
            raise InputError(f"--columns: '{shown_text(name)}' is no column of a tree; {close}")
        if columns.count(name) > 1:
            raise InputError(f"--columns: {name} is given twice; leave one out")
    return tuple(sorted(columns, key=lambda name: name == "formula"))


def _data(model: Model | TransformersOnly | OwnModule, tree: Tree, view: View) -> Json:
    data = tree.to_dict()

    def trim(data: Json, node: Node, level: int) -> None:
        if view.forms is not None:
            data["formula"] = view.forms.of(forms_of(node)).text
        if level == view.depth:
            data["children"] = []
        for below, child in zip(data["children"], node.children, strict=False):
            trim(below, child, level + 1)

    trim(data, tree.root, 0)
    return {
        "model": model.id,
        "name": model.name,
        "changes": getattr(model, "changes", {}),
        "left_out": list(left_out(model.spec)) if isinstance(model, Model) else [],
        "source": tree.made_by,
        "tree": data,
    }


class View:
    """The rows of a tree down to a depth (None: all), with some columns of each.

    `forms` writes the formulas: it gives that of a row, and the legend of all.
    """

    def __init__(
        self,
        root: Node,
        depth: int | None = None,
        chosen: Sequence[str] = DEFAULT,
        outputs: Outputs | None = None,
        forms: Forms | None = None,
    ) -> None:
        self.depth, self.chosen, self.outputs, self.forms = depth, chosen, outputs or {}, forms
        self.rows = rows_of(root, depth)

    @property
    def narrow(self) -> list[str]:
        """The columns but the formula, which takes what they leave."""
        return [name for name in self.chosen if name != "formula"]

    def cells(self, row: Row, names: Sequence[str]) -> list[Cell]:
        """Read some columns of a row."""
        first = self.rows[0]
        values: Json = {**vars(row), "share": Share(part=row.params, whole=first.params)}
        given = self.outputs.get(row.path, []) if row.path or row is first else []
        values["output"] = ", ".join(map(str, given))
        if not row.params:
            values |= {"share": None} if row.shape else dict.fromkeys(("share", "active", "bytes"))
        if row.name == OWN:
            values["params"] = None
        if "formula" in names:
            values["formula"] = self.forms.of(row.forms) if self.forms and row.forms else ""
        return [values[name] for name in names]

    def table(self) -> Grid:
        """Tabulate the rows by their paths, with the number of copies of each."""
        align = "<>" + "".join("<" if name in LEFT else ">" for name in self.chosen)
        rows = [(row.place, row.count, *self.cells(row, self.chosen)) for row in self.rows]
        return Grid(heads=("module", "copies", *self.chosen), rows=rows, align=align)

    def texts(self) -> list[list[str]]:
        """Write the narrow columns, below their heads."""
        rows = (self.cells(row, self.narrow) for row in self.rows)
        texts = (["" if cell is None else shown(cell) for cell in row] for row in rows)
        return [self.narrow, *texts]

    def room(self, widths: Sequence[int], width: int) -> int:
        """Count the characters that columns of these widths leave for the names."""
        formula = NARROWEST_FORMULA + len(GAP) if "formula" in self.chosen else 0
        return max(NARROWEST_NAME, width - sum(widths) - len(GAP) * len(widths) - formula)

    def without_copies(self, width: int) -> View:
        """Leave out the parameters of one copy where there are none, or no room for names."""
        several = any(row.one is not None for row in self.rows)
        if several and self.room(_widths(self.texts()), width) >= 40:
            return self
        view = copy(self)
        view.chosen = tuple(name for name in self.chosen if name != "one")
        return view

    def lines(self, width: int) -> list[str]:
        """Write head and rows. Names give way to numbers; a formula goes on below itself."""
        heads, *texts = self.texts()
        widths = _widths([heads, *texts])
        room = self.room(widths, width)
        guides, narrow_guides = GUIDES if draws_lines() else PLAIN
        if any(len(_guide(row.last, guides) + row.name) > room for row in self.rows):
            guides = narrow_guides
        labels = [_label(row, guides, room) for row in self.rows]
        name_width = max(len("module"), *(len("".join(label)) for label in labels))
        start = name_width + sum(widths) + len(GAP) * (len(widths) + 1)
        sides = ["<" if name in LEFT else ">" for name in heads]

        def line(cells: Sequence[str]) -> str:
            return "".join(GAP + cell for cell in map("{:{}{}}".format, cells, sides, widths))

        formula = f"{GAP}formula" if "formula" in self.chosen else ""
        lines = [bold(f"{'module':<{name_width}}{line(heads)}{formula}".rstrip())]
        depths = [*(len(row.last) for row in self.rows[1:]), 0]
        for row, (guide, name, note), cells, below in zip(
            self.rows, labels, texts, depths, strict=True
        ):
            padding = " " * (name_width - len(guide + name + note))
            text = guide + coloured(name, row.role) + dim(note) + padding + line(cells)
            if self.forms is None or not row.forms:
                lines.append(text.rstrip())
                continue
            from metacount.cli.expressions import broken

            form = self.forms.of(row.forms).text
            first, *rest = broken(form, max(width - start, NARROWEST_FORMULA))
            lines.append(text + GAP + first)
            *_, on, over = guides
            rails = "".join(over if done else on for done in row.last)
            rails += on if below > len(row.last) else ""
            lines += [f"{rails:<{start}}{more}" for more in rest]
        return lines


def report_of(
    model: Model | TransformersOnly | OwnModule, tree: Tree, view: View, *, fits: bool
) -> Report:
    """Report title, one line per module and tensor, and how to read them; unless it `fits`, without
    a column that has no room.
    """
    view = view if fits else view.without_copies(columns())
    path = tree.root.path
    notes: list[tuple[str, str]] = []
    if isinstance(model, Model) and not path:
        notes += [("apart", text) for text in left_out(model.spec)]
    notes += [("tied", f"{name} is {place}, counted there") for name, place in _tied(tree.root)]
    if isinstance(model, Model) and not path and not model.source:
        notes.append(("mask", _windows(model.spec)))
    sections: list[list[Block]] = [[title(model.name, model.id, f": {path}" if path else "")]]
    sections += [[Lines(view.lines)], [Notes([("read", _read(tree, view))])]]
    if (forms := view.forms) is not None:
        heads = ("letter", "name", "here", "meaning")

        def legend(width: int) -> list[str]:  # the letters that the drawing above has used by then
            return Grid(heads=heads, rows=forms.legend(), align="<<>", prose=True).lines(width)

        sections.append([Lines(legend)])
    sections[-1].append(Notes(notes))
    return sections


def tree_lines(root: Node, chosen: tuple[str, ...], *, most: int, width: int) -> list[str]:
    """Write a line for each module and tensor, `most` at the most, and then how many are left."""
    lines = View(root, chosen=chosen).lines(width)
    return lines if len(lines) <= most else [*lines[:most], f"... {len(lines) - most} lines more"]


def _widths(texts: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*texts, strict=True)]


def _guide(last: tuple[bool, ...], guides: tuple[str, ...]) -> str:
    if not last:
        return ""
    branch, end, on, over = guides
    return "".join(over if done else on for done in last[:-1]) + (end if last[-1] else branch)


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


def _read(tree: Tree, view: View) -> str:
    """Say how to read what is there, and no more."""
    rows, chosen = view.rows, view.chosen
    signs = {
        "×N: N alike, shown once": any("×" in row.name for row in rows),
        "as in X: the same as there": any(row.note.startswith(AS_IN) for row in rows),
        "…: with more width the whole name": any(row.name.endswith("…") for row in rows),
    }
    texts = [text for text, is_there in signs.items() if is_there]
    texts += [f"{name}: {COLUMNS[name]}" for name in chosen if name != "one" or len(rows) > 1]
    text = f"{'; '.join(texts)}. Read off the module as instantiated on the meta device "
    run = f" Run: {tree.run}." if {"flops", "output"} & {*chosen} else ""
    return f"{text}({tree.made_by}).{run}"


def _tied(root: Node) -> list[tuple[str, str]]:
    return [
        (f"{node.path}.{name}".lstrip("."), place)
        for node in walk(root)
        for name, place in node.tied.items()
    ]


def _windows(spec: ModelSpec) -> str:
    near = sum(map(spec.is_windowed_layer, range(spec.n_layers)))
    if not near:
        return ""
    kind = "chunks" if spec.window_kind == "chunked" else "windows"
    text = f"{near} of {spec.n_layers} blocks see {kind} of {spec.window} positions"
    text += f", {spec.n_layers - near} see everything before them" if near < spec.n_layers else ""
    return f"{text}."


# ---- the rows: one for each module and tensor that is shown, what repeats shown once


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line. `params`, `active`, `flops` and `bytes` are of all copies, None where unknown.

    `last` says of the row and of those above it whether they are the last of their level. `one`:
    parameters of one of the copies; None where there is but one. `forms`: times and path of the
    formulas whose sum `one` is, or `params` where there is one copy.
    """

    name: str
    role: str | None
    place: str
    count: int
    last: tuple[bool, ...] = ()
    note: str = ""
    shape: str = ""
    params: int = 0
    one: int | None = None
    active: int | None = 0
    flops: int | None = None
    bytes: int = 0
    dtype: str = ""
    forms: tuple[tuple[int, str], ...] = ()
    path: str = ""  # of a module


def rows_of(root: Node, depth: int | None = None) -> list[Row]:
    """List every row below and including `root`, `depth` levels of them (None: all).

    A matrix and its bias are a row each, unless there are too many rows.
    """
    rows = list(_Rows(depth, joined=1).below(root))
    return rows if len(rows) <= MANY else list(_Rows(depth, joined=2).below(root))


class _Rows:
    """Makes the rows of one tree. Tensors of up to `joined` axes share the row of their module."""

    def __init__(self, depth: int | None, joined: int) -> None:
        self._depth, self._joined = depth, joined
        self._seen: dict[int, list[str]] = {}  # where modules that are alike were shown

    def below(
        self,
        node: Node,
        last: tuple[bool, ...] = (),
        place: str = "",
        copies: int = 1,
        within: int = 1,
    ) -> Iterator[Row]:
        """Yield the row of a node, then those of what it holds. It stands at `place`, in `copies`
        of all folds around it, `within` of those in one block.
        """
        node = _chained(node) if last else node
        numbered = node.name.rpartition(".")[2][:1].isdecimal()
        copies *= node.count
        within = 1 if numbered else within * node.count
        place = f"{place}.{node.name}".lstrip(".") if last else ""
        tensors = dict(node.tensors)
        tied = len(node.tied) == 1 and not (tensors or node.buffers or node.children)
        on_one_line = not (node.tied or node.children) and is_line(node, self._joined)
        seen: list[str] = []
        if node.children and node.module not in (PERIOD, ""):
            seen = list(self._seen.setdefault(node.alike, []))
            self._seen[node.alike].append(place)
        yield Row(
            last=last,
            name=label(node, numbered) + (inside(node) if on_one_line else ""),
            note=as_in(place, seen) if seen else note(node, numbered),
            role=node.role,
            place=place or node.name,
            count=copies,
            shape=joined(node, within) if on_one_line else TIED if tied else "",
            params=node.params * copies,
            one=node.params * within if copies > within else None,
            active=_times(node.active, copies),
            flops=_times(node.flops, copies),
            bytes=node.bytes * copies,
            dtype=node.dtype,
            forms=forms_of(node, within),
            path=node.path,
        )
        if seen or ((on_one_line or tied) and last) or len(last) == self._depth:
            return
        inner: list[Node | Row] = [*_tensor_rows(node, tensors, place, copies, within)]
        held = tuple(child for child in node.children if _holds_something(child))
        inner += _together(held) if node.module else held  # three of them are one already
        if node.own_flops and any(child.flops for child in node.children):
            at_own, flops = f"{place}.{OWN}".lstrip("."), node.own_flops * copies
            own = Row(name=OWN, role=node.role, place=at_own, count=copies, flops=flops)
            inner.append(own)
        for i, item in enumerate(inner):
            deeper = (*last, i == len(inner) - 1)
            if isinstance(item, Row):
                yield replace(item, last=deeper)
                continue
            # the neighbours of a period, and three projections, stand at their holder's place
            above = place.rpartition(".")[0] if node.module in (PERIOD, "") else place
            yield from self.below(item, deeper, above, copies, within)


def _holds_something(node: Node) -> bool:
    """Tell whether a checkpoint holds something of a module, or the module multiplies."""
    stored = node.params or node.tied or node.flops or node.buffers.keys() - node.unstored
    return bool(stored) or any(map(_holds_something, node.children))


def _chained(node: Node) -> Node:
    """Join a module that holds one other and nothing else with that other: `layers.0-31`."""
    while len(node.children) == 1 and node.count == 1 and node.module != PERIOD:
        if node.tensors or node.tied or node.buffers or node.own_flops:
            break
        (child,) = node.children
        node = replace(
            child,
            name=f"{node.name}.{child.name}",
            role=child.role or node.role,
            computes=node.computes or child.computes,
        )
    return node


def _tensor_rows(
    node: Node, tensors: dict[str, tuple[int, ...]], place: str, copies: int, within: int
) -> Iterator[Row]:
    """Yield a row for tensors that a module owns, those that it shares, and its stored buffers."""
    prefix = f"{node.path}." if node.path else ""
    start = f"{place}." if place else ""
    for key, size in tensors.items():
        yield Row(
            name=key,
            role=node.role,
            place=start + key,
            count=copies,
            shape=shape_text(size, within),
            params=prod(size) * copies,
            one=prod(size) * within if copies > within else None,
            active=_times(node.active_tensors[key], copies),
            bytes=node.bytes_of[key] * copies,
            dtype=node.dtype if node.dtype != "mixed" else "",
            forms=((within, prefix + key),),
        )
    others = [(key, TIED) for key in node.tied]
    others += [
        (key, f"{shape_text(size, within)} {BUFFER}")
        for key, size in node.buffers.items()
        if key not in node.unstored
    ]
    for key, shape in others:
        yield Row(name=key, role=node.role, place=start + key, count=copies, shape=shape)


def _times(value: int | None, copies: int) -> int | None:
    return None if value is None else value * copies


def forms_of(node: Node, within: int = 1) -> tuple[tuple[int, str], ...]:
    """Return the formulas of a node: its own, or those of what it stands for.

    What multiplies and stores nothing (the products between positions) has none.
    """
    if not node.params and not node.tied:
        return ()
    if node.module in (PERIOD, ""):
        return tuple(
            (times * child.count * within, path)
            for child in node.children
            for times, path in forms_of(child)
        )
    return ((within, node.path),)


def _together(children: tuple[Node, ...]) -> list[Node]:
    names = [child.name for child in children]
    for wanted in TOGETHER:
        for at in range(len(names) - 2):
            if tuple(names[at : at + 3]) == wanted:
                return [*children[:at], _sum(children[at : at + 3]), *children[at + 3 :]]
    return list(children)


def _sum(parts: tuple[Node, ...]) -> Node:
    name = ", ".join(part.name for part in parts)
    if len({part.alike for part in parts}) == 1:
        return replace(parts[0], name=name, count=len(parts))
    first, second, third = inner = parts
    if second.alike == third.alike:
        inner = (first, replace(second, name=f"{second.name}, {third.name}", count=2))
    return replace(
        parts[0],
        name=name,
        module="",
        computes="",
        tensors={},
        buffers={},
        tied={},
        params=sum(part.params for part in parts),
        active=total([part.active for part in parts]),
        bytes=sum(part.bytes for part in parts),
        flops=total([part.flops for part in parts]),
        own_flops=0,
        alike=-1,
        children=inner,
    )


# ---- what stands in a row beside its numbers: the name, a note, the shapes


def label(node: Node, numbered: bool) -> str:
    """Name a module, with how often it comes; a period by what it is made of."""
    if node.module == PERIOD:
        inside = ", ".join(label(child, numbered=True) for child in node.children)
        above = node.name.rpartition(".")[0]
        return f"{above}{'.' * bool(above)}({inside}) ×{node.count}"
    return f"{node.name} ×{node.count}" if numbered and node.count > 1 else node.name


def note(node: Node, numbered: bool) -> str:
    """Say what a module computes, else its class where that says more than its name."""
    alike = f"{node.count} alike" if not numbered and node.count > 1 else ""
    text = node.computes
    if not text and node.module not in (*UNTOLD, PERIOD, "", node.name):
        text = f"({node.module})"
    return ", ".join(part for part in (alike, text) if part)


def as_in(place: str, seen: list[str]) -> str:
    """Say where else a module was shown: the nearest place, without what both paths share.

    >>> as_in("layers.3-60.mlp", ["layers.0-2.mlp"]), as_in("encoder.b.c", ["decoder.b.c"])
    ('as in 0-2', 'as in decoder')
    >>> as_in("model.a.shared", ["model.a.mlp", "other.model.a.b.mlp"])
    'as in mlp'
    """

    def apart(mine: list[str], theirs: list[str]) -> str:
        while mine and theirs and mine[0] == theirs[0]:
            mine, theirs = mine[1:], theirs[1:]
        while len(theirs) > 1 and mine and mine[-1] == theirs[-1]:
            mine, theirs = mine[:-1], theirs[:-1]
        return ".".join(theirs)

    return AS_IN + min((apart(place.split("."), other.split(".")) for other in seen), key=len)


def is_line(node: Node, joined: int) -> bool:
    """Tell whether one line says all that a module owns: one tensor, or a weight and its bias."""
    if len(node.tensors) + len(node.buffers) == 1:
        return True
    plain = list(node.tensors) == ["weight", "bias"] and not node.buffers
    return plain and max(map(len, node.tensors.values())) <= joined


def inside(node: Node) -> str:
    """Name the one tensor of a module, where it is not the module's weight."""
    (first, *_) = (*node.tensors, *node.buffers)
    return "" if first == "weight" else f".{first}"


def joined(node: Node, times: int) -> str:
    """Write the shapes of a module's tensors in one cell: a vector after a matrix is its bias."""
    first, *rest = (*node.tensors.values(), *node.buffers.values())
    if node.buffers:
        return f"{shape_text(first, times)} {BUFFER}"
    plain = len(first) == 1
    shapes = [shape_text(first, times), *(shape_text(s, times) if plain else "bias" for s in rest)]
    return " + ".join(shapes)


def shape_text(size: tuple[int, ...], times: int = 1) -> str:
    """Write a tensor's shape, or that of some alike.

    >>> shape_text((512, 64)), shape_text((512, 512), 3)
    ('[512, 64]', '3 × [512, 512]')
    """
    text = "[" + ", ".join(map(str, size)) + "]"
    return text if times == 1 else f"{times} × {text}"


# ---- formulas of rows in letters, from the textbook


class Forms:
    """The formulas of one model's rows."""

    def __init__(self, spec: ModelSpec) -> None:
        self._rows = Rows(spec, symbols=True)
        self._numbers = {**self._rows.numbers, **layers_of(spec)}
        n_layers = legend.sympy_symbols(["n_layers"])["n_layers"]
        self._layers = named_layers(spec, n_layers)
        self._used: set[str] = set()

    def of(self, forms: tuple[tuple[int, str], ...]) -> Formula:
        """Sum the formulas of some paths, each so many times."""
        import sympy

        total = sympy.sympify(sum(times * self._rows.form(path) for times, path in forms))
        expr = readable(total.subs(self._layers))
        letters = {letter: self._numbers[letter.name] for letter in expr.free_symbols}
        self._used |= {letter.name for letter in letters}
        text, value = in_letters(expr), int(expr.subs(letters))
        return Formula(text=text, latex=sympy.latex(expr), value=value)

    def legend(self) -> list[tuple[str, str, str, str]]:
        """List letter, name, number and meaning of every size that was used so far."""
        return [
            (t.letter, t.name, units.exact(self._numbers[t.letter]), t.meaning)
            for t in (*legend.MODEL_TERMS, *LAYERS)
            if t.letter in self._used
        ]
