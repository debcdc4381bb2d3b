"""A judgement as text: the verdict in one line, both sides, then the difference in words."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from sympy import expand, factor_terms

from metacount import units
from metacount.algebra.writing import in_letters
from metacount.check.condition import named
from metacount.check.judgement import EQUAL, HERE, TRIED, UNTRIED
from metacount.textbook.closed_form import readable
from metacount.views.formula import meaning
from metacount.views.layout import WIDEST_TEXT, bold, columns, dim, paragraph, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sympy

    from metacount.check import Judgement, Term
    from metacount.resolve import Model

LABEL = 14  # characters of the first column
LONGEST = 110  # characters of a difference in names


def check_text(result: Judgement, model: Model) -> str:
    """Write verdict, what was compared, both sides, terms, counterexample, notes."""
    width = columns()
    lines = [*_bold(wrapped(_verdict(result), width)), ""]
    lines += _row("model", f"{model.name}: {result.quantity}, {meaning(result.quantity)}", width)
    lines += _row("structure", result.structure, width)
    lines += _row("rests on", result.rests_on, width)
    lines.append("")
    lines += _side("formula", result.theirs, result.theirs_value, width)
    lines += _side("model has", result.ours, Fraction(result.ours_value), width)
    if result.terms:
        lines.append("")
        whole = "" if result.difference is None else named(result.difference)
        if len(result.terms) > 1 and len(whole) <= LONGEST:
            lines += _row("difference", f"{whole}  (formula less model)", width)
        for term in result.terms:
            lines += _term(term, width)
    if result.condition is not None:
        lines += ["", *_row("equal where", result.condition, width)]
    lines += _counterexample(result, width)
    lines += [line for note in result.notes for line in _row("note", note, width)]
    return "\n".join(lines) + "\n"


def _verdict(result: Judgement) -> str:
    if result.verdict == EQUAL:
        return f"equal for all sizes ({', '.join(result.free)})" if result.free else "equal"
    if result.verdict == TRIED:
        return f"equal wherever it could be tried: at these sizes and at {result.tried} others"
    if result.verdict == UNTRIED:
        return "equal at these sizes, but no other could be tried"
    if result.verdict == HERE:
        return "equal at these sizes, but not in general"
    difference = result.difference_value
    relative = ""
    if difference.denominator == 1:
        relative = f" ({units.relative(int(difference), result.ours_value)})"
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
    whole, rest = divmod(abs(value), 1)
    text = f"{units.exact(int(whole))} + {rest}" if whole else str(rest)
    return f"-({text})" if value < 0 and whole else f"-{text}" if value < 0 else text


def _bold(lines: list[str]) -> list[str]:
    return [bold(line) for line in lines]


def _row(label: str, text: str, width: int) -> list[str]:
    room = min(width, WIDEST_TEXT) - LABEL - 2
    words = (piece for word in text.split() for piece in _pieces(word, room))
    return paragraph(f"{label:<{LABEL}}", " ".join(words), width)


def _pieces(word: str, room: int) -> Iterator[str]:
    """Yield the pieces of a product that is longer than a line, cut after a multiplication sign."""
    while len(word) > room and (at := word.rfind("·", 0, room)) > 0:
        yield word[: at + 1]
        word = word[at + 1 :]
    yield word


def _side(label: str, expr: sympy.Expr, value: Fraction, width: int) -> list[str]:
    if expr is None:
        return _row(label, f"{number(value)} at these sizes (in numbers, not in letters)", width)
    letters = in_letters(expr)
    indent = " " * (LABEL + 2)
    return [*_row(label, letters, width), indent + dim(f"= {number(value)}")]


def _term(term: Term, width: int) -> list[str]:
    """Write a term as `short by n_layers·d_model = 7,200: what it is`."""
    label = _way(term.value) if term.value else "0 here"
    text = number(abs(term.value))
    if term.expr is not None:
        size = _size(term.expr if term.value >= 0 else _negated(term.expr))
        text = size if not term.value or size == text else f"{size} = {text}"
    return _row(label, f"{text}: {term.words}", width)


def _size(expr: sympy.Expr) -> str:
    """Write an expression in our names; in letters where that is too long to read."""
    text = named(expr)
    return text if len(text) <= LONGEST else in_letters(expr)


def _negated(expr: sympy.Expr) -> sympy.Expr:
    """Negate an expression, where possible with no minus before a parenthesis."""
    forms = [readable(-expr), factor_terms(expand(-expr)), expand(-expr)]
    return next((form for form in forms if not form.could_extract_minus_sign()), forms[0])


def _counterexample(result: Judgement, width: int) -> list[str]:
    found = result.counterexample
    if found is None:
        return []
    sizes = ", ".join(f"{name} = {size}" for name, size in found.sizes.items())
    text = f"{sizes}: the formula gives {number(found.theirs)}, the model has {found.ours:,}"
    return ["", *_row("counterexample", text, width)]
