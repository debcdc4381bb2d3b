"""What fits on which devices, as text."""

from __future__ import annotations

from metacount import units
from metacount.sharding.fit import MOST
from metacount.views.layout import bold, columns, paragraph, table, wrapped
from metacount.views.shard import work_said

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.resolve import Model
    from metacount.sharding.fit import Fit
    from metacount.sharding.result import Job

DASH = "-"
HEADS = ("device", "memory", "devices", "largest rank", "largest batch", "longest seq")


def fit_text(model: Model, found: Sequence[Fit], notes: Sequence[str], *, train: bool) -> str:
    """Write a row for each device, then the commands, then what is not in the figures."""
    width = columns()
    done = next((each.job for each in found if each.job is not None), None)
    lines = [bold(f"{model.name}  ({model.id})")]
    if done is not None:
        said = f"the smallest mesh for {work_said(done, batch=False)}; by formula"
        lines += wrapped(said, width)
    lines += ["", *table(HEADS, [_row(each) for each in found], "<>>>>>"), ""]
    longest = max(len(each.device.id) for each in found)
    for each in found:
        label = f"{each.device.id:<{longest}}"
        why = f"cannot tell: {each.unknown}" if each.unknown else "no mesh that was tried holds it"
        lines += paragraph(label, each.command or why, width)
    lines.append("")
    if done is not None:
        lines += _columns_said(found, done, width)
    for each in found:
        lines += paragraph("memory", f"{each.device.source} (GB = 10^9 bytes)", width)
    for note in notes:
        lines += paragraph("note", note, width)
    return "\n".join(lines) + "\n"


def _columns_said(found: Sequence[Fit], job: Job, width: int) -> list[str]:
    """Say what the two last columns are, and what limits them beside memory."""
    fitting = [each for each in found if each.job is not None]
    lengths, sequences = {each.seq_len for each in fitting}, {each.batch_size for each in fitting}
    batches = {each.job.batch_size for each in fitting if each.job is not None}
    batch = f"with batch {min(batches)}" if len(batches) == 1 else "with its command's batch"
    seq, positions = f"tokens of a sequence, {batch}", fitting[0].positions
    if positions is not None and positions in lengths:
        seq += f"; {units.exact(positions)} are all positions of the model"
    elif positions is None and lengths != {None}:
        seq += ", by memory alone: how many positions the model was made for is not known here"
    if any(n is not None and n >= MOST for n in lengths | sequences):
        seq += f"; no more than {units.exact(MOST)} are looked for"
    said = f"of all ranks together, sequences of {units.exact(job.seq_len)} tokens"
    lines = [*paragraph(HEADS[-2], said, width), *paragraph(HEADS[-1], seq, width)]
    if None in lengths | sequences:
        lines += paragraph(DASH, "nothing that is counted grows with it", width)
    return lines


def _row(each: Fit) -> tuple[str, ...]:
    memory = units.gib(each.device.bytes)
    if each.mesh is None or each.largest is None:
        return (each.device.id, memory, "none", "", "", "")
    more = [DASH if n is None else units.exact(n) for n in (each.batch_size, each.seq_len)]
    total = units.gib(each.largest.total_bytes)
    return (each.device.id, memory, units.exact(each.mesh.world), total, *more)
