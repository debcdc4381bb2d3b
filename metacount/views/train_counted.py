"""A training step counted by formulas: in the tables of a measured one, and as plain data."""

from __future__ import annotations

from metacount import units
from metacount.spec.model import left_out
from metacount.textbook.count import said_of_too_many
from metacount.views.layout import columns, paragraph, table
from metacount.views.train import bytes_table, flops_table, joined, role_table, title

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.resolve import Model
    from metacount.textbook.training import TrainingCount
    from metacount.training.setup import Setup


def counted_text(model: Model, setup: Setup, found: TrainingCount) -> str:
    """Write a step that formulas count, in tables; what they leave open, with the reason."""
    width, run = columns(), found.workload
    reasons: dict[str, list[str]] = {}
    for name, why in found.uncovered.items():
        reasons.setdefault(why, []).append(name)
    missing: list[str] = []
    for why, names in reasons.items():
        missing += paragraph("no formula", f"{', '.join(names)}: {why}", width)
    notes = paragraph("source    ", "formulas, of metacount's reference module", width)
    for note in _notes(model, found):
        notes += paragraph("note      ", note, width)
    has_loss = model.spec.embedding is not None and model.spec.head is not None
    head = title(
        (model.name, model.id),
        "by formulas",
        run.to_dict(),
        setup.to_dict(),
        width,
        silent=() if has_loss else ("loss",),  # of which a reason tells
    )
    return joined(
        head,
        _counted_bytes(found, setup, width),
        flops_table(found),
        role_table(found),
        _kept_blocks(found),
        missing,
        notes,
    )


def counted_data(model: Model, setup: Setup, found: TrainingCount) -> Json:
    """Convert a counted step to plain data, under the names that a measured step has."""
    chosen = setup.to_dict()
    figures = {name: value for name, value in found.to_dict().items() if name not in chosen}
    return {
        "model": model.id,
        "name": model.name,
        "source": figures.pop("source"),
        "workload": figures.pop("workload"),
        "setup": chosen,
        **figures,
        "notes": list(_notes(model, found)),
    }


def _notes(model: Model, found: TrainingCount) -> tuple[str, ...]:
    return said_of_too_many(model.spec, found.workload) + left_out(model.spec)


def _counted_bytes(found: TrainingCount, setup: Setup, width: int) -> list[str]:
    trained = f"{units.exact(found.trainable_params)} trained"
    rows = [
        ("param_bytes", found.param_bytes, f"{units.exact(found.params)} parameters"),
        ("master_weight_bytes", found.master_weight_bytes, "float32 copies"),
        ("gradient_bytes", found.gradient_bytes, trained),
        ("optimizer_bytes", found.optimizer_bytes, f"state of {setup.optimizer}"),
        ("activation_bytes", found.activation_bytes, "kept for the backward"),
    ]
    return bytes_table(rows, width)


def _kept_blocks(found: TrainingCount) -> list[str]:
    """Write what one block of each kind keeps."""
    rows = [
        (kind, units.exact(times), units.exact(size), units.gib(size * times))
        for kind, size in (found.activation_bytes_of_block or {}).items()
        for times in (found.n_blocks[kind],)
    ]
    heads = ("kept in one block", "times", "bytes each", "in all")
    return table(heads, rows, "<>>>") if rows else []
