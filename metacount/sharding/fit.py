"""Searches, by formula, the mesh that a model fits on: the smallest, or of so many devices.

The memory of accelerators is what the driver reports, else what their makers state.
"""

from __future__ import annotations

from math import ceil

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.formulas.model import params
from metacount.formulas.tape import Weight
from metacount.frozen import frozen
from metacount.sharding.adding import PASSING
from metacount.sharding.by_formula import STATES, counted_kinds, without_formula
from metacount.sharding.mesh import MAX_RANKS, Mesh, divisors_of
from metacount.sharding.plan import check_streams, default_plan
from metacount.sharding.result import Kind
from metacount.sharding.shard import Asked, job_of, missing
from metacount.spec import DTYPE_BYTES
from metacount.spec.legend import by_name
from metacount.units import gib

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from metacount.files import Json
    from metacount.resolve import Given, Model
    from metacount.sharding.result import Job, Sharded
    from metacount.spec import ModelSpec
    from metacount.textbook.stored import Stored


MOST_RANKS = 16_384  # that the search goes to, in powers of two
TENSOR = (1, 2, 4, 8)  # degrees that stay in one machine of eight
MOST = 2**20  # sequences and tokens that are searched


UNITS = {"mib": 2**20, "gb": 10**9}  # a driver counts MiB; a maker's GB are taken as 10^9 bytes


@frozen
class Device:
    """An accelerator: its memory in bytes and who says so.

    `usable_bytes` are what CUDA gives a process at most (`total_memory` of the device), where it
    was read; the driver keeps the rest. `by_maker`: no driver's figure is known here.
    """

    id: str
    name: str
    bytes: int
    source: str
    usable_bytes: int | None = None
    by_maker: bool = False

    @property
    def room(self) -> int:
        """Bytes that what fits is compared with."""
        return self.bytes if self.usable_bytes is None else self.usable_bytes


def devices() -> dict[str, Device]:
    """Read every device that is known, by its id.

    >>> devices()["h200"].bytes == 143771 * 2**20, devices()["h200"].room
    (True, 150109880320)
    """
    import json
    import os

    path = os.path.join(os.path.dirname(__file__), "devices.json")
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    by_id = {}
    for row in rows:
        ((unit, size),) = [(unit, row.pop(unit)) for unit in UNITS if unit in row]
        by_id[row["id"]] = Device(**row, bytes=size * UNITS[unit], by_maker=unit == "gb")
    return by_id


def devices_named(text: str) -> list[tuple[Device, int | None]]:
    """Find the devices of a list such as `h100,A100-80GB,8xh200`, each with its number if given.

    >>> [(device.id, n) for device, n in devices_named("h100,A100 80GB,8xh200")]
    [('h100-80gb', None), ('a100-80gb', None), ('h200', 8)]
    """
    known = devices()
    chosen: list[tuple[Device, int | None]] = []
    for part in text.split(","):
        number, times, name = part.strip().lower().partition("x")
        if times and number.strip().isascii() and number.strip().isdigit() and len(number) < 10:
            chosen.append((_device_named(name, known), int(number)))
        else:
            chosen.append((_device_named(part, known), None))
    return chosen


def _device_named(text: str, known: dict[str, Device]) -> Device:
    """Find the device of an id, of its beginning (`h100`) or of a maker's name."""
    name = _dashed(text)
    if name in known:
        return known[name]
    matches = [
        device
        for device in known.values()
        if any(f"{whole}-".startswith(f"{name}-") for whole in (device.id, _dashed(device.name)))
    ]
    if name and len(matches) == 1:
        return matches[0]
    if name and matches:
        choices = " or ".join(device.id for device in matches)
        raise InputError(f"--gpu '{shown(text)}' may be {choices}; say which")
    close = nearest(name, known, f"choose among {', '.join(known)}")
    raise InputError(f"--gpu '{shown(text)}' is unknown; {close}")


def _dashed(text: str) -> str:
    """Write a name as ids are written.

    >>> _dashed("A100 80GB"), _dashed("rtx_4090")
    ('a100-80gb', 'rtx-4090')
    """
    return "-".join(text.lower().replace("_", " ").split())


@frozen
class Fit:
    """What fits on one device: the mesh, what its largest rank holds, and how much more would fit.

    `mesh` None: nothing that was tried. `batch_size` and `seq_len` are the largest that fit, the
    other staying as it was asked for; None where nothing that is counted grows with them. No
    length is longer than the `positions` of the model (None: not known), none than `MOST`.
    `unknown` says why nobody can tell what fits; empty where it was searched. `asked`: of so many
    devices exactly, of which `closest` says what is too much where none of their meshes fits.
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
    asked: int | None = None
    closest: Verdict | None = None

    def to_dict(self) -> Json:
        """Return the fit as plain data."""
        data = {
            "gpu": self.device.id,
            "name": self.device.name,
            "bytes": self.device.bytes,
            "usable_bytes": self.device.room,
            "source": self.device.source,
            "devices": self.asked,
            "fits": None if self.unknown else self.mesh is not None,
            "unknown": self.unknown,
        }
        if self.closest is not None and self.job is not None:
            closest = {"mesh": str(self.job.mesh), **self.closest.to_dict()}
            return {**data, "fits": self.closest.fits, "closest": closest}
        if self.mesh is None or self.largest is None or self.job is None:
            return data
        return {
            **data,
            "job": self.job.to_dict(),
            "world": self.mesh.world,
            "total_bytes": self.largest.total_bytes,
            "most_bytes": self.largest.most_bytes,
            "peak_bytes": self.largest.peak_bytes,
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
    remedy: str = ""
    unknown: str = ""  # what is not counted and could be more than what is left

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where what is not counted decides it."""
        if self.total_bytes > self.room:
            return False
        return None if self.unknown else True

    def to_dict(self) -> Json:
        """Return the verdict as plain data."""
        data = {**vars(self), "fits": self.fits, "bytes": self.room}
        del data["room"]
        return data


@frozen
class Fits:
    """What fits of a model on each of some devices, and what is not counted; it unpacks as both."""

    model: Model
    answers: list[Fit]
    not_counted: list[str]
    stored: Stored | None = None  # of a quantised model that is served: its weights as they are

    def __iter__(self) -> Iterator[Any]:
        return iter((self.answers, self.not_counted))

    @property
    def job(self) -> Job | None:
        """The first job that was found."""
        return next((each.job for each in self.answers if each.job is not None), None)

    def to_dict(self) -> Json:
        """Convert to plain data."""
        stored = self.stored
        weights = {} if stored is None else {"bytes": stored.n_bytes, "how": stored.how}
        return {
            "model": self.model.id,
            **({"stored_weights": weights} if weights else {}),
            "assumed": "" if self.job is None else assumed(self.job),
            "answers": [each.to_dict() for each in self.answers],
            "missing": self.not_counted,
            "source": "formula",
        }


def fit(
    model: Given, gpu: str, *, train: bool = False, devices: int | None = None, **how: Any
) -> Fits:
    """Find a mesh of each device, the smallest or of exactly `devices`; say what is not counted.

    `gpu` names devices, with their number or without: `h100,8xh200`. `how` is what `shard` takes
    beside the mesh. A quantised model is served with its weights as stored; several ranks have
    their bytes in proportion to the values of each role.

    >>> (found,), _ = fit("llama-7b", "h100")
    >>> str(found.mesh), found.command
    ('dp=1', 'metacount shard llama-7b --mesh dp=1')
    >>> (found,), _ = fit("llama3-8b", "8xh100", train=True, attention="flash")
    >>> str(found.mesh), found.asked
    ('dp=8', 8)
    """
    from metacount.resolve import model_of

    known = model_of(model)
    check_streams(known.spec)
    stored: Stored | str | None = None
    if known.quantised is not None and not train:
        from metacount.textbook.stored import stored_from_config

        stored = stored_from_config(known.spec, known.quantised)
    search = Search(known, train, how, None if isinstance(stored, str) else stored)
    answers = []
    for device, number in devices_named(gpu):
        if devices is not None and number not in (None, devices):
            raise InputError(
                f"--devices {devices} and --gpu {number}x{device.id} exclude each other; "
                "leave one number out"
            )
        world = number if devices is None else devices
        answers.append(search.first(device) if world is None else search.of_number(device, world))
    answer = Fits(model=known, answers=answers, not_counted=[], stored=search.stored)
    if (job := answer.job) is not None:
        answer.not_counted.extend(missing(known.spec, job, formula=True))
        if isinstance(stored, str):
            untold = f"weights are counted in {job.dtype}; how they are stored is {stored}"
            answer.not_counted.append(untold)
    return answer


class Search:
    """The search for a mesh of one model: how it runs, and its weights as stored, if they are."""

    def __init__(self, model: Model, train: bool, how: Json, stored: Stored | None = None) -> None:
        self.model, self.train, self.how, self.stored = model, train, how, stored

    def job(self, mesh: Mesh, **changes: Any) -> Job | None:
        """Make the job on a mesh; None where the mesh does not suit the model or the batch."""
        try:
            return job_of(self.model.spec, mesh, Asked(**self.how | changes), train=self.train)
        except InputError as error:
            if str(error).startswith(("--mesh", "--batch must be a multiple")):
                return None
            raise

    def kinds(self, job: Job) -> list[Kind]:
        """Count every kind of rank, with the weights as they are stored."""
        kinds = counted_kinds(self.model.spec, job, default_plan(self.model.spec))
        return kinds if self.stored is None else [_packed(kind, self.stored) for kind in kinds]

    def first(self, device: Device, tried: Iterable[Mesh] = ()) -> Fit:
        """Find the first mesh that fits, of those `tried` or of all; where none does, the one whose
        largest rank holds least.
        """
        closest = None
        for mesh in tried or self.meshes(device.room):
            job = self.job(mesh)
            if job is None:
                continue
            kinds = self.kinds(job)
            if any(kind.activation_bytes is None for kind in kinds):
                return Fit(device=device, mesh=None, unknown=without_formula(self.model.spec, job))
            if most_of(kinds) <= device.room:
                return Fit(
                    device=device,
                    mesh=mesh,
                    job=job,
                    largest=max(kinds, key=lambda kind: kind.total_bytes),
                    batch_size=self.most(job, device.room, "batch_size"),
                    seq_len=self.most(job, device.room, "seq_len"),
                    command=command(self.model.id, job),
                    positions=positions_of(self.model),
                )
            if closest is None or most_of(kinds) < most_of(closest[1]):
                closest = (job, kinds)
        if closest is None:
            return Fit(device=device, mesh=None)
        judged = _judged(*closest, device.room)
        return Fit(device=device, mesh=None, job=closest[0], closest=judged)

    def of_number(self, device: Device, world: int) -> Fit:
        """Find the mesh of so many devices that cuts least and fits; else say what would fit.

        As a remedy, first what needs less on the same devices, then more of them.
        """
        if not 1 <= world <= MAX_RANKS:
            raise InputError(f"--devices must be 1 to {MAX_RANKS}: got {shown(world)}")
        tried = list(meshes_of(self.model.spec, world))
        fit = self.first(device, tried)
        if fit.mesh is not None or fit.unknown:
            return Fit(**{**vars(fit), "asked": world})
        if fit.closest is None:
            # says why the first does not suit
            job_of(self.model.spec, tried[0], Asked(**self.how), train=self.train)
            raise InputError(
                f"--devices {world} has no mesh for this model and batch; choose another number"
            )
        remedy = ""
        saving = {"attention": "flash", "checkpointing": "full"}
        ways = [{name: value} for name, value in saving.items()] + [saving] if self.train else []
        for way in ways:
            if remedy or way.items() <= self.how.items():
                continue
            try:
                less = Search(self.model, self.train, self.how | way)
                remedy = less.first(device, tried).command
            except (InputError, SpecError):
                continue  # not for this model
        closest = {**vars(fit.closest), "remedy": remedy or self.first(device).command}
        return Fit(**{**vars(fit), "asked": world, "closest": Verdict(**closest)})

    def meshes(self, room: int) -> Iterator[Mesh]:
        """Yield meshes to try: few ranks before many, in powers of two, and then as `meshes_of`.

        The first are those that have room for the parameters, once in all. Training adds data
        parallelism; serving needs none to fit, but to spread experts.
        """
        spec, dtype = self.model.spec, self.how.get("dtype", Asked().dtype)
        world, least = 1, params(spec) * DTYPE_BYTES.get(dtype, 1)
        if self.stored is not None:
            least = self.stored.n_bytes
        while world * room < least and 2 * world <= MOST_RANKS:
            world *= 2
        while world <= MOST_RANKS:
            for mesh in meshes_of(spec, world):
                if mesh.dp == 1 or self.train or spec.last_stack.mixture is not None:
                    yield mesh
            world *= 2

    def most(self, job: Job, room: int, name: str) -> int | None:
        """Find the largest batch or length that fits; None where what is counted does not grow."""
        mesh = job.mesh
        least = mesh.dp * job.micro_batches if name == "batch_size" else mesh.cp
        low, high = getattr(job, name) // least, MOST
        positions = positions_of(self.model) if name == "seq_len" else None
        if positions is not None:
            high = max(low, min(MOST, positions // least))

        def held(n: int) -> int:
            tried = self.job(mesh, **{name: n * least})
            return room + 1 if tried is None else most_of(self.kinds(tried))

        at_low, at_high = held(low), held(high)
        if at_high <= room:
            return None if positions is None and at_high == at_low else high * least
        while high - low > 1:
            # where bytes grow evenly, the first guess fits and one more does not
            even = low + (room - at_low) * (high - low) // (at_high - at_low)
            for guess in (even, even + 1, (low + high) // 2):
                if low < guess < high:
                    now = held(guess)
                    if now <= room:
                        low, at_low = guess, now
                    else:
                        high, at_high = guess, now
        return int(low * least)


def _packed(kind: Kind, stored: Stored) -> Kind:
    """Put the bytes of stored weights in place of those of the dtype, which each moment has."""
    width = ceil(sum(n * stored.bytes_a_value(role) for role, n in kind.by_role.items()))
    less = kind.param_bytes - width
    changed = {
        name: getattr(kind, name) if getattr(kind, name) is None else getattr(kind, name) - less
        for name in ("param_bytes", "total_bytes", "most_bytes", "peak_bytes")
    }
    for name in ("parts", "peak_parts"):
        if (parts := getattr(kind, name)) is not None:
            changed[name] = {**parts, "param_bytes": width}
    return Kind(**{**vars(kind), **changed})


def meshes_of(spec: ModelSpec, world: int) -> Iterator[Mesh]:
    """Yield the meshes of so many ranks, few parts of a matrix first, then few stages.

    Experts are spread over as many ranks of a stage as can be.

    >>> from metacount.catalog import entry
    >>> [str(mesh) for mesh in meshes_of(entry("llama-7b").spec(), 6)]
    ['dp=6', 'dp=3,pp=2', 'dp=2,pp=3', 'pp=6', 'dp=3,tp=2', 'tp=2,pp=3']
    """
    mixture = spec.last_stack.mixture
    for tp in TENSOR:
        if world % tp:
            continue
        for pp in divisors_of(world // tp):
            if pp > spec.last_stack.n_layers:
                break
            rest, ep = world // tp // pp, 1
            if mixture is not None:
                ep = max(n for n in divisors_of(rest * tp) if mixture.n_experts % n == 0)
            yield Mesh(dp=rest, tp=tp, pp=pp, ep=ep)


def assumed(job: Job) -> str:
    """Say what a training step keeps of each parameter, in which type; empty of serving.

    >>> from metacount.sharding.result import Job
    >>> job = Job(mesh=Mesh(), train=True, zero=3, optimizer="adamw", batch_size=1, seq_len=1,
    ...           micro_batches=1, dtype="bf16")
    >>> assumed(job)
    'bf16 parameters, gradients and adamw state, no master weights: 8 bytes a parameter'
    """
    if not job.train:
        return ""
    width, many = DTYPE_BYTES[job.stored], 2**20
    state = int(STATES[job.optimizer](Weight(role="ffn", name="", shape=(many,)), width))
    per_param = 2 * width + state // many  # what is less than a byte is of blocks of many
    masters = f", computed with in {job.dtype}" if job.master else ", no master weights"
    masters = "" if job.dtype == job.stored == "fp32" else masters
    text = f"{job.stored} parameters, gradients and {job.optimizer} state{masters}"
    return f"{text}: {per_param} bytes a parameter"


def most_of(kinds: Iterable[Kind]) -> int:
    """Count the most that a rank may hold: its peak where that is known, else with all that may
    come and go.
    """
    return max(kind.most_bytes if kind.peak_bytes is None else kind.peak_bytes for kind in kinds)


def positions_of(model: Model) -> int | None:
    """Return how many positions a model has: of its table, else by its config; None: not known."""
    config = model.source.config if model.source is not None else {}
    stated = [config.get(name) for name in ("n_positions", *by_name("n_positions").elsewhere)]
    return model.spec.longest or next((n for n in stated if type(n) is int and n > 0), None)


def command(model: str, job: Job) -> str:
    """Write the command that shows a job."""
    text = f"metacount shard {model} --mesh {job.mesh}"
    if job.train:
        text += f" --train --zero {job.zero}"
        text += f" --optimizer {job.optimizer}" if job.optimizer != "adamw" else ""
        text += " --mixed-precision" if job.master else ""
        for name in ("sequence_parallel", "loss_parallel"):
            text += f" --{name.replace('_', '-')}" if getattr(job, name) else ""
        for name in ("attention", "checkpointing", "schedule"):
            value = getattr(job, name)
            text += f" --{name} {value}" if value != getattr(Asked(), name) else ""
    if job.batch_size != job.mesh.dp * job.micro_batches:
        text += f" --batch {job.batch_size}"
    if job.micro_batches != (job.mesh.pp if job.train else 1):
        text += f" --micro-batches {job.micro_batches}"
    text += f" --seq {job.seq_len}" if job.seq_len != 2048 else ""
    text += f" --dtype {job.dtype}" if job.dtype != "bf16" else ""
    kv_dtype = job.kv_dtype or job.dtype
    return text + (f" --kv-dtype {kv_dtype}" if kv_dtype != job.dtype else "")


def verdict(model: Model, sharded: Sharded, room: int) -> Verdict:
    """Tell whether the largest rank fits;
    if not, or if nobody can tell, name the smallest mesh of the search on which it does.
    """
    job = sharded.job
    judged = _judged(job, sharded.kinds, room)
    if judged.fits:
        return judged
    device = Device(id="", name="", bytes=room, source="")
    how: Json = {"seq_len": job.seq_len, "dtype": job.dtype, "optimizer": job.optimizer}
    if not job.train:
        how["kv_dtype"] = job.kv_dtype
    else:
        same = ("attention", "checkpointing", "schedule", "sequence_parallel", "loss_parallel")
        how |= {"mixed_precision": job.master, **{name: getattr(job, name) for name in same}}
    remedy = Search(model, job.train, how).first(device).command
    return Verdict(**{**vars(judged), "remedy": remedy})


def _judged(job: Job, kinds: Sequence[Kind], room: int) -> Verdict:
    """Tell whether the largest rank fits, and what it holds."""
    largest = max(kinds, key=lambda kind: kind.total_bytes)
    unknown, most = "", most_of(kinds)
    if any(kind.activation_bytes is None for kind in kinds):
        unknown = "what the backward keeps of the forward is not counted"
    elif most > room >= largest.total_bytes:
        unknown = (
            f"what comes and goes in the backward of a block (at most {PASSING} times what it "
            f"keeps, and three more units of FSDP2) may make it {gib(most)}"
        )
    return Verdict(
        room=room,
        rank=largest.first,
        total_bytes=largest.total_bytes if largest.peak_bytes is None else largest.peak_bytes,
        parts={name: size for name, size in (largest.peak_parts or largest.parts).items() if size},
        unknown=unknown,
    )
