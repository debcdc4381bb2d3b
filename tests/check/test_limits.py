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


def test_a_limit_that_comes_within_a_callback_comes_again_and_says_nothing() -> None:
    # what a weakref's callback raises goes nowhere but to stderr, here to a warning and an error
    program = """
import time, weakref
from metacount.algebra.limits import TooLong, limited

class Thing:
    pass

def slow(_reference):
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass

try:
    with limited(0.1):
        thing = Thing()
        reference = weakref.ref(thing, slow)
        del thing
        time.sleep(30)
except TooLong:
    print("ended")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("ended\n", "")


@pytest.mark.parametrize("block", ["pass", "while True: pass"])
def test_a_limit_in_a_thread_leaves_nothing_behind(block: str) -> None:
    """A function that is traced afterwards, as a debugger does, begins and ends."""
    program = f"""
import sys, threading
from metacount.algebra.limits import TooLong, limited

def work():
    for _ in range(20):
        try:
            with limited(0.01):
                {block}
        except TooLong:
            pass

def traced(n):
    return n + 1

thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.settrace(lambda *_: None)
print(sum(traced(n) for n in range(1000)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("500500\n", "")


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


def test_a_function_of_the_caller_is_stopped() -> None:
    def sleeps(d_model: Any) -> Any:
        time.sleep(60)
        return d_model

    with pytest.raises(InputError, match="sleeps: stopped after 1 s"):
        metacount.check(sleeps, "llama-7b", timeout=1)


@pytest.mark.parametrize(
    "error",
    [SystemExit(0), GeneratorExit(), BaseException("x"), RecursionError("deep"), MemoryError()],
)
def test_what_a_function_of_the_caller_raises_is_one_line(error: BaseException) -> None:
    def mine(d_model: Any) -> Any:
        raise error

    with pytest.raises(InputError, match="mine: "):
        metacount.check(mine, "llama-7b")


def test_an_exit_at_other_sizes_does_not_end_the_caller() -> None:
    def mine(cfg: Any) -> Any:
        if cfg.d_model != 4096:
            sys.exit(3)
        return judged_functions.right(cfg)

    result = metacount.check(mine, "llama-7b", timeout=60)
    assert (result.verdict, result.holds) == ("equal_here", False)
    assert result.condition is not None and result.condition.startswith("d_model = 4096 ")
