"""The rows of a tree: one for each module and tensor that is shown, what repeats shown once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from metacount.measure.node import PERIOD
from metacount.views.tree_labels import (
    BUFFER,
    as_in,
    inside,
    is_line,
    joined,
    label,
    note,
    shape_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.measure.node import Node

# Three projections of one input: their sum is what textbooks call QKV.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"))
TIED = "tied"
MANY = 48  # rows: with a title and notes, 60 lines
OWN = "(own products)"  # FLOPs of a module that has rows of its own below it


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
    """List every row below and including `root`, `depth` levels of them (None: all).

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
        """Yield the row of a node, then those of what it holds."""
        node = _chained(node) if at.last else node
        numbered = node.name.rpartition(".")[2][:1].isdecimal()
        copies = at.copies * node.count
        within = 1 if numbered else at.within * node.count
        place = ".".join(part for part in (at.place, node.name) if part) if at.last else ""
        tensors = dict(node.tensors)
        tied = len(node.tied) == 1 and not (tensors or node.buffers or node.children)
        whole = not (node.tied or node.children) and is_line(node, self._joined)
        seen: list[str] = []
        if node.children and node.module not in (PERIOD, ""):
            seen = list(self._seen.setdefault(node.alike, []))
            self._seen[node.alike].append(place)
        yield Row(
            last=at.last,
            name=label(node, numbered) + (inside(node) if whole else ""),
            note=as_in(place, seen) if seen else note(node, numbered),
            role=node.role,
            place=place or node.name,
            count=copies,
            shape=joined(node, within) if whole else TIED if tied else "",
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
        held = tuple(child for child in node.children if _is_kept(child))
        inner += _together(held) if node.module else held  # three of them are one already
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
    """Tell whether a checkpoint holds something of a module, or the module multiplies."""
    stored = node.params or node.tied or node.flops or node.buffers.keys() - node.unstored
    return bool(stored) or any(map(_is_kept, node.children))


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
        (key, f"{shape_text(size, within)} {BUFFER}")
        for key, size in node.buffers.items()
        if key not in node.unstored
    ]
    for key, shape in others:
        yield Row(
            last=(),
            name=key,
            note="",
            role=node.role,
            place=start + key,
            count=copies,
            shape=shape,
            params=0,
            one=None,
            active=0,
            flops=None,
            bytes=0,
            dtype="",
            forms=(),
        )


def _own(node: Node, place: str, copies: int) -> Row:
    return Row(
        last=(),
        name=OWN,
        note="",
        role=node.role,
        place=f"{place}.{OWN}".lstrip("."),
        count=copies,
        shape="",
        params=0,
        one=None,
        active=0,
        flops=node.own_flops * copies,
        bytes=0,
        dtype="",
        forms=(),
    )


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
    """Add up neighbouring projections of queries, keys and values among the children."""
    names = [child.name for child in children]
    for wanted in TOGETHER:
        for at in range(len(names) - 2):
            if tuple(names[at : at + 3]) == wanted:
                return [*children[:at], _sum(children[at : at + 3]), *children[at + 3 :]]
    return list(children)


def _sum(parts: tuple[Node, ...]) -> Node:
    """Join three projections into one node: alike, with a count, or with a row for each."""
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
