"""Mutation test: change one thing at a time, and see a test fail every time.

`python tests/teeth.py` makes every mutant of metacount/formulas and some, drawn by chance, of the
other parts of the package, runs the tests of the part on each, and prints the mutants that no test
noticed; exit 1 if there are any beside those that nobody could notice. Parts or files can be named:

    python tests/teeth.py --sample 60 --seed 1 measure check
    python tests/teeth.py metacount/formulas/masks.py > survivors
    python tests/teeth.py --again survivors    # after tests were written for them

Which tests run which lines is recorded once, by coverage. Own mutants, because neither of the two
kept libraries makes these. mutmut 3, tried here, mutates function bodies only: no default values,
no module-level tables, no dropped summands, and its operators cannot be chosen. cosmic-ray, by its
documentation, can choose them but has none for summands, keywords or conditional expressions.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData
from mutation.equivalent import EQUIVALENT
from mutation.mutants import Mutant, mutants, sampled
from mutation.parts import FORMULAS, PARTS, ROOT, Part
from rich.console import Console
from rich.progress import track

SLOW = 8.0  # seconds; a slower test is not run
BUDGET = 90.0  # seconds of tests on a mutant; on one of a formula, as long as all of them take
SAMPLE = 20  # of each part that is not mutated whole
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
    """A plugin of pytest that tells coverage which test runs, and notes the seconds of each."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage, self.seconds = coverage, dict[str, float]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        start = time.process_time()
        result = yield
        self.seconds.setdefault(item.nodeid, time.process_time() - start)
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
    """The seconds of each test of a part, and the tests that run each line of its files."""

    seconds: dict[str, float]
    by_line: dict[str, dict[int, list[str]]]  # of a file, as seen from the root

    def choose(self, mutant: Mutant, budget: float) -> list[str]:
        """The tests to run on a mutant, within so many seconds, the quickest first.

        First those that run the changed statement; where none does, those that run its function, or
        its file: it may be read when the file is imported. Then all others of the part.
        """
        by_line = self.by_line.get(str(mutant.path.relative_to(ROOT)), {})
        for lines in (mutant.statement, mutant.function or (), by_line):
            runs = {name for n in lines for name in by_line.get(n, ()) if name in self.seconds}
            if runs:
                break
        chosen, spent = [], 0.0
        for name in sorted(self.seconds, key=lambda name: (name not in runs, self.seconds[name])):
            spent += self.seconds[name]
            if spent > budget and chosen:
                break
            chosen.append(name)
        return chosen


def tests_of(part: Part) -> Iterator[str]:
    """The files of tests of a part, and those of the package that hold doctests."""
    for name in part.tests:
        path = ROOT / name
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        yield from (str(file.relative_to(ROOT)) for file in files)
    for source in part.sources:
        if ">>>" in source.read_text():
            yield str(source.relative_to(ROOT))


def recorded(part: Part, folder: Path, jobs: int) -> Recorded:
    """Run the tests of a part once, each file in a process of its own: nothing that one leaves in
    memory hides a call of the next.
    """
    tree = copy_of_the_tree(folder / "recorded")
    files = list(dict.fromkeys(tests_of(part)))

    def record(i: int) -> tuple[Path, str]:
        to = folder / f"{i}.coverage"
        process = CONTEXT.Process(target=record_file, args=(tree, files[i], to))
        process.start()
        process.join()
        return to, files[i]

    seconds: dict[str, float] = {}
    by_line: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    with ThreadPoolExecutor(jobs) as pool:
        for to, file in pool.map(record, range(len(files))):
            if not to.with_suffix(".json").exists():
                raise SystemExit(f"teeth: {file}: its tests could not be run")
            taken = json.loads(to.with_suffix(".json").read_text())
            seconds |= {name: each for name, each in taken.items() if each <= SLOW}
            if n := sum(each > SLOW for each in taken.values()):
                print(f"left out, as slow, skipped or failing: {n} of {file}", file=sys.stderr)
            data = CoverageData(str(to))
            data.read()
            for source in data.measured_files():
                of_file = by_line[str(Path(source).relative_to(tree))]
                for line, tests in data.contexts_by_lineno(source).items():
                    of_file[line] += tests
    return Recorded(seconds, by_line)


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
        for mutant, (test, n_tests) in track(
            tried, total=len(todo), console=Console(stderr=True), description="mutants"
        ):
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


def asked(words: list[str]) -> Iterator[tuple[str, Part, list[Path]]]:
    """The parts, and which files of each, that words on the command line name."""
    for name, part in PARTS.items():
        files = [
            path
            for path in part.sources
            if not words
            or any(path.is_relative_to(Path(word).resolve()) for word in words)
            or name.removeprefix("metacount/").startswith(tuple(words))
        ]
        if files:
            yield name, part, files


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutate the package; every mutant must fail.")
    parser.add_argument("words", nargs="*", metavar="PART", help="a part or a file; default: all")
    parser.add_argument("--sample", type=int, help="so many places by chance; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="only what survived in this output of a run")
    parser.add_argument("--budget", type=float, help="seconds of tests on a mutant")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    os.environ |= ALONE
    os.chdir(ROOT)
    lines = args.again.read_text().splitlines() if args.again else []
    again = {line.rpartition("   (line ")[0] for line in lines} - {""}
    parts = list(asked(args.words or sorted({key.partition("  ")[0] for key in again})))
    if not parts:
        raise SystemExit(f"teeth: no such part; there are {', '.join(PARTS)}")
    CONTEXT.set_forkserver_preload(["torch", "transformers", "sympy", "matplotlib"])
    n_left = 0
    for name, part, files in parts:
        is_formula = name.startswith(FORMULAS)
        if again or args.sample == 0 or (args.sample is None and is_formula):
            todo = [m for file in files for m in mutants(file) if not again or m.key in again]
        else:
            todo = list(sampled(files, args.sample or SAMPLE, args.seed))
        budget = args.budget or (float("inf") if is_formula else BUDGET)
        (ROOT / ".pytest_cache").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=ROOT / ".pytest_cache") as folder:
            print(f"{name}:", flush=True)
            tests = recorded(part, Path(folder), args.jobs)
            n_left += survivors(todo, tests, budget, args.jobs, Path(folder))
    return 1 if n_left else 0


if __name__ == "__main__":
    sys.exit(main())
