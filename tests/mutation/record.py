"""What each test runs: its seconds, the functions that it calls, the lines of the part's files.

Found by running the tests once, each file in a process of its own, so that nothing which one file
leaves behind in memory hides a call of the next. Kept until the package or the test changes.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mutation.parts import ROOT, Part

KEPT = ROOT / ".pytest_cache" / "teeth"
PACKAGE = str(ROOT / "metacount") + os.sep
STARTS = (f"{os.sep}subprocess.py", f"{os.sep}popen_spawn_posix.py")  # a process that is not seen

Call = tuple[str, int]  # a file and the first line of a function
Line = tuple[str, int]


@dataclass
class Tried:
    """One test: its seconds, what it calls, and whether it starts other Python processes.

    `lines` are those that it runs, of each file one number with a bit for each.
    """

    seconds: float = 0.0
    calls: set[Call] = field(default_factory=set)
    lines: dict[str, int] = field(default_factory=dict)
    starts: bool = False
    passed: bool = True


class TooSlow(BaseException):
    """A test that takes too long to be run on every mutant is not watched to its end."""


class Recorder:
    """A plugin of pytest that notes what is called until each test has ended."""

    def __init__(self, slow: float, sources: frozenset[str]) -> None:
        self.slow, self.sources = slow, sources
        self.tests: dict[str, Tried] = {}
        self.n_deselected = 0
        self.shared: set[Call] = set()  # by fixtures and by collection: it may serve every test
        self.shared_lines: set[Line] = set()
        self._calls: set[Call] = self.shared
        self._lines: set[Line] = self.shared_lines

    def trace(self, frame: Any, event: str, arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) or code.co_filename.endswith(STARTS):
            self._calls.add((code.co_filename, code.co_firstlineno))
            if code.co_filename in self.sources:
                return self.line
        return None

    def line(self, frame: Any, event: str, arg: object) -> Callable[..., Any]:
        self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.n_deselected += len(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.process_time()
        self.tests[item.nodeid] = Tried()
        # this timer is nobody else's: the limits of `check` take the other two
        signal.setitimer(signal.ITIMER_VIRTUAL, self.slow, 1.0)
        result = yield
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self.tests[item.nodeid].seconds = time.process_time() - start
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        test, self._lines = self.tests[item.nodeid], set()
        self._calls = test.calls
        try:
            return (yield)
        finally:
            test.lines = masks(self._lines)
            self._calls, self._lines = self.shared, self.shared_lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid].passed &= report.passed

    def result(self) -> dict[str, Tried]:
        """What was noted; what fixtures call counts for all tests of the file."""
        of_all = masks(self.shared_lines)
        for test in self.tests.values():
            test.calls |= self.shared
            test.lines = {
                name: test.lines.get(name, 0) | of_all.get(name, 0)
                for name in {**test.lines, **of_all}
            }
            test.starts = any(name.endswith(STARTS) for name, _ in test.calls)
        return self.tests


def masks(lines: Iterable[Line]) -> dict[str, int]:
    """Lines as one number for each file, a bit for each line."""
    found: dict[str, int] = {}
    for name, line in lines:
        found[name] = found.get(name, 0) | 1 << line
    return found


def tests_of(part: Part) -> Iterator[str]:
    """The files of tests of a part, and those of the package that hold doctests."""
    for name in part.tests:
        path = ROOT / name
        if not path.exists():
            raise SystemExit(f"teeth: {name} is not there; correct tests/mutation/parts.py")
        files = sorted(path.glob("test_*.py")) if path.is_dir() else [path]
        yield from (str(file.relative_to(ROOT)) for file in files)
    for source in part.sources:
        if ">>>" in source.read_text():
            yield str(source.relative_to(ROOT))


def recorded(
    part: Part, options: Sequence[str], slow: float
) -> tuple[dict[str, Tried], list[str], list[str]]:
    """What the tests of a part run, the modules that they import, and the tests that are left out.

    Left out is what passes only alone or fails, and what takes more than `slow` seconds.
    """
    tests: dict[str, Tried] = {}
    modules: dict[str, None] = {}
    KEPT.mkdir(parents=True, exist_ok=True)
    sources = frozenset(map(str, part.sources))
    package = hashlib.sha256(f"{sys.version} {sorted(sources)}".encode())
    for source in (Path(__file__), *sorted((ROOT / "metacount").rglob("*.py"))):
        package.update(source.read_bytes())
    for name in tests_of(part):
        mark = package.copy()
        mark.update(f"{name} {options} {slow}".encode() + (ROOT / name).read_bytes())
        to = KEPT / mark.hexdigest()
        if not to.exists():
            pid = os.fork()
            if not pid:
                _record(name, options, to, Recorder(slow, sources))
            os.waitpid(pid, 0)
        with to.open("rb") as file:
            found, imported, n_deselected = pickle.load(file)
        if not found and not n_deselected:
            to.unlink()
            raise SystemExit(f"teeth: {name}: no test of it could be run")
        tests |= found
        modules |= dict.fromkeys(imported)
    left_out = [name for name, test in tests.items() if not test.passed or test.seconds > slow]
    kept = {name: test for name, test in tests.items() if name not in left_out}
    return kept, [m for m in modules if m not in sys.modules], left_out


def _record(name: str, options: Sequence[str], to: Path, recorder: Recorder) -> None:
    def stop(*_: object) -> None:
        raise TooSlow

    try:
        signal.signal(signal.SIGVTALRM, stop)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        threading.settrace(recorder.trace)
        sys.settrace(recorder.trace)
        pytest.main([*options, name], plugins=[recorder])
        sys.settrace(None)
        to.write_bytes(pickle.dumps((recorder.result(), list(sys.modules), recorder.n_deselected)))
    finally:
        os._exit(0)
