"""Judges a formula of any kind: a text, a SymPy expression or a function."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import sympy

from metacount.check.function import judged_function
from metacount.check.verdict import TIMEOUT, judged_text
from metacount.errors import InputError, nearest, shown
from metacount.in_hand import check_size
from metacount.resolve import model_of
from metacount.spec import Request, Workload
from metacount.textbook.closed_form import COUNTS
from metacount.textbook.count import count, fitted

if TYPE_CHECKING:
    from metacount.check.judgement import Judgement
    from metacount.resolve import Given


def check(
    formula: object,
    model: Given,
    *,
    quantity: str = "params",
    workload: Workload | Request | None = None,
    timeout: float = TIMEOUT,
) -> Judgement:
    """Judge `formula`, a text, a SymPy expression or a function, as a count of `model`.

    Raises `InputError` where it is no formula, names what the model does not have, or takes more
    than `timeout` seconds.

    >>> check("12*n_layers*d_model**2", "gpt2").verdict
    'wrong'
    >>> check("V*d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d) + d + V*d", "llama-7b").verdict
    'equal'
    """
    found = model_of(model)
    if quantity not in COUNTS:
        known = nearest(quantity, COUNTS, f"choose one of {', '.join(COUNTS)}")
        raise InputError(f"quantity '{shown(quantity)}' is unknown; {known}")
    check_size(model, count(found.spec, Request()).params)
    case = (found.spec, fitted(found.spec, workload or Request()))
    if isinstance(formula, sympy.Basic | int | Fraction):
        formula = _written(formula)  # read as text: the same names, the same bounds
    if isinstance(formula, str):
        return judged_text(formula, found, case, quantity, timeout)
    if callable(formula):
        return judged_function(formula, found, case, quantity, timeout)
    raise InputError(
        f"a formula is a text, a SymPy expression or a function: got {shown(repr(formula))}"
    )


def _written(formula: object) -> str:
    try:
        return str(formula)
    except ValueError:
        raise InputError("the number is too long; at most 40 digits") from None
