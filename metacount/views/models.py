"""The catalog as a list, and how our counts compare with the published ones, in words."""

from __future__ import annotations

from metacount import units
from metacount.catalog import compare_published
from metacount.views.layout import WIDEST_TEXT, columns, paragraph, table, width_of, wrapped
from metacount.views.tables import Table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.catalog import CatalogEntry, Comparison
    from metacount.files import Json
    from metacount.views.tables import Cell

    Counted = tuple[CatalogEntry, int | None]  # params; None where there is no spec

DASH = "-"
HEADS = ("id", "params", "published", "ours", "layers", "d_model", "kind", "family", "name")
ALIGN = "<>>>>><<<"
FEWEST_COLUMNS = 5
LONGEST_LABEL = 9


def compared(comparison: Comparison, entry: CatalogEntry) -> str:
    """Say in words how our count compares with the published one.

    >>> from metacount.catalog import entry
    >>> llama = entry("llama-13b")
    >>> compared(compare_published(llama, 13_015_864_320), llama)
    '13.0B: our count rounds to it'
    """
    published = entry.published
    label = published.label or ""
    if published.label_meaning:
        label += f" ({published.label_meaning})"
    if published.params is not None:
        exact = units.exact(published.params)
        label = f"{label}, exactly {exact}" if label else exact
    if comparison.status == "unpublished":
        return f"no count. {comparison.explanation}".strip()
    if comparison.status == "exact":
        return f"{label}: our count is the same"
    if comparison.status == "rounds":
        return f"{label}: our count rounds to it"
    difference = "" if comparison.difference is None else units.signed(comparison.difference)
    return f"{label}: ours differs by {difference} ({comparison.percent}); {comparison.explanation}"


def said_besides(entry: CatalogEntry, width: int) -> list[str]:
    """Write what was published of active parameters, the sources, what is inferred, and notes."""
    lines: list[str] = []
    if entry.published.active_label:
        meaning = entry.published.active_label_meaning
        active = entry.published.active_label + (f" ({meaning})" if meaning else "")
        lines += paragraph("active   ", f"{active} published", width)
    lines += paragraph("source   ", "; ".join(entry.source), width)
    for inferred in entry.inferred:
        lines += paragraph("inferred ", inferred, width)
    return [*lines, *paragraph("notes    ", entry.notes or "", width)]


def models_table(counted: Sequence[Counted]) -> Table:
    """Tabulate the catalog with the count of each model, every column."""
    rows = []
    for entry, params in counted:
        row: list[Cell] = [None if cell == DASH else cell for cell in _model_row(entry, params)]
        row[1], row[2] = params, entry.published.label
        if params is not None:
            row[5] = entry.spec().d_model
        rows.append(tuple(row))
    return Table(heads=HEADS, rows=tuple(rows), align=ALIGN)


def models_text(counted: Sequence[Counted]) -> str:
    """Write the catalog with the count of each model, as many columns as fit the width."""
    width = columns()
    heads = HEADS
    rows = [_model_row(entry, params) for entry, params in counted]
    # the last columns say again what the id says, in other words
    shown = len(heads)
    while shown > FEWEST_COLUMNS and width_of(heads[:shown], [r[:shown] for r in rows]) > width:
        shown -= 1
    lines = table(heads[:shown], [row[:shown] for row in rows], ALIGN[:shown])
    note = (
        "published is the label in print (in full: all digits); ours says whether the exact "
        "count is the published integer, rounds to the label, or by how much it differs; "
        "metacount count ID says why."
    )
    if shown < len(heads):
        note += f" With more width, or --json: {', '.join(heads[shown:])}."
    return "\n".join([*lines, "", *wrapped(note, min(width, WIDEST_TEXT))]) + "\n"


def _model_row(entry: CatalogEntry, params: int | None) -> tuple[str, ...]:
    label = entry.published.label or DASH
    if len(label) > LONGEST_LABEL:
        label = "in full"  # an exact integer, which stands beside it or differs from it
    if params is None:
        return (entry.id, DASH, label, "no spec", DASH, DASH, DASH, entry.family, entry.name)
    spec = entry.spec()
    comparison = compare_published(entry, params)
    ours = {"differs": comparison.percent, "unpublished": DASH}.get(
        comparison.status, comparison.status
    )
    layers = f"{spec.n_encoder_layers}+{spec.n_layers}" if spec.has_encoder else str(spec.n_layers)
    return (
        entry.id,
        units.exact(params),
        label,
        ours,
        layers,
        str(spec.d_model),
        spec.kind,
        entry.family,
        entry.name,
    )


def models_data(counted: Sequence[Counted]) -> list[Json]:
    """Convert the catalog to plain data."""
    return [_model_data(entry, params) for entry, params in counted]


def _model_data(entry: CatalogEntry, params: int | None) -> Json:
    spec = None if params is None else entry.spec()
    compared = None if params is None else compare_published(entry, params)
    return {
        "model": entry.id,
        "name": entry.name,
        "family": entry.family,
        "kind": spec and spec.kind,
        "d_model": spec and spec.d_model,
        "n_layers": spec and spec.n_layers,
        "n_encoder_layers": spec and spec.n_encoder_layers,
        "params": params,
        "published_label": entry.published.label,
        "published_label_meaning": entry.published.label_meaning,
        "published_params": entry.published.params,
        "status": compared and compared.status,
        "difference": compared and compared.difference,
        "explanation": entry.explanation,
        "not_expressible": entry.not_expressible,
        "inferred": list(entry.inferred),
        "source": list(entry.source),
        "spec": None if entry.sizes is None else dict(entry.sizes),
    }
