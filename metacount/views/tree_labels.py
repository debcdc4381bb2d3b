"""What stands in a row of a tree beside its numbers: the name, a note, the shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.measure.node import PERIOD

if TYPE_CHECKING:
    from metacount.measure.node import Node

AS_IN = "as in "
BUFFER = "buffer"
# Classes that say nothing beside the name of the module or its shape.
PLAIN = ("Linear", "ModuleList", "Embedding")


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
    told = node.computes
    if not told and node.module not in (*PLAIN, PERIOD, "", node.name):
        told = f"({node.module})"
    return ", ".join(part for part in (alike, told) if part)


def as_in(place: str, seen: list[str]) -> str:
    """Say where else a module was shown: the nearest place, without what both paths share.

    >>> as_in("layers.3-60.mlp", ["layers.0-2.mlp"]), as_in("encoder.b.c", ["decoder.b.c"])
    ('as in 0-2', 'as in decoder')
    >>> as_in("model.a.shared", ["model.a.mlp", "other.model.a.b.mlp"])
    'as in mlp'
    """
    return AS_IN + min((_apart(place, other) for other in seen), key=len)


def _apart(mine: str, theirs: str) -> str:
    here, there = mine.split("."), theirs.split(".")
    while here and there and here[0] == there[0]:
        here, there = here[1:], there[1:]
    while len(there) > 1 and here and here[-1] == there[-1]:
        here, there = here[:-1], there[:-1]
    return ".".join(there)


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
    one = "[" + ", ".join(map(str, size)) + "]"
    return one if times == 1 else f"{times} × {one}"
