"""What is mutated: every file that counts; the mutants excepted are those of today."""

from __future__ import annotations

from collections import Counter

from helpers import ROOT
from mutation.equivalent import EQUIVALENT
from mutation.mutants import keys
from mutation.parts import PARTS


def test_each_exception_is_a_mutant_of_today() -> None:
    files = {key.partition("  ")[0] for key in EQUIVALENT}
    made = {key for file in files for key in keys(ROOT / file)}
    assert EQUIVALENT.keys() - made == set()


def test_each_file_is_in_one_part() -> None:
    files = Counter(path for part in PARTS.values() for path in part.sources)
    assert set((ROOT / "metacount").rglob("*.py")) - files.keys() == set()
    assert [str(path) for path, n in files.items() if n > 1] == []


def test_each_part_has_tests_of_its_own() -> None:
    for name, part in PARTS.items():
        assert part.tests, name
        folder = name.partition(",")[0].replace("metacount", "tests", 1)
        near = [test for test in part.tests if test.startswith(folder)]
        others = ("metacount/algebra", "metacount/diff", "metacount/formulas, of sharding")
        assert near or name in others, name
