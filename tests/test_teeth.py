"""The mutants that are excepted are those of today."""

from __future__ import annotations

from helpers import ROOT
from mutation.equivalent import EQUIVALENT
from mutation.mutants import keys


def test_each_exception_is_a_mutant_of_today() -> None:
    files = {key.partition("  ")[0] for key in EQUIVALENT}
    made = {key for file in files for key in keys(ROOT / file)}
    assert EQUIVALENT.keys() - made == set()
