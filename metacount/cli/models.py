"""`metacount models`: the catalog, or the fields of a spec."""

from __future__ import annotations

import sys
from itertools import chain

from metacount import catalog, units
from metacount.catalog import CatalogEntry, Comparison, compare_published
from metacount.cli.answer import Answer
from metacount.cli.options import check_known
from metacount.cli.report import DASH, WIDEST_TEXT, Cell, Grid, Report, Text, columns

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.files import Json

    Counted = tuple[CatalogEntry, int | None]  # params; None where there is no spec

HEADS = ("id", "params", "published", "ours", "layers", "d_model", "kind", "family", "name")
ALIGN = "<>>>>><<<"
LONGEST_LABEL = 9
TAKES = {
    "whole": "whole number",
    "number": "number",
    "flag": "true or false",
    "pattern": "text",
    "object": "object",
}


def run(args: argparse.Namespace) -> Answer:
    from metacount.formulas.model import params

    if args.columns:
        from metacount.cli.columns import checked

        args.columns = checked(args.columns)
    if args.fields:
        return Answer(report=_fields_report, data=field_rows, table=_fields_table)
    entries = catalog.entries()
    if args.family is not None:
        families = {e.family.lower(): e.family for e in entries}
        if args.family.lower() not in families:
            otherwise = f"choose one of {', '.join(families.values())}"
            check_known("--family", args.family, families, otherwise, "is not in the catalog")
        entries = tuple(e for e in entries if e.family.lower() == args.family.lower())
    text = args.text.lower()
    entries = tuple(e for e in entries if text in f"{e.id}\n{e.name}\n{e.family}".lower())
    if not entries:
        print("metacount: no model of the catalog matches", file=sys.stderr)
    if args.columns:
        return _columns(args.columns, entries)
    counted = [(e, params(e.spec()) if e.sizes is not None else None) for e in entries]
    return Answer(
        report=lambda: _report(counted),
        data=lambda: [_data(*pair) for pair in counted],
        table=lambda: _table(counted),
    )


def _columns(names: Sequence[str], entries: Sequence[CatalogEntry]) -> Answer:
    from metacount.cli.columns import Row, answer
    from metacount.spec import Request
    from metacount.textbook.count import count

    rows = []
    for entry in entries:
        spec = None if entry.sizes is None else entry.spec()
        data = None if spec is None else count(spec, Request()).to_dict()
        rows.append(Row(heading=entry.id, name=entry.name, spec=spec, data=data))
    return answer(names, rows)


def compared(comparison: Comparison, entry: CatalogEntry, *, brief: bool = False) -> str:
    """Say in words how our count compares with the published one; why, unless `brief`.

    >>> from metacount.catalog import entry
    >>> llama = entry("llama-13b")
    >>> compared(compare_published(llama, 13_015_864_320), llama)
    '13.0B: our count rounds to it'
    """
    published = entry.published
    label = published.label or ""
    if published.label_meaning and not brief:
        label += f" ({published.label_meaning})"
    if published.params is not None:
        exact = units.exact(published.params)
        label = f"{label}, exactly {exact}" if label else exact
    if comparison.status == "unpublished":
        return "no count" if brief else f"no count. {comparison.explanation}".strip()
    if comparison.status == "exact":
        return f"{label}: our count is the same"
    if comparison.status == "rounds":
        return f"{label}: our count rounds to it"
    difference = "" if comparison.difference is None else units.signed(comparison.difference)
    text = f"{label}: ours differs by {difference} ({comparison.percent})"
    return text if brief else f"{text}; {comparison.explanation}"


def published_notes(entry: CatalogEntry) -> list[tuple[str, str]]:
    """List what was published of active parameters, the sources, what is inferred, and notes."""
    active = entry.published.active_label or ""
    if active:
        meaning = entry.published.active_label_meaning
        active += (f" ({meaning})" if meaning else "") + " published"
    return [
        ("active", active),
        ("source", "; ".join(entry.source)),
        *(("inferred", inferred) for inferred in entry.inferred),
        ("notes", entry.notes or ""),
    ]


def _table(counted: Sequence[Counted], *, on_screen: bool = False) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    ours: str | None
    layers: str | None
    width: str | int | None
    for entry, params in counted:
        label, ours = entry.published.label, "no spec"
        layers = width = kind = None
        if params is not None:
            spec, comparison = entry.spec(), compare_published(entry, params)
            known = {"differs": comparison.percent, "unpublished": None}
            ours = known.get(comparison.status, comparison.status)
            encoder = f"{spec.n_encoder_layers}+" if spec.has_encoder else ""
            layers, width, kind = f"{encoder}{spec.n_layers}", spec.d_model, spec.kind
        if on_screen:
            # an exact integer stands beside it or differs from it
            label = "in full" if label and len(label) > LONGEST_LABEL else label
            width = DASH if width is None else str(width)
        rows.append((entry.id, params, label, ours, layers, width, kind, entry.family, entry.name))
    # the last columns say again what the id says, in other words
    drops = ("name", "family", "kind", "d_model")
    return Grid(heads=HEADS, rows=rows, align=ALIGN, drops=drops)


def _report(counted: Sequence[Counted]) -> Report:
    if not counted:
        return []
    grid = _table(counted, on_screen=True)
    note = (
        "published is the label in print (in full: all digits); ours says whether the exact "
        "count is the published integer, rounds to the label, or by how much it differs; "
        "metacount count ID says why."
    )
    if dropped := grid.dropped(columns()):
        note += f" With more width, or --json: {', '.join(dropped)}."
    return [[grid], [Text(note, most=WIDEST_TEXT)]]


def _data(entry: CatalogEntry, params: int | None) -> Json:
    spec = None if params is None else entry.spec()
    comparison = None if params is None else compare_published(entry, params)
    published = entry.published
    sizes = ("kind", "d_model", "n_layers", "n_encoder_layers")
    return {
        "model": entry.id,
        "name": entry.name,
        "family": entry.family,
        **{name: spec and getattr(spec, name) for name in sizes},
        "params": params,
        "published_label": published.label,
        "published_label_meaning": published.label_meaning,
        "published_params": published.params,
        "status": comparison and comparison.status,
        "difference": comparison and comparison.difference,
        "explanation": entry.explanation,
        "not_expressible": entry.not_expressible,
        "inferred": list(entry.inferred),
        "source": list(entry.source),
        "spec": None if entry.sizes is None else dict(entry.sizes),
    }


def field_rows() -> list[Json]:
    """List every field in order: letter, what it takes, default, meaning, everyone else's names."""
    from metacount.spec.model import FIELDS, PATHS, REQUIRED_NAMES

    return [
        {
            "field": name,
            "path": PATHS[name],
            "letter": field.letter or None,
            "takes": (", ".join(field.choices) or TAKES[field.takes])
            + (", or none" if field.optional or field.lacking else ""),
            "required": name in REQUIRED_NAMES,
            "default": field.absent,
            "meaning": field.meaning,
            "elsewhere": list(field.elsewhere),
        }
        for name, field in FIELDS.items()
    ]


def _fields_table() -> Grid:
    heads = ("field", "path", "letter", "required", "default", "takes", "meaning")
    rows = []
    for row in field_rows():
        default = None if row["default"] is None else str(row["default"])
        rows.append(tuple({**row, "default": default}[head] for head in heads))
    return Grid(heads=heads, rows=rows, align="<" * len(heads))


def _fields_report() -> Report:
    by_part: dict[str, list[tuple[Cell, ...]]] = {}
    for row in field_rows():
        part = row["path"].rpartition(".")[0]
        default = row["default"]
        shown = str(default) if isinstance(default, str | float) else str(default).lower()
        cells = (
            f"{'  ' if part else ''}{row['field']}",
            row["letter"] or "",
            "required" if row["required"] else shown,
            f"{row['takes']}: {row['meaning']}",
        )
        by_part.setdefault(part, [(part, "", "", "")] if part else []).append(cells)
    note = (
        "A model's file is a JSON object of these fields, with a name if you like. "
        "How others call each field, and its path in a model (encoder. for decoder. in an "
        "encoder), which --set takes too: --json."
    )
    heads, rows = ("field", "letter", "default", "takes"), [*chain(*by_part.values())]
    grid = Grid(heads=heads, rows=rows, align="<<<", prose=True)
    return [[grid], [Text(note, most=WIDEST_TEXT)]]
