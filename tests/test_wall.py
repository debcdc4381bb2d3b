"""What may import what: over every import, inside functions too, through however many files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from helpers.import_graph import ImportGraph, circles, modules_in, within

ROOT = Path(__file__).resolve().parents[1]

# The wall: formulas know no module, modules know no formula, and what others wrote (transformers,
# checkpoints) is read without either. Only what compares them sees more than one side.
SIDES = {
    "formulas": ("formulas", "textbook", "algebra", "check", "diff"),
    "modules": ("modules",),
    "foreign": ("huggingface.module", "huggingface.checkpoint"),
    "ruler": ("measure",),
}
DOES_WITHOUT = {
    "formulas": ("modules", "foreign", "ruler"),
    "modules": ("formulas", "foreign"),
    "foreign": ("formulas", "modules"),
    "ruler": ("formulas",),
}
NOT_FOR_FORMULAS = {"torch", "transformers", "accelerate"}

# From the ground up: nothing imports from what stands after it here.
ORDER = """
    errors frozen units package files figures tensors languages
    algebra spec catalog formulas modules given settings measure bench
    huggingface.config formats training huggingface tracing resolve textbook diff many sharding
    check verify flow teaching audit summary api cli own_module __main__
"""


def breaches(graph: ImportGraph) -> list[str]:
    """What crosses the wall, and what could."""
    found = []
    for name in graph.files:
        for other in graph.reached(name):
            libraries = {library.partition(".")[0] for library in graph.libraries[other]}
            if _side(other) in DOES_WITHOUT.get(_side(name), ()):
                found.append(graph.way(name, other))
            if _side(name) == "formulas" and libraries & NOT_FOR_FORMULAS:
                found.append(f"{graph.way(name, other)} -> {', '.join(sorted(libraries))}")
            if any(library.startswith("?") for library in libraries):
                found.append(f"{graph.way(name, other)} -> could load anything")
    return found


@cache
def _side(name: str) -> str:
    sides = (
        side
        for side, packages in SIDES.items()
        if any(within(name, f"metacount.{package}") for package in packages)
    )
    return next(sides, "")


def upward(graph: ImportGraph) -> list[str]:
    """Imports of what stands later in `ORDER`, and what stands nowhere in it."""

    rows = [f"metacount.{row}" for row in ORDER.split()]

    def floor(name: str) -> int:
        # a package is as low as the lowest part of it
        own = [row for row in rows if within(row, name)]
        own = own or sorted((row for row in rows if within(name, row)), key=len)[-1:]
        return rows.index(own[0]) if own else -1

    return [
        f"{name} -> {other}"
        for name in graph.files
        for other in sorted(graph.typed_edges[name] | {name})
        if "metacount" not in (name, other) and not 0 <= floor(other) <= floor(name)
    ]


@cache
def package() -> ImportGraph:
    return ImportGraph(modules_in(ROOT / "metacount", ROOT))


def test_no_import_crosses_the_wall() -> None:
    assert breaches(package()) == []


def test_no_import_runs_upwards() -> None:
    assert upward(package()) == []
    assert [row for row in ORDER.split() if f"metacount.{row}" not in package().files] == []


def test_no_circle_of_imports() -> None:
    benchmarks = ROOT / "benchmarks"
    for graph in (package(), ImportGraph(modules_in(benchmarks, benchmarks))):
        assert circles(graph.edges) == []
        # a model and the rules that it must keep, which name it in annotations alone
        typed = circles(graph.typed_edges)
        assert [c for c in typed if not all(within(n, "metacount.spec") for n in c)] == []


PLANTED = {
    "__init__": "_NAMES = {'textbook.count': 'count'}",
    "units": "",
    "formulas/ffn": "",
    "textbook/count": "from metacount.formulas import ffn",
    "modules/ffn": "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from ..formulas import ffn",
    "huggingface/module/witness": "import transformers",
    "verify": "from metacount import count\nfrom metacount.modules import ffn",
}


LOAD = "from importlib import import_module as load\nload(f'metacount.{x}')"
# What a file holds instead; the file that crosses the wall then; U: upwards, C: in a circle.
CHANGED: list[tuple[dict[str, str], str, str]] = [
    ({}, "", ""),
    ({"modules/ffn": "from metacount.formulas import ffn"}, "modules.ffn", ""),
    ({"modules/ffn": "import metacount as m\nm.count"}, "modules.ffn", "U"),
    ({"modules/ffn": "def late():\n    from ..formulas import ffn"}, "modules.ffn", ""),
    (
        {  # through a file that nobody suspects
            "units": "from .textbook import count",
            "huggingface/module/witness": "from ... import units",
        },
        "huggingface.module.witness",
        "U",
    ),
    ({"formulas/ffn": "def f():\n    import torch.nn"}, "textbook.count", ""),
    ({"modules/ffn": LOAD}, "modules.ffn", "UC"),
    ({"new_file": ""}, "", "U"),
    ({"formulas/ffn": "def f():\n    from metacount.textbook import count"}, "", "UC"),
]


@pytest.mark.parametrize(("changed", "breach", "seen"), CHANGED)
def test_each_rule_can_fail(
    tmp_path: Path, changed: dict[str, str], breach: str, seen: str
) -> None:
    for name, text in {**PLANTED, **changed}.items():
        file = tmp_path / "metacount" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    graph = ImportGraph(modules_in(tmp_path / "metacount", tmp_path))
    found = breaches(graph)
    assert any(line.startswith(f"metacount.{breach}") for line in found) if breach else not found
    assert (bool(upward(graph)), bool(circles(graph.edges))) == ("U" in seen, "C" in seen)
