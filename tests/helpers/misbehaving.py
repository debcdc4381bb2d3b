"""Functions that leave something behind, never end, or end everything: for the tests of limits."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any


def _note(pid: int) -> None:
    with open(os.environ["MISBEHAVING"], "a") as file:
        file.write(f"{pid}\n")


def leaves_a_process(d_model: Any) -> Any:
    _note(subprocess.Popen(["sleep", "77"]).pid)
    return d_model


def leaves_a_process_in_its_own_session(d_model: Any) -> Any:
    _note(subprocess.Popen(["sleep", "77"], start_new_session=True, close_fds=False).pid)
    return d_model


def leaves_a_fork_in_its_own_session(d_model: Any) -> Any:
    if os.fork() == 0:
        os.setsid()
        _note(os.getpid())
        time.sleep(77)
        os._exit(0)
    return d_model


def leaves_a_stranger(d_model: Any) -> Any:
    """In a session of its own, with an environment of its own, of a parent that has ended."""
    if os.fork() == 0:
        if (pid := os.fork()) == 0:
            os.setsid()
            os.execve("/bin/sleep", ["sleep", "600"], {})
        _note(pid)
        os._exit(0)
    os.wait()
    return d_model


def signals_its_parent(d_model: Any) -> Any:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(os.getppid(), number)
    time.sleep(0.1)
    return d_model


def leaves_a_thread(d_model: Any) -> Any:
    threading.Thread(target=time.sleep, args=(77,)).start()
    return d_model


def leaves_an_endless_exit_handler(d_model: Any) -> Any:
    atexit.register(time.sleep, 77)
    return d_model


def returns_twice(d_model: Any) -> Any:
    if d_model == 4096 and os.fork() == 0:
        _note(os.getpid())
    return d_model


def ignores_signals(d_model: Any) -> Any:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _note(os.getpid())
    while True:
        time.sleep(0.1)


def catches_everything(d_model: Any) -> Any:
    _note(os.getpid())
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.1)


def stops_itself(d_model: Any) -> Any:
    _note(os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    return d_model


class Cleaned:
    def __del__(self) -> None:
        while True:
            pass


def cleans_up_forever(d_model: Any) -> Any:
    Cleaned()
    return d_model


def writes_forever(d_model: Any) -> Any:
    while True:
        sys.stdout.write("x" * 10_000)


def raises_an_interrupt(d_model: Any) -> Any:
    raise KeyboardInterrupt


class Odd(BaseException):
    def __str__(self) -> str:
        raise Odd


def raises_what_cannot_be_shown(d_model: Any) -> Any:
    raise Odd


def exits_generators(d_model: Any) -> Any:
    raise GeneratorExit


def closes_everything(d_model: Any) -> Any:
    os.closerange(0, 100)
    return d_model


def ends_at_once(d_model: Any) -> Any:
    os._exit(0)


def fills_the_disk(d_model: Any) -> Any:
    with open("large", "wb") as file:
        while True:
            file.write(b"x" * 2**20)
