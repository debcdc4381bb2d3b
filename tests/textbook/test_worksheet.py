"""Rules read off a spec: at any setting they say what the spec says, and nothing else."""

from __future__ import annotations

import random

import pytest
from helpers.release import daily, one_in

from metacount import find_model
from metacount.errors import SpecError
from metacount.spec import ModelSpec, Request, Workload
from metacount.textbook.read_rules import ELSEWHERE, Rule
from metacount.textbook.worksheet import RUN, Worksheet, worksheet


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


MODELS = ["llama3-8b", "deepseek-v3", "switch-base-8", "t5-11b", "gemma3-27b-text", "glm-130b"]
MODELS += ["type:granitemoe", "type:qwen2_moe"]


@daily(4)
@pytest.mark.parametrize("name", one_in(2, MODELS))
def test_rules_say_what_the_spec_says(name: str) -> None:
    request = Request(prefix_len=100) if name == "glm-130b" else Request()
    sheet = worksheet(find_model(name), request)
    draw = random.Random(name)
    taken, found = 0, set()
    for _ in range(400):
        numbers = {size.term.name: size.number for size in sheet.sizes}
        for size in draw.sample(sheet.sizes, draw.randint(1, 4)):
            n = size.number
            odd = 1, 2, 3, 5, n - 1, n + 1, 2 * n, n // 2, size.most, size.most + 1
            other = draw.choice((*odd, draw.choice([*numbers.values()])))
            numbers[size.term.name] = max(size.least, other)
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
