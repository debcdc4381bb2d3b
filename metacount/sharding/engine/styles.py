"""How a module is placed on a group of ranks: each word of a plan as torch.distributed does it.

The words are those of transformers' plans, so that one vocabulary does for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor import distribute_tensor as cut
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from metacount.measure.torch_private import (
    in_place_of,
    packed_in,
    parameters_of,
    put_tensor,
    waited,
)

Style = Callable[[nn.Module, DeviceMesh, nn.Module], None]


def sum_gradient(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return `x` itself, whose gradient is the sum of the gradients of all ranks."""
    shared = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return shared.to_local(grad_placements=[Partial()])


def sum_output(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Sum what all ranks have."""
    parts = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def place(module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
    """Cut one parameter of a module."""
    parameter = parameters_of(module)[name]
    tensor = cut(parameter.detach(), mesh, [placement], src_data_rank=None)
    put_tensor(module, name, nn.Parameter(tensor, requires_grad=parameter.requires_grad))


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return waited(tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def local(module: nn.Module) -> dict[str, Tensor]:
    """Return this rank's part of each parameter that a module itself holds."""
    return {
        name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for name, tensor in parameters_of(module).items()
    }


def _of_torch(style: ParallelStyle) -> Style:
    def apply(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
        parallelize_module(module, mesh, style, src_data_rank=None)

    return apply


def _rowwise(module: Any, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Cut a module by rows, its input as the outputs before it;
    torch takes all ranks' parts to be equal.
    """

    def tell(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        x = args[0]
        shape = torch.Size((*x.shape[:-1], module.in_features))
        strides = torch.empty(shape, device="meta").stride()
        return (
            DTensor.from_local(x, mesh, [Shard(-1)], run_check=False, shape=shape, stride=strides),
        )

    module.register_forward_pre_hook(tell)
    parallelize_module(module, mesh, RowwiseParallel(), src_data_rank=None)


def _shared_input(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Share one input among a module's parts:
    the gradients of it are summed once, not for each part.

    A mixture's router and experts each do as they are told; nothing is done to it.
    """
    children = dict(module.named_children())
    if "experts" in children or not any(isinstance(c, nn.Linear) for c in children.values()):
        return

    def share(_: nn.Module, args: tuple[Tensor, *tuple[object, ...]]) -> tuple[object, ...]:
        return DTensor.from_local(args[0], mesh, [Replicate()], run_check=False), *args[1:]

    module.register_forward_pre_hook(share)


def _shared_weights(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Sum the gradients of a module that is whole on every rank,
    which uses it for its own heads.
    """
    forward = module.forward

    def run(*args: object, **kwargs: object) -> object:
        own = {name: sum_gradient(p, mesh) for name, p in parameters_of(module).items()}
        with in_place_of(module, own):
            return forward(*args, **kwargs)

    module.forward = run


def _local_weights(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Cut a module's parameters, one value for each head, with the heads."""
    for name in parameters_of(module):
        place(module, name, mesh, Shard(0))
    forward = module.forward

    def run(*args: object, **kwargs: object) -> object:
        with in_place_of(module, local(module)):
            return forward(*args, **kwargs)

    module.forward = run


def _latent(module: nn.Module, mesh: DeviceMesh, parent: Any) -> None:
    """Sum the gradient of MLA's rotated key,
    which goes to each rank's heads uncut, unlike the latent.
    """

    def hook(_: nn.Module, args: object, out: Tensor) -> Tensor:
        latent, key = out.split((parent.rank, parent.rope), dim=-1)
        return torch.cat((latent, sum_gradient(key, mesh)), dim=-1)

    module.register_forward_hook(hook)


def _local_heads(module: Any, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Let a module make this rank's own heads of what its projections give."""
    module.n_heads //= mesh.size()


def _experts_cut(module: Any, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Put a part of every matrix of every expert on each rank; the partial outputs are summed."""
    up, down = module.up_name, "down_proj"
    column = packed_in(1, 2) if module.gated else Shard(1)
    place(module, up, mesh, column)
    place(module, down, mesh, Shard(2))
    forward = module.forward

    def run(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        with in_place_of(module, local(module)):
            out = forward(sum_gradient(x, mesh), chosen, sum_gradient(weights, mesh))
        return sum_output(out, mesh)

    module.forward = run


STYLES: dict[str, Style] = {
    "colwise": _of_torch(ColwiseParallel()),
    "colwise_gather_output": _of_torch(ColwiseParallel(output_layouts=Replicate())),
    "rowwise": _rowwise,
    "embedding_rowwise": _of_torch(RowwiseParallel(input_layouts=Replicate())),
    "shared_input": _shared_input,
    "replicated_with_grad_allreduce": _shared_weights,
    "local_heads": _local_heads,
    "local_params": _local_weights,
    "mla_kv_a_proj": _latent,
    "moe_tp_experts": _experts_cut,
    "replicate": lambda module, mesh, parent: None,
}
