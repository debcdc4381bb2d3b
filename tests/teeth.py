"""Mutation test: change one thing at a time, and see a test fail every time.

`python tests/teeth.py` makes every mutant of metacount/formulas and some, drawn by chance, of the
other parts of the package, runs the tests of the part on each, and prints the mutants that no test
noticed; exit 1 if there are any beside those that nobody could notice. Parts or files can be named:

    python tests/teeth.py --sample 60 --seed 1 measure judge
    python tests/teeth.py metacount/formulas/masks.py > survivors
    python tests/teeth.py --again survivors    # after tests were written for them

Own code, because neither of the two kept libraries does this job. mutmut 3, tried here, is fast but
mutates function bodies only: no default values, no module-level tables, no dropped summands, and
its operators cannot be chosen. cosmic-ray, by its documentation, can choose them but has none for
summands, keywords or conditional expressions, and starts a process for every mutant.
"""

from __future__ import annotations

import os

# before NumPy: a child forked from a process with threads may hang
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import argparse
import contextlib
import gc
import importlib
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

# imported once here, inherited by every child
import numpy  # noqa: F401
import sympy  # noqa: F401
from hypothesis import Phase, settings
from mutation.equivalent import EQUIVALENT
from mutation.mutants import Mutant, keys, mutants, sampled
from mutation.parts import FORMULAS, PARTS, ROOT, Part
from mutation.record import Tried, recorded
from mutation.run import PYTEST, Outcome, fail_unchanged, run
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

SLOW = 8.0  # seconds of one test while it is watched; a slower one is not run
PRINTED = re.compile(r"(metacount/\S+\.py):\d+(  .*)   \(\d+ tests\)")  # a survivor
BUDGET = 90.0  # seconds of tests on a mutant; on one of a formula, as long as all of them take
SAMPLE = 20  # of each part that is not mutated whole


def asked(words: list[str]) -> list[tuple[str, Part, list[Path]]]:
    """The parts, and which files of each, that words on the command line name."""
    if not words:
        return [(name, part, part.sources) for name, part in PARTS.items()]
    found = []
    for name, part in PARTS.items():
        files = [
            path
            for path in part.sources
            for word in words
            if path.is_relative_to(Path(word).resolve())
            or name.removeprefix("metacount/").startswith(word)
        ]
        if files:
            found.append((name, part, files))
    if not found:
        raise SystemExit(f"teeth: no such part; there are {', '.join(PARTS)}")
    return found


def survivors_in(file: Path) -> set[str]:
    """The keys of the mutants that an earlier run printed, and that the code still has."""
    lines = map(PRINTED.fullmatch, file.read_text().splitlines())
    found = {line[1] + line[2] for line in lines if line}
    made = {key for path in {key.partition("  ")[0] for key in found} for key in keys(ROOT / path)}
    print(f"teeth: {len(found & made)} survivors in {file}", file=sys.stderr)
    if gone := len(found - made):
        print(f"teeth: {gone} more are no mutants of today's code", file=sys.stderr)
    if not found & made:
        raise SystemExit("teeth: nothing to try again")
    return found & made


def to_try(name: str, files: list[Path], args: argparse.Namespace, again: set[str]) -> list[Mutant]:
    """The mutants of a part's files: all, a sample, or those that survived before."""
    whole = args.sample == 0 or (args.sample is None and name.startswith(FORMULAS))
    if not whole and not again:
        return list(sampled(files, args.sample or SAMPLE, args.seed))
    return [m for file in files for m in mutants(file) if not again or m.key in again]


def preload(names: list[str]) -> None:
    """Import what children will import, except the package itself and what would start threads."""
    kept = ("torch", "transformers", "safetensors", "huggingface_hub", "rich", "sympy", "mpmath")
    for name in names:
        if name.partition(".")[0] in kept:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    n_threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    if n_threads > 1:
        raise SystemExit(f"teeth: {n_threads} threads; a child forked now may hang")


def tests_of(part: Part) -> dict[str, Tried]:
    """What the tests of a part call, and what they import is imported."""
    preload(list(part.preload))
    tests, modules, left_out = recorded(part, PYTEST[1:], SLOW)
    preload(modules)
    gc.collect()
    gc.freeze()  # children that collect garbage would copy every page of the parent
    for file, n in Counter(name.partition("::")[0] for name in left_out).items():
        print(f"left out, as slow, skipped or failing: {n} of {file}", file=sys.stderr)
    return tests


def outcome_of(
    name: str, todo: list[Mutant], tests: dict[str, Tried], args: argparse.Namespace, folder: Path
) -> Outcome:
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    # refreshed by hand: a thread would be in the way of fork
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task(name, total=len(todo))
        budget = args.budget or (float("inf") if name.startswith(FORMULAS) else BUDGET)

        def say(survivor: Mutant | None, n_tests: int) -> None:
            if survivor is not None and survivor.key not in EQUIVALENT:
                print(f"{survivor}   ({n_tests} tests)", flush=True)
            progress.update(task, advance=1, refresh=True)

        outcome = run(todo, tests, budget, args.jobs, folder, say)
    wrong = fail_unchanged(todo[-1].path, sorted(outcome.noticed_by), tests, args.jobs, folder)
    if wrong:
        raise SystemExit(f"teeth: fails without a mutation: {', '.join(wrong)}")
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutate the package; every mutant must fail.")
    parser.add_argument("words", nargs="*", metavar="PART", help="a part or a file; default: all")
    parser.add_argument("--sample", type=int, help="so many places by chance; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="only what survived in this output of a run")
    parser.add_argument("--budget", type=float, help="seconds of tests on a mutant")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    again = survivors_in(args.again) if args.again else set()
    parts = asked(args.words or [*{key.partition("  ")[0] for key in again}])
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    settings.register_profile(
        "teeth",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=50,
        phases=[Phase.explicit, Phase.generate],
        report_multiple_bugs=False,
    )
    n_unknown = 0
    for name, part, files in parts:
        todo = to_try(name, files, args, again)
        if not todo:
            continue
        with tempfile.TemporaryDirectory() as folder:
            tests = tests_of(part)
            outcome = outcome_of(name, todo, tests, args, Path(folder))
        n_known = sum(mutant.key in EQUIVALENT for mutant in outcome.alive)
        n_left = len(outcome.alive) - n_known
        print(
            f"{name}: {len(todo)} mutants, {outcome.n_noticed} noticed "
            f"({outcome.n_hung} did not end), {n_known} known to change nothing, "
            f"{n_left} survived",
            flush=True,
        )
        n_unknown += n_left
    return 1 if n_unknown else 0


if __name__ == "__main__":
    sys.exit(main())
