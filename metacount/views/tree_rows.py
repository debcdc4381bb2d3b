"""The rows of a tree: one for each module and tensor that is shown, what repeats shown once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from metacount.measure.ours.node import PERIOD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.measure.ours.node import Node

# Three projections of one input: their sum is what textbooks call QKV.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"))
AS_IN = "as in "
TIED = "tied"
MANY = 48  # rows: with a title and notes, 60 lines
OWN = "(own products)"  # FLOPs of a module that has rows of its own below it
# Classes that say nothing beside the name of the module or its shape.
PLAIN = ("Linear", "ModuleList", "Embedding")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line. `params`, `active`, `flops` and `bytes` are of all copies, None where unknown.

    `last` says of the row and of those above it whether they are the last of their level. `one`:
    parameters of one of the copies; None where there is but one. `forms`: times and path of the
    formulas whose sum `one` is, or `params` where there is one copy.
    """

    last: tuple[bool, ...]
    name: str
    note: str
    role: str | None
    place: str
    count: int
    shape: str
    params: int
    one: int | None
    active: int | None
    flops: int | None
    bytes: int
    dtype: str
    forms: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True)
class _At:
    """Where a node stands: `copies` of all folds around it, `within` of those in one block."""

    last: tuple[bool, ...]
    place: str
    copies: int
    within: int


def rows_of(root: Node, depth: int | None = None) -> list[Row]:
    """Every row below and including `root`, `depth` levels of them (None: all).

    A matrix and its bias are a row each, unless there are too many rows.
    """
    at = _At(last=(), place="", copies=1, within=1)
    rows = list(_Rows(depth, joined=1).below(root, at))
    return rows if len(rows) <= MANY else list(_Rows(depth, joined=2).below(root, at))


class _Rows:
    """Makes the rows of one tree. Tensors of up to `joined` axes share the row of their module."""

    def __init__(self, depth: int | None, joined: int) -> None:
        self._depth, self._joined = depth, joined
        self._seen: dict[int, list[str]] = {}  # where modules that are alike were shown

    def below(self, node: Node, at: _At) -> Iterator[Row]:
        """The row of a node, then those of what it holds."""
        node = _chained(node) if at.last else node
        numbered = node.name.rpartition(".")[2][:1].isdecimal()
        copies = at.copies * node.count
        within = 1 if numbered else at.within * node.count
        place = ".".join(part for part in (at.place, node.name) if part) if at.last else ""
        tensors = dict(node.tensors)
        sizes = [*tensors.values(), *node.buffers.values()]
        # a module that owns vectors or one tensor and nothing else is one line
        tied = len(node.tied) == 1 and not (sizes or node.children)
        whole = bool(sizes) and not node.children and not node.tied
        whole = whole and not (node.buffers and tensors)
        whole = whole and (len(sizes) == 1 or max(map(len, sizes)) <= self._joined)
        seen: list[str] = []
        if node.children and node.module not in (PERIOD, ""):
            seen = list(self._seen.setdefault(node.alike, []))
            self._seen[node.alike].append(place)
        label = _label(node, numbered)
        yield Row(
            last=at.last,
            name=f"{label} [buffer]" if whole and node.buffers else label,
            note=_as_in(place, seen) if seen else _note(node, numbered),
            role=node.role,
            place=place or node.name,
            count=copies,
            shape=_joined(sizes, within) if whole else TIED if tied else "",
            params=node.params * copies,
            one=node.params * within if copies > within else None,
            active=_times(node.active, copies),
            flops=_times(node.flops, copies),
            bytes=node.bytes * copies,
            dtype=node.dtype,
            forms=forms_of(node, within),
        )
        if seen or ((whole or tied) and at.last) or len(at.last) == self._depth:
            return
        inner: list[Node | Row] = [*_tensor_rows(node, tensors, place, copies, within)]
        inner += _together(tuple(child for child in node.children if _is_kept(child)))
        if node.own_flops and any(child.flops for child in node.children):
            inner.append(_own(node, place, copies))
        for i, item in enumerate(inner):
            last = (*at.last, i == len(inner) - 1)
            if isinstance(item, Row):
                yield replace(item, last=last)
                continue
            # the neighbours of a period, and three projections, stand at their holder's place
            above = place.rpartition(".")[0] if node.module in (PERIOD, "") else place
            yield from self.below(item, _At(last=last, place=above, copies=copies, within=within))


def _is_kept(node: Node) -> bool:
    """Whether a checkpoint holds something of a module, or it multiplies."""
    stored = node.params or node.tied or node.flops or node.buffers.keys() - node.unstored
    return bool(stored) or any(map(_is_kept, node.children))


def _chained(node: Node) -> Node:
    """A module that holds one other and nothing else, together with it: `layers.0-31`."""
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
    """The tensors that a module owns, those that it shares, and its buffers."""
    prefix = f"{node.path}." if node.path else ""
    start = f"{place}." if place else ""
    for key, size in tensors.items():
        yield Row(
            last=(),
            name=key,
            note="",
            role=node.role,
            place=start + key,
            count=copies,
            shape=shape_text(size, within),
            params=prod(size) * copies,
            one=prod(size) * within if copies > within else None,
            active=_times(node.active_tensors[key], copies),
            flops=None,
            bytes=node.bytes_of[key] * copies,
            dtype=node.dtype if node.dtype != "mixed" else "",
            forms=((within, prefix + key),),
        )
    others = [(key, TIED) for key in node.tied]
    others += [
        (f"{key} [buffer]", shape_text(size, within))
        for key, size in node.buffers.items()
        if key not in node.unstored
    ]
    for key, shape in others:
        yield Row(last=(), name=key, note="", role=node.role, place=start + key, count=copies,
                  shape=shape, params=0, one=None, active=0, flops=None, bytes=0, dtype="",
                  forms=())  # fmt: skip


def _own(node: Node, place: str, copies: int) -> Row:
    return Row(last=(), name=OWN, note="", role=node.role, place=f"{place}.{OWN}".lstrip("."),
               count=copies, shape="", params=0, one=None, active=0,
               flops=node.own_flops * copies, bytes=0, dtype="", forms=())  # fmt: skip


def _times(value: int | None, copies: int) -> int | None:
    return None if value is None else value * copies


def forms_of(node: Node, within: int = 1) -> tuple[tuple[int, str], ...]:
    """The formulas of a node: its own, or those of what it stands for."""
    if node.module in (PERIOD, ""):
        return tuple((times * child.count * within, path) for child in node.children
                     for times, path in forms_of(child))  # fmt: skip
    return ((within, node.path),)


def _together(children: tuple[Node, ...]) -> list[Node]:
    """The children, with neighbouring projections of queries, keys and values added up."""
    names = [child.name for child in children]
    for wanted in TOGETHER:
        for at in range(len(names) - 2):
            if tuple(names[at : at + 3]) == wanted:
                return [*children[:at], _sum(children[at : at + 3]), *children[at + 3 :]]
    return list(children)


def _sum(parts: tuple[Node, ...]) -> Node:
    """Three projections as one node: alike, with a count, or of a row for each."""
    name = ", ".join(part.name for part in parts)
    if len({part.alike for part in parts}) == 1:
        return replace(parts[0], name=name, count=len(parts))
    *first, second, third = parts
    inner = parts
    if second.alike == third.alike:
        pair = replace(second, name=f"{second.name}, {third.name}", count=2)
        inner = (*first, pair)
    flops = [part.flops for part in parts]
    active = [part.active for part in parts]
    return replace(
        parts[0],
        name=name,
        module="",
        computes="",
        tensors={},
        buffers={},
        tied={},
        params=sum(part.params for part in parts),
        active=None if None in active else sum(value or 0 for value in active),
        bytes=sum(part.bytes for part in parts),
        flops=None if None in flops else sum(value or 0 for value in flops),
        own_flops=0,
        alike=-1,
        children=inner,
    )


def _label(node: Node, numbered: bool) -> str:
    """The name of a module, with how often it comes; of a period, what it is made of."""
    if node.module == PERIOD:
        inside = ", ".join(_label(child, numbered=True) for child in node.children)
        above = node.name.rpartition(".")[0]
        return f"{above}{'.' * bool(above)}({inside}) ×{node.count}"
    return f"{node.name} ×{node.count}" if numbered and node.count > 1 else node.name


def _note(node: Node, numbered: bool) -> str:
    """What a module computes, else its class where that says more than its name."""
    alike = f"{node.count} alike" if not numbered and node.count > 1 else ""
    told = node.computes
    if not told and node.module not in (*PLAIN, PERIOD, "", node.name):
        told = f"({node.module})"
    return ", ".join(part for part in (alike, told) if part)


def _as_in(place: str, seen: list[str]) -> str:
    """Where else a module was shown: the nearest of the places, without what both paths share.

    >>> _as_in("layers.3-60.mlp", ["layers.0-2.mlp"]), _as_in("encoder.b.c", ["decoder.b.c"])
    ('as in 0-2', 'as in decoder')
    >>> _as_in("model.a.shared", ["model.a.mlp", "other.model.a.b.mlp"])
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


def _joined(sizes: list[tuple[int, ...]], times: int) -> str:
    """The shapes of a module's tensors in one cell: a vector after a matrix is its bias."""
    first, *rest = sizes
    plain = len(first) == 1
    shapes = [shape_text(first, times), *(shape_text(s, times) if plain else "bias" for s in rest)]
    return " + ".join(shapes)


def shape_text(size: tuple[int, ...], times: int = 1) -> str:
    """A tensor's shape, or that of some alike.

    >>> shape_text((512, 64)), shape_text((512, 512), 3)
    ('[512, 64]', '3 × [512, 512]')
    """
    one = "[" + ", ".join(map(str, size)) + "]"
    return one if times == 1 else f"{times} × {one}"
