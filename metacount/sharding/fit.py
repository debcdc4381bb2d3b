"""Searches, by formula, the smallest mesh that a model fits on, and how much fits on it."""

from __future__ import annotations

from metacount.errors import InputError, nearest, shown
from metacount.frozen import frozen
from metacount.sharding.adding import PASSING
from metacount.sharding.by_formula import counted_kinds, without_formula
from metacount.sharding.mesh import MAX_RANKS, Mesh
from metacount.sharding.plan import check_streams, default_plan
from metacount.sharding.result import Kind
from metacount.sharding.shard import Asked, job_of, missing
from metacount.spec.legend import by_name
from metacount.units import gib

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from metacount.files import Json
    from metacount.resolve import Given, Model
    from metacount.sharding.result import Job, Sharded
    from metacount.spec import ModelSpec


@frozen
class Device:
    """An accelerator: its memory in bytes (a maker's GB taken as 10^9) and who says so."""

    id: str
    name: str
    bytes: int
    source: str


def devices() -> dict[str, Device]:
    """Read every device that is known, by its id.

    >>> devices()["h200"].bytes
    141000000000
    """
    import json
    import os

    path = os.path.join(os.path.dirname(__file__), "devices.json")
    with open(path, encoding="utf-8") as file:
        return {row["id"]: Device(**row) for row in json.load(file)}


def devices_named(text: str) -> list[Device]:
    """Find the devices of a list such as `h100-80gb,h200`."""
    known, found = devices(), []
    for name in (part.strip().lower() for part in text.split(",")):
        if name not in known:
            close = nearest(name, known, f"choose among {', '.join(known)}")
            raise InputError(f"--gpu '{shown(name)}' is unknown; {close}")
        found.append(known[name])
    return found


MOST_RANKS = 16_384  # that the search goes to, in powers of two
TENSOR = (1, 2, 4, 8)  # degrees that stay in one machine of eight
MOST = 2**20  # sequences and tokens that are searched


@frozen
class Fit:
    """What fits on one device: the mesh, what its largest rank holds, and how much more would fit.

    `mesh` None: nothing that was tried. `batch_size` and `seq_len` are the largest that fit, the
    other staying as it was asked for; None where nothing that is counted grows with them. No
    length is longer than the `positions` of the model (None: not known), none than `MOST`.
    `unknown` says why nobody can tell what fits; empty where it was searched.
    """

    device: Device
    mesh: Mesh | None
    job: Job | None = None
    largest: Kind | None = None
    batch_size: int | None = None
    seq_len: int | None = None
    command: str = ""
    positions: int | None = None
    unknown: str = ""

    def to_dict(self) -> Json:
        """Return the fit as plain data."""
        found = {
            "gpu": self.device.id,
            "name": self.device.name,
            "bytes": self.device.bytes,
            "source": self.device.source,
            "fits": None if self.unknown else self.mesh is not None,
            "unknown": self.unknown,
        }
        if self.mesh is None or self.largest is None or self.job is None:
            return found
        return {
            **found,
            "job": self.job.to_dict(),
            "world": self.mesh.world,
            "total_bytes": self.largest.total_bytes,
            "most_bytes": self.largest.most_bytes,
            "largest_batch_size": self.batch_size,
            "largest_seq_len": self.seq_len,
            "positions": self.positions,
            "command": self.command,
        }


@frozen
class Verdict:
    """Whether the largest rank of a mesh fits in so much memory, and a mesh that would."""

    room: int
    rank: int
    total_bytes: int
    parts: dict[str, int]
    remedy: str
    unknown: str = ""  # what is not counted and could be more than what is left

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where what is not counted decides it."""
        if self.total_bytes > self.room:
            return False
        return None if self.unknown else True

    def to_dict(self) -> Json:
        """Return the verdict as plain data."""
        return {
            "fits": self.fits,
            "bytes": self.room,
            "rank": self.rank,
            "total_bytes": self.total_bytes,
            "parts": self.parts,
            "remedy": self.remedy,
            "unknown": self.unknown,
        }


def fit(model: Given, gpu: str, *, train: bool = False, **how: Any) -> tuple[list[Fit], list[str]]:
    """Find the smallest mesh for each device, and say what is not in the figures.

    `how` is what `shard` takes beside the mesh.

    >>> (found,), _ = fit("llama-7b", "h100-80gb")
    >>> str(found.mesh), found.command
    ('dp=1', 'metacount shard llama-7b --mesh dp=1')
    """
    from metacount.resolve import model_of

    known = model_of(model)
    check_streams(known.spec)
    found = [_smallest(known, device, train, how) for device in devices_named(gpu)]
    job = next((each.job for each in found if each.job is not None), None)
    return found, [] if job is None else missing(known.spec, job, formula=True)


def _smallest(model: Model, device: Device, train: bool, how: Json) -> Fit:
    for mesh in meshes(model.spec, train):
        job = _job(model.spec, mesh, train, how)
        if job is None:
            continue
        kinds = counted_kinds(model.spec, job, default_plan(model.spec))
        if any(kind.activation_bytes is None for kind in kinds):
            return Fit(device=device, mesh=None, unknown=without_formula(model.spec, job))
        if most_of(kinds) <= device.bytes:
            batch, length = (
                _most(model, mesh, train, how, device.bytes, name)
                for name in ("batch_size", "seq_len")
            )
            return Fit(
                device=device,
                mesh=mesh,
                job=job,
                largest=max(kinds, key=lambda kind: kind.total_bytes),
                batch_size=batch,
                seq_len=length,
                command=command(model.id, job),
                positions=positions_of(model),
            )
    return Fit(device=device, mesh=None)


def meshes(spec: ModelSpec, train: bool) -> Iterator[Mesh]:
    """Yield meshes to try: few ranks before many, and of as many ranks,
    few parts of a matrix first.

    Experts are spread over as many ranks of a stage as can be. Training adds data parallelism;
    serving needs none to fit.
    """
    mixture = spec.last_stack.mixture
    world = 1
    while world <= min(MOST_RANKS, MAX_RANKS):
        for tp in TENSOR:
            for pp in _powers(min(world // tp, spec.last_stack.n_layers)):
                rest = world // tp // pp
                if tp * pp * rest != world or (rest > 1 and not train and mixture is None):
                    continue
                ep = 1
                if mixture is not None:
                    ep = max(n for n in _powers(rest * tp) if mixture.n_experts % n == 0)
                if train or mixture is not None or rest == 1:
                    yield Mesh(dp=rest, tp=tp, pp=pp, ep=ep)
        world *= 2


def _powers(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def _job(spec: ModelSpec, mesh: Mesh, train: bool, how: Json) -> Job | None:
    """Make the job on a mesh; None where the mesh does not suit the model or the batch."""
    try:
        return job_of(spec, mesh, Asked(**how), train=train)
    except InputError as error:
        if str(error).startswith(("--mesh", "--batch must be a multiple")):
            return None
        raise


def most_of(kinds: Iterable[Kind]) -> int:
    """Count the most that a rank may hold, with what may come and go."""
    return max(kind.most_bytes for kind in kinds)


def positions_of(model: Model) -> int | None:
    """Return how many positions a model has: of its table, else by its config; None: not known."""
    config = model.source.config if model.source is not None else {}
    stated = [config.get(name) for name in ("n_positions", *by_name("n_positions").elsewhere)]
    return model.spec.longest or next((n for n in stated if type(n) is int and n > 0), None)


def _most(model: Model, mesh: Mesh, train: bool, how: Json, room: int, name: str) -> int | None:
    """Find the largest batch or length that fits, by halving;
    None where what is counted does not grow with it.
    """
    spec = model.spec
    job = _job(spec, mesh, train, how)
    assert job is not None  # it was tried before
    one = mesh.dp * job.micro_batches if name == "batch_size" else mesh.cp
    low, high = getattr(job, name) // one, MOST
    positions = positions_of(model) if name == "seq_len" else None
    if positions is not None:
        high = max(low, min(MOST, positions // one))

    def held(n: int) -> int | None:
        tried = _job(spec, mesh, train, {**how, name: n * one})
        if tried is None:
            return None
        return most_of(counted_kinds(spec, tried, default_plan(spec)))

    def fits(n: int) -> bool:
        total = held(n)
        return total is not None and total <= room

    if fits(high):
        return None if positions is None and held(high) == held(low) else high * one
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return int(low * one)


def command(model: str, job: Job) -> str:
    """Write the command that shows a job."""
    said = f"metacount shard {model} --mesh {job.mesh}"
    if job.train:
        said += f" --train --zero {job.zero}"
        said += f" --optimizer {job.optimizer}" if job.optimizer != "adamw" else ""
        said += " --master-weights" if job.master else ""
        for name in ("attention", "checkpointing", "schedule"):
            value = getattr(job, name)
            said += f" --{name} {value}" if value != getattr(Asked(), name) else ""
    if job.batch_size != job.mesh.dp * job.micro_batches:
        said += f" --batch {job.batch_size}"
    if job.micro_batches != (job.mesh.pp if job.train else 1):
        said += f" --micro-batches {job.micro_batches}"
    said += f" --seq {job.seq_len}" if job.seq_len != 2048 else ""
    return said + (f" --dtype {job.dtype}" if job.dtype != "bf16" else "")


def verdict(model: Model, found: Sharded, room: int) -> Verdict:
    """Tell whether the largest rank fits;
    if not, or if nobody can tell, name the smallest mesh of the search on which it does.
    """
    largest, job = found.largest, found.job
    parts = {name: size for name, size in largest.parts.items() if size}
    remedy, unknown, most = "", "", most_of(found.kinds)
    if any(kind.activation_bytes is None for kind in found.kinds):
        unknown = "what the backward keeps of the forward is not counted"
    elif most > room >= largest.total_bytes:
        unknown = (
            f"what comes and goes in the backward of a block (taken as at most {PASSING} times "
            f"what the block keeps) may make it {gib(most)}"
        )
    if unknown or largest.total_bytes > room:
        device = Device(id="", name="", bytes=room, source="")
        how = {"seq_len": job.seq_len, "dtype": job.dtype, "optimizer": job.optimizer}
        if job.train:
            same = ("attention", "checkpointing", "schedule")
            how |= {"master_weights": job.master, **{name: getattr(job, name) for name in same}}
        remedy = _smallest(model, device, job.train, how).command
    return Verdict(
        room=room,
        rank=largest.first,
        total_bytes=largest.total_bytes,
        parts=parts,
        remedy=remedy,
        unknown=unknown,
    )
