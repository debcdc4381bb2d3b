"""Rules read off a spec: at any setting they say what the spec says, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.release import daily, one_in

from metacount import find_model
from metacount.algebra.recorded import NotRecorded, Recorded
from metacount.errors import SpecError
from metacount.spec import ModelSpec, Request, Workload
from metacount.textbook.read_rules import ELSEWHERE, Limits, Rule, asked_by, read_rules
from metacount.textbook.worksheet import RUN, Worksheet, worksheet

ANY = Limits(least=1, most=100)


def said(rules: tuple[Rule, ...], numbers: dict[str, int]) -> str | None:
    """What the rules say of a setting: a message, or nothing."""
    for rule in rules:
        # the test's own reading: Python's
        if eval(rule.test, {"max": max}, dict(numbers)) == rule.outcome:
            continue
        if not rule.message:
            return said(rule.otherwise, numbers)
        return "".join(
            str(eval(text, {}, dict(numbers))) if i % 2 else text
            for i, text in enumerate(rule.message)
        )
    return None


def refused(sheet: Worksheet, numbers: dict[str, int]) -> str | None:
    sizes = {name: n for name, n in numbers.items() if name not in RUN}
    lengths = {name: n for name, n in numbers.items() if name in RUN}
    try:
        ModelSpec.from_dict({**sheet.model.spec.to_dict(), **sizes})
        Workload(**{**sheet.workload.to_dict(), **lengths})
    except SpecError as error:
        return f"{error.field} {error.rule}: got {error.value}"
    return None


@daily(4)
@pytest.mark.parametrize(
    "name",
    one_in(
        2,
        [
            "llama3-8b",
            "deepseek-v3",
            "switch-base-8",
            "t5-11b",
            "gemma3-27b-text",
            "glm-130b",
            "type:granitemoe",
            "type:qwen2_moe",
        ],
    ),
)
def test_rules_say_what_the_spec_says(name: str) -> None:
    request = Request(prefix_len=100) if name == "glm-130b" else Request()
    sheet = worksheet(find_model(name), request)
    draw = random.Random(name)
    taken, found = 0, set()
    for _ in range(400):
        numbers = {size.term.name: size.number for size in sheet.sizes}
        for size in draw.sample(sheet.sizes, draw.randint(1, 4)):
            n = size.number
            numbers[size.term.name] = max(
                size.least,
                draw.choice(
                    (
                        1,
                        2,
                        3,
                        5,
                        n - 1,
                        n + 1,
                        2 * n,
                        n // 2,
                        size.most,
                        size.most + 1,
                        draw.choice([*numbers.values()]),
                    )
                ),
            )
        mine, right = said(sheet.rules, numbers), refused(sheet, numbers)
        if mine is not None and mine.startswith(ELSEWHERE):
            pass  # of forms that are others there, or a rule that was not seen broken alone
        elif right is None:
            taken += 1
            assert mine is None, numbers
        else:
            assert mine is not None and mine.startswith(right), (numbers, mine, right)
            found.add(right.partition(":")[0])
    assert taken > 30 and len(found) > 8


def test_a_setting_that_is_taken_on_another_way_has_rules_of_its_own() -> None:
    def make(given: Any) -> None:
        wide = given["a"] if given["a"] > given["b"] else given["b"]
        if wide > 50:
            raise SpecError("wide", "must be at most 50", wide, "choose less")

    rules = read_rules(make, {"a": 3, "b": 2}, {"a": ANY, "b": ANY})
    assert [rule.test for rule in rules] == ["a > b", "a > 50"]
    assert [rule.test for rule in rules[0].otherwise] == ["b > 50"]
    for a in (1, 49, 50, 51, 99):
        for b in (1, 50, 51, 60):
            wide = max(a, b)
            right = f"wide must be at most 50: got {wide}; choose less" if wide > 50 else None
            assert said(rules, {"a": a, "b": b}) == right


def test_what_cannot_be_broken_alone_still_stops() -> None:
    def make(given: Any) -> None:
        if given["a"] * given["b"] == 97 * 89:  # no setting that is tried has it
            raise SpecError("a", "times b is wrong", given["a"], "choose another")

    (rule,) = read_rules(make, {"a": 3, "b": 2}, {"a": ANY, "b": ANY})
    assert said((rule,), {"a": 97, "b": 89}) == f"{ELSEWHERE} (a * b) == 8633"


def test_what_a_formula_asks_must_stay() -> None:
    def ask(given: Any) -> object:
        return 2 * given["n"] if given["n"] > 4 else given["n"]

    (rule,) = asked_by(ask, {"n": 7})
    assert said((rule,), {"n": 5}) is None
    assert said((rule,), {"n": 4}) == f"{ELSEWHERE} n > 4 does not hold"


def test_a_remedy_of_one_setting_is_left_out() -> None:
    def make(given: Any) -> None:
        if given["h"] % given["k"]:
            few = [n for n in range(1, int(given["h"]) + 1) if int(given["h"]) % n == 0]
            raise SpecError("k", "must divide h", given["k"], f"choose {few}")

    rules = read_rules(make, {"h": 8, "k": 2}, {"h": ANY, "k": ANY})
    assert said(rules, {"h": 9, "k": 2}) == "k must divide h: got 2"


def test_nothing_goes_on_unseen() -> None:
    n = Recorded(7, "n", [])
    assert (3 + n - 1).text == "((3 + n) - 1)" and (100 // n % n).text == "((100 // n) % n)"
    rounded_up = -(-n // 3)  # what a number of chunks is
    assert (rounded_up, rounded_up.text) == (3, "(0 - ((0 - n) // 3))")
    for hidden in (lambda: n**2, lambda: n / 2, lambda: divmod(n, 2), lambda: n & 1):
        with pytest.raises(NotRecorded):
            hidden()
