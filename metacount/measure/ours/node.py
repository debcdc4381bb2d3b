"""A node of a module tree: one module with all that was measured of it, and what is inside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    role: str | None
    computes: str
    count: int
    tensors: dict[str, tuple[int, ...]]
    active_tensors: dict[str, int | None]
    bytes_of: dict[str, int]
    tied: dict[str, str]
    buffers: dict[str, tuple[int, ...]]
    unstored: frozenset[str]
    params: int
    active: int | None
    bytes: int
    dtype: str
    flops: int | None
    own_flops: int
    fused: tuple[int, int] | None
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
    """Yield the paths of nodes below a folded tree's root;
    folded layers are one step, a period none.
    """
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
