"""What each part may import: the two sides never look at each other, and counting is quick."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import metacount

PACKAGE = Path(metacount.__file__).parent

# Libraries that take longer to import than a count takes.
HEAVY = ("torch", "transformers", "accelerate", "numpy", "sympy", "rich")
# Nor the parts of the standard library that cost as much as Python's own start.
SLOW = (*HEAVY, "dataclasses", "inspect", "difflib", "typing")

# Who may not import what, as dotted prefixes. The rest may.
FORBIDDEN = {
    "metacount.spec": (*HEAVY, "metacount.formulas", "metacount.modules"),
    "metacount.rules": (*HEAVY, "metacount.formulas", "metacount.modules"),
    "metacount.formulas": (*HEAVY, "metacount.modules", "metacount.measure", "metacount.build"),
    "metacount.modules": ("metacount.formulas", "metacount.figures", "metacount.closed_form"),
    "metacount.measure": ("metacount.formulas", "metacount.figures", "metacount.closed_form"),
    "metacount.tracing": ("metacount.formulas", "metacount.figures", "metacount.closed_form"),
    "metacount.build": ("metacount.formulas", "metacount.figures", "metacount.closed_form"),
}
FORMULA_SIDE = ("metacount.formulas", "metacount.figures", "metacount.closed_form")
MODULE_SIDE = ("metacount.modules", "metacount.build", "metacount.measure", "metacount.tracing")
# The only files that see both sides: who compares, and who chooses or prints one of both.
SEE_BOTH = {
    "metacount.witnesses",
    "metacount.proofs",
    "metacount.proof_writing",
    "metacount.textbook_forms",
    "metacount.commands.formula",
    "metacount.views.code_form",
}


def module_name(file: Path, package: Path) -> str:
    parts = [package.name, *file.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports_of(file: Path, package: Path) -> set[str]:
    """Every dotted name that `file` imports when it runs, at its top or inside a function."""
    here = module_name(file, package).split(".")
    if file.name != "__init__.py":
        here = here[:-1]
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if is_for_type_checkers(node):
            for other in node.orelse:  # type: ignore[attr-defined]
                visit(other)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from metacount import formulas` imports metacount.formulas
            found.update(f"{origin}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found.update(a.value for a in node.args if isinstance(a, ast.Constant))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text(encoding="utf-8")))
    return found


def violations(package: Path) -> list[str]:
    """Imports that cross a line, as `importer imports imported`."""
    found = []
    for file in sorted(package.rglob("*.py")):
        name = module_name(file, package)
        imported = imports_of(file, package)
        for part, forbidden in FORBIDDEN.items():
            if within(name, part):
                found += [f"{name} imports {other}" for other in sorted(imported)
                          if any(within(other, prefix) for prefix in forbidden)]  # fmt: skip
        sides = [any(within(i, p) for i in imported for p in side)
                 for side in (FORMULA_SIDE, MODULE_SIDE)]  # fmt: skip
        if all(sides) and name not in SEE_BOTH and name != package.name:
            found.append(f"{name} sees both sides")
    return found


def test_no_import_crosses_a_line() -> None:
    assert violations(PACKAGE) == []


def test_the_tree_is_not_empty() -> None:
    names = {module_name(file, PACKAGE) for file in PACKAGE.rglob("*.py")}
    assert {"metacount.spec", "metacount.formulas.model", "metacount.modules.model"} <= names
    assert {"metacount.witnesses", "metacount.commands.verify"} <= names
    assert "metacount.formulas.block.block_params" not in imports_of(PACKAGE / "cli.py", PACKAGE)
    verify = imports_of(PACKAGE / "commands" / "verify.py", PACKAGE)
    assert "metacount.witnesses.verify_model" in verify


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("formulas/ffn.py", "import torch", "metacount.formulas.ffn imports torch"),
        ("formulas/ffn.py", "def f():\n    import numpy.linalg as la",
         "metacount.formulas.ffn imports numpy.linalg"),
        ("formulas/ffn.py", "from ..modules import ffn",
         "metacount.formulas.ffn imports metacount.modules.ffn"),
        ("formulas/dim.py", "from importlib import import_module\nimport_module('sympy')",
         "metacount.formulas.dim imports sympy"),
        ("formulas/dim.py", "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import os\nelse:\n"
         "    import torch", "metacount.formulas.dim imports torch"),
        ("spec.py", "from metacount import modules", "metacount.spec imports metacount.modules"),
        ("modules/__init__.py", "from ..formulas.ffn import ffn_params",
         "metacount.modules imports metacount.formulas.ffn.ffn_params"),
        ("modules/moe.py", "from metacount import formulas",
         "metacount.modules.moe imports metacount.formulas"),
        ("measure/params.py", "from ..figures import count",
         "metacount.measure.params imports metacount.figures.count"),
        ("views/x.py", "from ..formulas import ffn\nfrom ..modules import ffn as other",
         "metacount.views.x sees both sides"),
    ],
)  # fmt: skip
def test_a_planted_import_is_found(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    package = tmp_path / "metacount"
    planted = package / file
    planted.parent.mkdir(parents=True)
    planted.write_text(text, encoding="utf-8")
    assert violations(package) == [complaint]


def test_imports_that_are_fine_are_not_found(tmp_path: Path) -> None:
    package = tmp_path / "metacount"
    (package / "modules").mkdir(parents=True)
    (package / "modules" / "ffn.py").write_text(
        "import torch\nfrom ..spec import ModelSpec\nimport metacount.formulasque\n"
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from ..formulas import ffn\n"
    )
    (package / "witnesses.py").write_text(
        "from .formulas import ffn\nfrom .modules import ffn as m\n"
    )
    assert violations(package) == []


def loaded_by(program: str) -> set[str]:
    """Top-level names of all modules that a fresh interpreter holds after `program`."""
    # only what the program adds: the environment's own .pth files may load anything
    probe = (
        "import sys\nbefore = set(sys.modules)\n"
        f"{program}\n"
        "import json\n"
        "print(json.dumps(sorted({n.partition('.')[0] for n in set(sys.modules) - before})),"
        " file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stderr.splitlines()[-1]))


def command(*arguments: str) -> str:
    return f"from metacount.cli import main\nassert main({list(arguments)!r}) == 0"


@pytest.mark.parametrize(
    "program",
    [
        "import metacount",
        "import metacount.spec",
        "import metacount.formulas.model",
        "import metacount.catalog",
        "import metacount.symbols",
        "import metacount.units",
        "import metacount; metacount.find_model('llama-7b')",
        command("count", "deepseek-v3", "--json"),
        command("count", "deepseek-v3"),
        command("count", "t5-11b", "gemma3-27b-text"),
        command("models"),
        command("models", "--fields"),
        command("--version"),
    ],
)
def test_counting_imports_nothing_slow(program: str) -> None:
    # a later Python's own argparse may load more than today's
    unavoidable = loaded_by("import argparse, json; argparse.ArgumentParser().format_help()")
    assert unavoidable & set(HEAVY) == set()
    assert loaded_by(program) & set(SLOW) <= unavoidable


def test_the_probe_sees_what_is_imported() -> None:
    assert {"difflib", "metacount"} <= loaded_by("import difflib, metacount")


def test_public_names() -> None:
    assert sorted(set(metacount.__all__)) == sorted(metacount.__all__)
    for name in metacount.__all__:
        assert getattr(metacount, name) is not None
    assert dir(metacount) == sorted(metacount.__all__)
    # a public name that is also a file would be hidden once the file is imported
    files = {file.stem for file in PACKAGE.iterdir()}
    assert files & set(metacount.__all__) == set()
    with pytest.raises(AttributeError, match="no attribute 'cuont'"):
        metacount.cuont  # noqa: B018
