"""The module tree as text: what is inside what, with shapes, parameters and shares."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import bold, columns, paragraph, table, width_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.measure.ours.tree import Node
    from metacount.resolve import Model, TransformersOnly
    from metacount.spec import ModelSpec

HEADS = ("module", "shape", "one", "all", "share")


def tree_text(model: Model | TransformersOnly, root: Node, made_by: str) -> str:
    """Title, one line per module and tensor, and how to read them."""
    rows: list[tuple[str, ...]] = [*_rows(root, root.params, 1, "", "")]
    heads: tuple[str, ...] = HEADS
    align = "<<>>>"
    note = (
        "×N: N modules with the same tensors, shown once; one: parameters of one of them; all: of "
        "all N. A linear layer's shape is [out, in]. Read off the module as instantiated on the "
        f"meta device ({made_by})."
    )
    if width_of(heads, rows) > columns():
        heads, align = (*HEADS[:2], *HEADS[3:]), "<<>>"
        rows = [(*row[:2], *row[3:]) for row in rows]
        note = note.replace("one: parameters of one of them; all: of", "all: parameters of")
    title = bold(model.name) + (f"  ({model.id})" if model.id != model.name else "")
    notes = paragraph("read", note, columns())
    for name, place in _tied(root, ""):
        notes += paragraph("tied", f"{name} is {place}, counted there", columns())
    if model.source is None:
        notes += _windows(model.spec, columns())
    return "\n".join([title, "", *table(heads, rows, align), "", *notes]) + "\n"


def _tied(node: Node, prefix: str) -> list[tuple[str, str]]:
    """(full name, full name of the tensor that it is) of every tied tensor."""
    found = [(f"{prefix}{name}", place) for name, place in node.tied.items()]
    for child in node.children:
        found += _tied(child, f"{prefix}{child.name}.")
    return found


def _windows(spec: ModelSpec, width: int) -> list[str]:
    """Blocks with the same tensors may see differently far; the tree alone would hide that."""
    near = sum(map(spec.is_windowed_layer, range(spec.n_layers)))
    if not near:
        return []
    kind = "chunks" if spec.window_kind == "chunked" else "windows"
    text = f"{near} of {spec.n_layers} blocks see {kind} of {spec.window} positions"
    text += f", {spec.n_layers - near} see everything before them" if near < spec.n_layers else ""
    return paragraph("mask", text + ".", width)


def _rows(
    node: Node, total: int, copies: int, first: str, rest: str
) -> list[tuple[str, str, str, str, str]]:
    copies *= node.count
    name = node.name if node.count == 1 else f"{node.name} ×{node.count}"
    label = f"{first}{name}"
    if node.fused is not None:
        label += f" ({node.fused[0]} fused, {node.fused[1]} used per token)"
    elif node.module not in ("Linear", "ModuleList", name):
        label += f" ({node.module})"
    tensors, tied = dict(node.tensors), dict(node.tied)
    # a module that owns one weight and nothing else is one line, not two
    shape = ""
    if not node.children and list(tensors) == ["weight"] and not tied and not node.buffers:
        shape = _shape(tensors.pop("weight"))
    everything = node.params * copies
    lines = [(label, shape, units.exact(node.params) if copies > 1 else "",
              units.exact(everything), units.share(everything, total))]  # fmt: skip
    inner: list[tuple[str, str, int] | Node] = [
        *((key, _shape(size), _numel(size)) for key, size in tensors.items()),
        *((key, "tied", 0) for key in tied),
        *((f"{key} [buffer]", _shape(size), 0) for key, size in node.buffers.items()),
        *node.children,
    ]
    for i, item in enumerate(inner):
        last = i == len(inner) - 1
        branch, further = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if not isinstance(item, tuple):
            lines += _rows(item, total, copies, rest + branch, rest + further)
            continue
        key, size, numel = item
        counted = units.exact(numel * copies) if numel else "0"
        one = units.exact(numel) if numel and copies > 1 else ""
        share = units.share(numel * copies, total) if numel else ""
        lines.append((rest + branch + key, size, one, counted, share))
    return lines


def _shape(size: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, size)) + "]"


def _numel(size: tuple[int, ...]) -> int:
    total = 1
    for n in size:
        total *= n
    return total
