"""Forms and conditions as texts: evaluated, never run, from a folder or an archive."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import sympy
from helpers.structures import all_recorded, read_record

from metacount.textbook.proven import NotKnown, NotReadable, value
from metacount.tracing.domain import asked_of, in_domain, smallest
from metacount.tracing.symbols import Sizes, divides, symbol
from metacount.verify.for_all_sizes import as_test

d, h, k, B, S, w = (symbol(name) for name in ("d", "h", "k", "B", "S", "w"))


@pytest.mark.parametrize(
    ("text", "numbers", "right"),
    [
        ("S + 1 < window", {"S": 10, "window": 12}, True),
        ("S + 1 < window", {"S": 11, "window": 12}, False),
        ("(d) % (2*h) == 0", {"d": 12, "h": 3}, True),
        ("(d) % (2*h) == 0", {"d": 12, "h": 4}, False),
        ("-3*h + d**2 >= 0", {"d": 3, "h": 3}, True),
        ("(-(-(n)//(2))) != 3", {"n": 5}, False),
    ],
)
def test_a_condition_is_asked_of_numbers(text: str, numbers: dict[str, int], right: bool) -> None:
    assert value(text, numbers) is right


@pytest.mark.parametrize(
    "text",
    [
        "d.real == 1",
        "d == 'x'",
        "d ==",
        "d % 0 == 0",
        "[d] == 1",
        "d == 1.5",
        "(d == 1",
        "d(d)",
        "",
    ],
)
def test_nothing_else_is_a_condition(text: str) -> None:
    with pytest.raises(NotReadable):
        value(text, {"d": 12})


def test_every_text_of_the_record_is_arithmetic() -> None:
    """Whatever the sizes, a condition is true or false and a form is a number."""
    record = read_record()
    conditions = {test for one in record["structures"] for _, test, *_ in one["conditions"] if test}
    conditions |= {each["zero"] for *_, each in all_recorded(record) if "zero" in each}
    forms = [
        text
        for one in record["structures"]
        for text in (*one["layers"].values(), *one["forms"].values())
    ]
    assert len(conditions) > 200 and len(forms) > 500
    for kind, texts in ((bool, conditions), (int, forms)):
        for text in texts:
            names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
            assert type(value(text, dict.fromkeys(names, 5))) is kind, text


def test_a_size_without_a_number_is_named() -> None:
    with pytest.raises(NotKnown, match="window"):
        value("S + 1 < window", {"S": 2048})


@pytest.mark.parametrize("number", [None, True, 2048.0, "2048"])
def test_only_a_whole_number_is_a_size(number: Any) -> None:
    with pytest.raises(NotKnown, match="window"):
        value("window > 0", {"window": number})


@pytest.mark.parametrize(
    "condition",
    [
        divides(2 * h, d),
        divides(sympy.Integer(2), d / h),
        sympy.Gt(d / h, 3, evaluate=False),
        sympy.Le(S + 1, w, evaluate=False),
        sympy.Eq(k, d / h, evaluate=False),
        sympy.Ne(d, h, evaluate=False),
        sympy.Ge(sympy.floor(d / h), k, evaluate=False),
        sympy.Lt(sympy.ceiling(S / w), 3, evaluate=False),
        sympy.Eq(sympy.Mod(S, 4), 1, evaluate=False),
    ],
)
def test_a_text_says_what_the_condition_says(condition: Any) -> None:
    text, letters = as_test(condition), sorted(condition.free_symbols, key=str)
    said = set()
    tried = ((12, 3, 4, 9), (8, 2, 4, 4), (9, 2, 1, 5), (4, 12, 7, 3), (6, 3, 2, 4), (5,) * 4)
    for numbers in tried:
        at = dict(zip(letters, numbers, strict=False))
        right = in_domain((condition,), at, {})
        assert value(text, {letter.name: n for letter, n in at.items()}) is right
        said.add(right)
    assert len(said) == 2  # the numbers fall on both sides


def test_what_torch_asked_says_how_small_sizes_may_be() -> None:
    differ = sympy.Ne(B, 1, evaluate=False)
    assert smallest([differ, sympy.Ge(B * S, 2, evaluate=False)], {}) == {B: 2, S: 1}
    assert smallest([sympy.Ge(B * (S - 1), 2, evaluate=False)], {}) == {B: 1, S: 3}
    times = sympy.Dummy("q", integer=True, positive=True)
    found = smallest([sympy.Gt(h / k, 1, evaluate=False)], {h: k * times})
    assert found == {times: 2}  # twice as many heads as key/value heads, at the least


def test_a_size_that_is_another_one_is_not_said_to_be_twice_it() -> None:
    """Heads are a multiple of groups, and as many: what is asked of heads is so of them."""
    sizes = Sizes()
    heads, groups = sizes.new("heads", 6), sizes.new("groups", 6)
    assert heads // groups == 1 and heads > 1
    asked = asked_of(sizes)
    equal = sympy.Eq(symbol("heads"), symbol("groups"), evaluate=False)
    assert equal in asked.conditions or equal.reversed in asked.conditions
    assert asked.ratios == ()
    assert max(asked.least.values()) == 2
