"""What `make release` alone runs is tried by `make test` as well, some each day."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from helpers.release import DAY, DAYS, is_of_the_day


def test_each_case_has_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tests/test_any.py::test_of[{i}]" for i in range(600)]
    chosen: dict[str, int] = dict.fromkeys(names, 0)
    for i in range(DAYS):
        monkeypatch.setenv(DAY, (date(2026, 12, 1) + timedelta(i)).isoformat())
        today = [name for name in names if is_of_the_day(name)]
        assert len(today) < 30
        for name in today:
            chosen[name] += 1
    assert set(chosen.values()) == {1}


@pytest.mark.release
def test_a_case_that_is_not_for_today_is_left_out(request: pytest.FixtureRequest) -> None:
    """With `-m "not release"` this runs on its day alone."""
    if request.config.option.markexpr == "not release":
        assert is_of_the_day(request.node.nodeid)
