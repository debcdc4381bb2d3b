"""A module as a tree, identical neighbours folded: what is shown when a model is explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from metacount.measure.ours.roles import role_of
from metacount.modules.moe import Experts


@dataclass(frozen=True, kw_only=True)
class Node:
    """One module, or `count` identical neighbours of which it is the first.

    `tensors`: name -> shape of what the module owns itself; `tied`: name -> the tensor's first
    place, where it was counted already. `params` counts one copy, its children included.
    `fused`: (n_experts, top_k) where the tensors hold all experts of a layer.
    """

    name: str
    module: str
    role: str | None
    count: int
    tensors: dict[str, tuple[int, ...]]
    tied: dict[str, str]
    buffers: dict[str, tuple[int, ...]]
    params: int
    fused: tuple[int, int] | None
    children: tuple[Node, ...]

    def to_dict(self, total: int, copies: int = 1) -> dict[str, Any]:
        """As plain data; `all_params` counts every copy, `share` is its part of `total`."""
        copies *= self.count
        return {
            "name": self.name,
            "module": self.module,
            "role": self.role,
            "count": self.count,
            "params": self.params,
            "all_params": self.params * copies,
            "share": self.params * copies / total if total else 0.0,
            "tensors": {name: list(shape) for name, shape in self.tensors.items()},
            "tied": self.tied,
            "buffers": {name: list(shape) for name, shape in self.buffers.items()},
            "n_experts": self.fused and self.fused[0],
            "top_k": self.fused and self.fused[1],
            "children": [child.to_dict(total, copies) for child in self.children],
        }


def module_tree(model: nn.Module) -> Node:
    """The folded tree of `model`, its root named after its class."""
    return _node("", type(model).__name__, [model], {})


def _node(prefix: str, name: str, path: list[nn.Module], seen: dict[int, str]) -> Node:
    module = path[-1]
    tensors, tied, own = {}, {}, 0
    for key, tensor in module.named_parameters(recurse=False):
        place = f"{prefix}{key}"
        if id(tensor) in seen:
            tied[key] = seen[id(tensor)]
            continue
        seen[id(tensor)] = place
        tensors[key] = tuple(tensor.shape)
        own += tensor.numel()
    children = [
        _node(f"{prefix}{key}.", key, [*path, child], seen)
        for key, child in module.named_children()
    ]
    folded = _fold([child for child in children if child.params or child.tied or child.buffers])
    return Node(
        name=name,
        module=type(module).__name__,
        role=role_of(path),
        count=1,
        tensors=tensors,
        tied=tied,
        buffers={key: tuple(b.shape) for key, b in module.named_buffers(recurse=False)},
        params=own + sum(child.params * child.count for child in folded),
        fused=(module.n_experts, module.top_k) if isinstance(module, Experts) else None,
        children=folded,
    )


def _fold(nodes: list[Node]) -> tuple[Node, ...]:
    """Equal neighbours become one node; `0` to `31` become `0-31`."""
    runs: list[list[Node]] = []
    for node in nodes:
        if runs and _same(runs[-1][0], node):
            runs[-1].append(node)
        else:
            runs.append([node])
    return tuple(_folded(run) for run in runs)


def _same(a: Node, b: Node) -> bool:
    return a.name.isdecimal() and b.name.isdecimal() and _shape(a) == _shape(b)


def _shape(node: Node) -> Any:
    return (node.module, node.count, node.tensors, node.tied, node.buffers,
            [(child.name, _shape(child)) for child in node.children])  # fmt: skip


def _folded(run: list[Node]) -> Node:
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    return replace(first, name=f"{first.name}-{last.name}", count=len(run))
