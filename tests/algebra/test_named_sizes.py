"""Numbers of a config that remember what they are made of: value and expression, by hand."""

from __future__ import annotations

import pytest
import sympy

from metacount.algebra.exact import Named

d, h = sympy.symbols("d h", positive=True, integer=True)
THIRTEEN, FIVE = Named(13, d), Named(5, h)


@pytest.mark.parametrize(
    ("number", "value", "expr"),
    [
        (THIRTEEN + 2, 15, d + 2),
        (2 + THIRTEEN, 15, d + 2),
        (THIRTEEN + FIVE, 18, d + h),
        (THIRTEEN - 2, 11, d - 2),
        (2 - THIRTEEN, -11, 2 - d),
        (THIRTEEN * 3, 39, 3 * d),
        (3 * THIRTEEN, 39, 3 * d),
        (THIRTEEN * FIVE, 65, d * h),
        (THIRTEEN // 13, 1, d / 13),  # 13 divides 13: a quotient
        (THIRTEEN // 5, 2, sympy.floor(d / 5)),  # 13 = 2·5 + 3
        (THIRTEEN // FIVE, 2, sympy.floor(d / h)),
    ],
)
def test_value_and_expression(number: int, value: int, expr: sympy.Expr) -> None:
    assert isinstance(number, Named)
    assert (int(number), number.expr) == (value, expr)


def test_what_is_no_size_remembers_nothing() -> None:
    assert type(THIRTEEN + True) is int and THIRTEEN + True == 14
    assert type(THIRTEEN * 0.5) is float and THIRTEEN * 0.5 == 6.5
