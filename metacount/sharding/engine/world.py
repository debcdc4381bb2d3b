"""A world of ranks: a fake one of any size in this process, or the real one that a process is in.

A fake process group does nothing when it is asked to communicate; everything else of
torch.distributed runs as it would on that rank.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from metacount.errors import InputError
from metacount.measure.torch_private import fake_store, only_own_pieces
from metacount.sharding.mesh import Mesh, Place


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's view of a mesh: torch's meshes, each of the groups that the rank is in."""

    mesh: Mesh
    place: Place
    zero: int
    stages: DeviceMesh  # pp
    dense: DeviceMesh  # replicate, shard, tp
    experts: DeviceMesh  # replicate, shard, ep
    context: DeviceMesh | None = None  # cp

    @cached_property
    def tp(self) -> DeviceMesh:
        """The ranks that hold parts of the same matrices; one object, as all of these."""
        return self.dense["tp"]

    @cached_property
    def ep(self) -> DeviceMesh:
        """The ranks that hold different experts."""
        return self.experts["ep"]

    @cached_property
    def shares(self) -> DeviceMesh:
        """The ranks that hold the same; without ZeRO, each of them all of it."""
        return self.dense["shard" if self.zero else ("replicate", "shard")]

    @cached_property
    def expert_shares(self) -> DeviceMesh:
        """The ranks that hold the same experts."""
        return self.experts["shard" if self.zero else ("replicate", "shard")]

    @property
    def groups(self) -> dict[str, str]:
        """What each process group of this rank is for, by the name torch gives it."""
        found: dict[str, str] = {}
        for mesh, prefix in ((self.experts, "copies"), (self.dense, "dp")):
            for name in mesh.mesh_dim_names or ():
                said = prefix if name in ("replicate", "shard") else name
                found[str(mesh.get_group(name).group_name)] = said
        for line, said in ((self.stages, "pp"), (self.context, "cp")):
            if line is not None:
                found[str(line.get_group().group_name)] = said
        return found


@contextmanager
def fake_world(mesh: Mesh, rank: int, zero: int) -> Iterator[World]:
    """Make a fake world of `mesh.world` ranks as `rank` sees it,
    gone after the block, whatever happens.
    """
    if dist.is_initialized():
        raise InputError(
            "this process is in a process group already, and can be in one only; "
            "shard in a process of its own"
        )
    hook = sys.excepthook  # torch's own puts the rank before each line of a traceback
    dist.init_process_group("fake", rank=rank, world_size=mesh.world, store=fake_store())
    try:
        with only_own_pieces():
            yield world_of(mesh, rank, zero)
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
        # FSDP2's modules refer to themselves: a piece of a tensor for each rank would stay
        gc.collect()


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Limit garbage collection, until the block ends, to what is made in it,
    not torch's million objects.
    """
    if gc.get_freeze_count():  # somebody has done so: thawing is theirs too
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def world_of(mesh: Mesh, rank: int, zero: int) -> World:
    """Make the meshes of a rank in the process group that is there, fake or real.

    Those of torch are of the rank's own stage: every copy of a mesh that torch makes, several for
    each parameter, has a list of all the ranks in it.
    """
    stage, within = divmod(rank, mesh.stage_ranks)
    stages = torch.arange(mesh.world).view(mesh.pp, mesh.stage_ranks)
    made = []
    for copies, whole, name in ((mesh.shard, mesh.tp, "tp"), (mesh.expert_shard, mesh.ep, "ep")):
        spread = (1, copies) if zero else (copies, 1)
        ranks = stages[stage].view(*spread, whole)
        made.append(device_mesh(ranks, rank, ("replicate", "shard", name)))
    return World(
        mesh=mesh,
        place=mesh.place(rank),
        zero=zero,
        stages=one_group(stages[:, within], "pp"),
        dense=made[0],
        experts=made[1],
        context=context_mesh(mesh, rank) if mesh.cp > 1 else None,
    )


def context_mesh(mesh: Mesh, rank: int) -> DeviceMesh:
    """Make a mesh of the ranks with parts of the same sequences:
    neighbours among those ZeRO spreads over.
    """
    ranks = torch.arange(mesh.world).view(-1, mesh.cp, mesh.tp)
    ((i, _, tensor),) = (ranks == rank).nonzero().tolist()
    return one_group(ranks[i, :, tensor], "cp")


def one_group(ranks: torch.Tensor, name: str) -> DeviceMesh:
    """Make a mesh of one axis."""
    group = dist.new_group(ranks.tolist(), use_local_synchronization=True)
    return DeviceMesh.from_group(group, "cpu", mesh=ranks, mesh_dim_names=(name,))


def device_mesh(ranks: torch.Tensor, rank: int, names: tuple[str, ...]) -> DeviceMesh:
    """Make a mesh with only the groups of this rank: a large mesh has many thousands."""
    place = [int(i) for i in (ranks == rank).nonzero()[0]]
    groups = []
    for axis in range(len(names)):
        others = tuple(slice(None) if i == axis else at for i, at in enumerate(place))
        groups.append(dist.new_group(ranks[others].tolist(), use_local_synchronization=True))
    return DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=names)
