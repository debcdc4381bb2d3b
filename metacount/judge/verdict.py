"""The judge: a formula and a model in, a `Judgement` out."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import sympy

from metacount.closed_form import QUANTITIES
from metacount.figures import fitted
from metacount.judge.condition import condition
from metacount.judge.exact import is_zero, plain, value_at
from metacount.judge.explain import explain
from metacount.judge.judgement import EQUAL, HERE, TRIED, WRONG, Counterexample, Judgement, Term
from metacount.judge.structure import structure
from metacount.judge.text import parse
from metacount.judge.trials import random_cases, shrunk
from metacount.judge.truth import Truth, count_of
from metacount.judge.vocabulary import NAMES, Vocabulary, numbers_of
from metacount.resolve import InputError, Model, find_model, shown
from metacount.spec import ModelSpec, Workload, nearest

if TYPE_CHECKING:
    from metacount.judge.trials import Case

TRIALS = 200  # other sizes, where letters do not decide


def check(
    formula: Any,
    model: str | Model | ModelSpec,
    *,
    quantity: str = "params",
    workload: Workload | None = None,
) -> Judgement:
    """Judge `formula`, a text, a SymPy expression or a function, as a count of `model`.

    Raises `InputError` where it is no formula, or names what the model does not have.

    >>> check("12*n_layers*d_model**2", "gpt2").verdict
    'wrong'
    >>> check("V*d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d) + d + V*d", "llama-7b").verdict
    'equal'
    """
    found = _model(model)
    if quantity not in QUANTITIES:
        known = nearest(quantity, QUANTITIES, f"choose one of {', '.join(QUANTITIES)}")
        raise InputError(f"quantity '{shown(quantity)}' is unknown; {known}")
    case = (found.spec, fitted(found.spec, workload or Workload()))
    if isinstance(formula, str):
        words = vocabulary(found, case, quantity)
        expr, notes = parse(formula, words.meanings)
        return judged(expr, found, case, quantity, notes, formula)
    if isinstance(formula, sympy.Basic | int | Fraction):
        words = vocabulary(found, case, quantity)
        # read as text: the same names, the same bounds
        expr, notes = parse(str(formula), words.meanings)
        return judged(expr, found, case, quantity, notes)
    if callable(formula):
        from metacount.judge.function import judged_function

        return judged_function(formula, found, case, quantity)
    raise InputError(
        f"a formula is a text, a SymPy expression or a function: got {shown(repr(formula))}"
    )


def _model(model: str | Model | ModelSpec) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, ModelSpec):
        return Model(id="the model", name="the model", spec=model, entry=None, changes={})
    return find_model(model)


def vocabulary(model: Model, case: Case, quantity: str) -> Vocabulary:
    """The names that a formula about `model` may use."""
    config = model.source.config if model.source is not None else None
    return Vocabulary(*case, quantity, name=model.id, config=config)


def judged(
    theirs: Any,
    model: Model,
    case: Case,
    quantity: str,
    notes: list[str],
    text: str | None = None,
) -> Judgement:
    """The verdict on an expression in our letters."""
    truth = Truth(*case, quantity)
    numbers = numbers_of(*case)
    value = value_at(theirs, numbers)
    difference = plain(theirs - truth.expr)
    settled = is_zero(difference)
    if not settled and difference.free_symbols & truth.rules().keys():
        settled = is_zero(difference.xreplace(dict(truth.rules()))) or settled
    verdict, tried, counterexample, where = EQUAL, 0, None, None
    terms: tuple[Term, ...] = ()
    if not settled and value != truth.value:
        verdict = WRONG
        meanings = vocabulary(model, case, quantity).meanings
        terms = explain(theirs, difference, truth, numbers, text, meanings)
    elif not settled:
        counterexample, tried = _counterexample(theirs, case, quantity)
        verdict = TRIED if counterexample is None else HERE
        where = None if counterexample is None else condition(difference, numbers)
    return Judgement(
        verdict=verdict,
        quantity=quantity,
        model=model.id,
        structure=structure(case[0]),
        free=truth.names(theirs.free_symbols),
        theirs=theirs.subs(truth.folded),
        ours=truth.expr.subs(truth.folded),
        difference=sympy.Integer(0) if settled else truth.shown(difference),
        theirs_value=value,
        ours_value=truth.value,
        terms=terms,
        condition=where,
        counterexample=counterexample,
        tried=tried,
        notes=tuple(notes),
    )


def _counterexample(theirs: Any, case: Case, quantity: str) -> tuple[Counterexample | None, int]:
    """The smallest sizes at which the two differ, and at how many others they were compared."""

    def differs(other: Case) -> bool:
        return value_at(theirs, numbers_of(*other)) != count_of(*other, quantity)

    others = random_cases(*case, TRIALS)
    first = next((other for other in others if differs(other)), None)
    if first is None:
        return None, len(others)
    small = shrunk(first, differs)
    value = value_at(theirs, numbers_of(*small))
    return counterexample_at(small, quantity, theirs.free_symbols, value), len(others)


def counterexample_at(
    case: Case, quantity: str, letters: set[Any], theirs: Fraction
) -> Counterexample:
    """The sizes of `case` that either side uses, and what both sides give there."""
    used = letters | Truth(*case, quantity).expr.free_symbols
    return Counterexample(
        sizes={NAMES[a.name]: n for a, n in numbers_of(*case).items() if a in used},
        theirs=theirs,
        ours=count_of(*case, quantity),
    )
