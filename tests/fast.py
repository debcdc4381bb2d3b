"""Says which test files need no torch: those that import, at whatever depth, no side that does.

`python tests/fast.py` prints them, and the files of the package whose docstrings are such tests;
`make fast` runs these. `conftest.py` marks every test `fast`, `torch` or `transformers` by it.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "metacount"
LIGHT = {"ground", "formula"}  # the sides that do without torch, by `test_wall.SIDES`
OTHERS = {"huggingface_hub", "safetensors", "transformers"}
# What a process, or a file loaded by its path, imports is not seen here: it may be torch.
STARTS = {"subprocess", "multiprocessing", "importlib", "helpers.command_line"}

SLOW = {"test_causes.py"}  # half a minute alone: `make fast` leaves it out


def _names(tree: ast.AST) -> set[str]:
    """Every dotted name that is imported, and every `metacount.name` that is used."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "metacount":
                found.add(f"metacount.{node.attr}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
            found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return found


@cache
def needs(file: Path) -> str:
    """`fast`, `torch` or `transformers`: the most that a test file or a helper asks for."""
    from helpers.import_graph import within
    from test_wall import side_of

    from metacount import _HOMES

    most = "fast"
    for name in _names(ast.parse(file.read_text("utf-8"))):
        first, _, rest = name.partition(".")
        needed = "fast"
        if first in OTHERS:
            needed = "transformers"
        elif first in STARTS or ".".join(name.split(".")[:2]) in STARTS or first == "torch":
            needed = "torch"
        elif first == "metacount" and rest:
            home = _HOMES.get(rest.partition(".")[0])
            side = side_of(f"metacount.{home}" if home and "." not in rest else name)
            if side not in LIGHT and (rest in _HOMES or "." in rest or side):
                needed = "torch"
            if within(name, "metacount.huggingface.module") or within(name, "metacount.tracing"):
                needed = "transformers"
        elif (helper := TESTS / first / f"{rest.partition('.')[0]}.py").exists():
            needed = needs(helper)
        most = max(most, needed, key=("fast", "torch", "transformers").index)
    return most


def needs_of(file: Path) -> str:
    """The same of any file with tests; of the package's own, it is their side that says."""
    from test_wall import side_of

    if not file.is_relative_to(PACKAGE):
        return needs(file)
    name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    if side_of(name) in LIGHT and file.name != "__init__.py":
        return "fast"
    return "torch"


def fast_files() -> list[Path]:
    """Test files and files of the package whose tests need no torch."""
    files = (*TESTS.rglob("test_*.py"), *PACKAGE.rglob("*.py"))
    return [
        file
        for file in sorted(files)
        if needs_of(file) == "fast"
        and file.name not in SLOW
        and (file.is_relative_to(TESTS) or ">>>" in file.read_text("utf-8"))
    ]


if __name__ == "__main__":
    sys.path[:0] = [str(TESTS), str(PACKAGE.parent)]
    print("\n".join(str(file.relative_to(PACKAGE.parent)) for file in fast_files()))
