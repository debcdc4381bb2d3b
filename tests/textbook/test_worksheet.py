"""What a page compares at a setting: nothing comes out otherwise but where forms are others."""

from __future__ import annotations

import random

import pytest
from helpers.release import daily, one_in

from metacount import find_model
from metacount.errors import SpecError
from metacount.spec import ModelSpec, Request, Workload
from metacount.textbook.worksheet import RUN, Worksheet, worksheet


def broken(sheet: Worksheet, numbers: dict[str, int]) -> list[str]:
    """The comparisons with another answer than at the model's own sizes: the test's own reading."""
    return [
        text
        for text, answer in sheet.rules.items()
        if bool(eval(text, {"max": max, "min": min}, dict(numbers))) != answer
    ]


def refused(sheet: Worksheet, numbers: dict[str, int]) -> bool:
    sizes = {name: n for name, n in numbers.items() if name not in RUN}
    lengths = {name: n for name, n in numbers.items() if name in RUN}
    try:
        ModelSpec.from_dict({**sheet.model.spec.to_dict(), **sizes})
        Workload(**{**sheet.workload.to_dict(), **lengths})
    except SpecError:
        return True
    return False


MODELS = ["llama3-8b", "deepseek-v3", "switch-base-8", "t5-11b", "gemma3-27b-text", "glm-130b"]
MODELS += ["type:granitemoe", "type:qwen2_moe"]


@daily(4)
@pytest.mark.parametrize("name", one_in(2, MODELS))
def test_what_a_spec_refuses_breaks_a_rule_and_most_that_it_takes_none(name: str) -> None:
    request = Request(prefix_len=100) if name == "glm-130b" else Request()
    sheet = worksheet(find_model(name), request)
    draw = random.Random(name)
    taken = of_other_forms = 0
    rules: set[str] = set()
    for _ in range(400):
        numbers = {size.term.name: size.number for size in sheet.sizes}
        for size in draw.sample(sheet.sizes, draw.randint(1, 4)):
            n = size.number
            odd = 1, 2, 3, 5, n - 1, n + 1, 2 * n, n // 2, size.most, size.most + 1
            other = draw.choice((*odd, draw.choice([*numbers.values()])))
            numbers[size.term.name] = max(size.least, other)
        wrong = broken(sheet, numbers)
        if refused(sheet, numbers):
            assert wrong, numbers
            rules.add(wrong[0])
        else:
            taken += 1
            of_other_forms += bool(wrong)
    assert taken > 30 and len(rules) > 8
    assert of_other_forms < taken / 2, (of_other_forms, taken)
