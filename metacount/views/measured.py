"""The count of a model that only transformers knows: measured, and shown like any other."""

from __future__ import annotations

from metacount import units
from metacount.catalog import compare_published
from metacount.figures import COUNTED, OF_MTP
from metacount.spec import DTYPE_BYTES
from metacount.views.layout import bold, columns, paragraph, table
from metacount.views.models import compared, said_besides

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.resolve import TransformersOnly
    from metacount.spec import Workload
    from metacount.verify.compare import Witness

DASH = "-"
TEXT = ("text_params", "text_active_params")  # null of a model that is text alone


def measured_data(
    model: TransformersOnly, said: Witness, workload: Workload, notes: Sequence[str] = ()
) -> Json:
    """Collect plain data under the names that `count` gives every model; null: not measured."""
    params, flops = said.figures["params"], said.figures["matmul_flops"]
    return {
        "model": model.id,
        "name": model.name,
        "changes": {},
        **dict.fromkeys(TEXT),
        **said.figures,
        "by_role": said.parts["by_role"],
        "active_by_role": said.parts["active_by_role"],
        "buffers": said.parts["buffers"],
        "param_bytes": None if params is None else params * DTYPE_BYTES[workload.dtype],
        "macs": None if flops is None else flops // 2,
        "workload": workload.to_dict(),
        "source": said.name,
        "detail": said.detail,
        "warnings": [f"no formula: {model.problem}"],
        "inferred": [],
        "notes": list(notes),
    }


def measured_text(
    model: TransformersOnly, said: Witness, workload: Workload, notes: Sequence[str] = ()
) -> str:
    """Write parameters by role, every figure that was measured, and where they come from."""
    data = measured_data(model, said, workload)
    total, by_role = data["params"], data["by_role"]
    active = data["active_by_role"] or {}
    rows: list[tuple[str, ...]] = [
        (role, units.exact(n), units.share(n, total), units.exact(active[role]) if active else DASH)
        for role, n in by_role.items()
        if n
    ]
    everything = units.exact(sum(active.values())) if active else DASH
    rows += [(), ("total", units.exact(total), units.share(total, total), everything)]
    figures = [
        (name, DASH if data[name] is None else units.exact(data[name]))
        for name in COUNTED
        if name in data and (data[name] is not None or name not in OF_MTP)
    ]
    run = f"batch {workload.batch_size}, seq {workload.seq_len}, {workload.dtype}"
    width = columns()
    parts = [
        [bold(model.name)],
        table(("role", "params", "share", "active_params"), rows, "<>>>"),
        [bold(run), *table(("", ""), figures, "<>")],
        [
            *paragraph("warning", f"no formula: {model.problem}", width),
            *(line for note in notes for line in paragraph("note   ", note, width)),
            *_published(model, total, width),
            *paragraph("counted", f"by {said.detail}", width),
        ],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _published(model: TransformersOnly, total: int | None, width: int) -> list[str]:
    """Write the published count beside the measured one, of a model of the catalog."""
    if model.entry is None or total is None:
        return []
    said, entry = compared(compare_published(model.entry, total), model.entry), model.entry
    return [*paragraph("published", said, width), *said_besides(entry, width)]
