"""A model on a mesh, as text: the kinds of ranks, what the largest holds, and what it sends."""

from __future__ import annotations

from metacount import units
from metacount.sharding.adding import group_size
from metacount.sharding.result import GROUPS
from metacount.views.layout import bold, columns, paragraph, table, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

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
}


def shard_text(
    found: Sharded, *, rank: int | None = None, every: bool = False, fits: Verdict | None = None
) -> str:
    """Write the mesh and the job, each kind of rank, and one of them (the largest) in full."""
    width, job = columns(), found.job
    mesh = f"on {units.exact(job.mesh.world)} ranks: {job.mesh}"
    lines = [bold(f"{found.name}  ({found.model})"), f"{mesh}; {job_said(job)}"]
    lines = [lines[0], *wrapped(lines[1], width)]
    source = "by formula" if found.source == "formula" else f"measured, {found.source}"
    lines += [source, "", *_kinds(found, every), ""]
    chosen = [found.largest] if rank is None else [found.kind_of(rank)]
    if rank is None and found.smallest is not found.largest:
        chosen.append(found.smallest)
    chosen = list(found.kinds) if every else chosen
    heads = ["largest", "smallest"][: len(chosen)] if rank is None else [""]
    if every:
        for kind in chosen:
            lines += [*_memory([kind], [""], kind.first), "", *_sent(kind, kind.first, job), ""]
    else:
        lines += [*_memory(chosen, heads, rank), *peak_said(chosen[0], job), ""]
        lines += [*_sent(chosen[0], chosen[0].first if rank is None else rank, job), ""]
    if links := _between(found):
        lines += [*links, ""]
    if fits is not None:
        lines += [*fits_said(fits, width), ""]
    for note in found.missing:
        lines += paragraph("note", note, width)
    lines += paragraph("units", "GiB = 2^30 bytes; every digit with --json", width)
    return "\n".join(lines) + "\n"


def work_said(job: Job, *, batch: bool = True) -> str:
    """Say what a job does, in a few words."""
    if not job.train:
        many = f", batch {units.exact(job.batch_size)}" if batch else ""
        return f"serving{many}, seq {job.seq_len}, {job.dtype}"
    said = f"training, ZeRO {job.zero}, {job.optimizer}, attention {job.attention}"
    said += f", checkpointing {job.checkpointing}" if job.checkpointing != "none" else ""
    return f"{said}, float32 kept, {job.dtype}" if job.master else f"{said}, {job.dtype}"


def job_said(job: Job) -> str:
    """Say what a job does, with what each rank runs at a time."""
    if not job.train:
        return f"{work_said(job)}: {job.rows} per rank"
    times = f" {job.micro_batches} times" if job.micro_batches > 1 else ""
    batch = f"batch {units.exact(job.batch_size)}, seq {job.seq_len}: {job.rows} per rank{times}"
    return f"{work_said(job)}; {batch}"


def ranks_said(kind: Kind) -> str:
    """Write which ranks are of a kind, shortened where there are many runs."""
    runs = [
        f"{a}" if a == b else f"{a}-{b}" + (f":{step}" if step > 1 else "")
        for a, b, step in kind.ranks
    ]
    return ",".join(runs) if len(runs) <= 2 else f"{runs[0]},{runs[1]},…"


def _kinds(found: Sharded, every: bool) -> list[str]:
    ordered = sorted(found.kinds, key=lambda kind: (-kind.total_bytes, kind.first))
    shown = (
        ordered
        if every or len(ordered) <= MOST_KINDS
        else [*ordered[: MOST_KINDS - 1], ordered[-1]]
    )
    rows = []
    for kind in shown:
        rows.append(
            (
                ranks_said(kind),
                units.exact(kind.count),
                _stages(kind),
                str(kind.layers),
                units.short(kind.params),
                units.short(kind.active_params),
                units.gib(kind.total_bytes),
            )
        )
    heads = ("ranks", "count", "stages", "layers", "params", "active", "bytes")
    lines = table(heads, rows, "<><>>>>")
    hidden = len(ordered) - len(shown)
    if hidden:
        lines.insert(-1, f"… {hidden} kinds in between; --ranks all shows them")
    said = "parameters that one token uses at most, of those that a rank computes with"
    return [*lines, *paragraph("active", said, columns())]


def peak_said(kind: Kind, job: Job) -> list[str]:
    """Say how the total of one device's step relates to the peak that `train` measures."""
    if not job.train or job.mesh.world > 1 or kind.activation_bytes is None:
        return []
    peak = kind.peak_bytes(job)
    said = f"{units.gib(kind.most_bytes)} at most, with what comes and goes in a block's backward"
    if peak is not None:
        said = (
            f"{units.exact(peak)} bytes, as `metacount train --foreach` measures it, less buffers"
        )
    return paragraph("peak", said, columns())


def _stages(kind: Kind) -> str:
    first, last = kind.stages[0], kind.stages[-1]
    return str(first) if first == last else f"{first}-{last}"


def _memory(kinds: Sequence[Kind], heads: Sequence[str], rank: int | None) -> list[str]:
    names = [f"rank {kind.first}" if rank is None else f"rank {rank}" for kind in kinds]
    heads = [f"{head} ({name})" if head else name for head, name in zip(heads, names, strict=True)]
    rows: list[tuple[str, ...]] = []
    for field, name in MEMORY.items():
        values = [kind.parts.get(field, 0) for kind in kinds]
        if any(values):
            rows.append((name, *(units.gib(value) for value in values)))
    rows += [(), ("total", *(units.gib(kind.total_bytes) for kind in kinds))]
    return table(("held", *heads), rows, "<" + ">" * len(kinds))


def _sent(kind: Kind, rank: int, job: Job) -> list[str]:
    """Write what a rank sends, collective by collective, and in all by group."""
    if not kind.collectives:
        return [f"rank {rank} sends nothing"]
    rows: list[tuple[str, ...]] = []
    for each in sorted(kind.collectives, key=lambda each: -each.times * each.sent):
        rows.append(
            (
                each.phase,
                each.kind,
                f"{each.group} ({each.ranks})",
                units.gib(each.n_bytes),
                units.exact(each.times),
                units.gib(each.times * each.sent),
            )
        )
    rows.append(())
    for group, n in kind.sent().items():
        rows.append(
            ("in all", "", f"{group} ({group_size(job.mesh, group)})", "", "", units.gib(n))
        )
    heads = ("phase", f"rank {rank} with others", "group", "tensor", "times", "sends")
    return [*table(heads, rows, "<<<>>>"), *_legend(kind)]


def _between(found: Sharded) -> list[str]:
    """Say what leaves a machine, of the rank that sends most between machines, of all kinds."""
    if found.job.mesh.world <= found.job.per_machine:
        return []
    most = max(found.kinds, key=lambda kind: sum(kind.sent_between_machines().values()))
    groups = {group: n for group, n in most.sent_between_machines().items() if n}
    text = f"with {found.job.per_machine} ranks in each machine, no rank sends between machines"
    if groups:
        sent = ", ".join(f"{units.gib(n)} of {group}" for group, n in groups.items())
        text = (
            f"with {found.job.per_machine} ranks in each machine, the rank that sends most "
            f"between machines, of {ranks_said(most)}, sends there at most {sent}"
        )
    return paragraph("links", text, columns())


def _legend(kind: Kind) -> list[str]:
    lines: list[str] = []
    for group in kind.sent():
        lines += paragraph(group, GROUPS[group], columns())
    return lines


def fits_said(fits: Verdict, width: int) -> list[str]:
    """Say whether the largest rank fits; if not, what would."""
    room, total = units.gib(fits.room), units.gib(fits.total_bytes)
    largest = max(fits.parts, key=lambda name: fits.parts[name])
    what = f"{MEMORY[largest]} {units.gib(fits.parts[largest])}"
    if fits.fits:
        return paragraph("fits", f"rank {fits.rank} holds {total} of {room}", width)
    if fits.fits is None:
        label, said = "cannot tell", f"rank {fits.rank} holds {total} of {room}, and {fits.unknown}"
    else:
        label = "does not fit"
        said = f"rank {fits.rank} would hold {total} in {room}, most of it {what}"
    remedy = f"this would fit: {fits.remedy}" if fits.remedy else "no mesh is known to hold it"
    return [*paragraph(label, said, width), *paragraph("remedy", remedy, width)]
