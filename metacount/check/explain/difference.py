"""A difference as mistakes that together make it, exactly; what is left is said to be left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.algebra.exact import plain, value_at
from metacount.algebra.monomials import NotMonomials, Space, Table, less, plus
from metacount.check.explain.change import LIKELY
from metacount.check.explain.changes import Changes
from metacount.check.explain.literals import Literals, summands, whole_quotients
from metacount.check.explain.mistakes import Library, parts_of
from metacount.check.explain.numbers import UNKNOWN, UNTOLD, explain_numbers
from metacount.check.explain.readings import read, relations, unlike
from metacount.check.explain.story import OR, Told
from metacount.check.explain.teller import DEAREST, Teller
from metacount.check.given.vocabulary import LETTERS
from metacount.check.judgement import Term
from metacount.check.parts.params import Letters
from metacount.check.parts.products import CAUSAL
from metacount.textbook.closed_form import EXPLAINED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import sympy

    from metacount.check.truth import Truth

HEADS = "multiplied by n_heads once too often"
__all__ = ["UNKNOWN", "explain", "explain_numbers"]


def explain(
    theirs: sympy.Expr,
    difference: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    text: str | None = None,
    meanings: Callable[[tuple[str, ...]], Mapping[str, sympy.Expr]] | None = None,
) -> tuple[Term, ...]:
    """Explain `difference`, theirs less ours, as terms that sum to it, the largest first."""
    if truth.quantity not in EXPLAINED:
        value = value_at(difference, numbers)
        return (Term(expr=truth.shown(difference), value=value, words=UNTOLD, known=False),)
    try:
        told, teller = _told(theirs, truth, numbers, text, meanings)
    except NotMonomials:
        return _terms([], difference, truth, numbers, ())
    if told is None:
        return _terms([], difference, truth, numbers, ())
    return _terms(_said(told, truth, teller), difference, truth, numbers, told.reading.words)


def _told(
    theirs: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    text: str | None,
    meanings: Callable[[tuple[str, ...]], Mapping[str, sympy.Expr]] | None,
) -> tuple[Told | None, Teller]:
    letters = Letters(truth.spec, truth.workload)
    parts = parts_of(letters, truth.quantity)
    exprs = [plain(truth.expr), *(plain(part.expr) for part in parts)]
    exprs += [plain(expr) for part in parts for _, expr in part.variants]
    theirs, whole = whole_quotients(theirs, numbers)
    literals = None if text is None or meanings is None else Literals(text, meanings, numbers)
    if literals is not None and literals.expr is None:
        literals = None
    marked: dict[sympy.Expr, int] = {} if literals is None else literals.values
    marks = [] if literals is None else [literals.expr, *marked]
    space = Space([theirs, plain(theirs), *exprs, *marks, *numbers])
    library = Library(letters, truth.quantity, parts, space)
    known = relations(space, numbers, pins=literals is None)
    written = None if literals is None else frozenset(marked.values())
    changes = Changes(space, {**numbers, **marked}, written)
    teller = Teller(library, changes, truth.quantity)
    readings: list[tuple[Table, tuple[Table, ...], tuple[str, ...], frozenset[int] | None]] = []
    if literals is None:
        parts_of_theirs = tuple(space.table(one) for one in summands(theirs))
        readings.append((space.table(plain(theirs)), parts_of_theirs, (), None))
    else:
        readings += literals.read(library.whole, space)
        # what is most alike first: a cheap story ends the search under the others early
        readings.sort(key=lambda one: sum(unlike(one[0], library.whole)[1:]))
    for table, several, said, left in readings:
        for reading in read(table, several, library.whole, known, (*whole, *said), left):
            teller.tell(reading)
    if teller.best is None and readings:
        table, several, said, left = readings[0]
        for reading in read(table, several, library.whole, known, (*whole, *said), left):
            teller.sure(reading)
    return teller.best, teller


def _said(told: Told, truth: Truth, teller: Teller) -> list[tuple[sympy.Expr, str]]:
    """Return the terms of a story: what each adds, and its words."""
    space = teller.space
    now: Table = told.reading.taken(space.table(plain(truth.expr))) or {}
    said = []

    width = space.place.get(LETTERS["head_dim"])
    heads = any(one.place == width for one in told.reading.relations)

    def add(table: Table, words: str, cost: float | None) -> None:
        if heads:  # d_model is n_heads·head_dim here
            words = words.replace(HEADS, f"{HEADS} (as d_model in place of head_dim)")
        other = "" if cost is None else teller.instead(told.reading, table, words, cost)
        if words == CAUSAL:
            other = teller.linear(told.reading, table)
        other = other or told.rival
        said.append((space.expr(table), f"{words}{OR}{other}" if other else words))

    for edit in told.story.told:
        if not edit.late:
            add(edit.true, edit.words, edit.cost if edit.change else None)
            now = plus(now, edit.true)
    for change in told.everywhere:
        after = change.of(now)
        if after is None:
            return []
        add(
            less(after, now),
            change.words,
            None if change.whole or change.cost == LIKELY else change.cost,
        )
        now = after
    for edit in told.story.told:
        if edit.late:
            add(edit.true, edit.words, None)
            now = plus(now, edit.true)
    # what was found to be a part of the difference only leaves the rest
    return said if now == told.reading.theirs or told.cost == DEAREST else []


def _terms(
    said: list[tuple[sympy.Expr, str]],
    difference: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    words: tuple[str, ...],
) -> tuple[Term, ...]:
    left = difference
    terms = []
    for expr, word in said:
        left = left - expr
        terms.append(Term(expr=truth.shown(expr), value=value_at(expr, numbers), words=word))
    terms.sort(key=lambda term: -abs(term.value))
    left = plain(left)
    if left == 0:
        return tuple(terms)
    value, shown = value_at(left, numbers), truth.shown(left)
    if value == 0:
        text = f"nothing at these sizes, as {', '.join(words)}"
        return (*terms, Term(expr=shown, value=value, words=text))
    return (*terms, Term(expr=shown, value=value, words=UNKNOWN, known=False))
