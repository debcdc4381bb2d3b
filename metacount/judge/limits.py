"""A limit on wall-clock time for work in this process: whatever it is given, it ends."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

AGAIN = 0.2  # seconds between two attempts: code may swallow the first


class TooLong(BaseException):
    """The time is up. No `Exception`: code that catches everything must not catch this."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the code of a `with` when it takes more than `seconds`.

    In the main thread a signal does it, which ends a sleep too; in others, an exception that the
    interpreter raises between two steps.

    >>> with limited(10):
    ...     print("quick")
    quick
    """
    main = threading.current_thread() is threading.main_thread()
    with _by_signal(seconds) if main and _no_other_alarm() else _by_thread(seconds):
        yield


def _no_other_alarm() -> bool:
    """Whether signals can be used and the program around us does not use this one."""
    if not hasattr(signal, "setitimer"):
        return False
    handler = signal.getsignal(signal.SIGALRM)
    return handler in (signal.SIG_DFL, signal.SIG_IGN) or getattr(handler, "ours", False)


@contextlib.contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    running = True

    def stop(_number: int, _frame: FrameType | None) -> None:
        if running:
            raise TooLong

    stop.ours = True  # type: ignore[attr-defined]
    before, start = signal.signal(signal.SIGALRM, stop), time.monotonic()
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        while running:  # the signal may come in the middle of this
            with contextlib.suppress(TooLong):
                running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # a limit around this one goes on
            left = max(0.001, left - (time.monotonic() - start))
            signal.setitimer(signal.ITIMER_REAL, left, AGAIN)


@contextlib.contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    done, lock = threading.Event(), threading.Lock()
    raise_in, thread = ctypes.pythonapi.PyThreadState_SetAsyncExc, threading.get_ident()

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            with lock:
                if not done.is_set():
                    raise_in(ctypes.c_ulong(thread), ctypes.py_object(TooLong))
            wait = AGAIN

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with contextlib.suppress(TooLong):  # it may arrive in the middle of this
            done.set()
        with contextlib.suppress(TooLong), lock:
            raise_in(ctypes.c_ulong(thread), None)  # what was raised and has not arrived yet
