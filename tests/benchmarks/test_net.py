"""The net of answers: what its rows give is what benchmarks/net/digests.txt says."""

from __future__ import annotations

import os
import sys

import pytest
from helpers import ROOT
from helpers.processes import in_a_group
from helpers.release import DAY, ONLY

NET = ROOT / "benchmarks" / "net"
sys.path.append(str(NET))
import run  # noqa: E402

with_these_versions = pytest.mark.skipif(
    (NET / "digests.txt").read_text("utf-8").partition("\n")[0] != run.versions(),
    reason="digests.txt was written with other versions",
)


def assert_unchanged(*arguments: str) -> None:
    code, written = in_a_group([sys.executable, str(NET / "run.py"), *arguments, "--check"], 7200)
    assert code == 0, written


@with_these_versions
def test_rows_of_the_day() -> None:
    assert_unchanged("analytic", "--sample", os.environ[DAY], "60")


@ONLY
@with_these_versions
@pytest.mark.parametrize("group", run.GROUPS)
def test_every_row(group: str) -> None:
    assert_unchanged(group)


@ONLY
def test_planted_mistakes_are_seen() -> None:
    code, written = in_a_group([sys.executable, str(NET / "plant.py")], 7200)
    assert code == 0, written


def test_a_row_stands_for_several() -> None:
    rows = run.expanded("@<60|80> count <$SOME|c>", {"SOME": "a|b"})
    assert rows == [f"@{width} count {name}" for width in (60, 80) for name in "abc"]


def test_the_comparison_can_fail() -> None:
    old = {"count a": "params 7\nbytes 3\n", "count b": "1\n", "count c": "1\n"}
    new = {"count a": "params 5\nbytes 3\n", "count b": "1\n", "count d": "1\n"}
    assert list(run.differences(old, old)) == []
    changed, gone, added = run.differences(old, new)
    assert changed.split() == ["count", "a", "-", "params", "7", "+", "params", "5"]
    assert gone.split() == ["count", "c", "gone"] and added.split() == ["count", "d", "new"]
