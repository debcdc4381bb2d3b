"""Expert parallelism: whole experts on each rank, and the rows of tokens sent to them and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from metacount.measure.torch_private import exchanged_rows, in_place_of, is_fake, parameters_of
from metacount.sharding.engine.styles import local, place
from metacount.sharding.engine.world import World

if TYPE_CHECKING:
    from collections.abc import Callable


class _Scaled(torch.autograd.Function):
    """The tensor itself, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def _scaled() -> Callable[[Tensor, float], Tensor]:
    return _Scaled.apply


def spread_experts(module: Any, world: World) -> None:
    """Put n_experts / ep experts on each rank, and let each token go where its experts are.

    `module` is called with rows [N, D], the experts of each row [N, k] and their weights [N, k].
    Ranks of one `tp` group hold the same rows: each sends its part of them, and what comes back is
    gathered. Rows without values (a fake world's) go to all alike, and as many come. A row that
    chose a zero expert, whose number is above all others, stays where it is.
    """
    ep, tp = world.ep, world.tp
    # Every expert sees the rows of all ranks of its `ep` group, which hold several parts of the
    # batch. FSDP2 averages over the copies of an expert, and the mean over the batch is wanted.
    factor = world.mesh.expert_shard / world.mesh.shard
    for name in parameters_of(module):
        place(module, name, ep, Shard(0))
    module.n_experts //= ep.size()
    forward, scaled = module.forward, _scaled()

    def run(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        n_rows = len(x)
        if tp.size() > 1:
            x, chosen, weights = (_own_rows(t, tp) for t in (x, chosen, weights))
        expert_R, order = chosen.flatten().sort(stable=True)
        weight_R1 = weights.flatten()[order].unsqueeze(-1).to(x.dtype)
        row_R = order // chosen.shape[-1]
        out_RD = x[row_R] * weight_R1 if module.weigh_input else x[row_R]
        staying_RD = out_RD[:0]
        if module.n_zero:
            n_sent = int((expert_R < module.n_experts * ep.size()).sum())
            expert_R, staying_RD, out_RD = expert_R[:n_sent], out_RD[n_sent:], out_RD[:n_sent]
        there, back, local_R = _exchanged(expert_R, module.n_experts, ep)
        group = ep.get_group()
        rows = exchanged_rows(out_RD, there, back, group)
        own = {name: scaled(p, factor) for name, p in local(module).items()}
        with in_place_of(module, own):
            ones = torch.ones_like(local_R, dtype=rows.dtype).unsqueeze(-1)
            y = forward(rows, local_R.unsqueeze(-1), ones)
        y = exchanged_rows(y, back, there, group)
        y = torch.cat((y, staying_RD)) if len(staying_RD) else y
        y = y if module.weigh_input else y * weight_R1
        y_ND = torch.zeros_like(x).index_add(0, row_R, y)
        if tp.size() == 1:
            return y_ND
        whole = (n_rows, x.shape[-1])
        parts = DTensor.from_local(
            y_ND, tp, [Shard(0)], run_check=False, shape=torch.Size(whole), stride=(whole[1], 1)
        )
        return parts.redistribute(placements=[Replicate()]).to_local()

    module.forward = run


def _own_rows(x: Tensor, tp: DeviceMesh) -> Tensor:
    shared = DTensor.from_local(x, tp, [Replicate()], run_check=False)
    return shared.redistribute(placements=[Shard(0)]).to_local()


def _exchanged(
    expert_R: Tensor, n_local: int, ep: DeviceMesh
) -> tuple[list[int], list[int], Tensor]:
    """Count the rows from each rank and those to each,
    and find the local expert of those that come.

    Each rank tells the others how many rows each of their experts gets from it.
    """
    size = ep.size()
    sent = torch.zeros(n_local * size, dtype=torch.long, device=expert_R.device)
    sent = sent.index_add(0, expert_R, torch.ones_like(expert_R)).view(size, n_local)
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=ep.get_group())
    if is_fake(expert_R):
        n = len(expert_R)
        even = [n * (i + 1) // size - n * i // size for i in range(size)]
        return even, even, torch.arange(n, device=expert_R.device) % n_local
    experts = torch.arange(n_local, device=expert_R.device).repeat(size)
    return (got.sum(1).tolist(), sent.sum(1).tolist(), experts.repeat_interleave(got.flatten()))
