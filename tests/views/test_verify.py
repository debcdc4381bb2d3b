"""What `verify` prints: wide as a table of witnesses, narrow by value, and a disagreement."""

from __future__ import annotations

import pytest

from metacount.cli.report import in_text
from metacount.cli.verify import many_report, report_of
from metacount.spec import Workload
from metacount.verify.compare import BREAKDOWNS, QUANTITIES, Verification, Witness


def said(name: str, **figures: int) -> Witness:
    return Witness(
        name=name,
        figures={**dict.fromkeys(QUANTITIES), **figures},
        parts=dict.fromkeys(BREAKDOWNS),
        detail=f"what {name} is",
    )


def result(*witnesses: Witness, differences: tuple[str, ...] = ()) -> Verification:
    return Verification(
        model="m", workload=Workload(), witnesses=witnesses, differences=differences
    )


AGREE = result(
    said("formula", params=1234, macs=7), said("reference", params=1234, kv_cache_bytes=0)
)
DISAGREE = result(
    said("formula", params=1234),
    said("reference", params=1234),
    said("transformers", params=1235),
    differences=("params: formula - transformers = 1,234 - 1,235 = -1",),
)


def test_a_column_for_each_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = in_text(report_of(AGREE, "a model")).splitlines()
    assert [line.split() for line in lines[3:5]] == [
        ["formula", "reference"],
        ["params", "1,234", "1,234", "equal"],
    ]
    assert lines[5] == ""  # a cache of nothing is no line
    assert "agree  formula, reference: whatever two of them give" in lines[-1]


def test_a_disagreement_is_marked_and_counted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = in_text(report_of(DISAGREE, "m"))
    assert "params    1,234      1,234         1,235  differ" in text
    assert text.endswith("DISAGREE\n  params: formula - transformers = 1,234 - 1,235 = -1\n")
    many = in_text(many_report([AGREE, DISAGREE]))
    assert "1 of 2 models agree" in many
    assert many.endswith("m:\n  params: formula - transformers = 1,234 - 1,235 = -1\n")


def test_a_narrow_terminal_gets_a_line_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    lines = in_text(report_of(DISAGREE, "m")).splitlines()
    assert [line.split() for line in lines[3:6]] == [
        ["value", "said", "by"],
        ["params", "1,234", "formula", "=", "reference"],
        ["1,235", "transformers"],
    ]


def test_one_witness_proves_nothing() -> None:
    text = in_text(report_of(result(said("transformers", params=5)), "m"))
    assert "one witness  there is nothing to compare it with" in text
