"""Parameters: distinct tensors by the module that owns them, as `numel()` says."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from metacount.measure.ours.roles import role_of
from metacount.measure.result import MeasuredParams
from metacount.measure.roles import BUFFERS, ROLES, UnclaimedTensor
from metacount.modules.altup import LayerTable
from metacount.modules.moe import Experts


def owned(root: nn.Module) -> Iterator[tuple[list[nn.Module], str, Tensor]]:
    """Yield (modules from the root to the owner, name of the tensor, tensor), a tensor once."""
    seen: set[int] = set()

    def walk(path: list[nn.Module]) -> Iterator[tuple[list[nn.Module], str, Tensor]]:
        for name, tensor in path[-1].named_parameters(recurse=False):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield path, name, tensor
        for child in path[-1].children():
            yield from walk([*path, child])

    return walk([root])


def active_values(owner: nn.Module, tensor: Tensor) -> int:
    """Count the values of `tensor` that one token uses: of E fused experts, k."""
    if not isinstance(owner, Experts):
        return tensor.numel()
    if tensor.shape[0] not in (owner.n_experts, owner.n_experts + owner.unread):
        raise ValueError(
            f"an expert tensor of shape {tuple(tensor.shape)} does not start with "
            f"n_experts = {owner.n_experts}"
        )
    return tensor[0].numel() * owner.top_k


def measure_params(model: nn.Module) -> MeasuredParams:
    """Count every distinct parameter and every persistent buffer of `model`.

    Raises `UnclaimedTensor` for a parameter that no role claims.
    """
    by_role, active = dict.fromkeys(ROLES, 0), dict.fromkeys(ROLES, 0)
    token_table = 0
    shared = {
        id(p)
        for m in model.modules()
        for n, p in m.named_parameters(recurse=False)
        if role_of([m]) == "head"
    }
    for path, name, tensor in owned(model):
        role = role_of(path)
        if role is None:
            raise UnclaimedTensor(f"{type(path[-1]).__name__}.{name} {tuple(tensor.shape)}")
        by_role[role] += tensor.numel()
        active[role] += active_values(path[-1], tensor)
        if tensor is getattr(getattr(model, "embed_tokens", None), "weight", None):
            token_table += 0 if id(tensor) in shared else tensor.numel()
        if isinstance(path[-1], LayerTable):
            token_table += tensor.numel()
    buffers: dict[str, int] = {}
    for full_name, buffer in model.named_buffers():
        last = full_name.rpartition(".")[2]
        kind = BUFFERS.get(last, last)
        buffers[kind] = buffers.get(kind, 0) + buffer.numel()
    return MeasuredParams(
        by_role=by_role,
        active_by_role=active,
        no_embed=sum(active.values()) - token_table,
        buffers=buffers,
    )
