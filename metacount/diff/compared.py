"""Two models part by part: what was added, taken away, replaced or resized, and what that costs.

>>> from metacount.catalog import entry
>>> from metacount.spec import Workload
>>> llama, mixtral = entry("llama-7b").spec(), entry("mixtral-8x7b").spec()
>>> found = diff(("llama-7b", llama), ("mixtral-8x7b", mixtral), Workload(), Workload())
>>> [(row.name, row.status) for row in found.rows if row.status not in ("same", "changed")]
[('attention', 'resized'), ('feed-forward', 'replaced')]
>>> found.row("feed-forward").forms
('3·d·m', 'E·d·(3·m_e + 1)')
"""

from __future__ import annotations

from metacount.diff.parts import QUANTITIES, Part, parts
from metacount.figures import COUNTED, OF_SOME
from metacount.frozen import frozen
from metacount.spec import ModelSpec, Workload
from metacount.spec.model import FIELDS, PATHS
from metacount.textbook.count import count

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

# From most to least. A changed part has the same parameters, and another field.
STATUSES = ("replaced", "added", "removed", "resized", "changed", "same")


@frozen
class Side:
    """One of the two models: its name, what it ran, its figures."""

    name: str
    workload: Workload
    figures: dict[str, int | None]


@frozen
class Row:
    """One part of the one model beside the part of the other that stands in its place.

    `fields` are the values that differ, by field, of both; `forms` the parameters of one block of
    each in letters, empty for a part that is not there.
    """

    name: str
    stack: str
    status: str
    a: Part | None
    b: Part | None
    fields: dict[str, tuple[object, object]]
    forms: tuple[str, str]

    def values(self, quantity: str) -> tuple[int, int]:
        """Return what both models have of a quantity; 0 of a part that is not there."""
        one, other = (0 if part is None else part.values[quantity] for part in (self.a, self.b))
        return one, other


@frozen
class Diff:
    """Two models side by side. `fields` are those that differ and belong to no part."""

    a: Side
    b: Side
    rows: tuple[Row, ...]
    fields: dict[str, tuple[object, object]]
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> Row:
        """Return the first row of a name."""
        return next(row for row in self.rows if row.name == name)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.fields and all(row.status == "same" for row in self.rows)

    def to_dict(self) -> Json:
        """Return plain data: figures and parts with the values of both, difference and ratio."""
        return {
            "models": [self.a.name, self.b.name],
            "workloads": [self.a.workload.to_dict(), self.b.workload.to_dict()],
            "figures": {
                name: compared(a, self.b.figures[name])
                for name, a in self.a.figures.items()
                if name not in OF_SOME or (a, self.b.figures[name]) != (None, None)
            },
            "parts": [
                {
                    "part": row.name,
                    "stack": row.stack or None,
                    "status": row.status,
                    "described": [part and part.described for part in (row.a, row.b)],
                    "copies": [part and part.copies for part in (row.a, row.b)],
                    "one": [part and part.one for part in (row.a, row.b)],
                    "formulas": [form or None for form in row.forms],
                    "fields": {name: list(both) for name, both in row.fields.items()},
                    **{q: compared(*row.values(q)) for q in QUANTITIES},
                }
                for row in self.rows
            ],
            "fields": {name: list(both) for name, both in self.fields.items()},
            "notes": list(self.notes),
        }


def compared(a: int | None, b: int | None) -> Json:
    """Return two values, the second less the first,
    and the second over the first where that is a number.

    >>> compared(4, 6)
    {'a': 4, 'b': 6, 'difference': 2, 'ratio': 1.5}
    """
    known = a is not None and b is not None
    return {
        "a": a,
        "b": b,
        "difference": b - a if a is not None and b is not None else None,
        "ratio": b / a if known and a and b is not None else None,
    }


def diff(
    a: tuple[str, ModelSpec], b: tuple[str, ModelSpec], run_a: Workload, run_b: Workload
) -> Diff:
    """Lay two models (name and spec) beside each other, each with what it runs."""
    specs, runs = (a[1], b[1]), (run_a, run_b)
    found = [parts(spec, run) for spec, run in zip(specs, runs, strict=True)]
    forms = [_forms(spec, run) for spec, run in zip(specs, runs, strict=True)]
    differing = _differing(*specs)
    rows = tuple(_row(*line, differing, forms) for line in aligned(*found))
    told = {name for row in rows for name in row.fields}
    owned = {path for of_one in found for part in of_one for path in part.fields}
    rest = {
        name: both
        for name, both in differing.items()
        if name not in told and not _belongs(PATHS[name], tuple(owned))
    }
    return Diff(a=side(a[0], a[1], run_a), b=side(b[0], b[1], run_b), rows=rows, fields=rest)


def side(name: str, spec: ModelSpec, run: Workload) -> Side:
    """Count a model's figures under the names of `count`."""
    data = count(spec, run).to_dict()
    absent = dict.fromkeys(OF_SOME)  # None, for nobody counts them; what others lack is 0
    figures = {name: data.get(name, absent.get(name, 0)) for name in COUNTED}
    return Side(name=name, workload=run, figures=figures)


def aligned(
    a: tuple[Part, ...], b: tuple[Part, ...]
) -> list[tuple[str, tuple[Part | None, Part | None]]]:
    """Pair the parts of both that stand in the same place, with the stack where there are several.

    An encoder stands for a decoder where the one model has only this and the other only that; a
    mixture for the feed-forward where the one has no more of it, and the other had no mixture.
    """
    stacks = [list(dict.fromkeys(part.stack for part in model if part.stack)) for model in (a, b)]
    alone = len(stacks[0]) == len(stacks[1]) == 1

    def place(part: Part, others: tuple[Part, ...], mine: tuple[Part, ...]) -> tuple[str, str]:
        name = part.name
        if name == "mixture" and not _has(mine, part, "feed-forward"):
            theirs = [other for other in others if alone or other.stack == part.stack]
            if theirs and not any(other.name == "mixture" for other in theirs):
                name = "feed-forward"
        return ("" if alone else part.stack, name)

    one = {place(part, b, a): part for part in a}
    other = {place(part, a, b): part for part in b}
    order = list(one if len(one) >= len(other) else other)
    for key in (*one, *other):
        if key not in order:
            before = list(one if key in one else other)
            at = before.index(key)
            order.insert(order.index(before[at - 1]) + 1 if at else 0, key)
    return [(key[0], (one.get(key), other.get(key))) for key in order]


def _has(model: tuple[Part, ...], part: Part, name: str) -> bool:
    return any(other.stack == part.stack and other.name == name for other in model)


def _row(
    stack: str,
    pair: tuple[Part | None, Part | None],
    differing: dict[str, tuple[object, object]],
    forms: list[dict[tuple[str, str], str]],
) -> Row:
    a, b = pair
    there = [part for part in pair if part is not None]
    first = there[0]
    written = tuple(
        "" if part is None else forms[i][part.stack, part.name] for i, part in enumerate(pair)
    )
    fields: dict[str, tuple[object, object]] = {}
    if a is not None and b is not None:
        paths = a.fields + b.fields
        # of two parts made otherwise, a field that only one of them has says nothing
        fields = {
            name: both
            for name, both in differing.items()
            if _belongs(PATHS[name], paths) and (a.kind == b.kind or None not in both)
        }
    return Row(
        name=next((part.name for part in there if part.name == "feed-forward"), first.name),
        stack=stack,
        status=_status(a, b, fields),
        a=a,
        b=b,
        fields=fields,
        forms=(written[0], written[1]),
    )


def _status(a: Part | None, b: Part | None, fields: dict[str, tuple[object, object]]) -> str:
    if a is None or b is None:
        return "added" if a is None else "removed"
    if a.kind != b.kind:
        return "replaced"
    if a.values["params"] != b.values["params"] or a.copies != b.copies:
        return "resized"
    return "changed" if fields else "same"


def _belongs(path: str, paths: tuple[str, ...]) -> bool:
    """Tell whether a field's path is one of some paths, or below one."""
    return any(path == known or path.startswith(f"{known}.") for known in paths)


def _differing(a: ModelSpec, b: ModelSpec) -> dict[str, tuple[object, object]]:
    one, other = a.to_dict(), b.to_dict()
    return {name: (one[name], other[name]) for name in FIELDS if one[name] != other[name]}


def _forms(spec: ModelSpec, run: Workload) -> dict[tuple[str, str], str]:
    """Write the parameters of one block of each part in letters."""
    import sympy

    from metacount.algebra.text import in_letters
    from metacount.textbook.closed_form import readable
    from metacount.textbook.rows import in_symbols

    symbolic, _ = in_symbols(spec)
    return {
        (part.stack, part.name): in_letters(readable(sympy.sympify(part.one)))
        for part in parts(symbolic, run, spec)
    }
