"""Sizes that are symbols: what is asked of them; `int` and `math` that take them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sympy
from transformers import GPT2LMHeadModel

from metacount.tracing.domain import for_arithmetic, sign_above
from metacount.tracing.symbols import ROPE, Sizes, symbol, with_symbols

S, c, w, n = (symbol(name) for name in ("S", "c", "w", "n"))


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("a*b - 8", 2),
        ("a*b - 9", 1),
        ("a*b - 10", 0),
        ("a - b", 0),
        ("a**2*b - a*b + a", 2),
        ("a - floor(1/b) - 3", 1),
        ("a/2 - 1", 2),
    ],
)
def test_signs_are_shown_of_all_sizes_from_three(text: str, sign: int) -> None:
    a, b = sympy.symbols("a b", integer=True, positive=True)
    expr = sympy.sympify(text, locals={"a": a, "b": b})
    assert sign_above(for_arithmetic(expr, [a, b]), {a: 3, b: 3}) == sign
    assert sign_above(expr, {a: 3, b: 3}) == sign  # the slower way


MODULE = "transformers.models.gpt2.modeling_gpt2"
pytestmark = pytest.mark.usefixtures("restored")


def files() -> dict[str, dict[str, Any]]:
    return {name: vars(sys.modules[name]) for name in (MODULE, ROPE)}


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts the modules' own names back, should a test find them changed."""
    before = {name: dict(space) for name, space in files().items()}
    yield
    for name, space in files().items():
        for added in set(space) - set(before[name]):
            del space[added]
        space.update(before[name])


def evaluated(code: str, sizes: Sizes, *, hint: int = 12, module: str = MODULE) -> Any:
    """A line of code as if it stood in a module, with a size x."""
    x = sizes.new("x", hint)
    with with_symbols(GPT2LMHeadModel):
        return eval(code, vars(sys.modules[module]), {"x": x})


@pytest.mark.parametrize("module", [MODULE, ROPE])
def test_a_symbol_is_a_whole_number(module: str) -> None:
    sizes = Sizes()
    assert evaluated("isinstance(x, int)", sizes, module=module) is True
    assert evaluated("isinstance(5, int) and isinstance(True, int)", Sizes(), module=module) is True
    assert evaluated("isinstance(5.0, int) or isinstance(x / 2, int)", Sizes(), module=module) is (
        False
    )
    assert sizes.constants == {}


@pytest.mark.parametrize("failing", [False, True])
def test_everything_is_as_before(failing: bool) -> None:
    before = {name: dict(space) for name, space in files().items()}
    stretch = GPT2LMHeadModel._adjust_bias

    def inside() -> None:
        with with_symbols(GPT2LMHeadModel):
            for name, space in files().items():
                assert space["int"] is not int, name
                assert space["math"] is not math, name
            assert GPT2LMHeadModel._adjust_bias is not stretch
            if failing:
                raise ZeroDivisionError("of somebody's code")

    if failing:
        with pytest.raises(ZeroDivisionError, match="of somebody's code"):
            inside()
    else:
        inside()
    for name, space in files().items():
        assert set(space) == set(before[name])
        assert all(space[key] is value for key, value in before[name].items())
    assert GPT2LMHeadModel._adjust_bias is stretch
