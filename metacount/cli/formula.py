"""`metacount formula`: the closed form of a count, from the textbook or read off code."""

from __future__ import annotations

import re
from functools import partial
from keyword import iskeyword

from metacount import units
from metacount.cli.answer import Answer, Pieces, prepare_for_torch
from metacount.cli.layout import WIDEST_TEXT, bold, dim, wrapped
from metacount.cli.options import (
    EXCLUSIVE,
    FORMATS,
    MODEL,
    WAYS,
    WORKLOAD,
    check_quantity,
    flag,
    grouped,
    option,
    quantity,
    request_of,
)
from metacount.cli.report import Grid, Lines, Notes, Text
from metacount.errors import InputError, shown
from metacount.resolve import TransformersOnly, find_any, find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    import sympy

    from metacount.cli.options import Option
    from metacount.cli.report import Block, Report
    from metacount.files import Json
    from metacount.resolve import Model
    from metacount.spec import ModelSpec
    from metacount.textbook.closed_form import ClosedForm
    from metacount.tracing.layers import CodeForm

BELONGS = (("--by", "--from-code"),)
CAUSAL = "causal_matmul_flops"  # transformers' code has none
PARTS = ("part", "form", "value")
NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
RUN_MEANINGS = {
    "B": "sequences",
    "S": "tokens of each sequence",
    "T": "positions that one token attends to",
    "S_e": "tokens that the encoder reads",
}


def options() -> Sequence[Option]:
    from metacount.textbook.closed_form import COUNTS

    return (
        *MODEL,
        quantity(COUNTS, WAYS),
        flag(
            "--from-code",
            "read it off the code instead, run with symbols for sizes: transformers' for a config, "
            "our reference modules for a name of the catalog",
        ),
        option(
            "--by",
            None,
            "with --from-code: split FLOPs by role (default) or by operator",
            default="role",
            choices=("role", "operator"),
        ),
        *grouped(
            EXCLUSIVE,
            flag("--latex", "print LaTeX"),
            flag("--python", "print a Python function"),
        ),
        *FORMATS[:3],
        *WORKLOAD,
    )


def run(args: argparse.Namespace) -> Answer | Pieces:
    from metacount.textbook.closed_form import COUNTS, closed_form
    from metacount.textbook.count import fitted

    if args.from_code:
        return _from_code(args)
    check_quantity(args.quantity, COUNTS)
    model = find_model(args.model, args.settings)
    run = fitted(model.spec, request_of(args))
    form = closed_form(model.spec, run, args.quantity)
    if args.latex:
        return Pieces(text=_latex(model, form))
    if args.python:
        return Pieces(text=python_text(model, form))
    return Answer(
        report=lambda: report_of(model, form),
        data=lambda: _data(model, form),
        table=lambda: table_of(form),
        model=model,
        workload=run,
    )


def _from_code(args: argparse.Namespace) -> Answer | Pieces:
    """Give the formula read off the code, in the names of its config or of our spec."""
    model = find_any(args.model, args.settings)
    prepare_for_torch()
    from metacount.tracing.forms import QUANTITIES, NotTraced, Tracer

    check_quantity(args.quantity, QUANTITIES)
    if args.by == "operator" and not args.quantity.endswith("flops"):
        said = f"{args.quantity} have no operator"
        raise InputError(f"--by operator splits FLOPs: {said}; leave it out")
    if isinstance(model, TransformersOnly):
        from metacount.verify.compare import fitted_outside

        workload, _ = fitted_outside(model.source, request_of(args))
        read: Json | ModelSpec = model.source.config
    else:
        from metacount.textbook.count import fitted

        workload = fitted(model.spec, request_of(args))
        read = model.spec
        if model.source is not None and args.quantity != CAUSAL:
            read = model.source.config
    try:
        form = Tracer(read, workload, split=args.by).form(args.quantity)
    except NotTraced as error:
        raise InputError(f"{shown(model.id)}: no form of {args.quantity}: {error}") from None
    if args.latex:
        return Pieces(text=_code_latex(model.name, form))
    if args.python:
        return Pieces(text=_code_python(model.name, form))
    return Answer(
        report=lambda: code_report(model.name, form),
        data=lambda: _code_data(model.id, model.name, form),
        table=lambda: code_table(form),
        model=model,
    )


# ---- the textbook's


def table_of(form: ClosedForm) -> Grid:
    """Tabulate the parts: form and value of each."""
    from metacount.algebra.text import in_letters

    rows = [(part, in_letters(expr), form.values[part]) for part, expr in form.parts.items()]
    return Grid(heads=PARTS, rows=[*rows, ("total", "", form.total)], align="<<>")


def report_of(model: Model, form: ClosedForm) -> Report:
    """Report each part in letters and in numbers, then the total, then the legend."""
    from metacount.algebra.text import in_letters
    from metacount.cli.expressions import LETTERS, meaning
    from metacount.textbook.closed_form import readable

    def part(label: str, expr: sympy.Expr, value: int) -> Lines:
        letters = in_letters(expr)
        # each letter's number in its place: both then read the same way
        numbers = LETTERS.sub(lambda name: str(form.numbers.get(name[0], name[0])), letters)
        return _part(label, letters, f"{numbers} = {units.exact(value)}")

    width = max(len(name) for name in (*form.parts, "total"))
    parts = [part(f"{name:{width}}", expr, form.values[name]) for name, expr in form.parts.items()]
    if len(form.parts) > 1:
        parts.append(part(f"{'total':{width}}", readable(sum(form.parts.values())), form.total))
    nothing = Text(f"{bold('total')}  0, whatever the sizes", whole=True)
    return [
        [Text(f"{model.name}: {form.quantity}", bold, whole=True), Text(meaning(form.quantity))],
        parts or [nothing],
        [_legend(model, form)],
    ]


def _part(label: str, letters: str, numbers: str) -> Lines:
    def drawn(width: int) -> Iterator[str]:
        from metacount.cli.expressions import broken

        indent = " " * (len(label) + 2)
        room = max(width - len(indent), 20)
        first, *rest = broken(letters, room)
        yield f"{bold(label)}  {first}"
        yield from (indent + line for line in rest)
        yield from (indent + dim(line) for line in broken(numbers, room))

    return Lines(lambda width: list(drawn(width)))


def _legend(model: Model, form: ClosedForm) -> Grid:
    from metacount.textbook.count import ALL_POSITIONS

    rows = []
    for term in form.terms:
        n = form.numbers[term.letter]
        all_of_them = term.name == "seq_len" and n == model.spec.longest
        said = f" ({ALL_POSITIONS})" if all_of_them else ""
        rows.append((term.letter, term.name, n, term.meaning + said))
    return Grid(heads=("letter", "name", "here", "meaning"), rows=rows, align="<<>", prose=True)


def _latex(model: Model, form: ClosedForm) -> str:
    """Write the parts and their sum as one `aligned` environment, with the legend as comments."""
    from sympy import latex

    from metacount.cli.expressions import upright

    def grouped(value: int) -> str:
        return units.exact(value).replace(",", r"\,")

    lines = [f"% {model.name}: {form.quantity}"]
    for term in form.terms:
        lines.append(f"% {term.letter} = {form.numbers[term.letter]}: {term.name}, {term.meaning}")
    lines.append(r"\begin{aligned}")
    for part, expr in form.parts.items():
        lines.append(rf"{upright(part)} &= {latex(expr)} = {grouped(form.values[part])} \\")
    parts = " + ".join(map(upright, form.parts))
    lines.append(rf"{upright(form.quantity)} &= {parts or 0} = {grouped(form.total)}")
    return "\n".join([*lines, r"\end{aligned}"]) + "\n"


def python_text(model: Model, form: ClosedForm) -> str:
    """Write a function of the model's sizes; called without arguments it gives the count."""
    from metacount.cli.expressions import free_name, in_python, meaning

    arguments = ", ".join(f"{t.name}={form.numbers[t.letter]}" for t in form.terms)
    name = form.quantity.replace(":", "_")
    lines = [f"def {name}({'*, ' if arguments else ''}{arguments}):"]
    if len(lines[0]) > WIDEST_TEXT:
        each = [f"    {t.name}={form.numbers[t.letter]},  # {t.meaning}" for t in form.terms]
        lines = [f"def {name}(", "    *,", *each, "):"]
    said = meaning(form.quantity)
    lines.append(f'    """{said[0].upper()}{said[1:]}: {_plain(model.name)}."""')
    names = []
    for part, expr in form.parts.items():
        names.append(free_name(part.replace("-", "_"), {t.name for t in form.terms}))
        lines += _assignment(names[-1], in_python(expr, form))
    return "\n".join([*lines, f"    return {' + '.join(names) or 0}"]) + "\n"


def _assignment(name: str, value: str) -> list[str]:
    from metacount.cli.expressions import broken

    line = f"    {name} = {value}"
    if len(line) <= WIDEST_TEXT:
        return [line]
    return [f"    {name} = (", *(f"        {part}" for part in broken(value, 88)), "    )"]


def _plain(name: str) -> str:
    """Write a model's name so that it cannot end the docstring it stands in."""
    return name.replace("\\", "/").replace('"', "'")


def _data(model: Model, form: ClosedForm) -> Json:
    """Collect every spelling of every part, the legend, the values."""
    from sympy import latex

    from metacount.algebra.text import in_letters
    from metacount.cli.expressions import in_python, meaning

    return {
        "model": model.id,
        "name": model.name,
        "changes": model.changes,
        "quantity": form.quantity,
        "definition": meaning(form.quantity),
        "parts": {
            part: {
                "letters": in_letters(expr),
                "python": in_python(expr, form),
                "latex": latex(expr),
                "value": form.values[part],
            }
            for part, expr in form.parts.items()
        },
        "total": form.total,
        "legend": [
            {
                "letter": term.letter,
                "name": term.name,
                "meaning": term.meaning,
                "unit": term.unit,
                "value": form.numbers[term.letter],
            }
            for term in form.terms
        ],
        "source": "formula",
    }


# ---- read off code


def code_table(form: CodeForm) -> Grid:
    """Tabulate the roles: form and value of each."""
    from metacount.cli.expressions import in_fields
    from metacount.textbook.closed_form import readable

    rows = [
        (role, in_fields(readable(expr)), _value(form, expr)) for role, expr in form.by_role.items()
    ]
    return Grid(heads=PARTS, rows=[*rows, ("total", "", form.value)], align="<<>")


def _value(form: CodeForm, expr: sympy.Expr) -> int:
    numbers = {s: n for s, n in form.every_number.items() if s in expr.free_symbols}
    return int(expr.subs(numbers).doit())


def code_report(name: str, form: CodeForm) -> Report:
    """Report each role, the layers it is made of, the domain, and how all that was found."""
    from metacount.cli.expressions import in_fields, meaning
    from metacount.textbook.closed_form import readable

    def part(label: str, expr: sympy.Expr) -> Lines:
        numbers = f"= {units.exact(_value(form, expr))}"
        return _part(label, in_fields(readable(expr)), numbers)

    label = max(map(len, (*form.by_role, "total")))
    parts = [part(f"{role:{label}}", expr) for role, expr in form.by_role.items()]
    if len(form.by_role) != 1:
        parts.append(part(f"{'total':{label}}", form.total))
    measured = f"at these sizes {units.exact(form.value)}, which was measured as well"
    if form.confirmed:
        measured += f", and so it was at {form.confirmed} others"
    if form.untried:
        measured += f"; no other number could be tried of {', '.join(form.untried)}"
    sizes = (
        f"{name} {number}" + (f" ({RUN_MEANINGS[name]})" if name in RUN_MEANINGS else "")
        for name, number in form.numbers.items()
    )
    notes = [
        ("for", _holds_for(form)),
        *(("solved", f"{text}: a number to the code") for text in form.solved),
        *(("note", note) for note in form.notes),
        ("how", f"{form.how}; {form.source}"),
        ("here", measured),
        ("sizes", ", ".join(sizes)),
    ]
    head = Text(f"{name}: {form.quantity}, read off the code", bold, whole=True)
    return [[head, Text(meaning(form.quantity))], parts, _layers(form), [Notes(notes, pad=6)]]


def _layers(form: CodeForm) -> list[Block]:
    """Report each kind of layer and how many there are, with a line for each role in one layer."""
    from metacount.cli.expressions import in_fields
    from metacount.textbook.closed_form import readable

    found: list[Block] = []
    where = ""
    parts = [(part, part.layers) for part in form.parts if part.layers is not None]
    label = max((len(part.role) for part, _ in parts), default=0)
    for part, layers in parts:
        if part.where != where:
            where, count = part.where, in_fields(layers.expr)
            alike = f"{count} = {layers.count}" if layers.expr.free_symbols else count
            others = f", seen so at {layers.confirmed} other numbers of layers"
            sure = others if layers.confirmed else ""
            found.append(Text(f"{where}: {alike} alike{sure}; one has"))
        text = in_fields(readable(part.expr))
        found.append(Lines(partial(_role, part.role, text, label)))
    return found


def _role(role: str, text: str, label: int, width: int) -> list[str]:
    from metacount.cli.expressions import broken

    indent = " " * (label + 4)
    first, *rest = broken(text, max(width - len(indent), 20))
    return [f"  {role:<{label}}  {first}", *(indent + line for line in rest)]


def _holds_for(form: CodeForm) -> str:
    """Say in words for which sizes and lengths a form holds."""
    from metacount.cli.expressions import in_fields
    from metacount.tracing.domain import in_words
    from metacount.tracing.symbols import SMALLEST

    said = "; ".join(in_words(c, in_fields) for c in form.domain)
    return f"sizes from {SMALLEST}" + (f", where {said}" if said else "")


def _code_latex(name: str, form: CodeForm) -> str:
    """Write the roles and their sum as one `aligned` environment, fields in upright type."""
    from sympy import latex

    from metacount.cli.expressions import upright
    from metacount.textbook.closed_form import readable

    known = {
        s: upright(s.name)
        for expr in form.by_role.values()
        for s in expr.free_symbols
        if s.name not in RUN_MEANINGS
    }
    lines = [f"% {name}: {form.quantity}, {form.how}; {form.source}"]
    if domain := _holds_for(form):
        lines.append(f"% for {domain}")
    lines.append(r"\begin{aligned}")
    for role, expr in form.by_role.items():
        shown = latex(readable(expr), symbol_names=known, mul_symbol="dot")
        lines.append(rf"{upright(role)} &= {shown} \\")
    parts = " + ".join(map(upright, form.by_role))
    lines.append(rf"{upright(form.quantity)} &= {parts or 0}")
    return "\n".join([*lines, r"\end{aligned}"]) + "\n"


def _code_python(name: str, form: CodeForm) -> str:
    """Write a function of config fields; called without arguments it gives the model's count."""
    from metacount.cli.expressions import free_name, meaning, whole_python

    arguments = [f"    {_argument(n)}={number}," for n, number in form.numbers.items()]
    head = [
        f"def {form.quantity.replace(':', '_')}(",
        *(["    *,", *arguments] if arguments else []),
        "):",
    ]
    lines = [*head, f'    """{meaning(form.quantity)}: {_plain(name)}."""']
    if domain := _holds_for(form):
        lines += [f"    # {line}" for line in wrapped(f"for {domain}", WIDEST_TEXT - 6)]
    taken = {_argument(n) for n in form.numbers}
    names = []
    for role, expr in form.by_role.items():
        names.append(free_name(re.sub(r"\W", "_", role), taken))
        text = NAMES.sub(lambda found: _argument(found[0]), whole_python(expr))
        lines += [
            f"    {names[-1]} = (",
            *(f"        {part}" for part in wrapped(text, 88)),
            "    )",
        ]
    return "\n".join([*lines, f"    return {' + '.join(names) or 0}"]) + "\n"


def _argument(name: str) -> str:
    plain = name.replace(".", "__")
    return f"{plain}_" if iskeyword(plain) else plain


def _code_data(model: str, name: str, form: CodeForm) -> Json:
    """Collect everything of a form as plain data."""
    from metacount.cli.expressions import in_fields, meaning, whole_python
    from metacount.textbook.closed_form import readable
    from metacount.tracing.domain import in_words

    return {
        "model": model,
        "name": name,
        "quantity": form.quantity,
        "definition": meaning(form.quantity),
        "split": form.split,
        "parts": {
            role: {"fields": in_fields(readable(expr)), "python": whole_python(expr)}
            for role, expr in form.by_role.items()
        },
        "layers": [
            {
                "role": part.role,
                "where": part.where,
                "each": in_fields(readable(part.expr)),
                "count": in_fields(part.layers.expr),
                "count_here": part.layers.count,
                "count_confirmed_at": part.layers.confirmed,
            }
            for part in form.parts
            if part.layers is not None
        ],
        "total": form.value,
        "numbers": form.numbers,
        "domain": [in_words(c, in_fields) for c in form.domain],
        "how": form.how,
        "confirmed_at": form.confirmed,
        "untried": list(form.untried),
        "solved_for": {letter: list(at) for letter, at in form.solved_for},
        "notes": list(form.notes),
        "source": form.source,
    }
