"""Places a module on a mesh: its plan for tensor and expert parallelism, then FSDP2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from metacount.errors import InputError, nearest, shown
from metacount.sharding.engine.experts import spread_experts
from metacount.sharding.engine.styles import STYLES
from metacount.sharding.engine.world import World
from metacount.sharding.mesh import spread_axis

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.sharding.engine.styles import Style


def apply_plan(model: nn.Module, plan: Mapping[str, str], world: World) -> None:
    """Cut what the plan names: `{"decoder.layers.*.mlp.up_proj": "colwise"}`; * is any number."""
    modules = dict(model.named_modules())
    tp, ep = world.tp, world.ep
    for pattern, style in plan.items():
        for name in matching(pattern, modules):
            parent = modules[name.rpartition(".")[0]]
            if style == "ep_dispatch_experts":
                if ep.size() > 1:
                    spread_experts(modules[name], world)
            elif tp.size() > 1:
                style_named(style)(modules[name], tp, parent)


def style_named(style: str) -> Style:
    """Find the style that a word of a plan names."""
    if style not in STYLES:
        known = (*STYLES, "ep_dispatch_experts")
        raise InputError(
            f"the plan's style '{shown(style)}' is unknown; "
            + nearest(style, known, f"choose one of {', '.join(known)}")
        )
    return STYLES[style]


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """List the names that match a pattern.

    >>> matching("layers.*.mlp", ["layers.0.mlp", "layers.12.mlp", "layers.0.mlp.up_proj"])
    ['layers.0.mlp', 'layers.12.mlp']
    """
    wanted = re.compile(re.escape(pattern).replace(r"\*", "[0-9]+"))
    return [name for name in names if wanted.fullmatch(name)]


def shard_fully(
    model: nn.Module,
    units: Sequence[nn.Module | list[nn.Module]],
    experts: Sequence[nn.Module],
    world: World,
    compute: torch.dtype | None = None,
    without: set[nn.Parameter] | None = None,
) -> None:
    """Let FSDP2 spread what is left over the ranks that hold the same, unit by unit.

    ZeRO 3 gathers a unit for its forward and again for its backward. ZeRO 2 keeps it in between;
    ZeRO 1 keeps it and its gradients over the step. ZeRO 0 spreads nothing: gradients are summed.
    With `compute`, what is gathered is of this type, whatever is kept. `without` are parameters
    that are left as they are.
    """
    mesh, reshard = world.mesh, world.zero == 3
    policy = MixedPrecisionPolicy(param_dtype=compute)

    def spread_out(
        module: nn.Module | list[nn.Module],
        over: DeviceMesh,
        axis: Callable[[nn.Parameter], Shard] | None = None,
    ) -> None:
        fully_shard(
            module,
            mesh=over,
            reshard_after_forward=reshard,
            mp_policy=policy,
            shard_placement_fn=axis,
            ignored_params=without,
        )

    def axis_of(parameter: nn.Parameter) -> Shard:
        shape = parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape
        return Shard(spread_axis(shape, mesh.expert_shard if world.zero else 1))

    for module in experts if mesh.ep > 1 else ():
        spread_out(module, world.expert_shares, axis_of)
    for unit in units:
        spread_out(unit, world.shares)
    spread_out(model, world.shares)
    if world.zero < 2:
        assert isinstance(model, FSDPModule)
        model.set_reshard_after_backward(False)


def end_step(model: nn.Module) -> None:
    """Leave each rank its share alone, as before an optimizer's step."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
