"""The conventions as text: what each counts, its value per token, who uses it, and why they differ.

A GFLOP is 10^9 FLOPs; every rounding is here.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from metacount import units
from metacount.cli.answer import Answer
from metacount.cli.report import Grid, Lines, Notes, Text, dim, table, title, width_of, wrapped
from metacount.errors import InputError
from metacount.package import table_of_package
from metacount.resolve import TransformersOnly, remedy
from metacount.textbook.conventions import SAME, amounts, conventions
from metacount.textbook.count import fitted, length_shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.cli.report import Block, Report
    from metacount.files import Json
    from metacount.resolve import Model
    from metacount.spec import Request, Workload
    from metacount.textbook.conventions import Amounts, Convention

ALWAYS = "PEWHBAC"


def answer(models: Sequence[Model | TransformersOnly], request: Request) -> Answer:
    """Give each model's FLOPs under every convention."""
    runs = []
    for model in models:
        if isinstance(model, TransformersOnly):
            why = f"{model.name} has no formula: {model.problem}; {remedy(model)}"
            raise InputError(f"--conventions: {why}")
        runs.append((model, fitted(model.spec, request)))
    data = [_data(*pair) for pair in runs]
    return Answer(
        report=lambda: [section for pair in runs for section in conventions_report(*pair)],
        data=lambda: data if len(data) > 1 else data[0],
        table=lambda: _table(runs),
    )


def conventions_report(model: Model, workload: Workload) -> Report:
    """Report the amounts, a table for each kind of pass, the range and what makes the range."""
    a = amounts(model.spec, workload)
    rows = conventions(model.spec, workload)
    length = length_shown(model.spec, workload.seq_len)
    tied = "the head multiplies with a table of E, so whoever leaves E out leaves it out"
    groups = [
        sorted((c for c in rows if c.passes == passes), key=_order)
        for passes in dict.fromkeys(c.passes for c in rows)
    ]
    judged = "whether they count what they say: metacount audit"
    run = Text(f"batch_size {workload.batch_size}, seq_len {length}", unbroken=True)
    return [
        [title(model.name, model.id), run],
        [*_legend(a), Notes([("tied", tied if model.spec.tie_embeddings else "")])],
        *([Lines(partial(_group, group, a.tokens))] for group in groups),
        [Notes([("why", _why(rows, a)), ("judged", judged)])],
    ]


def _order(convention: Convention) -> tuple[bool, int]:
    return convention.unit == "MAC", convention.value


def _legend(a: Amounts) -> list[Block]:
    """Say what the letters stand for, per token; a letter that nothing here needs is left out."""
    letters = a.letters()
    written = {letter for letter, other in SAME if letters[letter] != letters[other]}
    written |= {letter for letter in "LR" if letters[letter]}
    rows, meanings = [], table_of_package("textbook/amounts.tsv")
    for letter, total in letters.items():
        if (letter in ALWAYS or letter in written) and (letter != "C" or a.causal):
            flops = giga(Fraction(total, a.tokens), "FLOP")
            amount = units.exact(total // a.tokens) if letter in "PQETL" else flops
            rows.append((letter, amount, *meanings[letter]))
    return [Text("per token", dim), Grid(heads=(), rows=rows, align="<><")]


def giga(per_token: Fraction, unit: str) -> str:
    """Format thousand millions to three significant digits, never fewer than one decimal.

    >>> giga(Fraction(45_029_548_032), "FLOP"), giga(Fraction(4_295), "FLOP")
    ('45.0 GFLOP', '0.00000430 GFLOP')
    """
    places = 1
    while places < 9 and per_token and per_token * 10**places < 100 * 10**9:
        places += 1
    billions, rest = divmod(round(per_token * 10**places / 10**9), 10**places)
    return f"{units.exact(billions)}.{rest:0{places}d} G{unit}"


def _group(group: list[Convention], tokens: int, width: int) -> list[str]:
    heads = (group[0].passes, "formula", "per token", "workload")
    totals = [units.flops(c.value).replace("FLOP", c.unit) for c in group]
    rows = [
        (c.says, c.formula, giga(c.per_token(tokens), c.unit), total)
        for c, total in zip(group, totals, strict=True)
    ]
    drawn = table(heads, rows, "<<>>")
    if width_of(heads, rows) > width:
        drawn = table(heads[:3], [row[:3] for row in rows], "<<>")
    lines = drawn[:1]
    for line, c in zip(drawn[1:], group, strict=True):
        lines.append(line)
        for source in c.sources:
            first, *rest = wrapped(source.sentence(), width - 6)
            lines += [dim(f"    {first}"), *(dim(f"      {more}") for more in rest)]
    return lines


def _why(rows: tuple[Convention, ...], a: Amounts) -> str:
    training = [c for c in rows if c.passes.startswith("training") and c.unit == "FLOP"]
    low, high = min(training, key=_order), max(training, key=_order)
    ends = [giga(c.per_token(a.tokens), c.unit).partition(" ")[0] for c in (low, high)]
    return (
        f"training GFLOPs per token range from {ends[0]}, {low.formula}, to {ends[1]}, "
        f"{high.formula}. They differ in whether tables that are looked up and the output head "
        "count, in whether products between positions count, in full, halved or as masked, in "
        "the backward of a fused attention (2.5× its forward, as it makes the scores again, "
        "not 2×), and in whether a forward that is run again counts (what the hardware does) or "
        "not (what the model needs). A multiply-add is two FLOPs."
    )


def _data(model: Model, workload: Workload) -> Json:
    a = amounts(model.spec, workload)

    def exact(value: Fraction) -> int | str:
        return int(value) if value.denominator == 1 else str(value)

    def part_of(thing: object, *names: str) -> Json:
        return {name: getattr(thing, name) for name in names}

    return {
        "model": model.id,
        **part_of(model, "name", "changes"),
        "workload": part_of(workload, "batch_size", "seq_len"),
        "tokens": a.tokens,
        "amounts": {
            letter: exact(Fraction(total, a.tokens)) for letter, total in a.letters().items()
        },
        "conventions": [
            {
                **part_of(c, "passes", "says", "formula", "value"),
                "per_token": exact(c.per_token(a.tokens)),
                **part_of(c, "unit", "users"),
                "sources": [part_of(source, "who", "where", "read") for source in c.sources],
            }
            for c in conventions(model.spec, workload)
        ],
        "source": "formula",
    }


def _table(models: Sequence[tuple[Model, Workload]]) -> Grid:
    rows = [
        (model.id, c.passes, c.says, c.formula, c.value, c.unit, c.users)
        for model, workload in models
        for c in conventions(model.spec, workload)
    ]
    heads = ("model", "passes", "counts", "formula", "value", "unit", "users")
    return Grid(heads=heads, rows=rows, align="<<<<><<")
