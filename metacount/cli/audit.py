"""`metacount audit`: the formulas that frameworks and papers use, each judged."""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction

from metacount.cli.answer import Answer, Pieces
from metacount.cli.layout import bold, dim, table, wrapped
from metacount.cli.options import JSON, MODEL_HELP, SETTINGS, flag, option
from metacount.cli.report import Grid, Lines, Notes, Text
from metacount.errors import EXIT_INTERRUPTED, InputError, interrupted, shown
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.audit.detail import Detail, Line
    from metacount.audit.judge import Found
    from metacount.audit.mfu import Utilization
    from metacount.audit.record import Formula, Term
    from metacount.audit.report import Audited
    from metacount.cli.options import Option
    from metacount.cli.report import Block, Report
    from metacount.files import Json
    from metacount.resolve import Model

TAKES_LIKE = False
APART = (("--markdown", "--mfu --model --json"), ("--mfu", "--model NAME"))
BELONGS = (("--tokens-per-second --peak", "--mfu"), ("--set --like", "--model --mfu"))
MAX_JOBS = 64
LONGEST = 2**31
HEADS = ("formula", "models", "equal", "if", "off", "at most")
ALIGN = "<>>>>>"
WIDEST = 120
MOST = 2  # parts of a difference that a row of the table names
PROSE = 100  # columns of the lines below the table
WORTH = Fraction(1, 100)  # a source that is off by less stands in a line below the table


def options() -> Sequence[Option]:
    return (
        option("names", "NAME", "formulas or sources; all where none is named", nargs="*"),
        option("--model", "MODEL", f"these formulas term by term at one model: {MODEL_HELP}"),
        option(
            "--mfu",
            "MODEL",
            "the same run's MFU under every training formula, for these models at --seq, with "
            "--tokens-per-second and --peak",
            nargs="+",
        ),
        option(
            "--seq",
            "N",
            "tokens of each sequence; several give several lengths (default 2048 with --model, "
            "else 2048, 8192 and 32768)",
            type=_length,
            nargs="+",
        ),
        option("--tokens-per-second", "X", "of the run, on one device (with --mfu)", type=_amount),
        option(
            "--peak",
            "TFLOPS",
            "the device's, in 10^12 FLOPs a second (with --mfu)",
            type=_amount,
        ),
        option("--jobs", "N", "processes (default 1)", type=_jobs, default=1),
        flag("--markdown", "the table of findings, a row for each source"),
        *SETTINGS,
        JSON,
    )


def _length(text: str) -> int:
    from metacount.settings.values import length

    n = length(text) or (int(text) if text.isdecimal() and len(text) < 12 else 0)
    if not 0 < n <= LONGEST:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 1 to {LONGEST}: got '{shown(text)}'"
        )
    return n


def _jobs(text: str) -> int:
    n = int(text) if text.isdecimal() and len(text) < 5 else 0
    if not 0 < n <= MAX_JOBS:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_JOBS}: got '{shown(text)}'")
    return n


def _amount(text: str) -> Fraction:
    try:
        found = Fraction(text.replace("_", "").replace(",", "")[:40])
    except (ValueError, ZeroDivisionError):
        found = Fraction(0)
    if not 0 < found < 10**18:
        raise argparse.ArgumentTypeError(f"must be a number more than 0: got '{shown(text)}'")
    return found


def run(args: argparse.Namespace) -> Answer | Pieces:
    if args.mfu and None in (args.tokens_per_second, args.peak):
        raise InputError("--mfu needs --tokens-per-second and --peak; give both")
    if args.mfu:
        return _mfu(args)
    if args.model is not None:
        if not args.names:
            raise InputError("--model needs a NAME: `metacount audit` lists them")
        return _details(args)
    return _table(args)


def _table(args: argparse.Namespace) -> Answer | Pieces:
    from metacount.audit.judge import LENGTHS
    from metacount.audit.record import chosen
    from metacount.audit.report import audited

    wanted = chosen(tuple(args.names))
    found, code, said = {}, 0, ""
    try:
        for i, one in audited(wanted, tuple(args.seq or LENGTHS), args.jobs):
            found[i] = one
            _progress(len(found), len(wanted))
    except KeyboardInterrupt:
        code, said = EXIT_INTERRUPTED, interrupted(len(found), len(wanted), "formulas")
    audits = [found[i] for i in sorted(found)]
    if args.markdown:
        return Pieces(text=markdown(audits), code=code)

    def report() -> Report:
        found = _audits_report(audits, outside=bool(args.names)) if audits else []
        return [*found, [Text(said if audits else "")]]

    return Answer(report=report, data=lambda: _audits_data(audits), code=code)


def _progress(done: int, total: int) -> None:
    """Show on a terminal's stderr how far the audit is."""
    if sys.stderr.isatty():
        end = "\r\x1b[K" if done == total else ""
        said = f"\rmetacount: judged {done} of {total} formulas{end}"
        print(said, end="", file=sys.stderr, flush=True)


def _details(args: argparse.Namespace) -> Answer:
    from metacount.audit.detail import detail
    from metacount.audit.record import chosen, compared
    from metacount.audit.report import rests_of
    from metacount.audit.restated import check_inside
    from metacount.resolve import find_model

    model = find_model(args.model, args.settings)
    check_inside(model.spec, model.id)
    real = compared()
    found = []
    for formula in chosen(tuple(args.names)):
        for n in args.seq or [2048]:
            one = detail(formula, model.spec, model.id, n)
            found.append((one, model, rests_of(formula, one.found, model), real.get(formula.id)))
    return Answer(
        report=lambda: [section for each in found for section in _detail_report(*each)],
        data=lambda: [_detail_data(*each) for each in found],
    )


def _mfu(args: argparse.Namespace) -> Answer:
    from metacount.audit.judge import LENGTHS, lengths_of
    from metacount.audit.mfu import mfu
    from metacount.resolve import find_model

    words = f"{_plain(args.tokens_per_second)} tokens/s, peak {_plain(args.peak)} TFLOP/s"
    found = []
    for id in args.mfu:
        model = find_model(id, args.settings)
        lengths = args.seq or list(lengths_of(model.spec, LENGTHS))
        longest = model.spec.longest
        if longest is not None and max(lengths) > longest:
            raise InputError(
                f"--seq {max(lengths)}: {model.id} has {longest} positions; give as many or fewer"
            )
        rows = mfu(model, lengths, tokens_per_second=args.tokens_per_second, peak_tflops=args.peak)
        found.append((model, lengths, rows))

    def data() -> object:
        each = [_mfu_data(*one) for one in found]
        return each if len(each) > 1 else each[0]

    return Answer(
        report=lambda: [section for one in found for section in _mfu_report(*one, words)],
        data=data,
    )


def _plain(number: Fraction) -> str:
    return f"{int(number):,}" if number.denominator == 1 else f"{float(number):,g}"


# ---- as text


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


def _audits_report(audits: Sequence[Audited], *, outside: bool = False) -> Report:
    """Report a table for each kind of count, and where a formula is off, by how much and why.

    With `outside`, also what it gives outside the scope that its source claims.
    """
    from metacount.audit.record import KINDS

    sections: list[list[Block]] = []
    for kind, words in KINDS.items():
        group = [a for a in audits if a.formula.kind == kind]
        if group:
            sections += [[Text(words, bold, whole=True)], [_kind(group, outside)]]
    return [*sections, _summary(audits)]


def _kind(group: Sequence[Audited], outside: bool) -> Lines:
    """Draw a row for each formula, and below it what is to be said of it."""

    def drawn(width: int) -> list[str]:
        room = min(width, WIDEST) - 4
        head, *rows = table(HEADS, [_row(a) for a in group], ALIGN)
        lines = [dim(head)]
        for line, one in zip(rows, group, strict=True):
            said = told(one) + (told_outside(one) if outside and one.found else [])
            lines += [line, *(dim(f"    {t}") for each in said for t in wrapped(each, room))]
        return lines

    return Lines(drawn)


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


def _summary(audits: Sequence[Audited]) -> list[Block]:
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
    return [Text(head, bold, whole=True), Text(words, most=WIDEST)]


def _detail_report(one: Detail, model: Model, witness: str, real: Json | None) -> Report:
    """Report a formula at one model: both sides term by term, what is missed, what it rests on."""
    f, found = one.formula, one.found
    name = f"{f.source.name}: {f.function or f.place}"
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
    sections: list[list[Block]] = [
        [
            Text(f"{bold(f.id)}  ({name})", whole=True),
            Text(f"{model.name}, {exact(found.seq_len)} tokens", whole=True),
        ],
        [Notes(told.items())],
    ]
    if one.theirs:
        total = sum((line.value for line in one.theirs), Fraction(0))
        sections.append([_side("theirs", one.theirs, total)])
    if one.ours:
        rest = f"not accounted for by the recorded misses: {_number(one.unaccounted)}"
        misses = _side("theirs less ours", one.misses, found.theirs - found.ours)
        last = [Text(rest, whole=True, indent=2)] if one.unaccounted else []
        sections += [_amounts(one), [misses, *last]]
    if one.small is not None:
        sizes, theirs, ours = one.small
        said = ", ".join(f"{name} {n}" for name, n in sizes.items())
        text = f"{said}: theirs {_number(theirs)}, ours {_number(ours)}"
        sections.append([Notes([("smallest", text)])])
    return sections


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


def _side(title: str, lines: Sequence[Line], total: Fraction) -> Lines:
    def drawn(wide: int) -> list[str]:
        width = min(wide, WIDEST)
        found = [dim(title)]
        for line in lines:
            head, *rest = wrapped(f"{line.of}: {_number(line.value)}", width - 2)
            found += [f"  {head}", *(f"  {more}" for more in rest)]
            for text in (line.text, line.numbers):
                found += [dim(f"    {part}") for part in wrapped(text, width - 4)]
        return [*found, f"  {_number(total)} in all"]

    return Lines(drawn)


def _amounts(one: Detail) -> list[Block]:
    """Report our side: the amounts of the convention with their parts, and what they come to."""
    from metacount.audit.names import MEANINGS as ALSO
    from metacount.cli.conventions import MEANINGS

    meanings = {**MEANINGS, **ALSO}
    rows = []
    for line in one.ours:
        rows.append((line.of, _number(line.value), meanings[line.of]))
        each = (part for part in one.parts if part.of.startswith(f"{line.of}, "))
        rows += [("", _number(part.value), f"  {part.of.partition(', ')[2]}") for part in each]
    said = f"{one.formula.convention} = {_number(one.found.ours)}"
    grid = Grid(heads=(), rows=rows, align="<><", indent=2)
    return [Text("ours", dim), grid, Text(said, most=WIDEST, indent=2)]


def _number(value: Fraction) -> str:
    return exact(int(value)) if value.denominator == 1 else str(value)


def _mfu_report(
    model: Model, lengths: Sequence[int], rows: Sequence[Utilization], run: str
) -> Report:
    """Report one run's MFU by each formula: ours first, out of scope (*) last."""
    heads = ("MFU by the formula of", *(f"{exact(n)} tokens" for n in lengths))
    ours, *others = rows
    asked = [row for row in others if None not in row.mfu]
    asked.sort(key=lambda row: (not row.in_scope, row.mfu[0]))
    body = [(_named(row), *map(_share, row.mfu)) for row in (ours, *asked)]
    grid = Grid(heads=heads, rows=body, align="<" + ">" * len(lengths))
    words = (
        "* the model is outside the scope that the source claims. "
        f"{len(others) - len(asked)} of {len(others)} formulas ask for what the model does not "
        "have. They differ by convention and by mistake: `metacount audit NAME --model MODEL` "
        "says which."
    )
    head = Text(f"{bold(model.name)}  ({run})", whole=True)
    return [[head], [grid], [Text(words, most=WIDEST)]]


def _named(row: Utilization) -> str:
    if row.formula is None:
        return "metacount, 3·(W + C)"
    return row.formula.id + ("" if row.in_scope else " *")


def _share(mfu: Fraction | None) -> str:
    return "-" if mfu is None else percent(mfu).lstrip("+")


# ---- as JSON, and as the table of findings that stands in docs/other-tools.md


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


def _audits_data(audits: Sequence[Audited]) -> list[Json]:
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


def _detail_data(one: Detail, model: Model, witness: str, real: Json | None) -> Json:
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


def _mfu_data(model: Model, lengths: Sequence[int], rows: Sequence[Utilization]) -> Json:
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
