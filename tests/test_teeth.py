"""What is mutated: every file that counts; the mutants excepted are those of today."""

from __future__ import annotations

import pytest
from helpers import ROOT
from mutation.equivalent import EQUIVALENT
from mutation.mutants import keys
from mutation.parts import FORMULAS, PARTS


def test_each_exception_is_a_mutant_of_today() -> None:
    files = {key.partition("  ")[0] for key in EQUIVALENT}
    made = {key for file in files for key in keys(ROOT / file)}
    assert EQUIVALENT.keys() - made == set()


@pytest.mark.parametrize(
    "folder",
    [
        "check",
        "formats",
        "formulas",
        "huggingface/checkpoint",
        "huggingface/config",
        "measure",
        "modules",
        "sharding",
        "spec",
        "tracing",
        "training",
    ],
)
def test_each_file_that_makes_a_number_is_in_a_part(folder: str) -> None:
    mutated = {path for part in PARTS.values() for path in part.sources}
    files = {*(ROOT / "metacount" / folder).rglob("*.py")}
    assert files and files - mutated == set()


def test_each_formula_is_in_one_part() -> None:
    formulas = [
        path for name, part in PARTS.items() if name.startswith(FORMULAS) for path in part.sources
    ]
    assert len(formulas) == len(set(formulas))
    assert {path.parent for path in formulas} == {ROOT / FORMULAS, ROOT / FORMULAS / "mixers"}


def test_the_tests_of_each_part_are_there() -> None:
    named = {name for part in PARTS.values() for name in part.tests}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
