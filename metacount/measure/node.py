"""A node of a module tree, and the tree folded: equal neighbours become one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


PERIOD = "period"  # in place of a module's class: some neighbours that repeat together


@dataclass(frozen=True, kw_only=True)
class Node:
    """One module, or `count` identical neighbours of which it is the first.

    `tensors`: name -> shape of what the module owns itself; `tied`: name -> the tensor's first
    place, where it was counted already; `unstored`: buffers that no checkpoint holds. `params`,
    `active` (for one token; None where unknown), `bytes` and `flops` (None where nothing was run)
    count one copy, its children included; `own_flops` leaves its children out. `fused`:
    (n_experts, top_k) where the tensors hold all experts of a layer. `alike` is the same number
    for modules that nothing here distinguishes.
    """

    name: str
    path: str
    module: str
    role: str | None = None
    computes: str = ""
    count: int
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    active_tensors: dict[str, int | None] = field(default_factory=dict)
    bytes_of: dict[str, int] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unstored: frozenset[str] = frozenset()
    params: int
    active: int | None
    bytes: int
    dtype: str
    flops: int | None
    own_flops: int = 0
    fused: tuple[int, int] | None = None
    alike: int
    children: tuple[Node, ...]

    def to_dict(self, total: int, copies: int = 1) -> Json:
        """Convert the node to plain data;
        `all_params` counts every copy, `share` is its part of `total`.
        """
        copies *= self.count
        return {
            "name": self.name,
            "path": self.path,
            "module": self.module,
            "computes": self.computes or None,
            "role": self.role,
            "count": self.count,
            "params": self.params,
            "all_params": self.params * copies,
            "active_params": self.active,
            "share": self.params * copies / total if total else 0.0,
            "bytes": self.bytes,
            "dtype": self.dtype or None,
            "matmul_flops": self.flops,
            "tensors": {name: list(shape) for name, shape in self.tensors.items()},
            "tied": self.tied,
            "buffers": {name: list(shape) for name, shape in self.buffers.items()},
            "n_experts": self.fused and self.fused[0],
            "top_k": self.fused and self.fused[1],
            "children": [child.to_dict(total, copies) for child in self.children],
        }


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and every node below it."""
    yield node
    for child in node.children:
        yield from walk(child)


def places(node: Node, above: str = "") -> Iterator[str]:
    """Yield the paths below a folded tree's root; folded layers are one step, a period none."""
    for child in node.children:
        step = f"{above}.{child.name}" if above else child.name
        if child.module == PERIOD:
            yield from places(child, above)
            continue
        yield step
        yield from places(child, step)


def total(values: list[int | None]) -> int | None:
    """Sum the values; None where one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def fold(node: Node) -> Node:
    """Fold numbered neighbours in a tree, among the children of its root and further down.

    Layers `0` to `31` that are alike become `0-31`, with a count of 32. Three of one kind and one
    of another, twelve times over, become one node of the class `PERIOD` with a count of 12, whose
    children are `0-2` and `3`.
    """
    folded: list[Node] = []
    for numbered, members in groupby(node.children, lambda child: child.name.isdecimal()):
        group = list(members)
        folded += _periods(group) if numbered else [fold(child) for child in group]
    return replace(node, children=tuple(folded))


def _periods(nodes: list[Node]) -> list[Node]:
    """Fold numbered neighbours into periods where they repeat, else into runs of equal ones."""
    folded: list[Node] = []
    start = 0
    kinds = [node.alike for node in nodes]
    while start < len(nodes):
        length, times = period_at(kinds, start)
        period = nodes[start : start + length]
        if length == 1:
            folded.append(_run(nodes[start : start + times]))
        else:
            folded.append(_period(_periods(period), nodes[start : start + length * times], times))
        start += length * times
    return folded


def period_at(
    kinds: Sequence[int],
    start: int,
    *,
    longest: int | None = None,
    enough: Callable[[int, int], int] = lambda start, length: 2,
) -> tuple[int, int]:
    """Find the length of the period from `start` that covers most of `kinds`, the shortest such,
    and how often it comes: one of a length is one that comes `enough` times.

    >>> period_at([1, 1, 2, 1, 1, 2, 3], 0), period_at([1, 1, 1, 2], 0), period_at([1, 2, 3], 0)
    ((3, 2), (1, 3), (1, 1))
    """
    best, rest = (1, 1), len(kinds) - start
    for length in range(1, min(longest or rest, rest // 2) + 1):
        times = 1
        while kinds[start : start + length] == kinds[(at := start + times * length) : at + length]:
            times += 1
        if times >= enough(start, length) and times * length > best[0] * best[1]:
            best = (length, times)
        if best[0] * best[1] == rest:
            break
    return best


def _run(nodes: list[Node]) -> Node:
    """Fold equal neighbours into one node."""
    first, last = fold(nodes[0]), nodes[-1]
    if len(nodes) == 1:
        return first
    return replace(first, name=f"{first.name}-{last.name}", count=len(nodes))


def _period(inside: list[Node], nodes: list[Node], times: int) -> Node:
    """Fold neighbours that repeat together into one node above the first of them."""
    dtypes = {node.dtype for node in inside if node.dtype}
    flops = [None if node.flops is None else node.flops * node.count for node in inside]
    active = [None if node.active is None else node.active * node.count for node in inside]
    return Node(
        name=f"{nodes[0].name}-{nodes[-1].name}",
        path="",
        module=PERIOD,
        count=times,
        params=sum(node.params * node.count for node in inside),
        active=total(active),
        bytes=sum(node.bytes * node.count for node in inside),
        dtype=dtypes.pop() if len(dtypes) == 1 else "mixed" if dtypes else "",
        flops=total(flops),
        alike=-1,
        children=tuple(inside),
    )
