"""Judging a function: in this process for a caller's own, in another one for a file."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.algebra.limits import TooLong, limited
from metacount.algebra.text import read
from metacount.check.comparison import Theirs, Tried
from metacount.check.given.call import Answer, ask
from metacount.check.given.process import answer_of
from metacount.check.judgement import Judgement
from metacount.check.verdict import TIMEOUT, judged, judged_numbers, vocabulary
from metacount.errors import InputError, printable, shown
from metacount.spec import ModelSpec, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.check.trials import Case
    from metacount.files import Json
    from metacount.resolve import Model

FOR_LETTERS = 0.5  # share of the time that judging in letters may take


def judged_function(
    function: Callable[..., object],
    model: Model,
    case: Case,
    quantity: str,
    timeout: float = TIMEOUT,
) -> Judgement:
    """Judge a function, called here: it is the caller's own code."""
    name = shown(getattr(function, "__name__", "the function"))
    words = vocabulary(model, case, quantity)
    try:
        with limited(timeout):
            answer = ask(function, case, words, name, seconds=timeout)
    except TooLong:
        raise InputError(
            f"{name}: stopped after {timeout:g} s; is there a loop without end?"
        ) from None
    return _judged(answer, model, case, quantity, timeout)


def judged_file(
    path: str, function: str, model: Model, case: Case, quantity: str, *, timeout: float = TIMEOUT
) -> Judgement:
    """Judge a function of a file, run in a process that is stopped when it hangs."""
    name = f"{shown(path)}:{shown(function)}"
    if not os.path.isfile(path):
        raise InputError(f"{shown(path)}: no such file; give FILE.py:FUNCTION")
    job = {
        "file": path,
        "function": function,
        "name": name,
        "spec": case[0].to_dict(),
        "workload": case[1].to_dict(),
        "quantity": quantity,
        "model": model.id,
        "config": model.source.config if model.source is not None else {},
        "seconds": timeout,
    }
    data = answer_of(json.dumps(job), name, timeout)
    try:
        if "error" in data:
            raise InputError(printable(data["error"]))
        answer = _read(data, case[0])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: its process wrote over the answer") from None
    return _judged(answer, model, case, quantity, timeout)


def _read(data: Json, like: ModelSpec) -> Answer:
    answer = Answer(Fraction(data["value"]), [printable(note) for note in data["notes"]])
    answer.text, answer.unsure = data["text"], data["unsure"]
    answer.cases = [_case(found, like) for found in data["cases"]]
    if (found := data["tried"]) is not None:
        tried = answer.tried = Tried(found["planned"])
        tried.compared, tried.raised = found["compared"], found["raised"]
        tried.inexact, tried.late = found["inexact"], found["late"]
        tried.fixed = found["fixed"]
        tried.small = None if found["small"] is None else _case(found["small"], like)
    return answer


def _case(data: Json, like: ModelSpec) -> tuple[Case, Fraction]:
    # unchecked, as it was sent: it may have sizes that no rule of ours allows
    spec = like.substituted(**data["spec"])
    return (spec, Workload(**data["workload"])), Fraction(data["value"])


def _judged(answer: Answer, model: Model, case: Case, quantity: str, timeout: float) -> Judgement:
    """Judge in letters where the function took them; else, or where that takes long, by numbers."""
    if answer.text is not None:
        formula = read(answer.text)
        words = vocabulary(model, case, quantity)
        theirs = Theirs(formula.tree, words.meanings(formula.names), answer.text)
        try:
            with limited(timeout * FOR_LETTERS, computing=True):
                return judged(theirs, model, case, quantity, answer.notes, timeout, answer)
        except TooLong:
            answer.unsure = f"multiplying it out takes more than {timeout * FOR_LETTERS:g} s"
        except InputError as error:  # too large to be multiplied out
            answer.unsure = str(error)
    return judged_numbers(answer, model, case, quantity, timeout)
