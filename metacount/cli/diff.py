"""`metacount diff`: two models part by part."""

from __future__ import annotations

import re

from metacount.cli.answer import Answer, prepare_for_torch
from metacount.cli.options import request_of
from metacount.cli.report import Amount, Block, Cell, Grid, Lines, Notes, Report, Text, bold, grids
from metacount.diff.compared import QUANTITIES, STATUSES, Diff, Row
from metacount.errors import InputError
from metacount.figures import FIGURES, is_shown
from metacount.resolve import TransformersOnly, find_any
from metacount.settings import parse_settings
from metacount.spec.legend import TERMS
from metacount.textbook.count import run_text
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


SIGNS = {"replaced": "~", "added": "+", "removed": "-", "resized": "~", "changed": "~", "same": "="}
TITLES = {
    "params": "parameters",
    "active_params": "active parameters: used for one token",
    "matmul_flops": "matmul_flops of a forward",
    "kv_cache_bytes": "kv_cache_bytes after seq tokens",
}


def run(args: argparse.Namespace) -> Answer:
    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    if args.other is not None and args.settings:
        raise InputError("--set compares A with itself, changed: leave out B or --set")
    if args.other is None and not args.settings:
        raise InputError("diff needs a second MODEL, or --set FIELD=VALUE to change the first")
    a = find_any(args.model)
    b = find_any(args.model if args.other is None else args.other, args.settings)
    if isinstance(a, TransformersOnly) or isinstance(b, TransformersOnly):
        prepare_for_torch()
    from metacount.api import diff

    result = diff(a, b, request_of(args))
    return Answer(
        report=lambda: report_of(result), data=result.to_dict, table=lambda: _table(result)
    )


def report_of(diff: Diff) -> Report:
    """Report what differs in one sentence, the figures, then each part with what was done to it."""
    names = [n for n, a in diff.a.figures.items() if is_shown(n, (a, diff.b.figures[n]))]
    rows = [_numbers(n, diff.a.figures[n], diff.b.figures[n], n) for n in names]
    figures = Grid(heads=_heads(diff, "figure"), rows=rows, align="<>>>>")
    tables = [_quantity(diff, quantity) for quantity in QUANTITIES]
    is_described = any(part and part.described for row in diff.rows for part in (row.a, row.b))
    parts = [block for row in diff.rows for block in _described(row)] if is_described else []

    def units(width: int) -> list[str]:  # explained where numbers are shown in short
        note = Notes([("units", "GiB = 2^30 bytes; every digit with more width, or --json")])
        short = any(table.shortens(width) for table in (*grids(tables), figures))
        return note.lines(width) if short else []

    return [
        [Text(f"{diff.a.name} → {diff.b.name}", bold, unbroken=True), Text(_runs(diff))],
        _sentence(diff),
        [figures],
        *tables,
        [Text("what was done to each part", bold)] if parts else [],
        [
            *parts,
            Notes([("beside the parts", _fields(diff.fields))]),
            Lines(units),
            Notes(("note", note) for note in diff.notes),
        ],
        [Grid(heads=(), rows=_letters(diff), align="<<", prose=True)],
    ]


def _table(diff: Diff) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    for row in diff.rows:
        for quantity in QUANTITIES:
            a, b = row.values(quantity)
            if a or b:
                first = (row.name, row.stack, row.status, quantity)
                rows.append((*first, a, b, b - a, ratio(a, b)))
    for name, x in diff.a.figures.items():
        y = diff.b.figures[name]
        if is_shown(name, (x, y)):
            more = (None, None) if x is None or y is None else (y - x, ratio(x, y))
            rows.append(("model", "", "", name, x, y, *more))
    heads = ("part", "stack", "status", "quantity", diff.a.name, diff.b.name)
    return Grid(heads=(*heads, "difference", "ratio"), rows=rows, align="<<<<>>>>")


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


def _heads(diff: Diff, first: str) -> tuple[str, ...]:
    names = [name if len(name) <= 18 else name[:17] + "…" for name in (diff.a.name, diff.b.name)]
    return (first, *names, "difference", "ratio")


def _numbers(label: str, a: int | None, b: int | None, figure: str) -> tuple[Cell, ...]:
    short = FIGURES[figure].short
    both = Amount(a, short), Amount(b, short)
    if a is None or b is None:
        return (label, *both, "", "")
    return (label, *both, Amount(b - a, short, sign=True), ratio(a, b))


def _runs(diff: Diff) -> str:
    a, b = (run_text(side.workload) for side in (diff.a, diff.b))
    return a if a == b else f"{diff.a.name}: {a}; {diff.b.name}: {b}"


def _sentence(diff: Diff) -> list[Block]:
    if diff.same:
        return [Text("Nothing differs.")]
    by_status: dict[str, list[str]] = {}
    for row in diff.rows:
        by_status.setdefault(row.status, []).append(_name(row))
    items = [
        ("the same" if status == "same" else status, ", ".join(by_status[status]))
        for status in STATUSES
        if status in by_status
    ]
    return [Notes(items, bold, pad=8)]


def _name(row: Row) -> str:
    name = row.name
    if row.a is not None and row.b is not None and row.a.name != row.b.name:
        name = f"{row.a.name} → {row.b.name}"
    return f"{row.stack} {name}" if row.stack else name


def _quantity(diff: Diff, quantity: str) -> list[Block]:
    """Report one quantity of every part that has some of it; nothing where it says nothing new."""
    pairs = [(row, row.values(quantity)) for row in diff.rows]
    if quantity == "active_params" and all(both == row.values("params") for row, both in pairs):
        return []
    rows = [
        _numbers(f"{SIGNS[row.status]} {_name(row)}", *both, quantity)
        for row, both in pairs
        if any(both)
    ]
    if not rows:
        return []
    a, b = (sum(both[i] for _, both in pairs) for i in (0, 1))
    rows += [(), _numbers("total", a, b, quantity)]
    grid = Grid(heads=_heads(diff, "part"), rows=rows, align="<>>>>")
    return [Text(TITLES[quantity], bold), grid]


def _described(row: Row) -> Iterator[Block]:
    texts = dict.fromkeys(part.described for part in (row.a, row.b) if part is not None)
    label = f"{SIGNS[row.status]} {_name(row)}"
    if row.status == "same":
        yield Notes([(label, next(iter(texts)))])
        return
    yield Notes([(label, f"{row.status}: {' → '.join(texts)}")], bold)
    items = [] if row.status == "replaced" else [("fields", _fields(row.fields))]
    if row.values("params") != (0, 0):
        forms = [
            f"{form} = {exact(part.one)}{times(part.copies)}"
            for form, part in zip(row.forms, (row.a, row.b), strict=True)
            if form and part is not None and part.one
        ]
        items += zip(("params", "     →"), dict.fromkeys(forms), strict=False)
    yield Notes(items, indent=4)


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


def _letters(diff: Diff) -> list[tuple[str, ...]]:
    forms = " ".join(form for row in diff.rows if row.status != "same" for form in row.forms)
    used = {*re.findall(r"[A-Za-z][A-Za-z0-9_]*", forms)}
    return [(term.letter, term.name, term.meaning) for term in TERMS if term.letter in used]
