"""What somebody asks to be done on a mesh, and the job that it is, with every size."""

from __future__ import annotations

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.frozen import frozen
from metacount.sharding.by_formula import STATES
from metacount.sharding.links import PER_MACHINE
from metacount.sharding.mesh import Mesh, divisors
from metacount.sharding.plan import check_fits
from metacount.sharding.result import Job
from metacount.spec import DTYPE_BYTES, SEQ_LEN, ModelSpec
from metacount.spec.position import Alibi
from metacount.training.setup import ATTENTIONS, CHECKPOINTINGS

SCHEDULES = {
    "1f1b": "one forward, one backward (1f1b): at a stage as many as there are stages from it on",
    "gpipe": "all forwards before all backwards (gpipe): all of them",
}


@frozen
class Asked:
    """What somebody asks to be done on a mesh; None leaves it to the mesh and the model."""

    zero: int | None = None
    optimizer: str = "adamw"
    master_weights: bool = False
    batch_size: int | None = None
    seq_len: int | None = None
    micro_batches: int | None = None
    dtype: str = "bf16"
    attention: str = "eager"
    checkpointing: str = "none"
    schedule: str = "1f1b"
    per_machine: int = PER_MACHINE


def _check(asked: Asked, train: bool) -> None:
    """Raise `InputError` for what no mesh can do."""
    zero, optimizer, dtype = asked.zero, asked.optimizer, asked.dtype
    if not train and (zero is not None or asked.master_weights):
        raise InputError("--zero and --master-weights belong to --train; add it, or leave them out")
    for name, known in (
        ("attention", ATTENTIONS),
        ("checkpointing", CHECKPOINTINGS),
        ("schedule", SCHEDULES),
    ):
        value, default = getattr(asked, name), getattr(Asked(), name)
        if value not in known:
            close = nearest(value, known, f"choose one of {', '.join(known)}")
            raise InputError(f"--{name} '{shown(value)}' is unknown; {close}")
        if not train and value != default:
            raise InputError(f"--{name} belongs to --train; add it, or leave it out")
    if zero is not None and zero not in range(4):
        raise InputError(f"--zero must be 0 to 3: got {shown(zero)}")
    if optimizer not in STATES:
        close = nearest(optimizer, STATES, f"choose one of {', '.join(STATES)}")
        raise InputError(f"--optimizer '{shown(optimizer)}' is unknown; {close}")
    if dtype not in DTYPE_BYTES:
        raise InputError(
            f"--dtype '{shown(dtype)}' is unknown; choose one of {', '.join(DTYPE_BYTES)}"
        )
    if asked.master_weights and DTYPE_BYTES[dtype] >= 4:
        raise InputError(
            "--master-weights keeps float32 beside a smaller type, not beside "
            f"{dtype}; leave it out"
        )


def job_of(spec: ModelSpec, mesh: Mesh, asked: Asked, *, train: bool) -> Job:
    """Make the job of what is asked on a mesh, with every size;
    raise `InputError` for what cannot be.
    """
    _check(asked, train)
    check_fits(spec, mesh)
    if train and spec.pooler:
        raise SpecError(
            "pooler",
            "has no plan for training on a mesh: no loss sees it",
            spec.pooler,
            "leave out --train, or choose a model with an output head",
        )
    if asked.checkpointing == "selective" and mesh.ep > 1:
        # torch takes what FSDP2 does around a rank's experts for operators that were not repeated
        raise InputError("--checkpointing selective is not for ep > 1; choose full or none")
    if asked.checkpointing != "none" and isinstance(spec.positions, Alibi):
        # one bias for all blocks of a stage, which are measured one by one
        raise InputError(
            f"--checkpointing {asked.checkpointing} is not for position=alibi on a "
            "mesh; choose none"
        )
    default = mesh.pp if train else 1
    n = default if asked.micro_batches is None else asked.micro_batches
    at_once = mesh.dp * n
    batch = at_once if asked.batch_size is None else asked.batch_size
    length = asked.seq_len
    if length is None:
        length = min(SEQ_LEN, spec.longest or SEQ_LEN)
    for name, value in (
        ("--micro-batches", n),
        ("--batch", batch),
        ("--seq", length),
        ("--per-machine", asked.per_machine),
    ):
        if value < 1:
            raise InputError(f"{name} must be at least 1: got {value}")
    if batch % at_once:
        raise InputError(
            f"--batch must be a multiple of dp·micro-batches = {mesh.dp}·{n} = {at_once}: "
            f"{batch} % {at_once} = {batch % at_once}; choose {at_once * (batch // at_once + 1)}"
        )
    if length % mesh.cp:
        raise InputError(
            f"--mesh cp must divide --seq: {length} % {mesh.cp} = {length % mesh.cp}; "
            f"choose {divisors(length)}"
        )
    if train and mesh.cp > 1 and asked.attention == "flash" and length % (2 * mesh.cp):
        # torch gives each rank two pieces, one from either end, so that all have equally much to do
        raise InputError(
            f"--attention flash on cp={mesh.cp} cuts each sequence into 2·cp pieces: "
            f"{length} % {2 * mesh.cp} = {length % (2 * mesh.cp)}; choose --seq "
            f"{2 * mesh.cp * -(-length // (2 * mesh.cp))}"
        )
    zero = (3 if asked.zero is None else asked.zero) if train else 0
    same = ("optimizer", "dtype", "attention", "checkpointing", "schedule", "per_machine")
    job = Job(
        mesh=mesh,
        train=train,
        zero=zero,
        batch_size=batch,
        seq_len=length,
        micro_batches=n,
        master=asked.master_weights,
        decodes=spec.kind != "encoder",
        **{name: getattr(asked, name) for name in same},
    )
    if train and mesh.tp > 1:
        _check_pieces(spec, job)
    return job


def _check_pieces(spec: ModelSpec, job: Job) -> None:
    """Raise `InputError` where a rank would have nothing of what tensor parallelism cuts.

    FSDP2 cannot spread gradients without rows, and a rank without tokens for its experts would not
    be in the exchanges of the backward, for which the others wait.
    """
    tp, mixture = job.mesh.tp, spec.last_stack.mixture
    sizes = {"vocab_size": spec.vocab_size, "d_ff": spec.d_ff}
    if mixture is not None and mixture.shared is not None:
        width = mixture.d_ff if mixture.shared.d_ff is None else mixture.shared.d_ff
        sizes["the shared experts' width"] = mixture.shared.n_experts * width
    tokens = "the tokens of a micro-batch"
    if job.mesh.ep > 1:
        sizes[tokens] = job.rows * job.length
    for name, size in sizes.items():
        if size is None or (piece := -(-size // tp)) * (tp - 1) < size:
            continue
        remedy = "a smaller tp" + (", or a longer --seq" if name == tokens else "")
        raise InputError(
            f"--mesh tp={tp} cuts {name} = {size} into pieces of {piece}, and leaves nothing "
            f"for the last rank; choose {remedy} to train"
        )
