"""`metacount formula`: the closed form of a count, from the textbook or read off code."""

from __future__ import annotations

import re
from functools import partial
from keyword import iskeyword

from metacount import units
from metacount.cli.answer import Answer, Pieces, prepare_for_torch
from metacount.cli.options import check_quantity, request_of
from metacount.cli.report import WIDEST_TEXT, Grid, Lines, Notes, Text, bold, dim, wrapped
from metacount.errors import InputError, shown
from metacount.frozen import frozen
from metacount.resolve import TransformersOnly, find_any, find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    import sympy

    from metacount.cli.report import Block, Report
    from metacount.files import Json
    from metacount.resolve import Model
    from metacount.spec import ModelSpec, Workload
    from metacount.textbook.closed_form import ClosedForm
    from metacount.tracing.layers import CodeForm

CAUSAL = "causal_matmul_flops"  # transformers' code has none
NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")  # \w would take the ² of d² along
RUN_MEANINGS = {
    "B": "sequences",
    "S": "tokens of each sequence",
    "T": "positions that one token attends to",
    "S_e": "tokens that the encoder reads",
}


def run(args: argparse.Namespace) -> Answer | Pieces:
    model: Model | TransformersOnly
    workload: Workload | None = None
    if args.from_code:
        model = find_any(args.model, args.settings)
        written = _off_code(model, _read(model, args))
    else:
        from metacount.textbook.closed_form import COUNTS, closed_form
        from metacount.textbook.count import fitted

        check_quantity(args.quantity, COUNTS)
        model = find_model(args.model, args.settings)
        workload = fitted(model.spec, request_of(args))
        written = textbook(model, closed_form(model.spec, workload, args.quantity))
    if args.latex or args.python:
        return Pieces(text=written.latex() if args.latex else written.function())
    return Answer(
        report=written.report,
        data=written.data,
        table=written.table,
        model=model,
        workload=workload,
    )


def _read(model: Model | TransformersOnly, args: argparse.Namespace) -> CodeForm:
    prepare_for_torch()
    from metacount.tracing.forms import QUANTITIES, NotTraced, Tracer

    check_quantity(args.quantity, QUANTITIES)
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
        return Tracer(read, workload).form(args.quantity)
    except NotTraced as error:
        raise InputError(f"{shown(model.id)}: no form of {args.quantity}: {error}") from None


@frozen
class Written:
    """A form as it is shown: in the letters of the textbook, or in the fields of a config.

    `kind` says which of the two; `text`, `python` and `tex` write an expression. `numbers` stand in
    for the names in a text, `sizes` are the arguments of a function: name, value, meaning. What
    follows the parts: `remarks` above LaTeX, `sections` in a report, `more` in JSON.
    """

    name: str
    title: str
    quantity: str
    kind: str
    parts: dict[str, sympy.Expr]
    values: dict[str, int]
    total: Callable[[], sympy.Expr]
    text: Callable[[sympy.Expr], str]
    python: Callable[[sympy.Expr], str]
    tex: Callable[[sympy.Expr], str]
    numbers: dict[str, int]
    sizes: Sequence[tuple[str, int, str]]
    remarks: Sequence[str]
    domain: str
    sections: Report
    more: Json

    @property
    def value(self) -> int:
        """The sum of all parts."""
        return sum(self.values.values())

    def table(self) -> Grid:
        """Tabulate the parts: form and value of each."""
        rows = [(part, self.text(e), self.values[part]) for part, e in self.parts.items()]
        heads = ("part", "form", "value")
        return Grid(heads=heads, rows=[*rows, ("total", "", self.value)], align="<<>")

    def report(self) -> Report:
        """Report each part in letters and in numbers, then the total, then what explains them."""
        from metacount.cli.expressions import meaning

        label = max(map(len, (*self.parts, "total")))
        rows = [(f"{name:{label}}", e, self.values[name]) for name, e in self.parts.items()]
        if len(rows) > 1:
            rows.append((f"{'total':{label}}", self.total(), self.value))
        parts = [Lines(partial(self._part, *row)) for row in rows]
        nothing = Text(f"{bold('total')}  0, whatever the sizes", unbroken=True)
        head = [Text(self.title, bold, unbroken=True), Text(meaning(self.quantity))]
        return [head, parts or [nothing], *self.sections]

    def _part(self, label: str, expr: sympy.Expr, value: int, width: int) -> Iterator[str]:
        text, number = self.text(expr), f"= {units.exact(value)}"
        if self.numbers:  # each letter's in its place: both then read the same way
            put_in = NAMES.sub(lambda name: str(self.numbers.get(name[0], name[0])), text)
            number = f"{put_in} {number}"
        yield from _hanging(bold(label), text, width, len(label) + 2)
        for line in _hanging("", number, width, len(label) + 2):
            yield line[: len(label) + 2] + dim(line[len(label) + 2 :])

    def latex(self) -> str:
        """Write the parts and their sum as one `aligned` environment, below remarks."""
        from metacount.cli.expressions import upright

        def equal(value: int) -> str:
            return f"= {units.exact(value)}".replace(",", r"\,")

        lines = [f"% {remark}" for remark in (*self.remarks, self.domain) if remark]
        lines.append(r"\begin{aligned}")
        for part, expr in self.parts.items():
            lines.append(rf"{upright(part)} &= {self.tex(expr)} {equal(self.values[part])} \\")
        parts = " + ".join(map(upright, self.parts))
        lines.append(rf"{upright(self.quantity)} &= {parts or 0} {equal(self.value)}")
        return "\n".join([*lines, r"\end{aligned}"]) + "\n"

    def function(self) -> str:
        """Write a Python function of the sizes; called without arguments it gives the count."""
        from metacount.cli.expressions import broken, meaning

        arguments = ", ".join(f"{name}={n}" for name, n, _ in self.sizes)
        name = self.quantity.replace(":", "_")
        lines = [f"def {name}({'*, ' if arguments else ''}{arguments}):"]
        if len(lines[0]) > WIDEST_TEXT:
            each = [
                f"    {name}={n},  # {says}".removesuffix("  # ") for name, n, says in self.sizes
            ]
            lines = [f"def {name}(", "    *,", *each, "):"]
        says = meaning(self.quantity)
        model = self.name.replace("\\", "/").replace('"', "'")  # cannot end the docstring
        lines.append(f'    """{says[0].upper()}{says[1:]}: {model}."""')
        lines += [f"    # {line}" for line in wrapped(self.domain, WIDEST_TEXT - 6)]
        names: list[str] = []
        for part, expr in self.parts.items():
            names.append(re.sub(r"\W", "_", part))
            while names[-1] in {size for size, *_ in self.sizes}:
                names[-1] += "_"  # to assign to an argument would change what the rest reads
            value = self.python(expr)
            line = f"    {names[-1]} = {value}"
            if len(line) > WIDEST_TEXT:
                below = [f"        {text}" for text in broken(value, WIDEST_TEXT - 12)]
                lines += [f"    {names[-1]} = (", *below, "    )"]
            else:
                lines.append(line)
        return "\n".join([*lines, f"    return {' + '.join(names) or 0}"]) + "\n"

    def data(self) -> Json:
        """Collect every spelling of every part, and what is known of the form."""
        from metacount.cli.expressions import meaning

        return {
            "name": self.name,
            "quantity": self.quantity,
            "definition": meaning(self.quantity),
            "parts": {
                part: {
                    self.kind: self.text(expr),
                    "python": self.python(expr),
                    "latex": self.tex(expr),
                    "value": self.values[part],
                }
                for part, expr in self.parts.items()
            },
            "total": self.value,
            **self.more,
        }


def _hanging(label: str, text: str, width: int, indent: int) -> list[str]:
    """Break an expression into lines `indent` letters from the left; the first has a label."""
    from metacount.cli.expressions import broken

    lines = [" " * indent + line for line in broken(text, max(width - indent, 20))]
    return [f"{label}  {lines[0].lstrip()}", *lines[1:]] if label else lines


def textbook(model: Model, form: ClosedForm) -> Written:
    """Write a form of the textbook in its letters."""
    from sympy import latex

    from metacount.algebra.text import in_letters
    from metacount.cli.expressions import in_python
    from metacount.textbook.closed_form import readable
    from metacount.textbook.count import ALL_POSITIONS

    rows = []
    for term in form.terms:
        n = form.numbers[term.letter]
        all_of_them = term.name == "seq_len" and n == model.spec.longest
        more = f" ({ALL_POSITIONS})" if all_of_them else ""
        rows.append((term.letter, term.name, n, term.meaning + more))
    heads = ("letter", "name", "here", "meaning")
    title = f"{model.name}: {form.quantity}"
    legend = ("letter", "name", "meaning", "unit")
    return Written(
        name=model.name,
        title=title,
        quantity=form.quantity,
        kind="letters",
        parts=form.parts,
        values=form.values,
        total=lambda: readable(sum(form.parts.values())),
        text=in_letters,
        python=partial(in_python, form=form),
        tex=latex,
        numbers=form.numbers,
        sizes=[(t.name, form.numbers[t.letter], t.meaning) for t in form.terms],
        remarks=[
            title,
            *(f"{t.letter} = {form.numbers[t.letter]}: {t.name}, {t.meaning}" for t in form.terms),
        ],
        domain="",
        sections=[[Grid(heads=heads, rows=rows, align="<<>", prose=True)]],
        more={
            "legend": [
                {**{word: getattr(t, word) for word in legend}, "value": form.numbers[t.letter]}
                for t in form.terms
            ],
            "source": "formula",
        },
    )


# ---- read off code


def _off_code(model: Model | TransformersOnly, form: CodeForm) -> Written:
    from sympy import latex

    from metacount.cli.expressions import in_fields, upright, whole_python
    from metacount.textbook.closed_form import readable
    from metacount.tracing.domain import in_words
    from metacount.tracing.symbols import SMALLEST

    measured = f"at these sizes {units.exact(form.value)}, which was measured as well"
    if form.confirmed:
        measured += f", and so it was at {form.confirmed} others"
    if form.untried:
        measured += f"; no other number could be tried of {', '.join(form.untried)}"
    sizes = (
        f"{name} {number}" + (f" ({RUN_MEANINGS[name]})" if name in RUN_MEANINGS else "")
        for name, number in form.numbers.items()
    )
    domain = [in_words(condition, in_fields) for condition in form.domain]
    holds_for = f"sizes from {SMALLEST}" + (f", where {'; '.join(domain)}" if domain else "")
    notes = [
        ("for", holds_for),
        *(("solved", f"{text}: a number to the code") for text in form.solved),
        *(("note", note) for note in form.notes),
        ("how", f"{form.how}; {form.source}"),
        ("here", measured),
        ("sizes", ", ".join(sizes)),
    ]
    parts = {role: readable(expr) for role, expr in form.by_role.items()}
    letters = {s for expr in parts.values() for s in expr.free_symbols}
    known = {s: upright(s.name) for s in letters if s.name not in RUN_MEANINGS}
    return Written(
        name=model.name,
        title=f"{model.name}: {form.quantity}, read off the code",
        quantity=form.quantity,
        kind="fields",
        parts=parts,
        values={role: _value(form, expr) for role, expr in form.by_role.items()},
        total=lambda: readable(form.total),
        text=in_fields,
        python=lambda expr: NAMES.sub(lambda name: _argument(name[0]), whole_python(expr)),
        tex=partial(latex, symbol_names=known, mul_symbol="dot"),
        numbers={},
        sizes=[(_argument(name), n, "") for name, n in form.numbers.items()],
        remarks=[f"{model.name}: {form.quantity}, {form.how}; {form.source}"],
        domain=f"for {holds_for}",
        sections=[_layers(form), [Notes(notes, pad=6)]],
        more={
            "split": "role",
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
            "numbers": form.numbers,
            "domain": domain,
            "how": form.how,
            "confirmed_at": form.confirmed,
            "untried": list(form.untried),
            "solved_for": {letter: list(at) for letter, at in form.solved_for},
            "notes": list(form.notes),
            "source": form.source,
        },
    )


def _value(form: CodeForm, expr: sympy.Expr) -> int:
    numbers = {s: n for s, n in form.every_number.items() if s in expr.free_symbols}
    return int(expr.subs(numbers).doit())


def _layers(form: CodeForm) -> list[Block]:
    from metacount.cli.expressions import in_fields
    from metacount.textbook.closed_form import readable

    blocks: list[Block] = []
    where = ""
    parts = [(part, part.layers) for part in form.parts if part.layers is not None]
    longest = max((len(part.role) for part, _ in parts), default=0)
    for part, layers in parts:
        if part.where != where:
            where, count = part.where, in_fields(layers.expr)
            alike = f"{count} = {layers.count}" if layers.expr.free_symbols else count
            others = f", seen so at {layers.confirmed} other numbers of layers"
            sure = others if layers.confirmed else ""
            blocks.append(Text(f"{where}: {alike} alike{sure}; one has"))
        label, text = f"  {part.role:<{longest}}", in_fields(readable(part.expr))
        blocks.append(Lines(partial(_hanging, label, text, indent=longest + 4)))
    return blocks


def _argument(name: str) -> str:
    plain = name.replace(".", "__")
    return f"{plain}_" if iskeyword(plain) else plain
