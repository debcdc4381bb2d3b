"""What `make release` alone runs is tried by `make test` as well, some each day."""

from __future__ import annotations

from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.release import DAY, DAYS, daily, is_of_the_day, not_today, one_day_in


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


@pytest.mark.parametrize(
    ("mark", "n_cases", "days", "most"),
    [(daily(3), 7, 3, 3), (daily(9), 4, 4, 1), (one_day_in(5), 1, 5, 1)],
)
def test_each_case_of_a_list_has_its_day(
    monkeypatch: pytest.MonkeyPatch, mark: pytest.MarkDecorator, n_cases: int, days: int, most: int
) -> None:
    def marked(name: str) -> pytest.Mark | None:
        return mark.mark if name == "daily" else None

    ids = [f"test_any.py::test_of[{i}]" for i in range(n_cases)]
    cases: list[Any] = [SimpleNamespace(nodeid=id, get_closest_marker=marked) for id in ids]
    tried: list[str] = []
    for i in range(days):
        monkeypatch.setenv(DAY, (date(2026, 12, 1) + timedelta(i)).isoformat())
        left_out = {case.nodeid for case in not_today(cases)}
        today = [id for id in ids if id not in left_out]
        assert len(today) <= most and (today or mark.args[1] == 0)
        tried += today
    assert sorted(tried) == ids


@pytest.mark.release
def test_a_case_that_is_not_for_today_is_left_out(request: pytest.FixtureRequest) -> None:
    """With `-m "not release"` this runs on its day alone."""
    if request.config.option.markexpr == "not release":
        assert is_of_the_day(request.node.nodeid)
