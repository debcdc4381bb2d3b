"""Functions whose branches letters do not see: none that is wrong somewhere is called equal."""

from __future__ import annotations

import copy
import math
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from helpers import judged_functions as functions
from helpers.release import daily, one_day_in, one_in

import metacount
from metacount import Workload, find_model
from metacount.check import call
from metacount.check.letters import Asked, Code, Session
from metacount.check.verdict import judged_file

FILE = Path(functions.__file__)
# What the verdict must be, by the name's first word; "right": arithmetic that letters go through.
RIGHT, WRONG = ([n for n in vars(functions) if n.startswith(w)] for w in ("right", "wrong_"))
# Right, but letters do not decide, for the reason that is said.
TRIED = {
    "right_through_int": "it asks a size for an int",
    "right_through_a_loop": "it asks a size for an int",
    "right_in_text": "it asks a size for a text",
    "right_by_thirds": "it divides, and floats are rounded",
    "right_that_counts_its_calls": "it uses next",
}


@daily(7)
@pytest.mark.parametrize("name", one_in(5, WRONG))
def test_what_is_wrong_elsewhere_is_not_called_equal(name: str) -> None:
    result = metacount.check(getattr(functions, name), "llama-7b", timeout=60)
    assert (result.verdict, result.holds) == ("equal_here", False)
    counter = result.counterexample
    assert counter is not None and counter.theirs != counter.ours
    # the counterexample is a valid model that has what is said
    spec = find_model("llama-7b").spec.replace(**counter.sizes)
    assert metacount.count(spec, Workload()).params == counter.ours


@daily(12)
@pytest.mark.parametrize("name", ["one_argument_each", *RIGHT])
def test_arithmetic_is_equal_for_all_sizes_and_else_it_is_tried(name: str) -> None:
    result = metacount.check(getattr(functions, name), "llama-7b", timeout=60)
    assert result.verdict == ("equal_where_tried" if name in TRIED else "equal") and result.holds
    if name in TRIED:
        assert result.tried == result.planned > 500
        assert f"not decided for all sizes: {TRIED[name]}" in result.notes


@daily(3)
@pytest.mark.parametrize("name", ["wrong_heads_of_70b", "wrong_stack", "wrong_caught_everything"])
def test_so_it_is_in_a_process_of_its_own(name: str) -> None:
    model = find_model("llama-7b")
    case = (model.spec, Workload())
    result = judged_file(str(FILE), name, model, case, "params", timeout=60)
    assert result.verdict == "equal_here"
    assert result.counterexample is not None


@one_day_in(4)
def test_an_error_everywhere_else_is_no_success() -> None:
    result = metacount.check(functions.asserts_its_width, "llama-7b", timeout=60)
    assert (result.verdict, result.holds) == ("equal_here", False)
    assert result.condition == "d_model = 4096 (it gives an error at all others that were tried)"
    assert 0 < result.tried < result.planned and result.counterexample is None
    result = metacount.check(functions.asserts_everything, "llama-7b", timeout=60)
    assert (result.verdict, result.holds, result.tried) == ("untried", False, 0)


@one_day_in(4)
def test_all_sizes_is_not_said_when_the_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(cfg: Any) -> Any:
        time.sleep(0.05)
        return functions.right(cfg)

    result = metacount.check(slow, "llama-7b", timeout=4)
    assert result.verdict == "equal_where_tried" and 0 < result.tried < result.planned
    assert any(note.startswith("the time ran out: ") for note in result.notes)
    monkeypatch.setattr(call, "FOR_TRIALS", 0.0)  # letters alone do not decide
    result = metacount.check(functions.right, "llama-7b", timeout=60)
    assert (result.verdict, result.tried, result.holds) == ("untried", 0, False)


def entered(letter: Any) -> None:
    with letter:
        pass


# What a letter is asked by each of these.
ASKED = {
    "for bits": [
        *(lambda a: 1 & a, lambda a: a | 1, lambda a: 1 | a, lambda a: a ^ 1, lambda a: 1 ^ a),
        *(lambda a: a << 1, lambda a: 1 << a, lambda a: a >> 1, lambda a: 1 >> a, lambda a: ~a),
    ],
    "for a product of matrices": [lambda a: a @ a, lambda a: 1 @ a],
    "for a power": [lambda a: 2**a, lambda a: a**0.5, lambda a: pow(a, 2, 3)],
    "to be copied": [copy.copy, lambda a: type(a).__reduce_ex__(a, 2)],
    "to change": [lambda a: setattr(a, "x", 1), lambda a: delattr(a, "text")],
    "for its attribute": [
        *(lambda a: a.__class__, lambda a: hasattr(a, "real"), lambda a: getattr(a, "n", 0)),
        lambda a: isinstance(a, int),
    ],
    "for its attributes": [dir],
    "for its size": [sys.getsizeof],
    "for a context": [entered, lambda a: type(a).__exit__(a, None, None, None)],
    "for items": [iter, list, next, lambda a: 1 in a, lambda a: a[0]],
    "for a length": [len],
    "for a call": [lambda a: a()],
    "to wait": [lambda a: type(a).__await__(a)],
    "for its sign": [abs],
    "for an int": [int, math.trunc, range, lambda a: [1][a]],
    "for a float": [float],
    "for a number": [complex],
    "for a rounded number": [round],
    "for a text": [str, repr, format, bytes, lambda a: f"{a}"],
    "whether it is equal": [lambda a: a == 1, lambda a: a != 1, lambda a: a in (1, 2)],
    "whether it is 0": [lambda a: bool(a - 1)],
    "which is smaller": [lambda a: a < 1, lambda a: a <= 1],
    "which is larger": [lambda a: a > 1, lambda a: a >= 1],
    "for its hash": [hash, lambda a: {a}, lambda a: a in {1: 2}],
    "for arithmetic with": [lambda a: a + "1", lambda a: [0] * a, lambda a: a * float("inf")],
    "": [lambda a: min([a, 3]), lambda a: sorted([a, 3]), lambda a: Fraction(a, 2)],
}


@pytest.mark.parametrize("what", ASKED)
def test_a_letter_refuses_every_question_and_says_which(what: str) -> None:
    for question in ASKED[what]:
        session = Session()
        with pytest.raises(Asked, match=f"^{what}"):
            question(session.letter("d"))
        assert len(session.asked) == 1
    # no handler of the function can take it for an error of its own
    assert not issubclass(Asked, Exception)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda d: d + 1, None),
        (lambda d: sum([d for _ in range(3)]), None),
        (lambda d: (d is None) + d, None),
        (lambda d: type(d), "it uses type"),
        (functions.wrong_identity, "it asks whether two values are the same object"),
        (lambda d: d.__class__, "it asks for __class__"),
        (lambda d: id(d), "it uses id"),
        (functions.wrong_table_outside, "it uses a table that outlives the call"),
        (functions.wrong_stack, "it uses sys"),
        (functions.at_random, "it uses random"),
        (functions.beside, "it uses beside"),
        (lambda d: __import__("os").getpid() * d, "it uses __import__"),
    ],
)
def test_what_letters_cannot_refuse_is_looked_for_in_the_code(function: Any, why: Any) -> None:
    assert Code(function).why == why
