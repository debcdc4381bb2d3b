"""The mesh of devices: its degrees, which rank stands where, and which ranks are of one kind.

A rank has a pipeline stage, a place among the ranks that share the parameters of the stage (data
and context parallelism together) and a place in tensor parallelism, the last changing fastest. The
experts of a stage are spread over the same ranks in another order: `ep` of them, neighbours, hold
all experts, and the groups that do hold copies.
"""

from __future__ import annotations

from functools import cache
from math import isqrt

from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


MAX_RANKS = 2**20  # ranks are grouped one by one
DEGREES = {
    "dp": "data parallelism: another part of the batch on each",
    "tp": "tensor parallelism: a part of every matrix on each",
    "pp": "pipeline parallelism: some of the layers on each",
    "ep": "expert parallelism: some of the experts on each, among the ranks of a stage",
    "cp": "context parallelism: a part of every sequence on each",
}


@frozen
class Mesh:
    """The degree of each kind of parallelism; `ep` takes ranks of a stage, none of its own."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1

    def __post_init__(self) -> None:
        for name in DEGREES:
            degree = getattr(self, name)
            if not isinstance(degree, int) or not 1 <= degree <= MAX_RANKS:
                raise InputError(f"--mesh {name} must be 1 to {MAX_RANKS}: got {shown(degree)}")
        if self.world > MAX_RANKS:
            raise InputError(f"--mesh {self} has {self.world} ranks; at most {MAX_RANKS} are taken")
        if self.stage_ranks % self.ep:
            raise InputError(
                f"--mesh ep must divide dp·cp·tp, the {self.stage_ranks} ranks of a stage: "
                f"{self.stage_ranks} % {self.ep} = {self.stage_ranks % self.ep}; "
                f"choose {divisors(self.stage_ranks)}"
            )

    @property
    def world(self) -> int:
        """All ranks."""
        return self.pp * self.stage_ranks

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.shard * self.tp

    @property
    def shard(self) -> int:
        """Ranks that ZeRO spreads a tensor over."""
        return self.dp * self.cp

    @property
    def expert_shard(self) -> int:
        """Ranks that ZeRO spreads an expert over: those that hold a copy of it."""
        return self.stage_ranks // self.ep

    def place(self, rank: int) -> Place:
        """Find where a rank stands."""
        stage, within = divmod(rank, self.stage_ranks)
        shard, tensor = divmod(within, self.tp)
        copy, expert = divmod(within, self.ep)
        return Place(rank=rank, stage=stage, shard=shard, tensor=tensor, copy=copy, expert=expert)

    def __str__(self) -> str:
        texts = [f"{name}={getattr(self, name)}" for name in DEGREES if getattr(self, name) > 1]
        return ",".join(texts) or "dp=1"


@frozen
class Place:
    """Where a rank stands: its stage and its index in each group that it belongs to."""

    rank: int
    stage: int
    shard: int
    tensor: int
    copy: int
    expert: int


def divisors_of(n: int) -> list[int]:
    """List the divisors of a number, the smallest first."""
    small = [i for i in range(1, isqrt(n) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})


def divisors(n: int, most: int = 12) -> str:
    """Write the divisors of n as a list of choices.

    >>> divisors(12)
    '1, 2, 3, 4, 6, 12'
    """
    numbers = divisors_of(n)
    return ", ".join(map(str, numbers[:most])) + (", ..." if len(numbers) > most else "")


def parse_mesh(text: str, world: int | None = None) -> Mesh:
    """Read the mesh that `dp=64,tp=8` names; `world` is the number of ranks that it must make.

    >>> parse_mesh("dp=64,tp=8").world
    512
    >>> parse_mesh("dp=64,tp=8", world=1000)
    Traceback (most recent call last):
    metacount.errors.InputError: --mesh dp=64,tp=8 makes 64·8 = 512 ranks, not 1000; change a degree
    """
    degrees: dict[str, int] = {}
    for piece in text.split(","):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if name not in DEGREES:
            close = nearest(name, DEGREES, f"choose among {', '.join(DEGREES)}")
            raise InputError(f"--mesh has no degree '{shown(name)}'; {close}")
        if name in degrees:
            raise InputError(f"--mesh gives {name} twice; leave one out")
        if not equals or not value.isascii() or not value.isdigit() or len(value) > 9:
            raise InputError(
                f"--mesh {name} takes a whole number, as in {name}=8: got '{shown(value)}'"
            )
        degrees[name] = int(value)
    mesh = Mesh(**degrees)
    if world is not None and mesh.world != world:
        product = "·".join(str(n) for name, n in degrees.items() if name != "ep" and n > 1) or "1"
        raise InputError(
            f"--mesh {mesh} makes {product} = {mesh.world} ranks, not {world}; change a degree"
        )
    return mesh


def breaks(sizes: Iterable[int], degree: int) -> list[int]:
    """Find the indices from which on a rank of `degree` holds another part of one of the sizes.

    torch cuts into pieces of ⌈size / degree⌉: the first are whole, one may be shorter, the last
    may be empty.

    >>> breaks([10], 4), breaks([8], 4), breaks([2], 4), breaks([0], 4)
    ([0, 3], [0], [0, 2], [0])
    """
    edges = {0}
    for size in sizes:
        piece = max(-(-size // degree), 1)
        n_full = size // piece
        edges |= {n_full, n_full + 1} if size % piece else {n_full}
    return sorted(index for index in edges if index < degree)


def spread_axis(shape: Sequence[int], copies: int) -> int:
    """Choose the axis by which an expert's tensor is spread over the ranks that hold copies of it.

    FSDP2 takes the first; of fewer experts than copies some ranks would get none, so that the
    second is taken where the copies divide it, as torchtitan does.

    >>> spread_axis((4, 4096, 7168), 8), spread_axis((16, 4096, 7168), 8)
    (1, 0)
    """
    return int(shape[0] < copies and shape[1] % copies == 0)


def kinds(
    mesh: Mesh, shard: Sequence[int], tensor: Sequence[int], copy: Sequence[int]
) -> dict[tuple[int, int, int], list[int]]:
    """Group the ranks of the first stage whose places fall between the same breaks."""
    by_kind: dict[tuple[int, int, int], list[int]] = {}
    tp, ep = mesh.tp, mesh.ep
    cut = [_below(tensor, index) for index in range(tp)]
    starts = sorted({*(index * tp for index in shard), *(index * ep for index in copy)})
    for start, end in zip(starts, [*starts[1:], mesh.stage_ranks], strict=True):
        own: dict[int, list[int]] = {}
        for rank in range(start, end):
            own.setdefault(cut[rank % tp], []).append(rank)
        lower, there = _below(shard, start // tp), _below(copy, start // ep)
        by_kind |= {(lower, index, there): ranks for index, ranks in own.items()}
    return by_kind


def _below(edges: Sequence[int], index: int) -> int:
    return max(i for i in edges if i <= index)


def ranges(ranks: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Yield ranks, given in ascending order, as runs of first, last and step.

    >>> list(ranges([0, 1, 2, 3, 8, 12, 16])), list(ranges([5, 9]))
    ([(0, 3, 1), (8, 16, 4)], [(5, 9, 4)])
    """
    run: list[int] = []
    for rank in ranks:
        if len(run) > 1 and rank - run[-1] != run[1] - run[0]:
            yield run[0], run[-1], run[1] - run[0]
            run = []
        run.append(rank)
    if run:
        yield run[0], run[-1], run[1] - run[0] if len(run) > 1 else 1


def stage_layers(n_layers: int, pp: int, asked: Sequence[int] | None = None) -> list[int]:
    """Count the layers of each stage:
    as even as can be, the first stages having one more, or as asked.

    >>> stage_layers(61, 4), stage_layers(4, 2, [3, 1])
    ([16, 15, 15, 15], [3, 1])
    """
    if pp > n_layers:
        raise InputError(
            f"--mesh pp must be at most the {n_layers} layers: got {pp} stages; "
            f"choose 1 to {n_layers}"
        )
    if asked is None:
        return [n_layers // pp + (stage < n_layers % pp) for stage in range(pp)]
    if len(asked) != pp or sum(asked) != n_layers or min(asked) < 1:
        raise InputError(
            f"pp of the plan must be {pp} numbers of layers, at least 1 each, "
            f"{n_layers} in all: got {shown(list(asked))}"
        )
    return list(asked)


PER_MACHINE = 8
GPUS = "h100-80gb,h200,b200,mi300x"  # that `fit` looks at where none is named


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


@cache
def span(mesh: Mesh, group: str, per_machine: int) -> tuple[int, int]:
    """Find how the groups of a kind lie on machines; ranks 0 to n - 1 are on the first, and so on.

    Returns: in how many machines the group that is spread most has ranks; of a rank's group the
    ranks in other machines, for the rank that has most of them.

    >>> span(Mesh(dp=4, tp=8), "tp", 8), span(Mesh(dp=4, tp=8), "dp", 8)
    ((1, 0), (4, 3))
    >>> span(Mesh(tp=6, dp=4), "tp", 8)  # ranks 6 to 11 are on two machines
    (2, 4)
    """
    size, apart = group_layout(mesh, group)
    machines, outside = 1, 0
    block = size * apart
    starts = (  # one for each way in which a group may lie on machines
        i * block + j
        for i in range(min(max(1, mesh.world // block), per_machine))
        for j in range(min(apart, per_machine))
    )
    for start in starts:
        last = start + (size - 1) * apart
        if apart >= per_machine:
            touched, first_has, last_has = size, 1, 1
        else:
            touched = last // per_machine - start // per_machine + 1
            first_has = min(size, -(-(per_machine - start % per_machine) // apart))
            last_has = min(size, last % per_machine // apart + 1)
        machines = max(machines, touched)
        outside = max(outside, size - min(first_has, last_has))
    return machines, outside
