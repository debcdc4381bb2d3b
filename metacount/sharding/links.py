"""Which groups of ranks span machines: what is sent over a machine's own links, and between."""

from __future__ import annotations

from metacount.frozen import frozen
from metacount.sharding.mesh import Mesh

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

PER_MACHINE = 8


@frozen
class Span:
    """The groups of one kind on machines of so many ranks.

    `machines`: how many the group that is spread most has ranks in. `outside`: of a rank's group,
    the ranks in other machines, for the rank that has most of them.
    """

    machines: int
    outside: int


def group_layout(mesh: Mesh, group: str) -> tuple[int, int]:
    """Return the number of ranks of a group, and how far its neighbours are apart.

    >>> group_layout(Mesh(dp=4, tp=8, pp=2), "dp"), group_layout(Mesh(dp=4, tp=8, pp=2), "pp")
    ((4, 8), (2, 32))
    """
    layouts = {
        "tp": (mesh.tp, 1),
        "dp": (mesh.shard, mesh.tp),
        "cp": (mesh.cp, mesh.tp),
        "ep": (mesh.ep, 1),
        "copies": (mesh.expert_shard, mesh.ep),
        "pp": (2, mesh.stage_ranks),
    }
    return layouts[group]


def span(mesh: Mesh, group: str, per_machine: int) -> Span:
    """Find how the groups of a kind lie on machines; ranks 0 to n - 1 are on the first, and so on.

    >>> span(Mesh(dp=4, tp=8), "tp", 8), span(Mesh(dp=4, tp=8), "dp", 8)
    (Span(machines=1, outside=0), Span(machines=4, outside=3))
    >>> span(Mesh(tp=6, dp=4), "tp", 8)  # ranks 6 to 11 are on two machines
    Span(machines=2, outside=4)
    """
    size, apart = group_layout(mesh, group)
    machines, outside = 1, 0
    for start in _starts(mesh.world, size, apart, per_machine):
        last = start + (size - 1) * apart
        if apart >= per_machine:
            touched, first_has, last_has = size, 1, 1
        else:
            touched = last // per_machine - start // per_machine + 1
            first_has = min(size, -(-(per_machine - start % per_machine) // apart))
            last_has = min(size, last % per_machine // apart + 1)
        machines = max(machines, touched)
        outside = max(outside, size - min(first_has, last_has))
    return Span(machines=machines, outside=outside)


def _starts(world: int, size: int, apart: int, per_machine: int) -> Iterator[int]:
    """Yield the first ranks of groups, one for each way in which a group may lie on machines."""
    block = size * apart
    for i in range(min(max(1, world // block), per_machine)):
        for j in range(min(apart, per_machine)):
            yield i * block + j
