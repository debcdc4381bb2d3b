"""Somebody's file as a module, and the process in which it is run, from outside: it ends in time,
with all it started.

What it leaves behind may hold its pipes open, ignore signals, or move to a session of its own, so
nothing here waits for the end of a pipe, and descendants are looked for until none is left: below
the child, which on Linux keeps orphans (`child.supervise`), and by a mark in the environment. One
that ends this child, its parent, and clears the environment of what it leaves is not found.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING

from metacount.errors import InputError, shown

if TYPE_CHECKING:
    from metacount.files import Json

MAX_ANSWER = 2**24  # bytes
ENDED = "ended"  # how a process ended that gave no answer: the key of what `supervise` says
MARK = "METACOUNT_CHECK"  # in the environment of all that a check starts
ROUNDS = 20  # of looking for what is left


def answer_of(
    job: str, name: str, timeout: float, server: str = "metacount.check.given.child"
) -> Json:
    """Run `server` on `job` in a child process; it and all it started end with this call."""
    package = str(Path(__file__).resolve().parents[3])
    paths = [path for path in (os.environ.get("PYTHONPATH"), package) if path]
    mark = uuid.uuid4().hex
    until = time.monotonic() + timeout
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), MARK: mark},
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(job.encode())
            child.stdin.close()
        output = _line(child, child.stdout, until)
    finally:
        code = _end(child, mark)
    if output is None:
        raise InputError(
            f"{name}: stopped after {timeout:g} s; is there a loop without end? "
            "--timeout gives it more"
        )
    if not output.endswith(b"\n"):
        how = "with an answer that is too long" if len(output) > MAX_ANSWER else _ended(code)
        raise InputError(f"{name}: its process ended {how}")
    lines = output.splitlines()
    if len(lines) == 2 and lines[1].startswith(b'{"%s": ' % ENDED.encode()):  # it had answered
        lines.pop()
    try:
        answer = json.loads(b"\n".join(lines))
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise InputError(f"{name}: its process wrote over the answer")
    if ENDED in answer:
        raise InputError(f"{name}: its process ended {_ended(int(answer[ENDED]))}")
    return answer


def _ended(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with exit code {code} and without an answer"


def _line(child: subprocess.Popen[bytes], pipe: IO[bytes], until: float) -> bytes | None:
    """Read up to the end of the line, of the pipe or of the process; None when time is up."""
    line = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            ended = child.poll() is not None  # before the look: what it wrote is there then
            if selector.select(0 if ended else min(left, 0.05)):
                chunk = os.read(pipe.fileno(), 2**16)
                line += chunk
                if not chunk or chunk.endswith(b"\n") or len(line) > MAX_ANSWER:
                    if not chunk:
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            child.wait(max(0.0, until - time.monotonic()))
                    return bytes(line)
            elif ended:
                return bytes(line)
    return None


def _end(child: subprocess.Popen[bytes], mark: str) -> int:
    """Kill the process and all it started; return its exit code where it ended by itself."""
    ended = child.poll()
    for _ in range(ROUNDS):  # what is below it, while it is there to keep orphans
        left = _below(child.pid) if ended is None else []
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it is left
        os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    for _ in range(ROUNDS):
        left = _marked(mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
    return code if ended is None else ended


def _below(ancestor: int) -> list[int]:
    """Find the processes below one, without those that have ended."""
    children: dict[int, list[int]] = {}
    ended = set()
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(name))
                if state == b"Z":
                    ended.add(int(name))
    processes, waiting = [], [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        processes += [pid for pid in below if pid not in ended]
        waiting += below
    return processes


def _marked(mark: str) -> list[int]:
    sign, processes = f"{MARK}={mark}".encode(), []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit():
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if sign in file.read():
                            processes.append(int(name))
    return processes


NAME = "formula_file"  # of what is loaded, to itself


def loaded(path: str, shown_as: str) -> ModuleType:
    """Load a file as a module; what it raises becomes one line, an `InputError`."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{shown_as}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(
            f"{shown(path)}, line {error.lineno}: is not Python: {error.msg}"
        ) from None
    except MemoryError:
        raise
    except BaseException as error:
        raise InputError(
            f"{shown(path)}: raised {type(error).__name__} when it was loaded: {shown(error)}"
        ) from None
    return module
