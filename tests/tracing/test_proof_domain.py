"""Forms and conditions as texts: evaluated, never run, from a folder or an archive."""

from __future__ import annotations

import ast
import random
import re
from typing import Any

import pytest
import sympy

from metacount.textbook.proven import NotKnown, NotReadable, all_said, holds, read_record, value
from metacount.tracing.domain import asked_of, in_domain, smallest
from metacount.tracing.symbols import Sizes, divides, symbol
from metacount.verify.for_all_sizes import as_test

d, h, k, B, S, w = (symbol(name) for name in ("d", "h", "k", "B", "S", "w"))


NO_CONDITIONS = """
__import__('os') == 1; d.real == 1; f(d) == 1; d; 1 < d < 3; d == 'x'; d ==; 9**9**9 == 1; [d] == 1
d % 0 == 0; d == 1.5; (lambda: d)() == 1; (d == 1; d) == 1; () == 1; d(d) == 1; d d == 1; 2d == 1
d * * 2 == 1; d / 2 == 1; d ^ 2 == 1; d**-1 == 1; +d == 1; d + == 1; == 1; d // (d - 12) == 0
d == 1 or d == 2; min(d == 1; min(d, == 1; max(d, 1) == 1; 1 == min(; d, d == 1; d**9 == 512; not d
d << 1 == 4; ~d == 1; d is d; d in d; d < True; d + 2j > 0; d + None > 0; d < '2048'
"""


@pytest.mark.parametrize("text", ["", *re.split(r"; |\n", NO_CONDITIONS.strip())])
def test_nothing_else_is_a_condition(text: str) -> None:
    with pytest.raises(NotReadable):
        holds(text, {"d": 12})


def test_every_condition_of_the_record_is_read_as_python_reads_it() -> None:
    found = read_record()
    tests = {test for one in found["structures"] for _, test, *_ in one["conditions"] if test}
    tests |= {said["zero"] for *_, said in all_said(found) if "zero" in said}
    assert len(tests) > 200
    draw, said = random.Random(7), set()
    for test in sorted(tests):
        names = [node.id for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)]
        for largest in (3, 12, 200):
            numbers = {name: draw.randint(1, largest) for name in names}
            try:
                right = eval(test, {"__builtins__": {}}, numbers)
            except ZeroDivisionError:
                with pytest.raises(NotReadable):
                    holds(test, numbers)
                continue
            assert holds(test, numbers) is right, (test, numbers)
            said.add(right)
    assert said == {True, False}


def test_every_form_of_the_record_is_evaluated_as_python_does() -> None:
    draw, forms = random.Random(7), 0
    for one in read_record()["structures"]:
        for text in (*one["layers"].values(), *one["forms"].values()):
            names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
            numbers = {name: draw.randint(1, 99) for name in sorted(names - {"min"})}
            assert value(text, numbers) == eval(text, {"__builtins__": {"min": min}}, numbers)
            forms += 1
    assert forms > 500


@pytest.mark.parametrize("seed", range(5))
def test_any_sum_is_read_as_python_reads_it(seed: int) -> None:
    draw = random.Random(seed)

    def text(depth: int) -> str:
        if depth == 0 or draw.random() < 0.2:
            return draw.choice(["d", "S", "n_heads", "7", "0", "12"])
        left, right = text(depth - 1), text(depth - 1)
        return draw.choice(
            [
                f"({left})",
                f"-{left}",
                f"({left})**2",
                f"{left} + {right}",
                f"{left}-{right}",
                f"{left}*{right}",
                f"{left}//{right}",
                f"{left} % {right}",
                f"({left} - {right})",
                f"min({left}, {right})",
            ]
        )

    numbers, read = {"d": 5, "S": 3, "n_heads": 8}, 0
    for _ in range(500):
        condition = f"{text(5)} {draw.choice(['<', '<=', '==', '!=', '>', '>='])} {text(3)}"
        try:
            right = eval(condition, {"__builtins__": {"min": min}}, numbers)
        except ZeroDivisionError:
            with pytest.raises(NotReadable, match="0"):
                holds(condition, numbers)
            continue
        assert holds(condition, numbers) is right, condition
        read += 1
    assert read > 200


def test_a_size_without_a_number_is_named() -> None:
    with pytest.raises(NotKnown, match="window"):
        holds("S + 1 < window", {"S": 2048})


@pytest.mark.parametrize("number", [None, True, 2048.0, "2048"])
def test_only_a_whole_number_is_a_size(number: Any) -> None:
    with pytest.raises(NotKnown, match="window"):
        holds("window > 0", {"window": number})


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
        assert holds(text, {letter.name: n for letter, n in at.items()}) is right
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
