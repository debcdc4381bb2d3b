"""What is asked of a mesh, and the Python API's `shard`: by torch.distributed or by formula."""

from __future__ import annotations

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.frozen import frozen
from metacount.measure.isolated import isolated
from metacount.sharding.adding import STEP_COPIES
from metacount.sharding.by_formula import STATES, counted_kinds, without_formula
from metacount.sharding.mesh import PER_MACHINE, Mesh, divisors, parse_mesh
from metacount.sharding.plan import Plan, check_fits, default_plan, read_plan
from metacount.sharding.result import Job, Sharded
from metacount.spec import DTYPE_BYTES, SEQ_LEN, ModelSpec, check_dtype
from metacount.spec.attention import Attention
from metacount.spec.model import left_out
from metacount.spec.position import Alibi, Learned, Sinusoidal
from metacount.spec.stack import WITH_STATE
from metacount.textbook.count import said_of_states
from metacount.training.setup import ATTENTIONS, CHECKPOINTINGS, OPTIMIZERS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from metacount.resolve import Given
    from metacount.sharding.result import Kind
    from metacount.spec import ModelSpec


SCHEDULES = {
    "1f1b": "one forward, one backward (1f1b): at a stage as many as there are stages from it on",
    "gpipe": "all forwards before all backwards (gpipe): all of them",
}


@frozen
class Asked:
    """What somebody asks to be done on a mesh; None leaves it to the mesh and the model."""

    zero: int | None = None
    optimizer: str = "adamw"
    mixed_precision: bool = False
    master_weights: bool = False  # refused: copies beside 16-bit parameters are `train`'s
    batch_size: int | None = None
    seq_len: int | None = None
    micro_batches: int | None = None
    dtype: str = "bf16"
    kv_dtype: str | None = None
    attention: str = "eager"
    checkpointing: str = "none"
    schedule: str = "1f1b"
    per_machine: int = PER_MACHINE
    sequence_parallel: bool = False
    loss_parallel: bool = False


def _check(asked: Asked, train: bool) -> None:
    """Raise `InputError` for what no mesh can do."""
    choices: dict[str, Collection[str]] = {
        "attention": ATTENTIONS,
        "checkpointing": CHECKPOINTINGS,
        "schedule": SCHEDULES,
        "optimizer": STATES,
    }
    for name, known in choices.items():
        value, options = getattr(asked, name), f"choose one of {', '.join(known)}"
        if value in known:
            continue
        if value in OPTIMIZERS and name == "optimizer":
            raise InputError(
                f"--optimizer {value} looks at whole matrices, of which a rank has a share: no "
                f"state of a rank is known; {options}"
            )
        raise InputError(f"--{name} '{shown(value)}' is unknown; {nearest(value, known, options)}")
    if asked.master_weights:
        raise InputError(
            "--master-weights are float32 copies beside 16-bit parameters, which no mesh here has; "
            "choose --mixed-precision: parameters, gradients and state themselves in float32"
        )
    parallel = ("sequence_parallel", "loss_parallel", "zero", "mixed_precision")
    for name in (*parallel, *choices):
        given = getattr(asked, name) != getattr(Asked(), name)
        if given and not train and name != "optimizer":
            option = name.replace("_", "-")
            raise InputError(f"--{option} belongs to --train; add it, or leave it out")
    if asked.zero is not None and asked.zero not in range(4):
        raise InputError(f"--zero must be 0 to 3: got {shown(asked.zero)}")
    for name, value in (("dtype", asked.dtype), ("kv_dtype", asked.kv_dtype or asked.dtype)):
        check_dtype(name, value)
    if train and asked.kv_dtype is not None:
        raise InputError("--kv-dtype is of serving, which keeps a cache; leave it out")
    if asked.mixed_precision and DTYPE_BYTES[asked.dtype] >= 4:
        raise InputError(
            "--mixed-precision computes in a type smaller than float32: "
            f"got {asked.dtype}; leave it out"
        )


def job_of(spec: ModelSpec, mesh: Mesh, asked: Asked, *, train: bool) -> Job:
    """Make the job of what is asked; raise `InputError` for what cannot be."""
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
    sizes: dict[str, Any] = {"micro_batches": n, "batch_size": batch, "seq_len": length}
    sizes["per_machine"] = asked.per_machine
    for name, value in sizes.items():
        if value < 1:
            option = name.removesuffix("_size").removesuffix("_len").replace("_", "-")
            raise InputError(f"--{option} must be at least 1: got {value}")
    if spec.longest is not None and length > spec.longest:
        raise InputError(
            f"--seq must be at most the {spec.longest} positions of the model: got {length}; "
            f"choose --seq {spec.longest}"
        )
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
    same = ("optimizer", "dtype", "attention", "checkpointing", "schedule")
    job = Job(
        mesh=mesh,
        train=train,
        zero=zero,
        **sizes,
        master=asked.mixed_precision,
        sequence_parallel=asked.sequence_parallel and mesh.tp > 1,
        loss_parallel=asked.loss_parallel and mesh.tp > 1,
        decodes=spec.kind != "encoder",
        kv_dtype=asked.kv_dtype or asked.dtype,
        **{name: getattr(asked, name) for name in same},
    )
    if train and mesh.tp > 1:
        _check_pieces(spec, job)
    if job.sequence_parallel and (why := why_no_sequence(spec, job)):
        raise InputError(f"--sequence-parallel {why}")
    return job


def why_no_sequence(spec: ModelSpec, job: Job) -> str:
    """Say why tokens cannot be spread between the matrices; empty where they can."""
    stack, tp = spec.last_stack, job.mesh.tp
    if job.length % tp:
        return (
            f"cuts the {job.length} tokens that a rank has of a sequence into tp={tp} equal parts; "
            f"choose --seq {job.mesh.cp * tp * -(-job.length // tp)}"
        )
    if stack.mixture is not None:
        return "has no plan for experts; leave it out"
    if not isinstance(stack.attention, Attention):
        return f"has no plan for attention={spec.attention}; leave it out"
    if set(stack.mixer_pattern) & set(WITH_STATE):
        return f"has no plan for recurrent={spec.recurrent}, which keeps a state; leave it out"
    if isinstance(spec.positions, Learned | Sinusoidal) or spec.n_token_types:
        return "has no plan for what is added to embedded tokens; leave it out"
    return ""


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


@isolated
def shard(
    model: Given,
    mesh: str | Mesh,
    *,
    train: bool = False,
    plan: str | Plan | None = None,
    formula: bool = False,
    **how: Any,
) -> Sharded:
    """Put a model on a mesh: what each kind of rank holds, and what it sends.

    The reference modules are instantiated on a fake world of that size by torch's own DTensor,
    tensor parallelism and FSDP2, and run there; `formula` counts instead, without torch. `how` are
    the fields of `Asked`: zero, optimizer, mixed_precision, batch_size, seq_len, micro_batches,
    dtype, kv_dtype.

    >>> found = shard("llama-7b", "dp=4,tp=2", train=True, formula=True)
    >>> found.largest.params, found.largest.param_bytes
    (842335232, 1684670464)
    """
    from metacount.formulas.model import params
    from metacount.resolve import model_of

    known = model_of(model)
    spec = known.spec
    degrees = parse_mesh(mesh) if isinstance(mesh, str) else mesh
    job = job_of(spec, degrees, Asked(**how), train=train)
    if isinstance(plan, str):
        plan = read_plan(plan)
    kinds = _kinds(spec, job, plan or default_plan(spec), formula)
    source = "formula"
    if not formula:
        import torch

        source = f"torch {torch.__version__.partition('+')[0]}, on a fake world"
    return Sharded(
        model=known.id,
        name=known.name,
        job=job,
        kinds=tuple(kinds),
        params=int(params(spec)),
        missing=tuple(missing(spec, job, formula=formula)),
        source=source,
    )


def _kinds(spec: ModelSpec, job: Job, plan: Plan, formula: bool) -> list[Kind]:
    if plan.source != "ours" and (job.sequence_parallel or job.loss_parallel):
        option = "--sequence-parallel" if job.sequence_parallel else "--loss-parallel"
        raise InputError(f"{option} goes with our own plan; leave out --plan or {option}")
    if not formula:
        from metacount.sharding.by_engine import measured_kinds
        from metacount.tensors import DTYPES

        if job.kv_dtype != job.dtype:
            raise InputError(
                "--kv-dtype goes with --formula: a module keeps its cache in its own type"
            )
        if job.dtype not in DTYPES:
            raise InputError(
                f"--dtype {job.dtype} is not one that a module runs in; choose one of "
                f"{', '.join(DTYPES)}, or --formula"
            )
        return measured_kinds(spec, job, plan, whole_step=True)
    if plan.source != "ours":
        raise InputError("--formula counts our own plan; leave out --plan or --formula")
    return counted_kinds(spec, job, plan)


def missing(spec: ModelSpec, job: Job, *, formula: bool) -> list[str]:
    """List what is not in the figures, or was not run, one sentence each."""
    mesh, tied = job.mesh, spec.head is not None and spec.head.tied
    with_state = set(spec.last_stack.mixer_pattern) & set(WITH_STATE)
    zero_3 = job.train and job.zero == 3 and mesh.shard > 1
    exchange = "not run and not counted: the exchange of keys and values between cp ranks"
    if job.train:
        exchange += (
            ", and what the backward keeps of those of others; choose --attention flash, whose "
            "kernel torch's ring takes"
        )
    gathered = (
        "gathered: one part at a time; what FSDP2 holds beside it is in the peak, and in what "
        "is there at most"
    )
    if spec.n_shared_blocks:
        gathered += "; it holds the blocks that layers share beside each layer"
    sentences = {
        "not counted: buffers, what kernels and communication need, fragmentation": True,
        gathered: zero_3,
        f"ZeRO {job.zero}: FSDP2 keeps a rank's share beside the gathered whole": (
            job.train and 0 < job.zero < 3
        ),
        "ZeRO 1: gradients are counted whole, as its definition has them until the step; "
        "FSDP2, which was run, spreads them in each backward": job.train and job.zero == 1,
        f"tp leaves the mixers of recurrent={spec.recurrent}, and what they keep, whole on "
        "every rank": mesh.tp > 1 and with_state,
        "each expert is taken to be chosen equally often": mesh.ep > 1,
        "no token is taken to choose a zero expert: this is the most that is sent and kept": (
            spec.n_zero_experts and (job.train or mesh.ep > 1)
        ),
        "what stages send each other is counted, not run: hidden states once for each "
        "micro-batch": mesh.pp > 1,
        "in a pipeline FSDP2 may gather a part once more than is said here: it "
        "fetches ahead in the order of the last forward": (
            mesh.pp > 1 and zero_3 and job.micro_batches > 1
        ),
        "the first and the last stage each hold the tied table; keeping both equal is not "
        "counted": mesh.pp > 1 and tied,
        "keys and values between cp ranks: torch's context parallelism, gathered (its default)": (
            job.ring
        ),
        exchange: mesh.cp > 1 and not job.ring,
    }
    return [
        *(_of_training(spec, job, formula) if job.train else []),
        *left_out(spec),
        *(() if job.train else said_of_states(spec, job.dtype)),
        *(sentence for sentence, holds in sentences.items() if holds),
    ]


def _of_training(spec: ModelSpec, job: Job, formula: bool) -> list[str]:
    """List what is not in the figures of what a step keeps, and how they are meant."""
    why = without_formula(spec, job) if formula else ""
    step = "" if job.optimizer in STEP_COPIES else f", nor in the step of {job.optimizer}"
    spread = {}
    if job.mesh.tp > 1 and not (job.sequence_parallel or why_no_sequence(spec, job)):
        spread["--sequence-parallel"] = "what lies between the matrices"
    if job.mesh.tp > 1 and not job.loss_parallel:
        spread["--loss-parallel"] = "all logits"
    sentences = {
        f"not counted: what the backward keeps of the forward: {why}": why,
        f"what recurrent={spec.recurrent} keeps is what the reference module keeps, which has "
        "plain operators; a fused kernel may keep other tensors": (
            not why and set(spec.last_stack.mixer_pattern) & set(WITH_STATE)
        ),
        "in all: what is there at once in the loss, the backward of blocks or the optimizer's "
        "step (foreach, CUDA's default)": True,
        "not counted: what else comes and goes within a forward or a backward, for which what "
        f"fits leaves room{step}": True,
        f"every rank of tp has {' and '.join(spread.values())}; {' '.join(spread)} would "
        "spread it, as Megatron and torchtitan do": spread,
        f"micro-batches kept at once: {SCHEDULES[job.schedule]}; no interleaved schedule is "
        "offered, nor zero bubble or DualPipeV": job.mesh.pp > 1,
    }
    return [sentence for sentence, holds in sentences.items() if holds]
