"""Mutation test: change one thing at a time, and see a test fail every time.

`python tests/teeth.py` draws mutants of the package by chance, runs on each the tests that run the
changed statement, quickest first, then others, and prints the mutants that no test noticed; exit 1
if there are any beside those that nobody could notice. Files or folders can be named:

    python tests/teeth.py --sample 60 --seed 1 metacount/measure metacount/check
    python tests/teeth.py --sample 0 metacount/formulas > survivors    # all that there are
    python tests/teeth.py --again survivors    # after tests were written for them

Which tests run which lines is recorded by coverage, once for all tests as they are. Own mutants,
because neither of the two kept libraries makes these. mutmut 3, tried here, mutates function bodies
only: no default values, no module-level tables, no dropped summands, and its operators cannot be
chosen. cosmic-ray, by its documentation, can choose them but has none for summands, keywords or
conditional expressions.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import marshal
import multiprocessing
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from coverage import Coverage, CoverageData
from mutation.equivalent import EQUIVALENT
from mutation.mutants import ROOT, Mutant, mutants, sampled
from rich.console import Console
from rich.progress import track

SLOW = 8.0  # seconds; a slower test is not run
LONG = 60.0  # seconds for the tests of a file while they are recorded; what is left is not run
BUDGET = 90.0  # seconds of tests on a mutant
SAMPLE = 100
FEW = 5  # tests that are tried before the rest
MEMORY = 6 << 30
NOTHING_RAN = 5  # pytest's exit code
NOT_COPIED = (".git", ".venv", ".hypothesis", ".*_cache", "build", "dist")
PYTEST = (
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
)
FOLDER = ROOT / ".pytest_cache" / "teeth"
Job = TypeVar("Job")
CONTEXT = multiprocessing.get_context("forkserver")
ALONE = {
    "OPENBLAS_NUM_THREADS": "1",  # a child forked from a process with threads may hang
    "OMP_NUM_THREADS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


# ---- one run of pytest, in a process of its own and on a copy of the tree ----


class Order:
    """A plugin of pytest that runs these tests in this order, and notes the first that fails."""

    def __init__(self, tests: Sequence[str], to: Path) -> None:
        self.order, self.to = {name: i for i, name in enumerate(tests)}, to

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.to.write_text(report.nodeid)


class Record:
    """A plugin of pytest that tells coverage which test runs, and notes the seconds of each.

    Tests come in an order by chance, so that those within `LONG` are some of every function.
    """

    def __init__(self, coverage: Coverage) -> None:
        self.coverage, self.seconds = coverage, dict[str, float]()
        self.start = time.process_time()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        start = time.process_time()
        result = yield
        self.seconds.setdefault(item.nodeid, time.process_time() - start)
        if time.process_time() - self.start > LONG:
            item.session.shouldstop = "its tests took their time"
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.seconds[report.nodeid] = float("inf")


def copy_of_the_tree(to: Path) -> Path:
    """Links to the files of the tree; what is written there later is not written here."""
    ignored = shutil.ignore_patterns(*NOT_COPIED)
    return Path(shutil.copytree(ROOT, to, copy_function=os.link, ignore=ignored))


def run_pytest(tree: Path, files: Iterable[str], plugin: object) -> int:
    """In a process of its own: pytest on files of a copy of the tree; its exit code."""
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)  # of the processes that tests start
    from hypothesis import Phase, settings

    settings.register_profile(
        "teeth",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=50,
        phases=[Phase.explicit, Phase.generate],
        report_multiple_bugs=False,
    )
    options = (*PYTEST, "--hypothesis-profile=teeth", f"--rootdir={tree}")
    return int(pytest.main([*options, *files], plugins=[plugin]))


def _quietly() -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def record_file(tree: Path, file: str, to: Path) -> None:
    """In a process of its own: what the tests of a file run, and for how long, into two files."""
    _quietly()
    coverage = Coverage(data_file=str(to), source=[str(tree / "metacount")], config_file=False)
    plugin = Record(coverage)
    coverage.start()
    run_pytest(tree, [file, "--maxfail=1000"], plugin)
    coverage.stop()
    coverage.save()
    to.with_suffix(".json").write_text(json.dumps(plugin.seconds))


def try_tests(tree: Path, tests: Sequence[str], seconds: float, to: Path) -> None:
    """In a process of its own: end with pytest's exit code on these tests."""
    _quietly()
    limit = int(seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    files = dict.fromkeys(name.partition("::")[0] for name in tests)
    os._exit(run_pytest(tree, files, Order(tests, to)))


# ---- which tests are run on a mutant ----


@dataclass
class Recorded:
    """The seconds of each test that passes quickly, and which tests run which lines."""

    seconds: dict[str, float]
    data: CoverageData
    tree: Path  # where the files lay when they were run
    by_file: dict[Path, dict[int, set[str]]] = field(default_factory=dict)

    def runners(self, file: Path) -> dict[int, set[str]]:
        """Return the tests that run each line of a file, as seen from the root."""
        if file not in self.by_file:
            by_line = self.data.contexts_by_lineno(str(self.tree / file))
            self.by_file[file] = {n: {*names} & self.seconds.keys() for n, names in by_line.items()}
        return self.by_file[file]

    def choose(self, mutant: Mutant, budget: float) -> list[str]:
        """Choose the tests to run on a mutant, within so many seconds.

        First those that run the changed statement, then its function, then its file, which may be
        read when it is imported, then all others; of each the quickest first.
        """
        runners = self.runners(mutant.path.relative_to(ROOT))
        ranks: dict[str, int] = {}
        for rank, lines in enumerate((mutant.statement, mutant.function or (), runners)):
            for n in lines:
                for name in runners.get(n, ()):
                    ranks.setdefault(name, rank)
        chosen: list[str] = []
        spent = 0.0
        for name in sorted(self.seconds, key=lambda name: (ranks.get(name, 3), self.seconds[name])):
            spent += self.seconds[name]
            if spent > budget and chosen:
                break
            chosen.append(name)
        return chosen


def test_files() -> list[str]:
    """List the files of tests, and those of the package that hold doctests."""
    sources = (path for path in (ROOT / "metacount").rglob("*.py") if ">>>" in path.read_text())
    files = [*(ROOT / "tests").rglob("test_*.py"), *sources]
    return sorted(str(file.relative_to(ROOT)) for file in files)


def digest_of_the_tree() -> str:
    """Compute what is another where a file of the package or of the tests is another."""
    digest = hashlib.sha256()
    for folder in ("metacount", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path.relative_to(ROOT)} ".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def recorded(jobs: int) -> Recorded:
    """Run the tests once, each file in a process of its own: nothing that one leaves in memory
    hides a call of the next. What was recorded of the same files is read.
    """
    folder = FOLDER / digest_of_the_tree()
    tree, all_seconds, combined = folder / "tree", folder / "seconds.json", folder / "coverage"
    data = CoverageData(str(combined))
    if not all_seconds.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        folder.mkdir(parents=True)
        copy_of_the_tree(tree)
        seconds: dict[str, float] = {}
        with ThreadPoolExecutor(jobs) as pool:
            files = test_files()
            jobs_done = pool.map(partial(record_apart, tree, folder), range(len(files)), files)
            for to in follow(jobs_done, len(files), "files of tests"):
                own = CoverageData(str(to))
                own.read()
                data.update(own)
                seconds |= json.loads(to.with_suffix(".json").read_text())
        all_seconds.write_text(json.dumps(seconds))
    data.read()
    seconds = json.loads(all_seconds.read_text())
    quick = {name: each for name, each in seconds.items() if each <= SLOW}
    print(f"{len(seconds) - len(quick)} tests of {len(seconds)} left out: slow, skipped, failing")
    return Recorded(quick, data, tree)


def record_apart(tree: Path, folder: Path, i: int, file: str) -> Path:
    """Record the tests of a file in a process of its own; the name of what was written."""
    to = folder / f"{i}.coverage"
    process = CONTEXT.Process(target=record_file, args=(tree, file, to))
    process.start()
    process.join()
    if not to.with_suffix(".json").exists():
        raise SystemExit(f"teeth: {file}: its tests could not be run")
    return to


# ---- the trials ----


def noticed_by(mutant: Mutant, tests: Recorded, budget: float, folder: Path) -> tuple[str, int]:
    """The test that fails on a mutant, or what became of it; "" if none does; and how many ran."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        tree, to = copy_of_the_tree(Path(temporary) / "tree"), Path(temporary) / "failed"
        compile_into(tree, mutant)
        names = tests.choose(mutant, budget)
        for batch in (names[:FEW], names[FEW:]):
            if not batch:
                continue
            needs = sum(tests.seconds[name] for name in batch)
            args = (tree, batch, 30 + 3 * needs, to)
            process = CONTEXT.Process(target=try_tests, args=args)
            process.start()
            process.join(300 + 20 * needs)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid or 0, signal.SIGKILL)  # with all that it started
            process.join()
            if process.exitcode not in (0, NOTHING_RAN):
                return to.read_text() if to.exists() else "did not end, or not run", len(names)
    return "", len(names)


def compile_into(tree: Path, mutant: Mutant) -> None:
    """Put a mutant in the place of what Python compiled of its file; the source stays as it is."""
    source = tree / mutant.path.relative_to(ROOT)
    compiled = Path(importlib.util.cache_from_source(str(source)))
    status = source.stat()
    head = struct.pack("<III", 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    compiled.parent.mkdir(exist_ok=True)
    compiled.unlink(missing_ok=True)
    compiled.write_bytes(importlib.util.MAGIC_NUMBER + head + marshal.dumps(mutant.code))


def survivors(todo: list[Mutant], tests: Recorded, budget: float, jobs: int, folder: Path) -> int:
    """Try each mutant, print those that no test notices, and return how many these are."""
    ends: Counter[str] = Counter()
    n_known = n_left = 0
    attempt = partial(noticed_by, tests=tests, budget=budget, folder=folder)
    with ThreadPoolExecutor(jobs) as pool:
        tried = zip(todo, pool.map(attempt, todo), strict=True)
        for mutant, (test, n_tests) in follow(tried, len(todo), "mutants"):
            ends[test] += 1
            if not test and mutant.key in EQUIVALENT:
                n_known += 1
            elif not test:
                n_left += 1
                print(f"{mutant.key}   (line {mutant.line}, {n_tests} tests)", flush=True)
    names = sorted(name for name in ends if name in tests.seconds)
    tree, to = copy_of_the_tree(folder / "unchanged"), folder / "failed"
    process = CONTEXT.Process(target=try_tests, args=(tree, names, 1e6, to))
    process.start()
    process.join()
    if to.exists():
        raise SystemExit(f"teeth: fails without a mutation: {to.read_text()}")
    print(f"{len(todo)} mutants, {n_known} known to change nothing, {n_left} survived", flush=True)
    return n_left


def follow(jobs: Iterable[Job], total: int, name: str) -> Iterable[Job]:
    """Show how many jobs are done."""
    return track(jobs, total=total, console=Console(stderr=True), description=name)


def chosen_files(words: list[str]) -> list[Path]:
    """List the files of the package that these words name, all where there are none."""
    wanted = [Path(word).resolve() for word in words]
    sources = sorted((ROOT / "metacount").rglob("*.py"))
    files = [path for path in sources if any(map(path.is_relative_to, wanted)) or not words]
    if not files:
        raise SystemExit(f"teeth: {', '.join(words)}: no file of the package; name files, folders")
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutate the package; every mutant must fail.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders; default: all")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="so many by chance; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="only what survived in this output of a run")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of tests on a mutant")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    os.environ |= ALONE
    files = chosen_files(args.paths)
    os.chdir(ROOT)
    if args.again:
        lines = args.again.read_text().splitlines()
        again = {line.rpartition("   (line ")[0] for line in lines if "   (line " in line}
        names = {key.partition("  ")[0] for key in again}
        todo = [m for name in sorted(names) for m in mutants(ROOT / name) if m.key in again]
    elif args.sample:
        todo = list(sampled(files, args.sample, args.seed))
    else:
        todo = [m for file in files for m in mutants(file)]
    CONTEXT.set_forkserver_preload(["torch", "transformers", "sympy", "matplotlib"])
    tests = recorded(args.jobs)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        return min(survivors(todo, tests, args.budget, args.jobs, Path(folder)), 1)


if __name__ == "__main__":
    sys.exit(main())
