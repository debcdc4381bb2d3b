"""Folds a tree: equal neighbours become one node, and neighbours that repeat together a period."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from metacount.measure.ours.node import PERIOD, Node, total


def fold(node: Node) -> Node:
    """Fold numbered neighbours in a tree, among the children of its root and further down.

    Layers `0` to `31` that are alike become `0-31`, with a count of 32. Three of one kind and one
    of another, twelve times over, become one node of the class `PERIOD` with a count of 12, whose
    children are `0-2` and `3`.
    """
    folded: list[Node] = []
    for numbered, found in groupby(node.children, lambda child: child.name.isdecimal()):
        group = list(found)
        folded += _periods(group) if numbered else [fold(child) for child in group]
    return replace(node, children=tuple(folded))


def _periods(nodes: list[Node]) -> list[Node]:
    """Fold numbered neighbours into periods where they repeat, else into runs of equal ones."""
    folded: list[Node] = []
    start = 0
    kinds = [node.alike for node in nodes]
    while start < len(nodes):
        length, times = _repeats(kinds, start)
        one = nodes[start : start + length]
        if length == 1:
            folded.append(_run(nodes[start : start + times]))
        elif times > 1:
            folded.append(_period(_periods(one), nodes[start : start + length * times], times))
        start += length * times
    return folded


def _repeats(kinds: list[int], start: int) -> tuple[int, int]:
    """Count how many of `kinds` from `start` on make a period, and how often it comes.

    The period that covers most, of these the shortest. One node alone is a period of one.
    """
    covered = _times(kinds, start, 1)
    best = (1, covered)
    for length in range(2, (len(kinds) - start) // 2 + 1):
        if covered == len(kinds) - start:
            break
        if kinds[start] != kinds[start + length]:
            continue
        times = _times(kinds, start, length)
        if times > 1 and times * length > covered:
            best, covered = (length, times), times * length
    return best


def _times(kinds: list[int], start: int, length: int) -> int:
    times = 1
    while kinds[start : start + length] == kinds[(at := start + times * length) : at + length]:
        times += 1
    return times


def _run(nodes: list[Node]) -> Node:
    """Fold equal neighbours into one node."""
    first, last = fold(nodes[0]), nodes[-1]
    if len(nodes) == 1:
        return first
    return replace(first, name=f"{first.name}-{last.name}", count=len(nodes))


def _period(inside: list[Node], nodes: list[Node], times: int) -> Node:
    """Fold neighbours that repeat together, `times` times,
    into one node above the first of them.
    """
    dtypes = {node.dtype for node in inside if node.dtype}
    flops = [None if node.flops is None else node.flops * node.count for node in inside]
    active = [None if node.active is None else node.active * node.count for node in inside]
    return Node(
        name=f"{nodes[0].name}-{nodes[-1].name}",
        path="",
        module=PERIOD,
        role=None,
        computes="",
        count=times,
        tensors={},
        active_tensors={},
        bytes_of={},
        tied={},
        buffers={},
        unstored=frozenset(),
        params=sum(node.params * node.count for node in inside),
        active=total(active),
        bytes=sum(node.bytes * node.count for node in inside),
        dtype=dtypes.pop() if len(dtypes) == 1 else "mixed" if dtypes else "",
        flops=total(flops),
        own_flops=0,
        fused=None,
        alike=-1,
        children=tuple(inside),
    )
