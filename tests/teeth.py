"""Mutation test of the formulas: change one thing at a time, and see a test fail every time.

`python tests/teeth.py` mutates every file of metacount/formulas (or those named), runs
tests/formulas on each mutant, and prints the mutants that no test noticed; exit 1 if any.

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
import ast
import gc
import importlib.abc
import importlib.util
import resource
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeVar

# imported once here, inherited by every child
import numpy  # noqa: F401
import pytest
import sympy  # noqa: F401
from hypothesis import Phase, settings
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

Node = TypeVar("Node", bound=ast.AST)
ROOT = Path(__file__).parents[1]
FORMULAS = ROOT / "metacount" / "formulas"
TESTS = ROOT / "tests" / "formulas"

# what runs first on a mutant of a file, where that is not the test of its name; the rest follows
QUICKEST = {
    "dim": ("dims",),
    "block": ("published", "model"),
    "ends": ("published", "model"),
    "stack": ("published", "model"),
    "model": ("published", "model"),
}

PYTEST = [
    "-x", "-q", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "-o", "addopts=",
    "--import-mode=importlib", "--assert=plain", "--hypothesis-profile=teeth", f"--rootdir={ROOT}",
]  # fmt: skip
MEMORY = 4 << 30
SECONDS = 30  # of processor time for one mutant; a hang counts as noticed

OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Sub),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv, ast.Mult),
    ast.Div: (ast.Mult, ast.FloorDiv),
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}


@dataclass(frozen=True)
class Mutant:
    """One change to one file, compiled."""

    path: Path
    line: int
    before: str
    after: str
    code: CodeType

    def __str__(self) -> str:
        source = self.path.read_text().splitlines()[self.line - 1].strip()
        where = f"{self.path.relative_to(ROOT)}:{self.line}"
        return f"{where}  {self.before} -> {self.after}   in: {source}"


def constants(node: ast.Constant) -> Iterator[ast.expr]:
    match node.value:
        case bool():
            yield ast.Constant(not node.value)
        case int():
            others = {0, 1, 2, node.value + 1} if node.value < 3 else {node.value + 1}
            yield from (ast.Constant(n) for n in sorted(others - {node.value}))
        case str():
            yield ast.Constant(node.value + "?")


def without(items: Sequence[Node]) -> Iterator[list[Node]]:
    for i in range(len(items)):
        yield [*items[:i], *items[i + 1 :]]


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of `node`."""
    match node:
        case ast.Constant():
            yield from constants(node)
        case ast.BinOp(left, op, right):
            yield from (ast.BinOp(left, other(), right) for other in OPERATORS[type(op)])
            yield from (left, right)
        case ast.AugAssign(target, op, value):
            yield from (ast.AugAssign(target, other(), value) for other in OPERATORS[type(op)])
            yield ast.Assign([target], value)
            yield ast.Pass()
        case ast.Compare(left, [op], rights):
            yield from (ast.Compare(left, [other()], rights) for other in COMPARISONS[type(op)])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for rest in without(values):
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
            yield from (body, orelse)
        case ast.If(test, body, orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield from (ast.If(ast.Constant(value), body, orelse) for value in (True, False))
        case ast.Call(func, args, keywords):
            yield from (ast.Call(func, args, rest) for rest in without(keywords))
        case ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.comprehension(target, of, [_, *_]):
            yield ast.comprehension(target, of, [], 0)


def is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.Expr(ast.Constant()):
            return True  # docstring
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.Assign([ast.Name("TYPE_CHECKING")]):
            return True  # read by type checkers alone
    return False


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every child node as (parent, field, position in a list, child), outermost first."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not is_skipped(child):
                yield node, field, i, child
                yield from places(child)


def put(parent: ast.AST, field: str, i: int | None, child: ast.AST) -> None:
    if i is None:
        setattr(parent, field, child)
    else:
        getattr(parent, field)[i] = child


def shortened(before: str, after: str) -> tuple[str, str]:
    """Both in one line, without a long beginning that they share."""
    before, after = (" ".join(text.split()) for text in (before, after))
    shared = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    skipped = max(0, shared - 30)
    dots = "..." if skipped else ""
    return dots + before[skipped:][:80], dots + after[skipped:][:80]


def mutants(path: Path) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text())
    for parent, field, i, child in list(places(tree)):
        for other in changes(child):
            put(parent, field, i, other)
            line = getattr(child, "lineno", 0) or getattr(parent, "lineno", 0)
            ast.copy_location(other, child if hasattr(child, "lineno") else parent)
            ast.fix_missing_locations(tree)
            code = compile(tree, str(path), "exec")
            yield Mutant(path, line, *shortened(ast.unparse(child), ast.unparse(other)), code)
            put(parent, field, i, child)


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from code that is in no file."""

    def __init__(self, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = f"metacount.formulas.{path.stem}", path, code

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


def start(path: Path, code: CodeType) -> int:
    """Fork a child that runs the tests with `code` in the place of `path`; its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    talk = os.fdopen(os.dup(2), "w")
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.meta_path.insert(0, Importer(path, code))
        first = [TESTS / f"test_{name}.py" for name in QUICKEST.get(path.stem, (path.stem,))]
        rest = sorted(set(TESTS.glob("test_*.py")) - set(first))
        for files in (*([f] for f in first), rest):
            status = pytest.main([*PYTEST, *map(str, files)])
            if status:
                break
    except BaseException:
        traceback.print_exc(file=talk)
        talk.flush()
    os._exit(status)


def was_noticed(status: int) -> bool:
    """Whether tests failed (1), could not be imported (2) or hung. Anything else is a bug."""
    if os.WIFSIGNALED(status):
        return True
    code = os.WEXITSTATUS(status)
    if code not in (0, 1, 2):
        raise SystemExit(f"teeth: pytest stopped with exit code {code}, so nothing is known")
    return code != 0


def survivors(todo: Sequence[Mutant], jobs: int) -> tuple[list[Mutant], int]:
    """The mutants on which every test passes, and how many ran out of time or memory."""
    alive: list[Mutant] = []
    n_hung = 0
    running: dict[int, Mutant] = {}
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    # refreshed by hand: a thread would be in the way of fork
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("mutants", total=len(todo))
        waiting = list(reversed(todo))
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant = waiting.pop()
                running[start(mutant.path, mutant.code)] = mutant
            pid, status = os.wait()
            mutant = running.pop(pid)
            n_hung += os.WIFSIGNALED(status)
            if not was_noticed(status):
                alive.append(mutant)
            progress.update(task, advance=1, refresh=True)
    return alive, n_hung


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutate the formulas; every mutant must fail.")
    parser.add_argument("files", nargs="*", type=Path, help="default: all of metacount/formulas")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    files = [f.resolve() for f in args.files] or sorted(FORMULAS.glob("*.py"))
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    settings.register_profile(
        "teeth", derandomize=True, database=None, deadline=None, max_examples=50,
        phases=[Phase.explicit, Phase.generate], report_multiple_bugs=False,
    )  # fmt: skip

    importlib.import_module("metacount.spec")  # as it is now, for every child

    def check_unchanged(when: str) -> None:
        code = compile(files[-1].read_text(), str(files[-1]), "exec")
        if was_noticed(os.waitpid(start(files[-1], code), 0)[1]):
            raise SystemExit(f"teeth: tests fail without a mutation, {when} the run")

    check_unchanged("before")
    todo = [mutant for path in files for mutant in mutants(path)]
    gc.collect()
    gc.freeze()  # children that collect garbage would copy every page of the parent
    alive, n_hung = survivors(todo, args.jobs)
    check_unchanged("after")
    for mutant in sorted(alive, key=lambda m: (m.path, m.line)):
        print(mutant)
    noticed = f"{len(todo) - len(alive)} noticed ({n_hung} did not end)"
    print(f"{len(todo)} mutants, {noticed}, {len(alive)} survived")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
