"""The list of mutants that nobody can notice names mutants that are made, and no others."""

from __future__ import annotations

from helpers import ROOT
from mutation.mutants import mutants
from mutation.parts import EQUIVALENT


def test_each_exception_is_a_mutant_of_today() -> None:
    files = {key.partition("  ")[0] for key in EQUIVALENT}
    made = {mutant.key for file in files for mutant in mutants(ROOT / file)}
    assert EQUIVALENT.keys() - made == set()
