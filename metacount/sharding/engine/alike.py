"""Which ranks hold the same: between the places where torch's cuts fall."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metacount.sharding.mesh import Mesh, breaks, kinds, spread_axis
from metacount.sharding.result import Held, Job


def tensor_breaks(held: Iterable[Held], mesh: Mesh, more: Iterable[int] = ()) -> list[int]:
    """Find the indices of tensor parallelism from
    which on a rank has other pieces; `more` sizes are cut.
    """
    cuts = [
        each.whole[axis]
        for each in held
        for axis in range(len(each.whole))
        if each.cut[axis] != each.whole[axis] and not each.expert
    ]
    return breaks([*cuts, *more], mesh.tp)


def alike(
    held_at: Callable[[int], list[Held]], job: Job, tensor: list[int]
) -> list[list[int]]:
    """Group the ranks of the first stage that hold equal parts;
    `held_at` says what one of them holds.
    """
    mesh = job.mesh
    if not job.train or not job.zero:
        return list(kinds(mesh, [0], tensor, [0]).values())
    shard, copy = {0}, {0}
    for index in tensor:
        for each in held_at(index):
            if each.expert:
                axis = spread_axis(each.cut, mesh.expert_shard)
                copy.update(breaks([each.cut[axis]], mesh.expert_shard))
            else:
                shard.update(breaks([each.cut[0]], mesh.shard))
    return list(kinds(mesh, sorted(shard), tensor, sorted(copy)).values())
