"""The audit as text: a table by what is counted, one formula term by term, one run's MFU."""

from __future__ import annotations

from fractions import Fraction

from metacount.units import exact
from metacount.views.layout import bold, columns, dim, paragraph, table, wrapped

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.audit.detail import Detail, Line
    from metacount.audit.judge import Found
    from metacount.audit.mfu import Utilization
    from metacount.audit.report import Audited
    from metacount.files import Json
    from metacount.resolve import Model

HEADS = ("formula", "models", "equal", "if", "off", "at most")
ALIGN = "<>>>>>"
WIDEST = 120


def percent(share: Fraction) -> str:
    """Format a share in percent with its sign and two decimals.

    >>> percent(Fraction(-1, 3)), percent(Fraction(1, 200_000)), percent(Fraction(8379, 1000))
    ('-33.33 %', '<+0.01 %', '+837.90 %')
    """
    hundredths = round(share * 10_000)
    if share and not hundredths:
        return f"<{'+' if share > 0 else '-'}0.01 %"
    whole, rest = divmod(abs(hundredths), 100)
    sign = "+" if share > 0 else "-" if share < 0 else ""
    return f"{sign}{exact(whole)}.{rest:02d} %"


def audits_text(audits: Sequence[Audited], *, outside: bool = False) -> str:
    """Write a table for each kind of count, and where a formula is off, by how much and why.

    With `outside`, also what it gives outside the scope that its source claims.
    """
    from metacount.audit.record import KINDS

    width = min(columns(), WIDEST)
    lines: list[str] = []
    for kind, words in KINDS.items():
        group = [a for a in audits if a.formula.kind == kind]
        if not group:
            continue
        lines += [bold(words), ""]
        drawn = table(HEADS, [_row(a) for a in group], ALIGN)
        lines.append(dim(drawn[0]))
        for line, one in zip(drawn[1:], group, strict=True):
            lines.append(line)
            said = told(one) + (told_outside(one) if outside and one.found else [])
            lines += [dim(f"    {text}") for each in said for text in wrapped(each, width - 4)]
        lines.append("")
    return "\n".join([*lines, *_summary(audits, width)]) + "\n"


def _row(one: Audited) -> tuple[str, ...]:
    if not one.found:
        return (one.formula.id, "-", "-", "-", "-", "not judged")
    counts = [one.asked(), *(len(one.of(v)) for v in ("equal", "equal_here", "wrong"))]
    worst = one.worst()
    return (one.formula.id, *map(str, counts), percent(worst.off) if worst else "")


def told(one: Audited) -> list[str]:
    """Write the lines under a formula: where it is furthest off and why, and its condition."""
    from metacount.audit.record import NO_COUNT

    if not one.found:
        return [NO_COUNT]
    said = [f"if {condition}" for condition in one.conditions if condition]
    worst = one.worst()
    if worst is not None:
        said.append(f"{worst.model}, {exact(worst.seq_len)} tokens: {why(one, worst)}")
    return said


def told_outside(one: Audited) -> list[str]:
    """Say what a formula gives outside its source's claim: how many are off, and the worst."""
    n = one.asked(in_scope=False)
    worst = one.worst(in_scope=False)
    if not n:
        return ["outside its scope no model has all that it asks for"]
    if worst is None:
        return [f"outside its scope: equal at {n} models"]
    return [
        f"outside its scope: off at {len(one.of('wrong', in_scope=False))} of {n} models, "
        f"at most {percent(worst.off)}, {worst.model}, {exact(worst.seq_len)} tokens"
    ]


def why(one: Audited, worst: Found) -> str:
    """Say what makes the difference at a model: the recorded misses, the largest first."""
    parts = [line.of for line in misses_of(one, worst)]
    return "; ".join(parts if worst.accounted else [*parts, "and more, not accounted for"])


def misses_of(one: Audited, worst: Found) -> list[Line]:
    """List the misses that a model has, the largest first."""
    from metacount.audit.report import misses_at

    return misses_at(one.formula, worst)


def _summary(audits: Sequence[Audited], width: int) -> list[str]:
    from metacount.audit.report import models

    judged = [a for a in audits if a.found]
    verdicts = [a.verdict for a in judged]
    kinds = ("equal", "equal under a condition", "off")
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in kinds if v in verdicts)
    real = sum(a.compared is not None for a in audits)
    n_sources = len({a.formula.source.id for a in audits})
    head = f"{len(audits)} formulas of {n_sources} sources, {len(judged)} judged: {counts}"
    words = (
        f"models: of the catalog's {len(models())} of one stack with attention in every layer and "
        "no indexer, inside the scope that the source claims; equal: proven for all "
        "sizes of the model's structure; if: equal under the condition below; off: at most by so "
        f"much at the lengths judged. {real} restatements were compared with the real function. "
        "Every formula is judged by the convention that it states: a convention is no error. "
        f"One formula, term by term: metacount audit {audits[0].formula.id} --model MODEL"
    )
    return [bold(head), *wrapped(words, width)]


def detail_text(one: Detail, model: Model, witness: str, real: Json | None) -> str:
    """Write a formula at one model: both sides term by term, what is missed, what that rests on."""
    f, found = one.formula, one.found
    width = min(columns(), WIDEST)
    name = f"{f.source.name}: {f.function or f.place}"
    lines = [f"{bold(f.id)}  ({name})", f"{model.name}, {exact(found.seq_len)} tokens", ""]
    read = "" if f.source.read else ", restated as it is known, not read for this audit"
    told = {
        "where": f.where + read,
        "counts": f.says,
        "convention": _convention(f.convention),
        "scope": f"{f.scope_says}; this model is {'in' if found.in_scope else 'outside'} it",
        "note": f.note,
        "threads": ", ".join(f.threads),
        "compared": _compared(real),
        "verdict": _verdict(one),
        "rests on": witness if one.ours else "",
    }
    for label, text in told.items():
        if text:
            lines += paragraph(label, text, width)
    if one.theirs:
        total = sum((line.value for line in one.theirs), Fraction(0))
        lines += ["", *_side("theirs", one.theirs, total, width)]
    if one.ours:
        lines += ["", *_amounts(one, width)]
        lines += ["", *_side("theirs less ours", one.misses, found.theirs - found.ours, width)]
    if one.unaccounted and one.ours:
        lines.append(f"  not accounted for by the recorded misses: {_number(one.unaccounted)}")
    if one.small is not None:
        sizes, theirs, ours = one.small
        said = ", ".join(f"{name} {n}" for name, n in sizes.items())
        lines += [
            "",
            *paragraph(
                "smallest", f"{said}: theirs {_number(theirs)}, ours {_number(ours)}", width
            ),
        ]
    return "\n".join(lines) + "\n"


def _convention(formula: str | None) -> str:
    """Write a convention, and whether it is one of those that `count --conventions` lists."""
    from metacount.textbook.conventions import FORMULAS

    if formula is None:
        return ""
    return formula + (", also a row of `count --conventions`" if formula in FORMULAS else "")


def _verdict(one: Detail) -> str:
    found = one.found
    if not one.ours:
        return found.condition if not one.formula.judged else f"cannot be asked: {found.condition}"
    if found.verdict == "wrong":
        return f"off by {percent(found.off)}"
    if found.verdict == "equal":
        return "equal for all sizes of this structure"
    return f"equal here, if {found.condition}" if found.condition else "equal at these sizes"


def _compared(real: Json | None) -> str:
    if real is None:
        return ""
    return f"with the real function ({real['version']}) at {real['sizes']} random sizes: equal"


def _side(title: str, lines: Sequence[Line], total: Fraction, width: int) -> list[str]:
    found = [dim(title)]
    for line in lines:
        head, *rest = wrapped(f"{line.of}: {_number(line.value)}", width - 2)
        found += [f"  {head}", *(f"  {more}" for more in rest)]
        for text in (line.text, line.numbers):
            found += [dim(f"    {part}") for part in wrapped(text, width - 4)]
    return [*found, f"  {_number(total)} in all"]


def _amounts(one: Detail, width: int) -> list[str]:
    """Write our side: the amounts of the convention with their parts, and what they come to."""
    from metacount.audit.names import MEANINGS as ALSO
    from metacount.views.conventions import MEANINGS

    meanings = {**MEANINGS, **ALSO}
    rows = []
    for line in one.ours:
        rows.append((line.of, _number(line.value), meanings[line.of]))
        each = (part for part in one.parts if part.of.startswith(f"{line.of}, "))
        rows += [("", _number(part.value), f"  {part.of.partition(', ')[2]}") for part in each]
    drawn = table(("", "", ""), rows, "<><")
    said = wrapped(f"{one.formula.convention} = {_number(one.found.ours)}", width - 2)
    return [dim("ours"), *(f"  {line}" for line in drawn), *(f"  {line}" for line in said)]


def _number(value: Fraction) -> str:
    return exact(int(value)) if value.denominator == 1 else str(value)


def mfu_text(model: Model, lengths: Sequence[int], rows: Sequence[Utilization], run: str) -> str:
    """Write one run's MFU by each formula: ours, then the smallest first; out of scope (*) last."""
    lines = [f"{bold(model.name)}  ({run})", ""]
    heads = ("MFU by the formula of", *(f"{exact(n)} tokens" for n in lengths))
    ours, *others = rows
    asked = [row for row in others if None not in row.mfu]
    asked.sort(key=lambda row: (not row.in_scope, row.mfu[0]))
    body = [(_named(row), *map(_share, row.mfu)) for row in (ours, *asked)]
    lines += table(heads, body, "<" + ">" * len(lengths))
    words = (
        "* the model is outside the scope that the source claims. "
        f"{len(others) - len(asked)} of {len(others)} formulas ask for what the model does not "
        "have. They differ by convention and by mistake: `metacount audit NAME --model MODEL` "
        "says which."
    )
    lines += ["", *wrapped(words, min(columns(), WIDEST))]
    return "\n".join(lines) + "\n"


def _named(row: Utilization) -> str:
    if row.formula is None:
        return "metacount, 3·(W + C)"
    return row.formula.id + ("" if row.in_scope else " *")


def _share(mfu: Fraction | None) -> str:
    return "-" if mfu is None else percent(mfu).lstrip("+")
