"""The audit as JSON, and as the table of findings that stands in docs/other-tools.md."""

from __future__ import annotations

from fractions import Fraction

from metacount.views.audit import misses_of, percent
from metacount.views.layout import wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.audit.detail import Detail, Line
    from metacount.audit.judge import Found
    from metacount.audit.mfu import Utilization
    from metacount.audit.record import Formula, Term
    from metacount.audit.report import Audited
    from metacount.files import Json
    from metacount.resolve import Model

MOST = 2  # parts of a difference that a row of the table names
PROSE = 100  # columns of the lines below the table
WORTH = Fraction(1, 100)  # a source that is off by less stands in a line below the table


def markdown(audits: Sequence[Audited]) -> str:
    """Write a row for each source that is off by a percent or more in its scope; then the rest."""
    heads = ("source", "formulas", "equal", "off, at most", "where", "the largest parts of it")
    lines = ["| " + " | ".join(heads) + " |", "|---|--:|--:|--:|---|---|"]
    smaller, equal = [], []
    for group in _by_source(audits):
        judged = [a for a in group if a.found]
        name = group[0].formula.source.name
        off = [(a, w) for a in judged if (w := a.worst()) is not None]
        if not judged:
            continue
        if not off:
            equal.append(name)
            continue
        one, worst = max(off, key=lambda pair: abs(pair[1].off))
        if abs(worst.off) < WORTH:
            smaller.append(name)
            continue
        n_equal = sum(a.worst() is None for a in judged)
        missed = misses_of(one, worst)
        what = "; ".join(line.of for line in missed[:MOST]) or "not accounted for"
        row = (
            name,
            str(len(judged)),
            str(n_equal),
            percent(worst.off),
            f"`{one.formula.id}`, {worst.model}",
            what,
        )
        lines.append("| " + " | ".join(row) + " |")
    said = [
        ("Off by less than 1 %", smaller),
        ("No model of the catalog inside the scope differs", equal),
    ]
    for words, names in said:
        if names:
            lines += ["", *wrapped(f"{words}: {', '.join(names)}.", PROSE)]
    return "\n".join(lines) + "\n"


def _by_source(audits: Sequence[Audited]) -> list[list[Audited]]:
    found: dict[str, list[Audited]] = {}
    for one in audits:
        found.setdefault(one.formula.source.id, []).append(one)
    return list(found.values())


def audits_data(audits: Sequence[Audited]) -> list[Json]:
    """Collect every formula with its verdicts, exact numbers as ints or fractions in text."""
    return [
        {
            **formula_data(one.formula),
            "verdict": one.verdict,
            "compared": one.compared,
            "in_scope": _counts(one, in_scope=True),
            "outside": _counts(one, in_scope=False),
            "conditions": list(one.conditions),
            "worst": _worst(one, one.worst()),
            "worst_outside": _worst(one, one.worst(in_scope=False)),
            "witness": one.witness,
            "models": [_found(f) for f in one.found],
        }
        for one in audits
    ]


def formula_data(formula: Formula) -> Json:
    """Collect what is recorded of a formula."""
    source = formula.source
    return {
        "id": formula.id,
        "source": source.id,
        "name": source.name,
        "project": source.project,
        "version": source.version,
        "read": source.read,
        "place": formula.place,
        "function": formula.function,
        "kind": formula.kind,
        "says": formula.says,
        "convention": formula.convention,
        "scope": formula.scope_says,
        "judged": formula.judged,
        "terms": _terms(formula.terms),
        "misses": _terms(formula.misses),
        "threads": list(formula.threads),
        "note": formula.note,
    }


def _terms(terms: tuple[Term, ...]) -> list[dict[str, str]]:
    return [{"of": t.of, "text": t.text, "where": t.where} for t in terms]


def _counts(one: Audited, *, in_scope: bool) -> dict[str, int]:
    verdicts = ("equal", "equal_here", "wrong", "cannot be asked")
    return {v.replace(" ", "_"): len(one.of(v, in_scope=in_scope)) for v in verdicts}


def _worst(one: Audited, found: Found | None) -> Json | None:
    if found is None:
        return None
    return {**_found(found), "misses": [line.of for line in misses_of(one, found)]}


def _found(found: Found) -> Json:
    return {
        "model": found.model,
        "in_scope": found.in_scope,
        "verdict": found.verdict,
        "seq_len": found.seq_len,
        "theirs": _exact(found.theirs),
        "ours": _exact(found.ours),
        "off": _exact(found.off),
        "condition": found.condition,
        "accounted": found.accounted,
    }


def detail_data(one: Detail, model: Model, witness: str, real: Json | None) -> Json:
    """Collect every term of both sides of one formula at one model."""
    small = None
    if one.small is not None:
        sizes, theirs, ours = one.small
        small = {"sizes": sizes, "theirs": _exact(theirs), "ours": _exact(ours)}
    return {
        **formula_data(one.formula),
        "model": model.id,
        "changes": model.changes,
        "found": _found(one.found),
        "theirs": _lines(one.theirs),
        "ours": _lines(one.ours),
        "parts": [{"of": line.of, "value": _exact(line.value)} for line in one.parts],
        "difference": _lines(one.misses),
        "unaccounted": _exact(one.unaccounted),
        "smallest": small,
        "witness": witness,
        "compared": real,
    }


def _lines(lines: tuple[Line, ...]) -> list[Json]:
    return [
        {"of": line.of, "text": line.text, "numbers": line.numbers, "value": _exact(line.value)}
        for line in lines
    ]


def mfu_data(model: Model, lengths: Sequence[int], rows: Sequence[Utilization]) -> Json:
    """Collect FLOPs per token and MFU by each formula at each length; MFU as a float."""
    return {
        "model": model.id,
        "changes": model.changes,
        "seq_len": list(lengths),
        "formulas": [
            {
                "id": None if row.formula is None else row.formula.id,
                "in_scope": row.in_scope,
                "flops_per_token": [None if n is None else _exact(n) for n in row.per_token],
                "mfu": [None if n is None else float(n) for n in row.mfu],
            }
            for row in rows
        ],
    }


def _exact(value: Fraction) -> int | str:
    return int(value) if value.denominator == 1 else str(value)
