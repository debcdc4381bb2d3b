"""The Python API's `shard`: a model on a mesh, measured by torch.distributed or by formula."""

from __future__ import annotations

from metacount.errors import InputError
from metacount.sharding.adding import STEP_COPIES
from metacount.sharding.asked import SCHEDULES, Asked, job_of
from metacount.sharding.by_formula import without_formula
from metacount.sharding.mesh import Mesh, parse_mesh
from metacount.sharding.plan import Plan, default_plan, read_plan
from metacount.sharding.result import Job, Sharded
from metacount.spec.model import left_out
from metacount.spec.stack import WITH_STATE
from metacount.textbook.count import said_of_states

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

    from metacount.resolve import Given
    from metacount.sharding.result import Kind
    from metacount.spec import ModelSpec


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
    the fields of `Asked`: zero, optimizer, master_weights, batch_size, seq_len, micro_batches,
    dtype.

    >>> found = shard("llama-7b", "dp=4,tp=2", train=True, formula=True)
    >>> found.largest.params, found.largest.param_bytes
    (842335232, 1684670464)
    """
    from metacount.resolve import model_of

    known = model_of(model)
    spec = known.spec
    whole = parse_mesh(mesh) if isinstance(mesh, str) else mesh
    job = job_of(spec, whole, Asked(**how), train=train)
    return Sharded(
        model=known.id,
        name=known.name,
        job=job,
        kinds=tuple(_kinds(spec, job, plan_of(spec, plan), formula)),
        params=_params(spec),
        missing=tuple(missing(spec, job, formula=formula)),
        source="formula" if formula else _engine(),
    )


def _kinds(spec: ModelSpec, job: Job, plan: Plan, formula: bool) -> list[Kind]:
    if not formula:
        from metacount.sharding.by_engine import measured_kinds
        from metacount.tensors import DTYPES

        if job.dtype not in DTYPES:
            raise InputError(
                f"--dtype {job.dtype} is not one that a module runs in; choose one of "
                f"{', '.join(DTYPES)}, or --formula"
            )
        return measured_kinds(spec, job, plan)
    from metacount.sharding.by_formula import counted_kinds

    if plan.source != "ours":
        raise InputError("--formula counts our own plan; leave out --plan or --formula")
    return counted_kinds(spec, job, plan)


def _params(spec: ModelSpec) -> int:
    from metacount.formulas.model import params

    return int(params(spec))


def _engine() -> str:
    import torch

    return f"torch {torch.__version__.partition('+')[0]}, on a fake world"


def plan_of(spec: ModelSpec, plan: str | Plan | None) -> Plan:
    """Return the plan that is given, as a file or as it is, or ours."""
    if isinstance(plan, str):
        return read_plan(plan)
    return default_plan(spec) if plan is None else plan


def missing(spec: ModelSpec, job: Job, *, formula: bool) -> list[str]:
    """List what is not in the figures, or was not run, one sentence each."""
    found = _of_training(spec, job, formula) if job.train else []
    found += left_out(spec)
    found += () if job.train else said_of_states(spec, job.dtype)
    found.append("not counted: buffers, what kernels and communication need, fragmentation")
    if job.train and job.zero == 3 and job.mesh.shard > 1:
        found.append("gathered: one part at a time; FSDP2 may hold the next one as well")
        if spec.n_shared_blocks:
            found[-1] += ", and holds the blocks that layers share beside each layer"
    if job.train and 0 < job.zero < 3:
        found.append(f"ZeRO {job.zero}: FSDP2 keeps a rank's share beside the gathered whole")
        if job.zero == 1:
            found.append(
                "ZeRO 1: gradients are counted whole, as its definition has them until the step; "
                "FSDP2, which was run, spreads them in each backward"
            )
    if job.mesh.tp > 1 and set(spec.last_stack.mixer_pattern) & set(WITH_STATE):
        found.append(
            f"tp leaves the mixers of recurrent={spec.recurrent}, and what they keep, whole on "
            "every rank"
        )
    if job.mesh.ep > 1:
        found.append("each expert is taken to be chosen equally often")
    if spec.n_zero_experts and (job.train or job.mesh.ep > 1):
        found.append(
            "no token is taken to choose a zero expert: this is the most that is sent and kept"
        )
    if job.mesh.pp > 1:
        found.append(
            "what stages send each other is counted, not run: hidden states once for each "
            "micro-batch"
        )
        if job.train and job.zero == 3 and job.mesh.shard > 1 and job.micro_batches > 1:
            found.append(
                "in a pipeline FSDP2 may gather a part once more than is said here: it "
                "fetches ahead in the order of the last forward"
            )
        if spec.head is not None and spec.head.tied:
            said = "the first and the last stage each hold the tied table; keeping both equal"
            found.append(f"{said} is not counted")
    if job.ring:
        found.append(
            "keys and values between cp ranks: torch's context parallelism, gathered (its default)"
        )
    elif job.mesh.cp > 1:
        found.append(
            "not run and not counted: the exchange of keys and values between cp ranks"
            + (", and what the backward keeps of those of others" if job.train else "")
            + ("; choose --attention flash, whose kernel torch's ring takes" if job.train else "")
        )
    return found


def _of_training(spec: ModelSpec, job: Job, formula: bool) -> list[str]:
    """List what is not in the figures of what a step keeps, and how they are meant."""
    found = []
    if formula and (why := without_formula(spec, job)):
        found.append(f"not counted: what the backward keeps of the forward: {why}")
    elif set(spec.last_stack.mixer_pattern) & set(WITH_STATE):
        found.append(
            f"what recurrent={spec.recurrent} keeps is what the reference module keeps, which has "
            "plain operators; a fused kernel may keep other tensors"
        )
    step = "" if job.optimizer in STEP_COPIES else f", nor in the step of {job.optimizer}"
    found.append(
        "in all: what is there at once in the loss, the backward of blocks or the optimizer's step "
        "(foreach, CUDA's default)"
    )
    found.append(
        "not counted: what else comes and goes within a forward or a backward, for which what fits "
        f"leaves room{step}"
    )
    if job.mesh.pp > 1:
        found.append(f"micro-batches kept at once: {SCHEDULES[job.schedule]}")
    return found
