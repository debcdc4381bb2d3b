"""Limits the time of work in this process: whatever it is given, it ends."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

AGAIN = 0.2  # seconds between two attempts: code may swallow the first


class TooLong(BaseException):
    """The time is up. No `Exception`: code that catches everything must not catch this."""


def passed(seconds: float, *, computing: bool = False) -> Callable[[], bool]:
    """Return a function that says whether so many seconds have passed, as `limited` counts them."""
    clock = time.process_time if computing else time.monotonic
    until = clock() + seconds
    return lambda: clock() > until


@contextlib.contextmanager
def limited(seconds: float, *, computing: bool = False) -> Iterator[None]:
    """Raise `TooLong` in the code of a `with` when it takes more than `seconds`.

    With `computing` these are seconds of the processor: what only computes gets the same on a busy
    machine. In the main thread a signal does it, which ends a sleep too; in others, an exception
    that the interpreter raises between two steps.

    >>> with limited(10):
    ...     print("quick")
    quick
    """
    main = threading.current_thread() is threading.main_thread()
    if main and _no_other_alarm(computing):
        with _by_signal(seconds, computing):
            yield
    else:
        with _by_thread(seconds, time.process_time if computing else time.monotonic):
            yield


def _alarm(computing: bool) -> tuple[signal.Signals, int]:
    """Return the signal and the timer that sends it."""
    if computing:
        return signal.SIGPROF, signal.ITIMER_PROF
    return signal.SIGALRM, signal.ITIMER_REAL


def _no_other_alarm(computing: bool) -> bool:
    """Tell whether signals can be used and the program around us does not use this one."""
    if not hasattr(signal, "setitimer"):
        return False
    handler = signal.getsignal(_alarm(computing)[0])
    return handler in (signal.SIG_DFL, signal.SIG_IGN) or isinstance(handler, _Stop)


class _Stop:
    """Ends what runs when its signal comes; handlers of this class are ours to replace."""

    running = True

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self.running:
            raise TooLong


@contextlib.contextmanager
def _by_signal(seconds: float, computing: bool) -> Iterator[None]:
    """Raise by a signal; one that comes within a callback is lost, unsaid, and comes again."""
    number, timer = _alarm(computing)
    clock = time.process_time if computing else time.monotonic
    stop = _Stop()
    tell = sys.unraisablehook
    sys.unraisablehook = lambda what: what.exc_type is TooLong or tell(what)
    before, start = signal.signal(number, stop), clock()
    left, _ = signal.setitimer(timer, seconds, AGAIN)
    try:
        yield
    finally:
        while stop.running:  # the signal may come in the middle of this
            with contextlib.suppress(TooLong):
                stop.running = False
        signal.setitimer(timer, 0)
        signal.signal(number, before)
        sys.unraisablehook = tell
        if left:  # a limit around this one goes on
            left = max(0.001, left - (clock() - start))
            signal.setitimer(timer, left, AGAIN)


@contextlib.contextmanager
def _by_thread(seconds: float, clock: Callable[[], float]) -> Iterator[None]:
    done, raised, thread = threading.Event(), False, threading.get_ident()
    until = clock() + seconds

    def watch() -> None:
        nonlocal raised
        wait = seconds
        while not done.wait(wait):
            if clock() >= until:
                raised = True
                _raise_in(thread)
            wait = AGAIN

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        while watcher.is_alive():
            with contextlib.suppress(TooLong):  # it may arrive in the middle of this
                done.set()
                watcher.join()
        if raised:
            _let_arrive(thread)


def _raise_in(thread: int) -> None:
    """Raise `TooLong` in a thread, between two of its next steps."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TooLong))


def _let_arrive(thread: int) -> None:
    """Let what was raised in this thread, and has perhaps not arrived, arrive here.

    It is raised once more, as nobody knows whether it arrived. To take it back would leave Python
    3.11 a note of an exception that never comes: the next traced function would never begin.
    """
    with contextlib.suppress(TooLong):
        _raise_in(thread)
        for _ in range(1000):  # at one of these steps
            pass
