"""The process in which somebody's file is run: one job in, one answer out, both JSON.

The function's own output goes nowhere: the answer has a channel that it does not know.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from metacount.check.call import ask
from metacount.check.given.process import ENDED, NAME, loaded
from metacount.check.names import Vocabulary
from metacount.errors import InputError, shown
from metacount.spec import ModelSpec, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.files import Json

MAX_MEMORY = 4 * 2**30  # bytes of data
MAX_FILE = 2**26  # bytes of a file that it writes
MORE_PROCESSES = 200  # than there are already
CATCHABLE = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]

# Of <linux/prctl.h>: orphans below become children of this process; it ends with its parent.
SET_CHILD_SUBREAPER, SET_PDEATHSIG = 36, 1


def supervise() -> None:
    """Return in a process of its own, which runs the function; this one keeps what that leaves.

    Whatever session it moves to and whatever environment it clears, all that the function starts
    stays below this process, by which it is found. It hears no signal of the function's, says with
    which code that ended, and waits to be killed. Where there is no `prctl` there is none of this.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        if prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) or prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            return
        before = {n: signal.signal(n, signal.SIG_IGN) for n in CATCHABLE if n != signal.SIGCHLD}
        if not (worker := os.fork()):
            for number, handler in before.items():
                signal.signal(number, handler)
            return
        ended, status = os.wait()
        while ended != worker:
            ended, status = os.wait()
        with contextlib.suppress(OSError):
            os.write(1, json.dumps({ENDED: os.waitstatus_to_exitcode(status)}).encode() + b"\n")
        while True:
            signal.pause()


def main(answer_to: Callable[[Json], Json]) -> None:
    """Read a job from stdin, answer on what was stdout."""
    supervise()
    job = json.loads(sys.stdin.read())
    channel = os.dup(1)
    os.set_inheritable(channel, False)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    home = os.getpid()
    _limit(job["seconds"])
    try:
        answer = answer_to(job)
    except InputError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"{job['name']}: ran out of memory"}
    except BaseException as error:  # KeyboardInterrupt: nobody sits at this keyboard
        answer = {"error": f"{job['name']}: raised {type(error).__name__}"}
    if os.getpid() == home:  # and not a fork that the function made
        with os.fdopen(channel, "w", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")
    os._exit(0)  # whatever threads it has left behind


def _limit(seconds: float) -> None:
    """Limit memory, processes, files and time, for all that the function starts as well."""
    try:
        import resource
    except ImportError:  # not every system has it
        return

    def lower(name: str, limit: int) -> None:
        kind = getattr(resource, name, None)
        if kind is not None:
            _, most = resource.getrlimit(kind)
            limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(kind, (limit, most if name == "RLIMIT_DATA" else limit))

    lower("RLIMIT_DATA", MAX_MEMORY)
    lower("RLIMIT_FSIZE", MAX_FILE)
    lower("RLIMIT_CORE", 0)
    lower("RLIMIT_CPU", int(seconds * (os.cpu_count() or 1)) + 5)
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            running = int(file.read().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return
    lower("RLIMIT_NPROC", running + MORE_PROCESSES)


def _answer(job: Json) -> Json:
    spec, workload = ModelSpec.from_dict(job["spec"]), Workload(**job["workload"])
    words = Vocabulary(spec, workload, job["quantity"], name=job["model"], config=job["config"])
    function = _load(job["file"], job["function"], job["name"])
    return ask(function, (spec, workload), words, job["name"], seconds=job["seconds"]).to_data()


def _load(path: str, name: str, shown_as: str) -> Callable[..., object]:
    module = loaded(path, shown_as)
    function: object = getattr(module, name, None)
    if not callable(function):
        known = [n for n, value in vars(module).items() if inspect_function(value)]
        remedy = f"it has {', '.join(known)}" if known else "it has no function"
        raise InputError(f"{shown(path)}: has no function '{shown(name)}'; {remedy}")
    return function


def inspect_function(value: object) -> bool:
    """Tell whether `value` can be called and is defined by the file itself."""
    return getattr(value, "__module__", None) == NAME and callable(value)


if __name__ == "__main__":
    main(_answer)
