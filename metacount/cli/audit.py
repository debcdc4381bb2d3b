"""`metacount audit`: the formulas that frameworks and papers use, each judged."""

from __future__ import annotations

import argparse
from fractions import Fraction

from metacount.cli.answer import Answer
from metacount.cli.progress import gathered
from metacount.cli.report import Block, Grid, Lines, Notes, Report, Text, bold, dim, table, wrapped
from metacount.errors import InputError
from metacount.package import table_of_package
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from metacount.audit.judge import Audited, Line, Utilization
    from metacount.audit.record import Formula
    from metacount.files import Json
    from metacount.resolve import Model

HEADS = ("formula", "models", "equal", "if", "off", "at most")
WIDEST = 120


def run(args: argparse.Namespace) -> Answer:
    if args.mfu and None in (args.tokens_per_second, args.peak):
        raise InputError("--mfu needs --tokens-per-second and --peak; give both")
    if args.mfu:
        return _mfu(args)
    if args.model is not None:
        if not args.names:
            raise InputError("--model needs a NAME: `metacount audit` lists them")
        return _details(args)
    return _table(args)


def _number(value: Fraction) -> str:
    return exact(int(value)) if value.denominator == 1 else str(value)


def percent(share: Fraction) -> str:
    """Format a share in percent with its sign and two decimals.

    >>> percent(Fraction(-1, 3)), percent(Fraction(1, 200_000)), percent(Fraction(8379, 1000))
    ('-33.33 %', '<+0.01 %', '+837.90 %')
    """
    hundredths = round(share * 10_000)
    if share and not hundredths:
        return f"<{'+' if share > 0 else '-'}0.01 %"
    integer, rest = divmod(abs(hundredths), 100)
    sign = "+" if share > 0 else "-" if share < 0 else ""
    return f"{sign}{exact(integer)}.{rest:02d} %"


# ---- every formula at every model


def _table(args: argparse.Namespace) -> Answer:
    from metacount.audit.judge import LENGTHS, audited
    from metacount.audit.record import chosen

    wanted = chosen(tuple(args.names))
    judged = audited(wanted, tuple(args.seq or LENGTHS), args.jobs)
    pairs, code, message = gathered(judged, len(wanted), "judged", "formulas")
    audits = [each for _, each in sorted(pairs, key=lambda pair: pair[0])]

    def report() -> Report:
        sections = audits_report(audits, outside=bool(args.names)) if audits else []
        return [*sections, [Text(message if audits else "")]]

    return Answer(
        report=report,
        data=lambda: _plain_data([*map(_audit_data, audits)]),
        table=lambda: Grid(heads=HEADS, rows=[*map(_row, audits)], align="<>>>>>"),
        code=code,
    )


def audits_report(audits: Sequence[Audited], *, outside: bool) -> Report:
    """Report a table for each kind of count, and where a formula is off, by how much and why.

    With `outside`, also what it gives outside the scope that its source claims.
    """
    from metacount.audit.record import KINDS

    sections: list[list[Block]] = []
    for kind, words in KINDS.items():
        group = [a for a in audits if a.formula.kind == kind]
        if group:
            sections += [[Text(words, bold, unbroken=True)], [Lines(_kind(group, outside))]]
    return [*sections, _summary(audits)]


def _kind(group: Sequence[Audited], outside: bool) -> Callable[[int], list[str]]:

    def drawn(width: int) -> list[str]:
        room = min(width, WIDEST) - 4
        head, *rows = table(HEADS, [_row(a) for a in group], "<>>>>>")
        lines = [dim(head)]
        for line, judged in zip(rows, group, strict=True):
            notes = (part for text in _notes(judged, outside) for part in wrapped(text, room))
            lines += [line, *(dim(f"    {part}") for part in notes)]
        return lines

    return drawn


def _row(judged: Audited) -> tuple[str, ...]:
    if not judged.found:
        return (judged.formula.id, "-", "-", "-", "-", "not judged")
    counts = [judged.asked(), *(len(judged.of(v)) for v in ("equal", "equal_here", "wrong"))]
    worst = judged.worst()
    return (judged.formula.id, *map(str, counts), percent(worst.off) if worst else "")


def _notes(judged: Audited, outside: bool) -> Iterator[str]:
    """Yield the lines under a formula: its condition, where it is furthest off and why."""
    from metacount.audit.judge import misses_at
    from metacount.audit.record import NO_COUNT

    if not judged.found:
        yield NO_COUNT
        return
    yield from (f"if {condition}" for condition in judged.conditions if condition)
    if (worst := judged.worst()) is not None:
        parts = [line["of"] for line in misses_at(judged.formula, worst)]
        why = "; ".join(parts if worst.accounted else [*parts, "and more, not accounted for"])
        yield f"{worst.model}, {exact(worst.seq_len)} tokens: {why}"
    if not outside:
        return
    n, worst = judged.asked(in_scope=False), judged.worst(in_scope=False)
    if not n:
        yield "outside its scope no model has all that it asks for"
    elif worst is None:
        yield f"outside its scope: equal at {n} models"
    else:
        yield (
            f"outside its scope: off at {len(judged.of('wrong', in_scope=False))} of {n} models, "
            f"at most {percent(worst.off)}, {worst.model}, {exact(worst.seq_len)} tokens"
        )


def _summary(audits: Sequence[Audited]) -> list[Block]:
    from metacount.audit.judge import models

    verdicts = [a.verdict for a in audits if a.found]
    kinds = ("equal", "equal under a condition", "off")
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in kinds if v in verdicts)
    real = sum(a.compared is not None for a in audits)
    n_sources = len({a.formula.source.id for a in audits})
    head = f"{len(audits)} formulas of {n_sources} sources, {len(verdicts)} judged: {counts}"
    words = (
        f"models: of the catalog's {len(models())} of one stack with attention in every layer and "
        "no indexer, inside the scope that the source claims; equal: proven for all "
        "sizes of the model's structure; if: equal under the condition below; off: at most by so "
        f"much at the lengths judged. {real} restatements were compared with the real function. "
        "Every formula is judged by the convention that it states: a convention is no error. "
        f"One formula, term by term: metacount audit {audits[0].formula.id} --model MODEL"
    )
    return [Text(head, bold, unbroken=True), Text(words, most=WIDEST)]


def _audit_data(judged: Audited) -> Json:
    from metacount.audit.judge import misses_at

    def counts(*, in_scope: bool) -> dict[str, int]:
        verdicts = ("equal", "equal_here", "wrong", "cannot be asked")
        return {v.replace(" ", "_"): len(judged.of(v, in_scope=in_scope)) for v in verdicts}

    def worst(*, in_scope: bool) -> Json | None:
        lines = judged.worst(in_scope=in_scope)
        misses = [] if lines is None else [line["of"] for line in misses_at(judged.formula, lines)]
        return None if lines is None else {**lines.to_dict(), "misses": misses}

    return {
        **judged.formula.to_dict(),
        "verdict": judged.verdict,
        "compared": judged.compared,
        "in_scope": counts(in_scope=True),
        "outside": counts(in_scope=False),
        "conditions": list(judged.conditions),
        "worst": worst(in_scope=True),
        "worst_outside": worst(in_scope=False),
        "witness": judged.witness,
        "models": [f.to_dict() for f in judged.found],
    }


def _plain_data(value: Any) -> Any:
    """Write exact fractions as ints or as text, wherever they are in the data."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else str(value)
    if isinstance(value, dict):
        return {name: _plain_data(each) for name, each in value.items()}
    return [_plain_data(each) for each in value] if isinstance(value, list) else value


# ---- formulas at one model, term by term


def _details(args: argparse.Namespace) -> Answer:
    from metacount.audit.judge import check_inside, detail
    from metacount.audit.record import chosen
    from metacount.resolve import find_model

    model = find_model(args.model, args.settings)
    check_inside(model.spec, model.id)
    details = [
        (formula, detail(formula, model, n))
        for formula in chosen(tuple(args.names))
        for n in args.seq or [2048]
    ]
    return Answer(
        report=lambda: [section for each in details for section in _detail_report(model, *each)],
        data=lambda: _plain_data([data for _, data in details]),
        table=lambda: Grid(
            heads=("formula", "tokens", "side", "term", "value"),
            rows=[
                (f.id, data["found"]["seq_len"], side, line["of"], _plain_data(line["value"]))
                for f, data in details
                for side in ("theirs", "ours", "difference")
                for line in data[side]
            ],
            align="<><<>",
        ),
    )


def _detail_report(model: Model, f: Formula, data: Json) -> Report:
    from metacount.textbook.conventions import FORMULAS

    judged, real = data["found"], data["compared"]
    read = "" if f.source.read else ", restated as it is known, not read for this audit"
    listed = ", also a row of `count --conventions`" if f.convention in FORMULAS else ""
    notes = {
        "where": f.where + read,
        "counts": f.says,
        "convention": f"{f.convention or ''}{listed}",
        "scope": f"{f.scope_says}; this model is {'in' if judged['in_scope'] else 'outside'} it",
        "note": f.note,
        "threads": ", ".join(f.threads),
        "compared": ""
        if real is None
        else f"with the real function ({real['version']}) at {real['sizes']} random sizes: equal",
        "verdict": _verdict(data),
        "rests on": data["witness"] if data["ours"] else "",
    }
    name = f"{f.source.name}: {f.function or f.place}"
    sections: list[list[Block]] = [
        [
            Text(f"{bold(f.id)}  ({name})", unbroken=True),
            Text(f"{model.name}, {exact(judged['seq_len'])} tokens", unbroken=True),
        ],
        [Notes(notes.items())],
    ]
    if data["theirs"]:
        total = sum((term["value"] for term in data["theirs"]), Fraction(0))
        sections.append([_side("theirs", data["theirs"], total)])
    if data["ours"]:
        misses = _side("theirs less ours", data["difference"], judged["theirs"] - judged["ours"])
        rest = f"not accounted for by the recorded misses: {_number(data['unaccounted'])}"
        last = [Text(rest, unbroken=True, indent=2)] if data["unaccounted"] else []
        sections += [_amounts(data), [misses, *last]]
    if (small := data["smallest"]) is not None:
        sizes = ", ".join(f"{name} {n}" for name, n in small["sizes"].items())
        text = f"{sizes}: theirs {_number(small['theirs'])}, ours {_number(small['ours'])}"
        sections.append([Notes([("smallest", text)])])
    return sections


def _verdict(data: Json) -> str:
    verdict, condition = data["found"]["verdict"], data["found"]["condition"]
    if not data["ours"]:
        return f"cannot be asked: {condition}" if data["judged"] else str(condition)
    if verdict == "wrong":
        return f"off by {percent(data['found']['off'])}"
    if verdict == "equal":
        return "equal for all sizes of this structure"
    return f"equal here, if {condition}" if condition else "equal at these sizes"


def _side(title: str, terms: Sequence[Line], total: Fraction) -> Lines:
    def drawn(wide: int) -> list[str]:
        width = min(wide, WIDEST)
        lines = [dim(title)]
        for term in terms:
            lines += [
                f"  {line}"
                for line in wrapped(f"{term['of']}: {_number(term['value'])}", width - 2)
            ]
            for text in (term["text"], term["numbers"]):
                lines += [dim(f"    {part}") for part in wrapped(text, width - 4)]
        return [*lines, f"  {_number(total)} in all"]

    return Lines(drawn)


def _amounts(data: Json) -> list[Block]:
    meanings = table_of_package("textbook/amounts.tsv")
    rows = []
    for line in data["ours"]:
        rows.append((line["of"], _number(line["value"]), *meanings[line["of"]]))
        for part in data["parts"]:
            letter, _, role = part["of"].partition(", ")
            rows += [("", _number(part["value"]), f"  {role}")] * (letter == line["of"])
    total = f"{data['convention']} = {_number(data['found']['ours'])}"
    grid = Grid(heads=(), rows=rows, align="<><", indent=2)
    return [Text("ours", dim), grid, Text(total, most=WIDEST, indent=2)]


# ---- one run under every training formula


def _mfu(args: argparse.Namespace) -> Answer:
    from metacount.audit.judge import LENGTHS, lengths_of, mfu
    from metacount.resolve import find_model

    words = f"{_plain(args.tokens_per_second)} tokens/s, peak {_plain(args.peak)} TFLOP/s"
    utilizations = []
    for id in args.mfu:
        model = find_model(id, args.settings)
        lengths = args.seq or list(lengths_of(model.spec, LENGTHS))
        longest = model.spec.longest
        if longest is not None and max(lengths) > longest:
            raise InputError(
                f"--seq {max(lengths)}: {model.id} has {longest} positions; give as many or fewer"
            )
        rows = mfu(model, lengths, tokens_per_second=args.tokens_per_second, peak_tflops=args.peak)
        utilizations.append((model, lengths, rows))

    def data() -> object:
        each = [_mfu_data(*row) for row in utilizations]
        return each if len(each) > 1 else each[0]

    return Answer(
        report=lambda: [section for row in utilizations for section in _mfu_report(*row, words)],
        data=data,
    )


def _plain(number: Fraction) -> str:
    return f"{int(number):,}" if number.denominator == 1 else f"{float(number):,g}"


def _mfu_report(
    model: Model, lengths: Sequence[int], rows: Sequence[Utilization], run: str
) -> Report:
    heads = ("MFU by the formula of", *(f"{exact(n)} tokens" for n in lengths))
    ours, *others = rows
    asked = [row for row in others if None not in row.mfu]
    asked.sort(key=lambda row: (not row.in_scope, row.mfu[0]))

    def cells(row: Utilization) -> tuple[str, ...]:
        name = "metacount, 3·(W + C)"
        if row.formula is not None:
            name = row.formula.id + ("" if row.in_scope else " *")
        shares = ("-" if n is None else percent(n).lstrip("+") for n in row.mfu)
        return name, *shares

    body = [cells(row) for row in (ours, *asked)]
    words = (
        "* the model is outside the scope that the source claims. "
        f"{len(others) - len(asked)} of {len(others)} formulas ask for what the model does not "
        "have. They differ by convention and by mistake: `metacount audit NAME --model MODEL` "
        "says which."
    )
    grid = Grid(heads=heads, rows=body, align="<" + ">" * len(lengths))
    head = Text(f"{bold(model.name)}  ({run})", unbroken=True)
    return [[head], [grid], [Text(words, most=WIDEST)]]


def _mfu_data(model: Model, lengths: Sequence[int], rows: Sequence[Utilization]) -> Json:
    formulas = [
        {
            "id": None if row.formula is None else row.formula.id,
            "in_scope": row.in_scope,
            "flops_per_token": list(row.per_token),
            "mfu": [None if n is None else float(n) for n in row.mfu],
        }
        for row in rows
    ]
    names = {"model": model.id, "changes": model.changes, "seq_len": list(lengths)}
    return {**names, "formulas": _plain_data(formulas)}
