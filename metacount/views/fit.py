"""What fits on which devices, as text."""

from __future__ import annotations

from metacount import units
from metacount.sharding.fit import MOST, assumed
from metacount.views.layout import bold, columns, paragraph, table, wrapped
from metacount.views.shard import fits_said, peak_said, work_said

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.given import TransformersOnly
    from metacount.resolve import Model
    from metacount.sharding.devices import Device
    from metacount.sharding.fit import Fit
    from metacount.sharding.placed import Placed
    from metacount.sharding.result import Job

DASH = "-"
HEADS = ("device", "memory", "devices", "largest rank", "largest batch", "longest seq")


def fit_text(model: Model, found: Sequence[Fit], notes: Sequence[str], *, train: bool) -> str:
    """Write a row for each device, then the commands, then what is not in the figures."""
    width = columns()
    done = next((each.job for each in found if each.job is not None), None)
    lines = [bold(f"{model.name}  ({model.id})")]
    if done is not None:
        of = "the smallest mesh"
        if any(each.asked for each in found):
            of = "the mesh of so many devices that cuts least, of those that fit,"
        lines += wrapped(f"{of} for {work_said(done, batch=False)}; by formula", width)
        lines += paragraph("assumed", assumed(done), width)
    lines += ["", *table(HEADS, [_row(each) for each in found], "<>>>>>"), ""]
    longest = max(len(each.device.id) for each in found)
    for each in found:
        label = f"{each.device.id:<{longest}}"
        why = f"cannot tell: {each.unknown}" if each.unknown else "no mesh that was tried holds it"
        if each.closest is not None and each.job is not None:
            why = f"no mesh that was tried holds it; the closest is {each.job.mesh}"
        lines += paragraph(label, each.command or why, width)
        lines += [] if each.closest is None else fits_said(each.closest, width)
        if each.largest is not None and each.job is not None:
            lines += peak_said(each.largest, each.job)
    lines.append("")
    if done is not None and any(each.mesh is not None for each in found):
        lines += _columns_said(found, done, width)
    for each in found:
        lines += paragraph("memory", _source(each.device), width)
    if any(each.device.usable_bytes is None for each in found):
        said = "a process gets some hundred MiB less than the driver reports (H200: 615 MiB)"
        lines += paragraph("note", said, width)
    for note in notes:
        lines += paragraph("note", note, width)
    return "\n".join(lines) + "\n"


def _source(device: Device) -> str:
    """Say who says how much memory a device has, and what it is compared with."""
    if device.by_maker:
        return f"{device.id}: {device.source}, as its maker says (GB = 10^9 bytes)"
    said = f"{device.id}: {units.exact(device.bytes // 2**20)} MiB by {device.source}"
    if device.usable_bytes is None:
        return said
    return f"{said}; of these CUDA gives a process {units.exact(device.usable_bytes)} bytes"


def _columns_said(found: Sequence[Fit], job: Job, width: int) -> list[str]:
    """Say what the two last columns are, and what limits them beside memory."""
    fitting = [each for each in found if each.mesh is not None]
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
    memory = units.gib(each.device.room)
    if each.mesh is None or each.largest is None:
        return (each.device.id, memory, "none", "", "", "")
    more = [DASH if n is None else units.exact(n) for n in (each.batch_size, each.seq_len)]
    total = units.gib(each.largest.total_bytes)
    return (each.device.id, memory, units.exact(each.mesh.world), total, *more)


def placed_text(model: Model | TransformersOnly, found: Placed, cache: int | None) -> str:
    """Write what each device holds, where each part is, and what no device map leaves room for."""
    from metacount.sharding.placed import folded_parts

    width = columns()
    said = f"{found.module} on meta, in {found.dtype}, placed by accelerate {found.accelerate}"
    lines = [bold(f"{model.name}  ({model.id})")]
    lines += [*wrapped(f"{said}, device map {found.device_map}", width), ""]
    names = {place.id: f"{place.id} {place.name}" for place in found.places}
    names = {key: key if key in ("cpu", "disk") else name for key, name in names.items()}
    rows: list[tuple[str, ...]] = []
    for place in found.places:
        room = DASH if place.room is None else units.gib(place.room)
        sizes = (place.param_bytes, place.buffer_bytes, place.accelerate_bytes)
        rows.append((names[place.id], room, *(units.gib(size) for size in sizes)))
    heads = ("device", "memory", "parameters", "buffers", "accelerate's sum")
    lines += [*table(heads, rows, "<>>>>"), ""]
    parts = [(part, names[place]) for part, place in folded_parts(found.parts)]
    lines += [*table(("part", "device"), parts, "<<"), ""]
    if not found.fits:
        lines += paragraph("does not fit", "what no memory holds goes to disk", width)
    for difference in found.differences:
        lines += paragraph("differs", difference, width)
    if not found.differences:
        said = "accelerate's sizes in each place"
        said += " and the formula in all" if found.formula_bytes is not None else ""
        lines += paragraph("equal", f"our count, tensor by tensor, and {said}", width)
    left = "activations" if cache is None else f"the KV cache ({units.gib(cache)}) and activations"
    lines += paragraph("note", f"weights alone: no room is kept for {left}", width)
    said = "where something is offloaded, a device keeps room for the largest layer"
    lines += paragraph("note", f"{said}; tied tensors are held once", width)
    return "\n".join(lines) + "\n"
