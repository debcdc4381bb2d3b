"""Limits hold for whatever is given: texts, functions of a file, functions of the caller."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from fractions import Fraction
from typing import Any

import pytest
from helpers import judged_functions
from helpers.release import one_day_in

import metacount
from metacount import InputError
from metacount.algebra.limits import TooLong, limited

LLAMA = "2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)"
# 36 characters that took SymPy 285 seconds
SLOW = "((d+N)/(m+h)+(V+1)/(S+d))**4*1/(d-N)"


def forever() -> None:
    while True:
        pass


# A program, and what it prints: a limit within a weakref's callback, whose error would go to stderr
# alone, comes again; a limit in a thread leaves a function that is traced afterwards alone.
CALLBACK = """
thing = Thing()
reference = weakref.ref(thing, slow)
try:
    with limited(0.1):
        del thing
        time.sleep(30)
except TooLong:
    print("ended")
"""
THREAD = """
def work():
    for _ in range(20):
        try:
            with limited(0.01):
                BLOCK
        except TooLong:
            pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.settrace(lambda *_: None)
print(sum(traced(n) for n in range(1000)))
"""
BEFORE = """
import sys, threading, time, weakref
from metacount.algebra.limits import TooLong, limited
class Thing: pass
def slow(_reference):
    until = time.monotonic() + 0.3
    while time.monotonic() < until: pass
def traced(n):
    return n + 1
"""
PROGRAMS = [(CALLBACK, "ended")]
PROGRAMS += [(THREAD.replace("BLOCK", each), "500500") for each in ("pass", "while True: pass")]


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_a_limit_in_an_odd_place_ends_and_leaves_nothing(program: str, printed: str) -> None:
    command = [sys.executable, "-c", BEFORE + program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"{printed}\n", "")


@one_day_in(4)
def test_a_text_that_letters_cannot_take_is_judged_by_numbers() -> None:
    result = metacount.check(SLOW, "llama-7b", timeout=4)
    assert result.verdict == "wrong" and result.theirs is None
    # at the model's sizes, exactly
    exact = (Fraction(4096 + 32, 11008 + 32) + Fraction(32001, 2048 + 4096)) ** 4 / (4096 - 32)
    assert result.theirs_value == exact
    right = metacount.check(f"{LLAMA} + 0*({SLOW})", "llama-7b", quantity="params", timeout=4)
    assert right.verdict in ("equal_where_tried", "untried")


@pytest.mark.parametrize("thread", [False, True])
def test_a_limit_ends_a_loop_and_what_swallows_it(thread: bool) -> None:
    ended = []

    def work() -> None:
        with pytest.raises(TooLong), limited(0.3):
            try:
                forever()
            except BaseException:
                forever()
        ended.append(True)
        with limited(5):  # and it is over: nothing arrives later
            time.sleep(0.5)

    if thread:
        runner = threading.Thread(target=work)
        runner.start()
        runner.join(20)
    else:
        work()
    assert ended == [True]


ERRORS = (SystemExit(0), GeneratorExit(), BaseException("x"), RecursionError("deep"), MemoryError())


@pytest.mark.parametrize("error", [None, *ERRORS])
def test_a_function_of_the_caller_ends_in_one_line(error: BaseException | None) -> None:
    def mine(d_model: Any) -> Any:
        if error is not None:
            raise error
        time.sleep(60)

    said = "mine: " if error is not None else "mine: stopped after 1 s"
    with pytest.raises(InputError, match=said):
        metacount.check(mine, "llama-7b", timeout=60 if error is not None else 1)


def test_an_exit_at_other_sizes_does_not_end_the_caller() -> None:
    def mine(cfg: Any) -> Any:
        return judged_functions.right(cfg) if cfg.d_model == 4096 else sys.exit(3)

    result = metacount.check(mine, "llama-7b", timeout=60)
    assert (result.verdict, result.holds) == ("equal_here", False)
    assert result.condition is not None and result.condition.startswith("d_model = 4096 ")
