"""`metacount check`: somebody's own formula against what the model has."""

from __future__ import annotations

from fractions import Fraction

from metacount import units
from metacount.cli.answer import Answer
from metacount.cli.options import check_quantity, request_of
from metacount.cli.report import WIDEST_TEXT, Formula, Grid, Lines, Notes, Text, bold, dim
from metacount.errors import EXIT_DISAGREE, InputError, shown
from metacount.resolve import file_and_name, find_model

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    import sympy

    from metacount.check import Judgement, Term
    from metacount.cli.report import Block, Report
    from metacount.resolve import Model
    from metacount.spec import Request

LABEL = 14  # characters of the first column
LONGEST = 110  # characters of a difference in names


def run(args: argparse.Namespace) -> Answer:
    from metacount.textbook.closed_form import COUNTS
    from metacount.textbook.count import fitted

    if args.quantity is not None:
        check_quantity(args.quantity, COUNTS)
    model = find_model(args.model, args.settings)
    judgement = _judgement(args.formula, model, args.quantity, request_of(args), args.timeout)
    return Answer(
        report=lambda: report_of(judgement, model.name),
        data=judgement.to_dict,
        table=lambda: _table(judgement),
        code=0 if judgement.holds else EXIT_DISAGREE,
        model=model,
        workload=fitted(model.spec, request_of(args)),
    )


def _judgement(
    formula: str, model: Model, quantity: str | None, request: Request, timeout: float
) -> Judgement:
    from metacount.check import check
    from metacount.textbook.count import fitted

    file = file_and_name(formula)
    if file is not None:
        from metacount.check.verdict import UNSAID, judged_file

        case = (model.spec, fitted(model.spec, request))
        return judged_file(*file, model, case, quantity or UNSAID, timeout=timeout)
    if formula.strip().endswith(".py"):
        raise InputError(f"{shown(formula)}: which function? give FILE.py:FUNCTION")
    return check(formula, model, quantity=quantity, workload=request, timeout=timeout)


def report_of(judgement: Judgement, model: str) -> Report:
    """Report verdict, what was compared, both sides, terms, counterexample, notes."""
    from metacount.check.comparison import named
    from metacount.cli.expressions import meaning

    difference = "" if judgement.difference is None else named(judgement.difference)
    terms = [_term(term) for term in judgement.terms]
    if len(terms) > 1 and len(difference) <= LONGEST:
        terms.insert(0, _row("difference", f"{difference}  (formula less model)"))
    condition = [] if judgement.condition is None else [_row("equal where", judgement.condition)]
    notes = [_row("note", note) for note in judgement.notes]
    sections: list[list[Block]] = [
        [Text(_verdict(judgement), bold)],
        [
            _row("model", f"{model}: {judgement.quantity}, {meaning(judgement.quantity)}"),
            _row("structure", judgement.structure),
            _row("rests on", judgement.rests_on),
        ],
        [
            *_side("formula", judgement.theirs, judgement.theirs_value),
            *_side("model has", judgement.ours, Fraction(judgement.ours_value)),
            *_letters(judgement),
        ],
        [*terms],
        [*condition],
        _counterexample(judgement),
    ]
    last = max(i for i, section in enumerate(sections) if section)
    sections[last] += notes
    return sections


def _table(judgement: Judgement) -> Grid:
    from sympy import latex

    from metacount.algebra.text import in_letters

    ours = Fraction(judgement.ours_value)
    sides = [("formula", judgement.theirs, judgement.theirs_value), ("model", judgement.ours, ours)]
    rows = [
        (
            what,
            None if expr is None else Formula(text=in_letters(expr), latex=latex(expr)),
            value.numerator if value.denominator == 1 else str(value),
        )
        for what, expr, value in (*sides, *((t.words, t.expr, t.value) for t in judgement.terms))
    ]
    return Grid(heads=("what", "form", "value"), rows=rows, align="<<>")


def _verdict(judgement: Judgement) -> str:
    from metacount.check.judgement import EQUAL, HERE, TRIED, UNTRIED

    if judgement.verdict == EQUAL:
        return f"equal for all sizes ({', '.join(judgement.free)})" if judgement.free else "equal"
    if judgement.verdict == TRIED:
        return f"equal wherever it could be tried: at these sizes and at {judgement.tried} others"
    if judgement.verdict == UNTRIED:
        return "equal at these sizes, but no other could be tried"
    if judgement.verdict == HERE:
        return "equal at these sizes, but not in general"
    difference = judgement.difference_value
    relative = ""
    if difference.denominator == 1:
        relative = f" ({units.relative(int(difference), judgement.ours_value)})"
    return f"wrong: {_way(difference)} {number(abs(difference))}{relative}"


def _way(value: Fraction) -> str:
    return "long by" if value > 0 else "short by"


def number(value: Fraction) -> str:
    """Format an exact number: what is no whole number as a whole one and a fraction.

    >>> number(Fraction(7200)), number(Fraction(22, 3)), number(Fraction(-1, 3))
    ('7,200', '7 + 1/3', '-1/3')
    """
    if value.denominator == 1:
        return units.exact(int(value))
    integer, rest = divmod(abs(value), 1)
    text = f"{units.exact(int(integer))} + {rest}" if integer else str(rest)
    return f"-({text})" if value < 0 and integer else f"-{text}" if value < 0 else text


def _row(label: str, text: str) -> Block:
    """Make a note whose long products may be broken."""

    def drawn(width: int) -> Sequence[str]:
        room = min(width, WIDEST_TEXT) - LABEL - 2
        words = (piece for word in text.split() for piece in _pieces(word, room))
        return Notes([(label, " ".join(words))], pad=LABEL).lines(width)

    return Lines(drawn)


def _pieces(word: str, room: int) -> Iterator[str]:
    """Yield the pieces of a product that is longer than a line, cut after a multiplication sign."""
    while len(word) > room and (at := word.rfind("·", 0, room)) > 0:
        yield word[: at + 1]
        word = word[at + 1 :]
    yield word


def _side(label: str, expr: sympy.Expr, value: Fraction) -> list[Block]:
    from metacount.algebra.text import in_letters

    if expr is None:
        return [_row(label, f"{number(value)} at these sizes (in numbers, not in letters)")]
    total = Text(f"= {number(value)}", dim, indent=LABEL + 2, unbroken=True)
    return [_row(label, in_letters(expr)), total]


def _letters(judgement: Judgement) -> list[Block]:
    words = ", ".join(f"{letter} {name}" for letter, name in judgement.letters.items())
    return [_row("letters", words)] if words else []


def _term(term: Term) -> Block:
    """Write a term as `short by n_layers·d_model = 7,200: what it is`."""
    label = _way(term.value) if term.value else "0 here"
    text = number(abs(term.value))
    if term.expr is not None:
        size = _size(term.expr if term.value >= 0 else _negated(term.expr))
        text = size if not term.value or size == text else f"{size} = {text}"
    return _row(label, f"{text}: {term.words}")


def _size(expr: sympy.Expr) -> str:
    from metacount.algebra.text import in_letters
    from metacount.check.comparison import named

    text = named(expr)
    return text if len(text) <= LONGEST else in_letters(expr)


def _negated(expr: sympy.Expr) -> sympy.Expr:
    """Negate an expression, where possible with no minus before a parenthesis."""
    from sympy import expand, factor_terms

    from metacount.textbook.closed_form import readable

    forms = [readable(-expr), factor_terms(expand(-expr)), expand(-expr)]
    return next((form for form in forms if not form.could_extract_minus_sign()), forms[0])


def _counterexample(result: Judgement) -> list[Block]:
    example = result.counterexample
    if example is None:
        return []
    sizes = ", ".join(f"{name} = {size}" for name, size in example.sizes.items())
    text = f"{sizes}: the formula gives {number(example.theirs)}, the model has {example.ours:,}"
    return [_row("counterexample", text)]
