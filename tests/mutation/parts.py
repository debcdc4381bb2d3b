"""Which tests are run for which part of the package: a part is a folder of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORMULAS = "metacount/formulas"  # the parts whose names begin so are mutated whole


@dataclass(frozen=True)
class Part:
    """Files or folders of the package, and the tests of them; quickest first is found out."""

    files: tuple[str, ...]  # a file may be a pattern
    named_tests: tuple[str, ...]  # folders, and files elsewhere
    without: tuple[str, ...] = ()  # of the folders, the files that another part has

    @property
    def sources(self) -> list[Path]:
        """Every file of this part."""
        left_out = {path for name in self.without for path in _found(name)}
        return [path for name in self.files for path in _found(name) if path not in left_out]

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that are there."""
        return tuple(name for name in self.named_tests if (ROOT / name).exists())


def _found(name: str) -> list[Path]:
    """The files of a folder, of a pattern or of that name."""
    path = ROOT / name
    found = sorted(path.rglob("*.py") if path.is_dir() else ROOT.glob(name))
    if not found:
        raise SystemExit(f"teeth: {name} is not there; correct tests/mutation/parts.py")
    return found


# of a step of training and of a mesh, each with the tests that measure the same
OF_TRAINING = tuple(f"{FORMULAS}/{name}.py" for name in ("folds", "step", "tape"))
OF_SHARDING = (f"{FORMULAS}/ranks.py",)
CONFIG = "metacount/huggingface/config"
WITNESSES = "tests/verify/test_witnesses.py"
OF_MODULES = (WITNESSES, "tests/huggingface/module/test_computes_the_same.py")
COMMANDS = ("tests/cli", "tests/test_cli.py")


def _of(*commands: str) -> tuple[str, ...]:
    """The tests of commands, in whichever of the folders they are."""
    return tuple(f"{folder}/test_{name}.py" for folder in COMMANDS[:3] for name in commands)


# Of folders whose tests are not those of the same name alone.
MORE_TESTS = {
    "algebra": ("tests/check",),
    "catalog": ("tests/test_resolve.py",),
    "cli": (*COMMANDS, "tests/audit", "tests/bench/test_command.py", "tests/lessons", WITNESSES),
    "diff": _of("diff"),
    "flow": _of("formula"),
    "formats": ("tests/test_resolve.py",),
    "measure": (*_of("tree", "verify"), "tests/flow", "tests/training", "tests/huggingface/module"),
    "modules": (*OF_MODULES, "tests/spec", "tests/huggingface/module/test_computes_the_same.py"),
    "settings": (*_of("count"), "tests/test_resolve.py"),
    "spec": (*_of("count", "models"), "tests/modules", "tests/formulas"),
    "summary": ("tests/training", "tests/flow", "tests/test_threads.py"),
    "teaching": ("tests/lessons",),
    "textbook": (*_of("count", "formula"), "tests/formulas", "tests/training", "tests/tracing"),
    "training": ("tests/formulas/test_training.py",),
    "verify": (*_of("verify"), "tests/tracing"),
}
SPLIT = ("formulas", "huggingface")  # into the parts below

PARTS = {
    FORMULAS: Part(
        (FORMULAS,),
        ("tests/formulas", "tests/catalog", WITNESSES, "tests/check"),
        without=OF_TRAINING + OF_SHARDING,
    ),
    f"{FORMULAS}, of training": Part(
        OF_TRAINING,
        ("tests/formulas", "tests/training", "tests/sharding/test_formula.py"),
    ),
    f"{FORMULAS}, of sharding": Part(
        OF_SHARDING,
        ("tests/sharding",),
    ),
    CONFIG: Part((CONFIG,), ("tests/huggingface/config",)),
    "metacount/huggingface": Part(
        ("metacount/huggingface",),
        ("tests/test_resolve.py", "tests/huggingface", "tests/formats/test_gguf.py"),
        without=(CONFIG,),
    ),
    "metacount": Part(
        ("metacount/*.py",),
        (*COMMANDS, "tests/test_resolve.py", "tests/test_units.py", "tests/test_threads.py"),
    ),
} | {
    f"metacount/{name}": Part(
        (f"metacount/{name}",),
        tuple(dict.fromkeys((f"tests/{name}", *MORE_TESTS.get(name, ())))),
    )
    for name in sorted(path.name for path in (ROOT / "metacount").iterdir() if path.is_dir())
    if name not in SPLIT and any((ROOT / "metacount" / name).glob("*.py"))
}
