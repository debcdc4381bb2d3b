"""A module as a tree: what is shown when a model is explained. `folding.py` folds what repeats."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from metacount.errors import InputError, nearest, shown
from metacount.measure.ours.computes import computes
from metacount.measure.ours.folding import fold
from metacount.measure.ours.node import Node as Node
from metacount.measure.ours.node import places, total, walk
from metacount.measure.ours.params import active_values
from metacount.measure.ours.roles import role_of
from metacount.measure.torch_private import parameters_of, stored_buffers_of, tensors_of
from metacount.modules.moe import Experts
from metacount.tensors import DTYPES, tensor_bytes

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

ActiveValues = Callable[[nn.Module, Tensor], int]
RoleOf = Callable[[list[nn.Module]], str | None]


def module_tree(
    model: nn.Module,
    *,
    flops: Mapping[str, int] | None = None,
    active: ActiveValues | None = active_values,
) -> Node:
    """Build the folded tree of `model`, its root named after its class. See `whole_tree`."""
    return fold(whole_tree(model, flops=flops, active=active))


def whole_tree(
    model: nn.Module,
    *,
    flops: Mapping[str, int] | None = None,
    active: ActiveValues | None = active_values,
    role: RoleOf = role_of,
) -> Node:
    """Build the tree of `model`, unfolded, its root named after its class.

    `flops` says by full name what each module ran itself; `active` how many values of a tensor one
    token uses, None where that is not known; `role` the role of the last module of a path.
    """
    return _Planter(flops, active, role).node("", type(model).__name__, [model])


def found(root: Node, path: str) -> Node:
    """Find the node of a whole tree at a path, or at a path that ends so; of layers 0-2, layer 0.

    Raises `InputError` for none, and for several that are not one inside the other.
    """
    wanted = [re.sub(r"^(\d+)-\d+$", r"\1", step) for step in path.split(".")]
    nodes = {node.path: node for node in walk(root)}
    if ".".join(wanted) in nodes:
        return nodes[".".join(wanted)]
    ends = [known for known in nodes if known.split(".")[-len(wanted) :] == wanted]
    if len(ends) == 1:
        return nodes[ends[0]]
    if ends:
        some = ", ".join([*ends[:2], "..."][: len(ends)])
        raise InputError(
            f"--only: {shown(path)} is the end of {len(ends)} paths; give one of them: {some}"
        )
    known = {known for known in places(fold(root)) if known}
    top = ", ".join(child.path for child in root.children if child.path)
    remedy = nearest(path, known, f"it has {top}")
    raise InputError(f"--only: the model has no module {shown(path)}; {remedy}")


class _Planter:
    """Makes the nodes of one model."""

    def __init__(
        self, flops: Mapping[str, int] | None, active: ActiveValues | None, role: RoleOf
    ) -> None:
        self._flops, self._active, self._role = flops, active, role
        self._places: dict[int, str] = {}  # where each tensor was seen first, by its id
        self._kinds: dict[object, int] = {}

    def node(self, place: str, name: str, path: list[nn.Module]) -> Node:
        """Build the node of the last module of `path`, which stands at `place` in the model."""
        module = path[-1]
        prefix = f"{place}." if place else ""
        own: dict[str, Tensor] = {}
        tied: dict[str, str] = {}
        for key, tensor in module.named_parameters(recurse=False):
            first = self._places.setdefault(id(tensor), f"{prefix}{key}")
            if first == f"{prefix}{key}":
                own[key] = tensor
            else:
                tied[key] = first
        found = [
            self.node(f"{prefix}{key}", key, [*path, child])
            for key, child in module.named_children()
        ]
        children = tuple(
            child for child in found if child.params or child.tied or child.buffers or child.flops
        )
        active = {
            key: None if self._active is None else self._active(module, tensor)
            for key, tensor in own.items()
        }
        own_flops = 0 if self._flops is None else self._flops.get(place, 0)
        dtypes = {DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)) for tensor in own.values()}
        dtypes |= {child.dtype for child in children if child.dtype}
        made = Node(
            name=name,
            path=place,
            module=type(module).__name__,
            role=self._role(path),
            computes=computes(module),
            count=1,
            tensors={key: tuple(tensor.shape) for key, tensor in own.items()},
            active_tensors=active,
            bytes_of={key: tensor_bytes([tensor]) for key, tensor in own.items()},
            tied=tied,
            buffers={key: tuple(b.shape) for key, b in module.named_buffers(recurse=False)},
            unstored=frozenset(tensors_of(module))
            - {*parameters_of(module), *stored_buffers_of(module)},
            params=sum(tensor.numel() for tensor in own.values()) + sum(c.params for c in children),
            active=total([*active.values(), *(child.active for child in children)]),
            bytes=tensor_bytes(own.values()) + sum(child.bytes for child in children),
            dtype=dtypes.pop() if len(dtypes) == 1 else "mixed" if dtypes else "",
            flops=None if self._flops is None else own_flops + sum(c.flops or 0 for c in children),
            own_flops=own_flops,
            fused=(module.n_experts, module.top_k) if isinstance(module, Experts) else None,
            alike=0,
            children=children,
        )
        return replace(made, alike=self._kind(made))

    def _kind(self, node: Node) -> int:
        """Give one number to nodes between which there is no difference but their place."""
        key = (
            node.module,
            node.computes,
            tuple(node.tensors.items()),
            tuple(node.tied.items()),
            tuple(node.buffers.items()),
            node.active,
            node.bytes,
            node.own_flops,
            tuple((child.name, child.alike) for child in node.children),
        )
        return self._kinds.setdefault(key, len(self._kinds))
