"""The fields of a model: what `--set` and a model's file may say, and what each means."""

from __future__ import annotations

from metacount.spec.model import FIELDS, PATHS, REQUIRED_NAMES
from metacount.views.layout import WIDEST_TEXT, columns, noted_table, wrapped
from metacount.views.tables import Table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

NOTE = (
    "A model's file is a JSON object of these fields, with a name if you like. "
    "How others call each field, and its path in a model (encoder. for decoder. in an encoder), "
    "which --set takes too: --json."
)

TAKES = {
    "whole": "whole number",
    "number": "number",
    "flag": "true or false",
    "pattern": "text",
    "object": "object",
}


def field_rows() -> list[Json]:
    """List every field in order: letter, what it takes, default, meaning, everyone else's names."""
    rows = []
    for name, field in FIELDS.items():
        takes = ", ".join(field.choices) or TAKES[field.takes]
        rows.append(
            {
                "field": name,
                "path": PATHS[name],
                "letter": field.letter or None,
                "takes": f"{takes}, or none" if field.optional or field.lacking else takes,
                "required": name in REQUIRED_NAMES,
                "default": field.absent,
                "meaning": field.meaning,
                "elsewhere": list(field.elsewhere),
            }
        )
    return rows


def fields_text() -> str:
    """Write the fields as a table, below the part that each belongs to."""
    width = columns()
    rows = []
    by_part: dict[str, list[Json]] = {}
    for row in field_rows():
        by_part.setdefault(row["path"].rpartition(".")[0], []).append(row)
    for part, of_part in by_part.items():
        if part:
            rows.append((part, "", "", ""))
        rows += [_row(row) for row in of_part]
    lines = noted_table(("field", "letter", "default", "takes"), rows, "<<<", width)
    return "\n".join([*lines, "", *wrapped(NOTE, min(width, WIDEST_TEXT))]) + "\n"


def fields_table() -> Table:
    """Put the fields in one table, with the path of each in a model."""
    heads = ("field", "path", "letter", "required", "default", "takes", "meaning")
    rows = []
    for row in field_rows():
        shown = {**row, "default": None if row["default"] is None else str(row["default"])}
        rows.append(tuple(shown[head] for head in heads))
    return Table(heads=heads, rows=tuple(rows), align="<" * len(heads))


def _row(row: Json) -> tuple[str, str, str, str]:
    default = row["default"]
    shown = str(default) if isinstance(default, str | float) else str(default).lower()
    indent = "  " if "." in row["path"] else ""
    return (
        indent + row["field"],
        row["letter"] or "",
        "required" if row["required"] else shown,
        f"{row['takes']}: {row['meaning']}",
    )
