"""Formulas made wrong at random: `check` says equal of those that are, and of no other."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from helpers.miniatures import TINY
from helpers.random_models import changed, workloads
from helpers.release import ONLY
from helpers.structures import miniatures
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from metacount import Workload
from metacount.check import verdict
from metacount.check.judgement import EQUAL, WRONG
from metacount.check.verdict import check
from metacount.errors import SpecError
from metacount.spec import ModelSpec
from metacount.textbook.closed_form import ClosedForm, closed_form
from metacount.textbook.count import QUANTITIES, fitted


@st.composite
def altered(draw: st.DrawFn, terms: list[Any]) -> sympy.Expr:
    """The sum of `terms`, or what a slip of the pen makes of it."""
    total = sympy.Add(*terms)
    letters = sorted(total.free_symbols, key=str)
    assume(letters)
    one, other = draw(st.sampled_from(letters)), draw(st.sampled_from(letters))
    slips = [
        total,
        sympy.expand(total),
        total - draw(st.sampled_from(terms)),
        total.subs(one, other),
        total.subs(one, draw(st.integers(0, 5))),
        total.subs(one, one * other),
        total.subs(one, one / other),
        total.subs(one, 2 * one),
        total * sympy.Rational(draw(st.integers(1, 4)), draw(st.integers(1, 4))),
    ]
    found = draw(st.sampled_from(slips))
    assume(not found.has(sympy.zoo, sympy.nan, sympy.oo))
    return found


def is_judged_right(formula: sympy.Expr, spec: ModelSpec, form: ClosedForm, at: Workload) -> bool:
    """Whether the verdict and the two values are those that follow from the difference."""
    found = check(formula, spec, quantity=form.quantity, workload=at)
    difference = sympy.expand(formula - sympy.Add(*form.parts.values()))
    numbers = {letter: form.numbers[str(letter)] for letter in difference.free_symbols}
    value = difference.subs(numbers)
    if found.verdict == EQUAL and found.condition is not None:  # by a rule that it names
        return difference != 0 == value
    return (
        (found.verdict == EQUAL) == (difference == 0)
        and (found.verdict == WRONG) == (value != 0)
        and (found.theirs_value, found.ours_value) == (form.total + value, form.total)
    )


@ONLY  # a quarter of a second an example
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_slip_in_any_formula(data: st.DataObject) -> None:
    spec = data.draw(changed(miniatures(), tries=4))
    workload = fitted(spec, data.draw(workloads(spec, "bf16")))
    try:
        form = closed_form(spec, workload, data.draw(st.sampled_from(list(QUANTITIES))))
    except SpecError:
        assume(False)
    formula = data.draw(altered(list(form.parts.values())))
    assert is_judged_right(formula, spec, form, workload)


def test_a_planted_error_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, workload = ModelSpec(**TINY), Workload(seq_len=5)
    form = closed_form(spec, workload, "params")
    total = sympy.Add(*form.parts.values())
    d, h = (next(s for s in total.free_symbols if str(s) == letter) for letter in ("d", "h"))
    wrong = total - h + d  # d is 13, h is 6
    assert is_judged_right(wrong, spec, form, workload)
    assert is_judged_right(total, spec, form, workload)
    monkeypatch.setattr(verdict, "is_zero", lambda difference: (not difference.has(d * d), []))
    assert not is_judged_right(wrong, spec, form, workload)
