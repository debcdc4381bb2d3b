"""Runs tests on mutants: a forked child for each, the tests that call what is changed first."""

from __future__ import annotations

import ast
import contextlib
import importlib
import marshal
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType

import pytest
from mutation.mutants import Mutant
from mutation.parts import ROOT
from mutation.record import Tried
from mutation.sitecustomize import KEY, Importer

PYTEST = [
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "_hypothesis_pytestplugin",
    "-o",
    "addopts=-m 'daily or not release'",  # what runs of the tests try, on whatever day
    "--doctest-modules",
    "--import-mode=prepend",
    "--assert=plain",
    "--hypothesis-profile=teeth",
    f"--rootdir={ROOT}",
]
MEMORY = 6 << 30
NOTHING_RAN = 5  # pytest's exit code
BROKEN = 70
SAME_FILE, ELSEWHERE = 2, 3  # of a test that does not call what is changed
SLOWER = 10  # a case of a line that no quicker one runs may take so many times as long
FEW = 3  # tests of each kind that are tried before the rest

Place = tuple[Path, int | None]  # a file, and the first line of a function of it


@dataclass
class Outcome:
    """What became of the mutants."""

    alive: list[Mutant] = field(default_factory=list)
    n_noticed: int = 0
    n_hung: int = 0
    noticed_by: set[str] = field(default_factory=set)
    noticed_in: dict[Place, dict[str, None]] = field(default_factory=dict)  # the last one last

    def note(self, mutant: Mutant, status: int, file: Path) -> None:
        """Count a mutant that was noticed, and by which test, where the test could say so."""
        self.n_noticed += 1
        self.n_hung += os.WIFSIGNALED(status)
        if file.exists():
            name = file.read_text()
            self.noticed_by.add(name)
            for place in places(mutant):
                found = self.noticed_in.setdefault(place, {})
                found.pop(name, None)
                found[name] = None


def places(mutant: Mutant) -> tuple[Place, Place]:
    """The function and the file that a mutant changes."""
    return (mutant.path, mutant.function), (mutant.path, None)


@dataclass
class Trial:
    """A mutant, the tests that are run on it now, and those that come after."""

    mutant: Mutant
    now: list[str]
    left: list[str]
    n_tests: int = 0
    until: float = 0.0

    def take(self, noticed_in: Mapping[Place, Mapping[str, None]]) -> None:
        """Choose the tests to run now: a few at first, and then all that are left."""
        self.now = self.left
        if not self.n_tests:
            known = [
                list(noticed_in.get(place, ()))[: -FEW - 1 : -1] for place in places(self.mutant)
            ]
            able = set(self.left)
            likely = [name for names in known for name in names if name in able]
            self.now = list(dict.fromkeys([*likely, *self.left[:FEW]]))
        gone = set(self.now)
        self.left = [name for name in self.left if name not in gone]
        self.n_tests += len(self.now)

    def begin(self, tests: Mapping[str, Tried], folder: Path) -> int:
        """Fork the child that runs them; its process id."""
        needs = sum(tests[name].seconds for name in self.now)
        self.until = time.monotonic() + 120 + 20 * needs
        return start(self.mutant.path, self.mutant.code, self.now, 20 + 3 * needs, folder)


class Chosen:
    """A plugin of pytest that runs these tests in this order, and notes the one that fails."""

    def __init__(self, tests: Sequence[str], to: Path) -> None:
        self.order, self.to = {name: i for i, name in enumerate(tests)}, to

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(kept, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.to.write_text(report.nodeid)


def choice(mutant: Mutant, tests: Mapping[str, Tried], budget: float) -> list[str]:
    """The tests to run on a mutant, within `budget` seconds.

    First those that run the changed statement, or call its function where none does; then those
    that may in another process, then all of the same files (a call may be kept in memory). Of each
    the quickest are first; of the first, a case that runs a line of the file which no quicker case
    of its test runs counts as `SLOWER` times as quick. No test of another file calls it: each file
    was watched in a process of its own. A change outside of functions may be seen by any test;
    those come first that run a statement which reads the constant, or call any function of its
    file.
    """
    path = str(mutant.path)
    statement = statement_of(mutant.path, mutant.line)
    runs = {name for name, test in tests.items() if test.lines.get(path, 0) & statement}

    def calls(test: Tried) -> bool:
        if mutant.function is not None:
            return (path, mutant.function) in test.calls
        return any(name == path for name, _ in test.calls)

    direct = {name for name, test in tests.items() if calls(test)}
    direct = direct & runs or direct
    near = {file_of(name) for name in direct}
    last = ELSEWHERE if mutant.function is None else SAME_FILE

    def order(name: str) -> tuple[int, float]:
        test = tests[name]
        rank = 0 if name in direct else 1 if test.starts else ELSEWHERE
        if rank == ELSEWHERE and file_of(name) in near:
            rank = SAME_FILE
        return rank, test.seconds

    found, spent = [], 0.0
    seen: dict[str, int] = {}  # lines that the cases of a test run
    ordered = []
    for (rank, seconds), name in sorted((order(name), name) for name in tests):
        test, lines = name.partition("[")[0], tests[name].lines.get(path, 0)
        leads = name in direct and lines & ~seen.get(test, 0)
        seen[test] = seen.get(test, 0) | lines
        ordered.append((rank, seconds / SLOWER if leads else seconds, name))
    for rank, _, name in sorted(ordered):
        spent += tests[name].seconds
        if rank <= last and (spent <= budget or not found):
            found.append(name)
    return found


@cache
def statement_of(path: Path, line: int) -> int:
    """The lines of the statement that a line is part of, one bit each; of a block, its head.

    Of a constant of the file, the lines of the statements that read it.
    """
    statements = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)
    ]
    around = [node for node in statements if node.lineno <= line <= (node.end_lineno or 0)]
    if not around:
        return 1 << line
    inner = max(around, key=lambda node: node.lineno)
    if inner.col_offset == 0 and isinstance(inner, ast.Assign | ast.AnnAssign):
        named = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
        names = {
            each.id for target in named for each in ast.walk(target) if isinstance(each, ast.Name)
        }
        lines = {
            each.lineno
            for node in statements
            for each in ast.walk(node)
            if isinstance(each, ast.Name) and each.id in names and each.lineno > line
        }
        return sum(1 << n for n in lines)
    body = getattr(inner, "body", None)
    end = body[0].lineno - 1 if body else inner.end_lineno or 0
    return sum(1 << n for n in range(inner.lineno, max(line, end) + 1))


def file_of(test: str) -> str:
    return test.partition("::")[0]


def start(path: Path, code: CodeType, tests: Sequence[str], seconds: float, folder: Path) -> int:
    """Fork a child that runs `tests` with `code` in the place of `path`; its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = BROKEN
    talk = os.fdopen(os.dup(2), "w")
    try:
        os.setsid()
        limit = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        mine = folder / str(os.getpid())
        mine.with_suffix(".code").write_bytes(marshal.dumps((module, str(path), code)))
        os.environ[KEY] = str(mine.with_suffix(".code"))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
        sys.meta_path.insert(0, Importer(module, str(path), code))
        try:
            importlib.import_module(module)
        except BaseException:
            status = 1
        else:
            files = dict.fromkeys(map(file_of, tests))
            status = pytest.main([*PYTEST, *files], plugins=[Chosen(tests, mine)])
    except BaseException:
        traceback.print_exc(file=talk)
        talk.flush()
    os._exit(status)


def ended(pid: int, until: float) -> int | None:
    """The status of a child that has ended, or is ended now because its time is up."""
    done, status = os.waitpid(pid, os.WNOHANG)
    if not done and time.monotonic() < until:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # with all that it started
    return status if done else os.waitpid(pid, 0)[1]


def run(
    todo: Sequence[Mutant],
    tests: Mapping[str, Tried],
    budget: float,
    jobs: int,
    folder: Path,
    say: Callable[[Mutant | None, int], None],
) -> Outcome:
    """Run tests on every mutant; stop at the first that fails, and say who survived.

    A few tests come first, in a process of their own: those that noticed other mutants of the
    function, and the quickest. pytest reads the files of those alone, which takes less than a tenth
    of reading all; only what they let through meets the rest.
    """
    outcome = Outcome()
    running: dict[int, Trial] = {}
    fresh = (Trial(mutant, [], choice(mutant, tests, budget)) for mutant in todo)
    again: list[Trial] = []  # what the first tests let through
    n_done = 0
    while n_done < len(todo):
        while len(running) < jobs:
            trial = again.pop() if again else next(fresh, None)
            if trial is None:
                break
            trial.take(outcome.noticed_in)
            if trial.now:
                running[trial.begin(tests, folder)] = trial
                continue
            outcome.alive.append(trial.mutant)  # no test calls it
            say(trial.mutant, 0)
            n_done += 1
        time.sleep(0.01)
        for pid, trial in list(running.items()):
            status = ended(pid, trial.until)
            if status is None:
                continue
            del running[pid]
            if was_noticed(status):
                outcome.note(trial.mutant, status, folder / str(pid))
                say(None, trial.n_tests)
                n_done += 1
            elif trial.left:
                again.append(trial)
            else:
                outcome.alive.append(trial.mutant)
                say(trial.mutant, trial.n_tests)
                n_done += 1
    return outcome


def was_noticed(status: int) -> bool:
    """Whether a test failed, or could not be run, or did not end."""
    if os.WIFSIGNALED(status):
        return True
    code = os.WEXITSTATUS(status)
    if code == BROKEN:
        raise SystemExit("teeth: a child broke, so nothing is known")
    return code not in (0, NOTHING_RAN)


def fail_unchanged(
    path: Path, names: Sequence[str], tests: Mapping[str, Tried], jobs: int, folder: Path
) -> list[str]:
    """Which of these tests fail without a mutation, each in a process of its own."""
    code = compile(path.read_text(), str(path), "exec")
    waiting, running, found = [name for name in names if name in tests], {}, []
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            running[start(path, code, [name], 60 + 3 * tests[name].seconds, folder)] = name
        pid, status = os.wait()
        name = running.pop(pid)
        if status:
            found.append(name)
    return found
