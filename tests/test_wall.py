"""The two sides never look at each other: over every import, through however many files.

Formulas know no module; modules know no formula; what others wrote (transformers, checkpoints) is
measured without either. Only what compares them sees more than one side.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.import_graph import ImportGraph, within

import metacount

PACKAGE = Path(metacount.__file__).parent

# The side of each module: of the longest prefix that stands here.
SIDES = {
    # what everybody may use: records, the spec and its rules, data, expressions, reading of files
    "metacount": "ground",
    "metacount.errors": "ground",
    "metacount.frozen": "ground",
    "metacount.units": "ground",
    "metacount.files": "ground",
    "metacount.output_file": "ground",
    "metacount.witness": "ground",
    "metacount.notation": "ground",
    "metacount.spec": "ground",
    "metacount.algebra": "ground",
    "metacount.catalog": "ground",
    "metacount.huggingface": "ground",  # a config becomes a spec; transformers itself: below
    "metacount.formats": "ground",  # other tools' descriptions, read as data
    "metacount.training.setup": "ground",  # what a step is made of, and what one showed
    "metacount.training.result": "ground",
    "metacount.given": "ground",
    "metacount.in_hand": "ground",
    "metacount.resolve": "ground",
    "metacount.settings": "ground",
    "metacount.sources": "ground",
    "metacount.languages": "ground",
    "metacount.textbook.domain": "ground",
    "metacount.many.shielded": "ground",
    "metacount.many.pool": "ground",
    "metacount.sharding": "ground",
    # algebra of models
    "metacount.formulas": "formula",
    "metacount.textbook": "formula",
    "metacount.check": "formula",
    "metacount.diff": "formula",
    "metacount.many.folder": "formula",
    "metacount.sharding.formula": "formula",
    # the one counter and what it needs, without a module of ours
    "metacount.tensors": "ruler",
    "metacount.measure": "ruler",
    "metacount.training": "ruler",
    "metacount.sharding.engine": "ruler",
    # our modules
    "metacount.modules": "module",
    "metacount.measure.ours": "module",
    "metacount.training.ours": "module",
    "metacount.huggingface.weights": "module",
    "metacount.sharding.reference": "module",
    "metacount.sharding.by_engine": "module",
    # what others wrote
    "metacount.huggingface.module": "others",
    "metacount.training.others": "others",
    "metacount.sharding.of_transformers": "others",
    "metacount.huggingface.checkpoint": "others",
    "metacount.many.survey": "others",
    # forms read off code, ours or others'
    "metacount.tracing": "code",
    # who compares, and what stands above
    "metacount.verify": "both",
    "metacount.claims": "both",
    "metacount.lessons": "both",
    "metacount.audit": "both",
    "metacount.bench": "both",
    "metacount.sharding.asked": "both",
    "metacount.sharding.shard": "both",
    "metacount.sharding.fit": "both",
    "metacount.flow": "both",
    "metacount.training.run": "both",
    "metacount.summary": "both",
    "metacount.many": "both",
    "metacount.api": "both",
    "metacount.views": "both",
    "metacount.commands": "both",
    "metacount.cli": "both",
    "metacount.__main__": "both",
}
# From the ground up: a module imports from its own floor and from those below, never from above.
FLOORS = (
    ("errors", "frozen", "units", "files", "output_file", "tensors"),
    ("witness", "notation", "languages"),
    ("spec",),
    ("algebra", "catalog", "settings", "given", "sources", "in_hand"),
    ("formulas",),
    ("textbook",),
    ("diff",),
    ("modules",),
    ("measure",),
    ("huggingface", "formats"),
    ("training",),
    ("tracing", "resolve"),
    ("verify",),
    ("check",),
    ("claims", "bench", "many", "flow", "training.run"),
    ("claims", "bench", "many", "flow", "sharding"),
    ("audit",),
    ("lessons",),
    ("views",),
    ("summary",),
    ("api",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
MAY_REACH = {
    "ground": {"ground"},
    "formula": {"ground", "formula"},
    "ruler": {"ground", "ruler"},
    "module": {"ground", "ruler", "module"},
    "others": {"ground", "ruler", "others"},
    "code": {"ground", "ruler", "module", "others", "code"},
    "both": {"ground", "formula", "ruler", "module", "others", "code", "both"},
}
# Libraries that a side does without.
NOT_FOR = {
    "ground": {"torch", "transformers", "accelerate"},
    "formula": {"torch", "transformers", "accelerate"},
}
# These do without what takes longer to import than a count takes, too.
LIGHT = ("metacount.spec", "metacount.errors", "metacount.formulas")
SLOW = {"numpy", "sympy", "rich", "matplotlib", "dataclasses", "inspect"}
# Where a module is loaded by a computed name: what it says, and all that it can load.
COMPUTED = {
    "metacount": ["import of importlib.import_module", "sys.modules"],  # its table of names; itself
    "metacount.check": ["import of importlib.import_module"],  # likewise
    "metacount.audit": ["import of importlib.import_module"],  # likewise
    "metacount.cli": ["import of importlib.import_module", "exec"],  # a command's file; of nothing
    "metacount.claims": ["import of importlib.import_module"],  # a judge's file
    "metacount.lessons.making": ["import of importlib.import_module"],  # a topic's file
    "metacount.huggingface.config.families": ["import of importlib.import_module"],
    # transformers' own modules, by the names that its tables give
    "metacount.huggingface.module.classes": ["import of importlib.import_module"],
    "metacount.spec.legend": ["import of importlib.import_module"],  # sympy, late
    "metacount.measure.adam8bit": ["import of importlib.metadata.version"],  # torchao's
    "metacount.formulas.dim": ["sys.modules"],  # sympy, where a symbol shows that it is loaded
    "metacount.check.given.file": ["import of importlib.util", "sys.modules"],  # somebody's file
    # which optional libraries are there, and their versions
    "metacount.bench.peers.activations": ["import of importlib.util.find_spec"],
    "metacount.bench.device": [
        "import of importlib.metadata.PackageNotFoundError",
        "import of importlib.metadata.version",
    ],
    "metacount.check.given.code": ["import of builtins"],  # to know them in somebody's code
    "metacount.measure.torch_private": ["sys.modules"],  # whether torch's compiler is loaded
    # whether huggingface_hub's check of types is loaded
    "metacount.measure.others.transformers_private": ["sys.modules"],
    "metacount.tracing.run.patches": ["sys.modules"],  # which modules hold a name to replace
}
LOADS = {
    "metacount.cli": ("metacount.commands",),
    "metacount.claims": ("metacount.claims",),
    "metacount.lessons.making": ("metacount.lessons.parts",),
    "metacount.huggingface.config.families": ("metacount.huggingface.config.families",),
}


def side_of(name: str) -> str | None:
    """The side of a module; None for one that stands in no row."""
    rows = [row for row in SIDES if within(name, row) and (row != "metacount" or name == row)]
    return SIDES[max(rows, key=len)] if rows else None


@cache
def graph_of(package: Path) -> ImportGraph:
    """Every import of a package; each is planted in a folder of its own."""
    return ImportGraph(package, LOADS)


def breaches(package: Path) -> list[str]:
    """What crosses the wall, one line each."""
    graph = graph_of(package)
    found = []
    for name in graph.files:
        side = side_of(name)
        if side is None:
            found.append(f"{name} has no side")
            continue
        for other in sorted(graph.reached(name)):
            if side_of(other) not in (None, *MAY_REACH[side]):
                found.append(f"{name} ({side}) reaches {' -> '.join(graph.path(name, other)[1:])}")
        for library in sorted({other.partition(".")[0] for other in graph.external[name]}):
            light = any(within(name, part) for part in LIGHT)
            if library in NOT_FOR.get(side, ()) or (light and library in SLOW):
                found.append(f"{name} ({side}) imports {library}")
        if set(graph.computed[name]) - set(COMPUTED.get(name, ())):
            found.append(f"{name} loads by a computed name: {', '.join(graph.computed[name])}")
    return found


def test_no_import_crosses_the_wall() -> None:
    assert breaches(PACKAGE) == []


def test_no_circle_of_imports() -> None:
    assert graph_of(PACKAGE).circles() == []


def upward(package: Path) -> list[str]:
    """Imports of a floor above the importing module's own, one line each."""
    graph = graph_of(package)
    floors = {f"metacount.{room}": n for n, rooms in enumerate(FLOORS) for room in rooms}

    def floor(name: str) -> int:
        return floors[max((row for row in floors if within(name, row)), key=len)]

    return [
        f"{name} -> {other}"
        for name in graph.files
        for other in sorted(graph.edges[name])
        if "metacount" not in (name, other) and floor(other) > floor(name)
    ]


def test_no_import_runs_upwards() -> None:
    assert upward(PACKAGE) == []


def test_an_upward_import_is_found(tmp_path: Path) -> None:
    planted(tmp_path, units="def f():\n    from metacount.textbook import count\n")
    assert upward(tmp_path / "metacount") == [
        "metacount.units -> metacount.textbook",
        "metacount.units -> metacount.textbook.count",
    ]


def test_every_row_is_of_a_module_that_is_there() -> None:
    graph = graph_of(PACKAGE)
    assert [row for row in (*SIDES, *COMPUTED, *LOADS) if row not in graph.files] == []
    for name, said in COMPUTED.items():
        assert set(graph.computed[name]) == set(said), name


def planted(tmp_path: Path, **files: str) -> list[str]:
    """The breaches of a small package: some innocent modules, and the given ones."""
    innocent = {
        "__init__": "_HOMES = {'count': 'textbook.count', 'verify': 'verify.compare', "
        "'ModelSpec': 'spec'}\n",
        "spec": "",
        "errors": "",
        "units": "",
        "textbook/__init__": "",
        "textbook/count": "from metacount.formulas import ffn\n",
        "verify/__init__": "",
        "verify/compare": "from metacount.textbook import count\n"
        "from metacount.modules import ffn\n",
        "formulas/__init__": "",
        "formulas/ffn": "",
        "modules/__init__": "import torch\n",
        "modules/ffn": "from metacount import spec\n",
        "huggingface/__init__": "",
        "huggingface/module/__init__": "",
        "huggingface/module/witness": "import transformers\n",
        "check/__init__": "_HOMES = {'check': 'verdict'}\n",
        "check/verdict": "",
        "measure/__init__": "",
        "measure/counter": "import torch\n",
    }
    for name, text in {**innocent, **files}.items():
        file = tmp_path / "metacount" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return breaches(tmp_path / "metacount")


def test_the_innocent_package_has_no_breach(tmp_path: Path) -> None:
    guard = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    fine = guard + "    from metacount.formulas import ffn\n"
    plain = "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from ..modules import ffn\n"
    found = planted(tmp_path, **{"modules/ffn": fine, "formulas/ffn": plain})
    assert found == []


IN_MODULES = [
    "from metacount.formulas import ffn",
    "from ..formulas import ffn",
    "import metacount.formulas.ffn as algebra",
    "from metacount.formulas import *",
    "def late():\n    from metacount.formulas.ffn import glu_params",
    "try:\n    from metacount.formulas import ffn\nexcept ImportError:\n    pass",
    # through a public name, which is loaded late
    "from metacount import count",
    "from metacount import *",
    "import metacount\nmetacount.count",
    "import metacount as m\nm.count(1)",
    "from metacount.check import check",
    # only the exact guard, on the constant, keeps an import from running
    "TYPE_CHECKING = False\nif not TYPE_CHECKING:\n    from metacount.formulas import ffn",
    "TYPE_CHECKING = True\nif TYPE_CHECKING:\n    from metacount.formulas import ffn",
    "TYPE_CHECKING = False\nTYPE_CHECKING = 1\nif TYPE_CHECKING:\n"
    "    from metacount.formulas import ffn",
    "TYPE_CHECKING = False\nif TYPE_CHECKING or True:\n    from metacount.formulas import ffn",
    "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    pass\nelse:\n"
    "    from metacount.formulas import ffn",
    "import typing\nif typing.TYPE_CHECKING:\n    from metacount.formulas import ffn",
    "from metacount.spec import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "    from metacount.formulas import ffn",
    "TYPE_CHECKING = False\nwhile TYPE_CHECKING:\n    from metacount.formulas import ffn",
    # computed names
    "from importlib import import_module\nimport_module('metacount.formulas.ffn')",
    "from importlib import import_module as load\nload('metacount.' + 'formulas')",
    "import importlib as lib\nlib.import_module('metacount.formulas')",
    "__import__('metacount.formulas.ffn')",
    "import builtins\nbuiltins.__import__('metacount.formulas')",
    "__builtins__['__import__']('metacount.formulas')",
    "import sys\nsys.modules['metacount.formulas.ffn']",
    "import sys as system\nsystem.modules['metacount.formulas.ffn']",
    "from sys import modules\nmodules['metacount.formulas.ffn']",
    "exec('import metacount.formulas.ffn')",
    "import pkgutil\npkgutil.resolve_name('metacount.formulas.ffn')",
    "import runpy\nrunpy.run_module('metacount.formulas.ffn')",
    "import metacount\ngetattr(metacount, 'co' + 'unt')",
    "import metacount\nvars(metacount)",
]


@pytest.mark.parametrize("text", IN_MODULES)
def test_a_planted_breach_is_found(tmp_path: Path, text: str) -> None:
    found = planted(tmp_path, **{"modules/ffn": text + "\n"})
    assert [line for line in found if line.startswith("metacount.modules.ffn ")], found


@pytest.mark.parametrize(
    ("files", "line"),
    [
        # through files that nobody suspects
        (
            {
                "units": "from metacount.textbook.count import count\n",
                "modules/ffn": "import metacount.units\n",
            },
            "metacount.modules.ffn (module) reaches metacount.units -> metacount.textbook.count",
        ),
        (
            {
                "measure/counter": "from metacount.modules import ffn\n",
                "huggingface/module/witness": "from ...measure import counter\n",
            },
            "metacount.huggingface.module.witness (others) reaches metacount.measure.counter -> "
            "metacount.modules",
        ),
        # through what a package does when it is imported
        (
            {
                "check/__init__": "from metacount.modules import ffn\n",
                "check/verdict": "",
                "textbook/count": "from metacount.check import verdict\n",
            },
            "metacount.textbook.count (formula) reaches metacount.check -> metacount.modules",
        ),
        (
            {"formulas/ffn": "from metacount.modules import ffn\n"},
            "metacount.formulas.ffn (formula) reaches metacount.modules",
        ),
        (
            {"formulas/ffn": "def f():\n    import torch.nn\n"},
            "metacount.formulas.ffn (formula) imports torch",
        ),
        ({"spec": "import torch\n"}, "metacount.spec (ground) imports torch"),
        (
            {"formulas/ffn": "def f():\n    import numpy.linalg as la\n"},
            "metacount.formulas.ffn (formula) imports numpy",
        ),
        (
            {"huggingface/module/witness": "from metacount import verify\n"},
            "metacount.huggingface.module.witness (others) reaches metacount.verify.compare",
        ),
        ({"new_file": ""}, "metacount.new_file has no side"),
    ],
)
def test_a_breach_through_others_is_found(tmp_path: Path, files: dict[str, str], line: str) -> None:
    assert line in planted(tmp_path, **files)


def test_a_circle_is_found(tmp_path: Path) -> None:
    planted(
        tmp_path,
        units="from metacount import errors\n",
        errors="def f():\n    from metacount.units import exact\n",
    )
    assert ImportGraph(tmp_path / "metacount").circles() == [
        ["metacount.errors", "metacount.units"]
    ]


@pytest.mark.parametrize(
    ("module", "must_not_load"),
    [
        (
            "metacount.huggingface.module.witness",
            ("formulas", "textbook.count", "textbook.closed_form", "modules"),
        ),
        ("metacount.huggingface.checkpoint.witness", ("formulas", "textbook.count", "modules")),
        ("metacount.tracing.run.of_transformers", ("formulas", "textbook.count", "modules")),
        ("metacount.modules.build", ("formulas", "textbook")),
        ("metacount.measure.ours.forward", ("formulas", "textbook")),
        ("metacount.check.verdict", ("modules", "measure", "tracing")),
    ],
)
def test_a_fresh_interpreter_loads_one_side(module: str, must_not_load: tuple[str, ...]) -> None:
    program = f"import json, sys, {module}\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = json.loads(ran.stdout)
    assert module in loaded
    assert [
        name for name in loaded if any(within(name, f"metacount.{part}") for part in must_not_load)
    ] == []
