"""What fits on which devices, as text."""

from __future__ import annotations

from metacount import units
from metacount.views.layout import bold, columns, paragraph, table, wrapped
from metacount.views.shard import work_said

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.resolve import Model
    from metacount.sharding.fit import Fit

DASH = "-"
HEADS = ("device", "memory", "devices", "largest rank", "room for batch", "or seq")


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
    for each in found:
        lines += paragraph("memory", f"{each.device.source} (GB = 10^9 bytes)", width)
    for note in notes:
        lines += paragraph("note", note, width)
    return "\n".join(lines) + "\n"


def _row(each: Fit) -> tuple[str, ...]:
    memory = units.gib(each.device.bytes)
    if each.mesh is None or each.largest is None:
        return (each.device.id, memory, DASH, DASH, DASH, DASH)
    more = [DASH if n is None else units.exact(n) for n in (each.batch_size, each.seq_len)]
    total = units.gib(each.largest.total_bytes)
    return (each.device.id, memory, units.exact(each.mesh.world), total, *more)
