"""The judge: a formula and a model in, a `Judgement` out."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.bounded import in_letters
from metacount.algebra.exact import is_zero, plain
from metacount.algebra.limits import TooLong, limited, passed
from metacount.algebra.text import read
from metacount.check.comparison import Theirs, Tried, small_cases, tried_at
from metacount.check.condition import condition, named
from metacount.check.explain.difference import explain, explain_numbers
from metacount.check.given.call import Answer
from metacount.check.given.vocabulary import NAMES, Vocabulary, numbers_of
from metacount.check.ground import rests_on
from metacount.check.judgement import (
    EQUAL,
    HERE,
    TRIED,
    UNTRIED,
    WRONG,
    Counterexample,
    Judgement,
    Term,
)
from metacount.check.structure import structure
from metacount.check.truth import Truth, count_of
from metacount.resolve import Model

if TYPE_CHECKING:
    from metacount.check.trials import Case

TIMEOUT = 10.0  # seconds for a formula, whatever it is
FOR_LETTERS, FOR_TRIALS, FOR_WORDS = 0.6, 0.2, 0.2  # shares of it; words are within letters
NO_TIME = "not accounted for: no time was left to look for the mistake"
WRONG_AT = 40  # small sizes at which a wrong formula is evaluated, to find the mistake


def vocabulary(model: Model, case: Case, quantity: str) -> Vocabulary:
    """Return the names that a formula about `model` may use."""
    config = model.source.config if model.source is not None else None
    return Vocabulary(*case, quantity, name=model.id, config=config)


def judged_text(
    text: str, model: Model, case: Case, quantity: str, timeout: float = TIMEOUT
) -> Judgement:
    """Judge a text: in letters, or by numbers alone where letters take too long."""
    formula = read(text)
    words = vocabulary(model, case, quantity)
    theirs = Theirs(formula.tree, words.meanings(formula.names), text)
    notes = [*formula.notes, *words.notes]
    answer = Answer(theirs.value(case), notes)
    try:
        with limited(timeout * FOR_LETTERS, computing=True):
            return judged(theirs, model, case, quantity, notes, timeout)
    except TooLong:
        pass
    seconds = timeout * FOR_LETTERS
    answer.unsure = f"multiplying it out takes more than {seconds:g} s"
    notes.append(f"compared in numbers only: {answer.unsure}")
    if answer.value == count_of(*case, quantity):
        answer.tried = _tried(theirs, case, quantity, timeout)
    else:
        late = passed(timeout * FOR_TRIALS, computing=True)
        used = {a for expr in theirs.names.values() for a in expr.free_symbols}
        answer.cases = small_cases(case, theirs.value, WRONG_AT, late, used)
    return judged_numbers(answer, model, case, quantity, timeout)


def judged(
    theirs: Theirs,
    model: Model,
    case: Case,
    quantity: str,
    notes: list[str],
    timeout: float,
    answer: Answer | None = None,
) -> Judgement:
    """Judge a formula in our letters.

    `answer` is what the function gave that it was read from: equal in letters is equal for all
    sizes only where numbers agreed everywhere.
    """
    truth = Truth(*case, quantity)
    numbers = numbers_of(*case)
    expr, below = in_letters(theirs.tree, theirs.names)
    value = theirs.value(case)
    difference = plain(expr - truth.expr)
    settled, notes = is_zero(difference), [*notes]
    below = [b for b in below if not b.xreplace(dict(truth.rules())).is_nonzero]
    verdict, where = EQUAL, None
    if not settled and (rules := _rules(difference, truth)):
        settled, where = True, rules
    tried = answer.tried if answer is not None else None
    terms: tuple[Term, ...] = ()
    if not settled and value != truth.value:
        verdict = WRONG
        meanings = vocabulary(model, case, quantity).meanings
        try:
            with limited(timeout * FOR_WORDS, computing=True):
                terms = explain(expr, difference, truth, numbers, theirs.text, meanings)
        except TooLong:
            shown = truth.shown(difference)
            terms = (Term(expr=shown, value=value - truth.value, words=NO_TIME, known=False),)
    elif not settled:
        if tried is None or tried.small is None:
            tried = _tried(theirs, case, quantity, timeout)
        verdict = _verdict(tried)
        where = None if tried.small is None else condition(difference, numbers)
    elif below:
        tried = _tried(theirs, case, quantity, timeout)
        verdict = _verdict(tried)
        divisor = named(below[0])
        notes.append(f"not decided for all sizes: it divides by {divisor}, which may be 0")
    elif answer is not None and not sure(answer):
        verdict = TRIED if tried is not None and tried.compared else UNTRIED
        notes += _undecided(answer)
    if tried is not None and verdict != EQUAL:
        notes += tried.notes()
        where = where or _fixed(tried)
    return Judgement(
        verdict=verdict,
        quantity=quantity,
        model=model.id,
        structure=structure(case[0]),
        rests_on=rests_on(model, case[1], quantity),
        free=truth.names(expr.free_symbols),
        theirs=expr.subs(truth.folded),
        ours=truth.expr.subs(truth.folded),
        difference=sympy.Integer(0) if settled else truth.shown(difference),
        theirs_value=value,
        ours_value=truth.value,
        terms=terms,
        condition=where,
        counterexample=_counterexample(tried, quantity, expr.free_symbols),
        tried=0 if tried is None or verdict == EQUAL else tried.compared,
        planned=0 if tried is None or verdict == EQUAL else tried.planned,
        notes=tuple(notes),
    )


def _tried(theirs: Theirs, case: Case, quantity: str, timeout: float) -> Tried:
    others = theirs.places(case, quantity)
    late = passed(timeout * FOR_TRIALS, computing=True)
    return tried_at(others, theirs.value, case, quantity, late)


def sure(answer: Answer) -> bool:
    """Tell whether a function was compared in numbers wherever planned,
    and nothing makes letters unsure.
    """
    return answer.tried is not None and answer.tried.complete and answer.unsure is None


def judged_numbers(
    answer: Answer, model: Model, case: Case, quantity: str, timeout: float
) -> Judgement:
    """Judge a formula of which only numbers are known."""
    truth = Truth(*case, quantity)
    tried, notes = answer.tried, [*answer.notes]
    terms: tuple[Term, ...] = ()
    verdict, where = WRONG, None
    if answer.value == truth.value and tried is not None:
        verdict, where = _verdict(tried), _fixed(tried)
        notes += tried.notes() + (_undecided(answer) if verdict != HERE else [])
    else:
        try:
            with limited(timeout * FOR_WORDS, computing=True):
                terms = explain_numbers(case, answer, truth)
        except TooLong:
            off = answer.value - truth.value
            terms = (Term(expr=None, value=off, words=NO_TIME, known=False),)
    return Judgement(
        verdict=verdict,
        quantity=quantity,
        model=model.id,
        structure=structure(case[0]),
        rests_on=rests_on(model, case[1], quantity),
        free=truth.names(set()),
        theirs=None,
        ours=truth.expr.subs(truth.folded),
        difference=None,
        theirs_value=answer.value,
        ours_value=truth.value,
        terms=terms,
        condition=where,
        counterexample=_counterexample(tried, quantity, set()),
        tried=len(answer.cases) if tried is None else tried.compared,
        planned=len(answer.cases) if tried is None else tried.planned,
        notes=tuple(notes),
    )


def _verdict(tried: Tried) -> str:
    """Choose the verdict on what is right at the model's sizes."""
    if tried.small is not None or (tried.fixed and tried.compared):
        return HERE
    return TRIED if tried.compared else UNTRIED


def _undecided(answer: Answer) -> list[str]:
    """Say why equal numbers are not called equal for all sizes."""
    return [] if answer.unsure is None else [f"not decided for all sizes: {answer.unsure}"]


def _fixed(tried: Tried) -> str | None:
    if not tried.fixed or not tried.compared:
        return None
    sizes = " and ".join(f"{name} = {size}" for name, size in tried.fixed.items())
    return f"{sizes} (it gives an error at all others that were tried)"


def _rules(difference: sympy.Expr, truth: Truth) -> str:
    """Name the fewest rules of sizes by which a difference is zero; nothing where it is not.

    They hold in every model of this structure: key/value heads divide the heads.
    """
    rules = dict(truth.rules())
    used = [letter for letter in rules if letter in difference.free_symbols]
    for n in range(1, len(used) + 1):
        for several in combinations(used, n):
            if is_zero(difference.xreplace({a: rules[a] for a in several})):
                return " and ".join(
                    f"{NAMES[a.name]} is a multiple of {_factor(rules[a])}" for a in several
                )
    return ""


def _factor(product: sympy.Expr) -> str:
    """Name what a size is a multiple of: `2`, or another size."""
    first = next(a for a in product.args if a.is_Integer or a.name in NAMES)
    return str(first) if first.is_Integer else NAMES[first.name]


def _counterexample(
    tried: Tried | None, quantity: str, letters: set[sympy.Expr]
) -> Counterexample | None:
    """Return small sizes at which the two differ: those that either side uses."""
    if tried is None or tried.small is None:
        return None
    case, theirs = tried.small
    used = letters | Truth(*case, quantity).expr.free_symbols
    return Counterexample(
        sizes={NAMES[a.name]: n for a, n in numbers_of(*case).items() if a in used},
        theirs=theirs,
        ours=count_of(*case, quantity),
    )
