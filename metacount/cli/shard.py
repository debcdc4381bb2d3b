"""`metacount shard`: a model on a mesh of devices."""

from __future__ import annotations

from metacount import units
from metacount.cli.answer import Answer, prepare_for_torch
from metacount.cli.options import options_of
from metacount.cli.report import Amount, Block, Cell, Grid, Notes, Report, Text, bold
from metacount.errors import InputError
from metacount.resolve import find_model
from metacount.settings.values import bytes_size
from metacount.spec import Workload

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.sharding.fit import Verdict
    from metacount.sharding.result import Job, Kind, Sharded

MOST_KINDS = 8  # that are shown without --ranks all
MEMORY = {
    "param_bytes": "parameters",
    "gathered_bytes": "gathered from others",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "activation_bytes": "kept activations",
    "recomputed_bytes": "recomputed block",
    "loss_bytes": "gradients of logits",
    "embedding_bytes": "gradient of embeddings",
    "input_bytes": "tokens and targets",
    "step_bytes": "optimizer's step",
    "kv_cache_bytes": "KV cache",
    "state_bytes": "recurrent state",
    "unscattered_bytes": "whole gradients",
    "bucket_bytes": "buckets of gradients",
    "received_bytes": "received from stages",
    "other_bytes": "comes and goes",
}


def how_of(args: argparse.Namespace) -> Json:
    """Collect the options of a job on a mesh, as the API takes them."""
    renamed = {"batch": "batch_size", "seq": "seq_len"}
    given = (option.dest for option in options_of("@job") if option.dest != "train")
    return {renamed.get(name, name): getattr(args, name) for name in given}


def run(args: argparse.Namespace) -> Answer:
    from metacount.sharding.mesh import parse_mesh
    from metacount.sharding.shard import shard

    if args.mesh is None:
        raise InputError("shard needs --mesh, for example --mesh dp=8,tp=8")
    mesh = parse_mesh(args.mesh, args.world)
    if args.rank is not None and not 0 <= args.rank < mesh.world:
        raise InputError(f"--rank must be 0 to {mesh.world - 1} on this mesh: got {args.rank}")
    if args.output is not None:
        from metacount.cli.pictures import check_output

        check_output(args.output)
    room = None if args.fits is None else bytes_size(args.fits)
    model = find_model(args.model, args.settings)
    if not args.formula:
        prepare_for_torch()
    how = how_of(args)
    sharded = shard(model, mesh, train=args.train, plan=args.plan, formula=args.formula, **how)
    fits = None
    if room is not None:
        from metacount.sharding.fit import verdict

        fits = verdict(model, sharded, room)
    if args.output is not None:
        from metacount.cli.pictures import mesh_figure, save

        save(mesh_figure(sharded, job_text(sharded.job)), args.output)
    return Answer(
        report=lambda: report_of(sharded, rank=args.rank, every=args.ranks == "all", fits=fits),
        data=lambda: _data(sharded, args.rank, fits),
        code=0 if fits is None or fits.fits else 1,
        model=model,
        workload=workload_of(sharded.job),
    )


def workload_of(job: Job) -> Workload:
    """Return the workload of all ranks together."""
    return Workload(batch_size=job.batch_size, seq_len=job.seq_len, dtype=job.dtype)


def _data(sharded: Sharded, rank: int | None, fits: Verdict | None) -> Json:
    data = sharded.to_dict()
    if rank is not None:
        data["rank"] = {"rank": rank, **sharded.kind_of(rank).to_dict()}
    if fits is not None:
        data["fits"] = fits.to_dict()
    return data


def report_of(
    sharded: Sharded, *, rank: int | None = None, every: bool = False, fits: Verdict | None = None
) -> Report:
    """Report the mesh and the job, each kind of rank, and one of them (the largest) in full."""
    job = sharded.job
    source = "by formula" if sharded.source == "formula" else f"measured, {sharded.source}"
    chosen = [sharded.largest] if rank is None else [sharded.kind_of(rank)]
    if rank is None and sharded.smallest is not sharded.largest:
        chosen.append(sharded.smallest)
    held: list[Block] = []
    ranks: list[list[Block]] = []
    if every:
        for kind in sharded.kinds:
            ranks += [[_memory([kind], [""], kind.first)], _sent(kind, kind.first, job)]
    else:
        heads = ["largest", "smallest"][: len(chosen)] if rank is None else [""]
        first = chosen[0].first if rank is None else rank
        held += [_memory(chosen, heads, rank), Notes(peak_notes(chosen[0], job))]
        ranks = [held, _sent(chosen[0], first, job)]
    notes = [("note", note) for note in sharded.missing]
    notes.append(("units", "GiB = 2^30 bytes; every digit with --json"))
    return [
        [
            Text(f"{bold(sharded.name)}  ({sharded.model})", unbroken=True),
            Text(f"on {units.exact(job.mesh.world)} ranks: {job.mesh}; {job_text(job)}"),
            Text(source),
        ],
        _kinds(sharded, every),
        *ranks,
        [Notes([("links", _between(sharded))])],
        [Notes([] if fits is None else fit_notes(fits))],
        [Notes(notes)],
    ]


def work_text(job: Job, *, batch: bool = True) -> str:
    """Say what a job does, in a few words."""
    if not job.train:
        many = f", batch {units.exact(job.batch_size)}" if batch else ""
        cache = f", KV cache {job.kv_dtype}" if (job.kv_dtype or job.dtype) != job.dtype else ""
        return f"serving{many}, seq {job.seq_len}, {job.dtype}{cache}"
    words = f"training, ZeRO {job.zero}, {job.optimizer}, attention {job.attention}"
    words += f", checkpointing {job.checkpointing}" if job.checkpointing != "none" else ""
    for name in ("sequence", "loss"):
        words += f", {name} parallel" if getattr(job, f"{name}_parallel") else ""
    return f"{words}, float32 kept, {job.dtype}" if job.master else f"{words}, {job.dtype}"


def job_text(job: Job) -> str:
    """Say what a job does, with what each rank runs at a time."""
    if not job.train:
        return f"{work_text(job)}: {job.rows} per rank"
    times = f" {job.micro_batches} times" if job.micro_batches > 1 else ""
    batch = f"batch {units.exact(job.batch_size)}, seq {job.seq_len}: {job.rows} per rank{times}"
    return f"{work_text(job)}; {batch}"


def ranks_text(kind: Kind) -> str:
    """Write which ranks are of a kind, shortened where there are many runs."""
    runs = [
        f"{a}" if a == b else f"{a}-{b}" + (f":{step}" if step > 1 else "")
        for a, b, step in kind.ranks
    ]
    return ",".join(runs) if len(runs) <= 2 else f"{runs[0]},{runs[1]},…"


def peak_notes(kind: Kind, job: Job) -> list[tuple[str, str]]:
    """Say what is alive at the worst moment of a step, or why nobody can."""
    if not job.train or kind.activation_bytes is None:
        return []
    if kind.peak_bytes is None or kind.peak_parts is None:
        text = "" if job.unfollowed else f"{units.gib(kind.most_bytes)} at most: "
        return [("peak", f"{text}{kind.peak_unknown}")]
    text = f"{units.exact(kind.peak_bytes)} bytes"
    if job.mesh.world == 1:
        return [("peak", f"{text}, as `metacount train --foreach` measures it, less buffers")]
    parts = (f"{MEMORY[name]} {units.gib(n)}" for name, n in kind.peak_parts.items() if n)
    return [("peak", f"{text} on rank {kind.first}, less buffers: {', '.join(parts)}")]


def _gib(value: int) -> Amount:
    return Amount(value, units.gib, always=True)


def _kinds(sharded: Sharded, every: bool) -> list[Block]:
    ordered = sorted(sharded.kinds, key=lambda kind: (-kind.total_bytes, kind.first))
    few = every or len(ordered) <= MOST_KINDS
    kinds = ordered if few else [*ordered[: MOST_KINDS - 1], ordered[-1]]
    rows: list[tuple[Cell, ...]] = [
        (
            ranks_text(kind),
            kind.count,
            _stages(kind),
            str(kind.layers),
            Amount(kind.params, units.short, always=True),
            Amount(kind.active_params, units.short, always=True),
            _gib(kind.total_bytes),
        )
        for kind in kinds
    ]
    hidden = len(ordered) - len(kinds)
    heads = ("ranks", "count", "stages", "layers", "params", "active", "bytes")
    notes = [("between", f"{hidden} kinds more; --ranks all shows them" if hidden else "")]
    note = "parameters that one token uses at most, of those that a rank computes with"
    return [Grid(heads=heads, rows=rows, align="<><>>>>"), Notes([*notes, ("active", note)])]


def _stages(kind: Kind) -> str:
    first, last = kind.stages[0], kind.stages[-1]
    return str(first) if first == last else f"{first}-{last}"


def _memory(kinds: Sequence[Kind], heads: Sequence[str], rank: int | None) -> Grid:
    names = [f"rank {kind.first}" if rank is None else f"rank {rank}" for kind in kinds]
    heads = [f"{head} ({name})" if head else name for head, name in zip(heads, names, strict=True)]
    rows: list[tuple[Cell, ...]] = [
        (name, *(_gib(kind.parts.get(field, 0)) for kind in kinds))
        for field, name in MEMORY.items()
        if any(kind.parts.get(field, 0) for kind in kinds)
    ]
    rows += [(), ("total", *(_gib(kind.total_bytes) for kind in kinds))]
    return Grid(heads=("held", *heads), rows=rows, align="<" + ">" * len(kinds))


def _sent(kind: Kind, rank: int, job: Job) -> list[Block]:
    from metacount.sharding.mesh import group_layout
    from metacount.sharding.result import GROUPS

    if not kind.collectives:
        return [Text(f"rank {rank} sends nothing")]
    rows: list[tuple[Cell, ...]] = [
        (
            each.phase,
            each.kind,
            f"{each.group} ({each.ranks})",
            _gib(each.n_bytes),
            each.times,
            _gib(each.times * each.sent),
        )
        for each in sorted(kind.collectives, key=lambda each: -each.times * each.sent)
    ]
    rows.append(())
    for group, n in kind.sent().items():
        rows.append(
            ("in all", "", f"{group} ({group_layout(job.mesh, group)[0]})", "", "", _gib(n))
        )
    heads = ("phase", f"rank {rank} with others", "group", "tensor", "times", "sends")
    legend = Notes((group, GROUPS[group]) for group in kind.sent())
    return [Grid(heads=heads, rows=rows, align="<<<>>>"), legend]


def _between(sharded: Sharded) -> str:
    """Say what leaves a machine, of the rank that sends most between machines, of all kinds."""
    if sharded.job.mesh.world <= sharded.job.per_machine:
        return ""
    most = max(sharded.kinds, key=lambda kind: sum(kind.sent_between_machines().values()))
    groups = {group: n for group, n in most.sent_between_machines().items() if n}
    where = f"with {sharded.job.per_machine} ranks in each machine"
    if not groups:
        return f"{where}, no rank sends between machines"
    sent = ", ".join(f"{units.gib(n)} of {group}" for group, n in groups.items())
    return (
        f"{where}, the rank that sends most between machines, of {ranks_text(most)}, "
        f"sends there at most {sent}"
    )


def fit_notes(fits: Verdict) -> list[tuple[str, str]]:
    """Say whether the largest rank fits, and what would."""
    room, total = units.gib(fits.room), units.gib(fits.total_bytes)
    largest = max(fits.parts, key=lambda name: fits.parts[name])
    if fits.fits:
        return [("fits", f"rank {fits.rank} holds {total} of {room}")]
    if fits.fits is None:
        label, text = "cannot tell", f"rank {fits.rank} holds {total} of {room}, and {fits.unknown}"
    else:
        label = "does not fit"
        text = f"rank {fits.rank} would hold {total} in {room}, most of it "
        text += f"{MEMORY[largest]} {units.gib(fits.parts[largest])}"
    remedy = f"this would fit: {fits.remedy}" if fits.remedy else "no mesh is known to hold it"
    return [(label, text), ("remedy", remedy)]
