"""`int` and `math` that take symbols, in a class's files and only while it is traced."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sympy
import torch
from transformers import GPT2LMHeadModel

from metacount.tracing.symbols import ROPE, Sizes, symbol, with_symbols

MODULE = "transformers.models.gpt2.modeling_gpt2"
pytestmark = pytest.mark.usefixtures("restored")
X = symbol("x")


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


@pytest.mark.parametrize(("code", "expr"), [("int(x * 3 / 2)", 3 * X / 2), ("int(x)", X)])
def test_a_symbol_stays_one_when_it_is_cut(code: str, expr: sympy.Expr) -> None:
    sizes = Sizes()
    found = evaluated(code, sizes)
    assert isinstance(found, torch.SymInt)
    assert sizes.expr(found) == expr
    assert sizes.constants == {}


# code -> what it comes to at x = 64
ROOTS = {
    "math.sqrt(x)": 8.0,
    "math.log2(x)": 6.0,
    "math.log(x, 2)": math.log(64, 2),
    "math.log(x)": math.log(64),
    "math.log(100, x)": math.log(100, 64),
    "math.sqrt(x / 4)": 4.0,
}


@pytest.mark.parametrize("code", ROOTS)
def test_a_root_is_a_number_and_the_symbol_stays_one(code: str) -> None:
    sizes = Sizes()
    found = evaluated(code, sizes, hint=64)
    assert type(found) is float
    assert found == ROOTS[code]
    assert sizes.constants == {}
    assert sizes.env.guards == []  # nothing was asked


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
