"""Two models part by part, as text and as tables."""

from __future__ import annotations

from metacount import units
from metacount.diff.compared import STATUSES
from metacount.diff.parts import QUANTITIES
from metacount.figures import FIGURES, is_shown
from metacount.spec.legend import TERMS
from metacount.views.layout import (
    bold,
    columns,
    dim,
    noted_table,
    paragraph,
    table,
    width_of,
    wrapped,
)
from metacount.views.tables import Table

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metacount.diff.compared import Diff, Row
    from metacount.views.tables import Cell

SIGNS = {"replaced": "~", "added": "+", "removed": "-", "resized": "~", "changed": "~", "same": "="}
TITLES = {
    "params": "parameters",
    "active_params": "active parameters: used for one token",
    "matmul_flops": "matmul_flops of a forward",
    "kv_cache_bytes": "kv_cache_bytes after seq tokens",
}
DASH = "-"
TOTAL = "total"


def diff_text(found: Diff) -> str:
    """Write what differs in one sentence, the figures, then each part with what was done to it."""
    width = columns()
    lines = [bold(f"{found.a.name} → {found.b.name}"), *wrapped(_runs(found), width), ""]
    lines += [*_sentence(found, width), ""]
    both = [(name, found.a.figures[name], found.b.figures[name]) for name in found.a.figures]
    both = [one for one in both if is_shown(one[0], one[1:])]
    briefs = [FIGURES[name].short for name, *_ in both]
    lines += [*_fitting(_heads(found, "figure"), both, briefs, width), ""]
    for quantity in QUANTITIES:
        lines += _quantity(found, quantity, width)
    if any(part and part.described for row in found.rows for part in (row.a, row.b)):
        lines += [bold("what was done to each part"), ""]
        for row in found.rows:
            lines += _told(row, width)
    if found.fields:
        lines += paragraph("beside the parts", _fields(found.fields), width)
    if any(" FLOP" in line or "iB" in line for line in lines):
        lines += paragraph(
            "units", "GiB = 2^30 bytes; every digit with more width, or --json", width
        )
    for note in found.notes:
        lines += paragraph("note", note, width)
    return "\n".join([*lines, *_letters(found, width)]) + "\n"


def diff_table(found: Diff) -> Table:
    """Tabulate every quantity of every part of both models, then of the models."""
    heads = (
        "part",
        "stack",
        "status",
        "quantity",
        found.a.name,
        found.b.name,
        "difference",
        "ratio",
    )
    rows: list[tuple[Cell, ...]] = []
    for row in found.rows:
        for quantity in QUANTITIES:
            one, other = row.values(quantity)
            if one or other:
                rows.append(
                    (
                        row.name,
                        row.stack,
                        row.status,
                        quantity,
                        one,
                        other,
                        other - one,
                        ratio(one, other),
                    )
                )
    for name, one_ in found.a.figures.items():
        other_ = found.b.figures[name]
        if not is_shown(name, (one_, other_)):
            continue
        known = one_ is not None and other_ is not None
        difference = other_ - one_ if one_ is not None and other_ is not None else None
        rows.append(
            (
                "model",
                "",
                "",
                name,
                one_,
                other_,
                difference,
                ratio(one_ or 0, other_ or 0) if known else None,
            )
        )
    return Table(heads=heads, rows=tuple(rows), align="<<<<>>>>")


def ratio(a: int, b: int) -> str:
    """Format the second over the first to four digits, exact where it is a whole number.

    >>> ratio(2, 6), ratio(3, 2), ratio(0, 5), ratio(0, 0), ratio(3, 3)
    ('3', '0.6667', '', '', '1')
    >>> ratio(10**9, 10**9 + 1), ratio(10**9, 1)
    ('1.000', '1e-09')
    """
    if a == 0:
        return ""
    if b % a == 0:
        return str(b // a)
    text = f"{b / a:.4g}"
    return "1.000" if text == "1" else text


def _heads(found: Diff, first: str) -> tuple[str, ...]:
    names = [name if len(name) <= 18 else name[:17] + "…" for name in (found.a.name, found.b.name)]
    return (first, *names, "difference", "ratio")


def _fitting(
    heads: tuple[str, ...],
    rows: Sequence[tuple[str, int | None, int | None]],
    briefs: Sequence[Callable[[int], str]],
    width: int,
) -> list[str]:
    """Write a table of exact numbers; where they are too wide for the screen, of shortened ones."""
    shown = [_numbers(*row, units.exact) for row in rows]
    if width_of(heads, shown) > width:
        shown = [_numbers(*row, short) for row, short in zip(rows, briefs, strict=True)]
    if rows[-1][0] == TOTAL:
        shown.insert(len(shown) - 1, ())
    return table(heads, shown, "<>>>>")


def _numbers(
    name: str, a: int | None, b: int | None, write: Callable[[int], str]
) -> tuple[str, ...]:
    one, other = (DASH if value is None else write(value) for value in (a, b))
    if a is None or b is None:
        return (name, one, other, "", "")
    sign = "+" if b > a else ""
    return (name, one, other, sign + write(b - a), ratio(a, b))


def _runs(found: Diff) -> str:
    """Say what was run; of each model where they differ."""
    said = []
    for side in (found.a, found.b):
        run = side.workload
        text = f"batch {run.batch_size}, seq {run.seq_len}, {run.dtype}"
        said.append(text + (f", source {run.source_len}" if run.source_len is not None else ""))
    if said[0] == said[1]:
        return said[0]
    return f"{found.a.name}: {said[0]}; {found.b.name}: {said[1]}"


def _sentence(found: Diff, width: int) -> list[str]:
    """Say which parts differ, and how."""
    if found.same:
        return ["Nothing differs."]
    by_status: dict[str, list[str]] = {}
    for row in found.rows:
        by_status.setdefault(row.status, []).append(_name(row))
    lines = []
    for status in STATUSES:
        if status in by_status:
            word = f"{'the ' * (status == 'same')}{status}"
            lines += paragraph(f"{word:<8}", ", ".join(by_status[status]), width, style=bold)
    return lines


def _name(row: Row) -> str:
    name = row.name
    if row.a is not None and row.b is not None and row.a.name != row.b.name:
        name = f"{row.a.name} → {row.b.name}"
    return f"{row.stack} {name}" if row.stack else name


def _quantity(found: Diff, quantity: str, width: int) -> list[str]:
    """Write one quantity of every part that has some of it; nothing where that says nothing new."""
    pairs = [(row, row.values(quantity)) for row in found.rows]
    if quantity == "active_params" and all(both == row.values("params") for row, both in pairs):
        return []
    rows = [(f"{SIGNS[row.status]} {_name(row)}", *both) for row, both in pairs if any(both)]
    if not rows:
        return []
    a, b = (sum(both[i] for _, both in pairs) for i in (0, 1))
    shown = _fitting(
        _heads(found, "part"),
        [*rows, (TOTAL, a, b)],
        [FIGURES[quantity].short] * (len(rows) + 1),
        width,
    )
    return [bold(TITLES[quantity]), *shown, ""]


def _told(row: Row, width: int) -> list[str]:
    """Write how a part is made in both models; one paragraph for a part that is the same."""
    told = [part.described for part in (row.a, row.b) if part is not None]
    if row.status == "same":
        return paragraph(f"= {_name(row)}", told[0], width)
    said = " → ".join(dict.fromkeys(told))
    lines = paragraph(
        f"{SIGNS[row.status]} {_name(row)}", f"{row.status}: {said}", width, style=bold
    )
    inside = []
    if row.fields and row.status != "replaced":
        inside += paragraph("fields", _fields(row.fields), width - 4)
    if row.values("params") != (0, 0):
        shown = [
            f"{form} = {units.exact(part.one)}{times(part.copies)}"
            for form, part in zip(row.forms, (row.a, row.b), strict=True)
            if form and part is not None and part.one
        ]
        for label, text in zip(("params", "     →"), dict.fromkeys(shown), strict=False):
            inside += paragraph(label, text, width - 4)
    return lines + [f"    {line}" for line in inside]


def times(copies: int) -> str:
    """Say how often a part comes.

    >>> times(32), times(1)
    (' in each of 32 blocks', '')
    """
    return f" in each of {copies} blocks" if copies > 1 else ""


def _fields(fields: dict[str, tuple[object, object]]) -> str:
    return ", ".join(f"{name} {_value(a)} → {_value(b)}" for name, (a, b) in fields.items())


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return str(value.get("kind", "some"))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _letters(found: Diff, width: int) -> list[str]:
    """Explain the letters of the formulas."""
    import re

    used = {
        letter
        for row in found.rows
        if row.status != "same"
        for form in row.forms
        for letter in re.findall(r"[A-Za-z][A-Za-z0-9_]*", form)
    }
    rows = [(term.letter, term.name, term.meaning) for term in TERMS if term.letter in used]
    if not rows:
        return []
    return ["", *(dim(line) for line in noted_table((), rows, "<<", width))]
