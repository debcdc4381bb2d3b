"""Judging a function: in this process for a caller's own, in another one for a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from metacount.judge.call import Answer, ask
from metacount.judge.explain import explain_numbers
from metacount.judge.judgement import HERE, TRIED, WRONG, Judgement, Term
from metacount.judge.structure import structure
from metacount.judge.text import parse
from metacount.judge.truth import Truth
from metacount.judge.verdict import counterexample_at, judged, vocabulary
from metacount.resolve import InputError, printable, shown
from metacount.spec import ModelSpec, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.judge.trials import Case
    from metacount.resolve import Model

TIMEOUT = 10  # seconds
MAX_ANSWER = 2**24  # bytes


def judged_function(
    function: Callable[..., Any], model: Model, case: Case, quantity: str
) -> Judgement:
    """The verdict on a function, called here: it is the caller's own code."""
    name = getattr(function, "__name__", "the function")
    answer = ask(function, case, vocabulary(model, case, quantity), name)
    return _judged(answer, model, case, quantity)


def judged_file(
    path: str, function: str, model: Model, case: Case, quantity: str, *, timeout: float = TIMEOUT
) -> Judgement:
    """The verdict on a function of a file, run in a process that is stopped when it hangs."""
    name = f"{shown(path)}:{shown(function)}"
    if not os.path.isfile(path):
        raise InputError(f"{shown(path)}: no such file; give FILE.py:FUNCTION")
    config = model.source.config if model.source is not None else {}
    job = {
        "file": path,
        "function": function,
        "name": name,
        "spec": case[0].to_dict(),
        "workload": case[1].to_dict(),
        "quantity": quantity,
        "model": model.id,
        "config": config,
    }
    data = _run(json.dumps(job), name, timeout)
    if "error" in data:
        raise InputError(printable(data["error"]))
    answer = Answer(Fraction(data["value"]), [printable(note) for note in data["notes"]])
    answer.text = data["text"]
    answer.cases = [_case(found) for found in data["cases"]]
    answer.small = None if data["small"] is None else _case(data["small"])
    return _judged(answer, model, case, quantity)


def _case(data: dict[str, Any]) -> tuple[Case, Fraction]:
    case = ModelSpec.from_dict(data["spec"]), Workload(**data["workload"])
    return case, Fraction(data["value"])


def _run(job: str, name: str, timeout: float) -> dict[str, Any]:
    """What the child process answers to `job`; it and all it started end with this call."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [path for path in (os.environ.get("PYTHONPATH"), package) if path]
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "metacount.judge.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(job.encode(), timeout=timeout)
    except subprocess.TimeoutExpired:
        raise InputError(f"{name}: stopped after {timeout:g} s; is there a loop without end? "
                         "--timeout gives it more") from None  # fmt: skip
    finally:
        _end(child)
    if not output or len(output) > MAX_ANSWER:
        code = child.returncode
        how = f"by signal {-code}" if code < 0 else f"with exit code {code} and without an answer"
        raise InputError(f"{name}: its process ended {how}; return a number instead")
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        raise InputError(f"{name}: its process wrote over the answer") from None
    return answer


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it is left
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _judged(answer: Answer, model: Model, case: Case, quantity: str) -> Judgement:
    words = vocabulary(model, case, quantity)
    if answer.text is not None:
        expr, _ = parse(answer.text, words.meanings)
        return judged(expr, model, case, quantity, answer.notes, answer.text)
    truth = Truth(*case, quantity)
    terms: tuple[Term, ...] = ()
    if answer.value != truth.value:
        verdict, small = WRONG, None
        terms = explain_numbers(case, answer, truth)
    else:
        verdict, small = (TRIED, None) if answer.small is None else (HERE, answer.small)
    return Judgement(
        verdict=verdict,
        quantity=quantity,
        model=model.id,
        structure=structure(case[0]),
        free=truth.names(set()),
        theirs=None,
        ours=truth.expr.subs(truth.folded),
        difference=None,
        theirs_value=answer.value,
        ours_value=truth.value,
        terms=terms,
        counterexample=None
        if small is None
        else counterexample_at(small[0], quantity, set(), small[1]),
        tried=len(answer.cases),
        notes=tuple(answer.notes),
    )
