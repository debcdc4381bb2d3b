"""Numbers of a config that remember the expression in its fields that they are."""

from __future__ import annotations

import sympy

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable


class Named(int):
    """A number of a config that remembers the expression it is, through + - * // of numbers."""

    expr: sympy.Expr

    def __new__(cls, value: int, expr: sympy.Expr) -> Named:
        """Return the number `value`, which is `expr`."""
        made = super().__new__(cls, value)
        made.expr = expr
        return made

    def __add__(self, other: int) -> int:
        return _named(int(self) + _bare(other), self, other, lambda a, b: a + b)

    def __sub__(self, other: int) -> int:
        return _named(int(self) - _bare(other), self, other, lambda a, b: a - b)

    def __mul__(self, other: int) -> int:
        return _named(int(self) * _bare(other), self, other, lambda a, b: a * b)

    def __floordiv__(self, other: int) -> int:
        exact = isinstance(other, int) and int(self) % int(other) == 0
        divided = (lambda a, b: a / b) if exact else (lambda a, b: sympy.floor(a / b))
        return _named(int(self) // _bare(other), self, other, divided)

    def __radd__(self, other: int) -> int:
        return _named(_bare(other) + int(self), other, self, lambda a, b: a + b)

    def __rsub__(self, other: int) -> int:
        return _named(_bare(other) - int(self), other, self, lambda a, b: a - b)

    def __rmul__(self, other: int) -> int:
        return _named(_bare(other) * int(self), other, self, lambda a, b: a * b)

    def __deepcopy__(self, _memo: object) -> Named:
        return self


def _bare(value: int) -> int:
    return int(value) if isinstance(value, Named) else value


def _named(
    value: int, left: int, right: int, combine: Callable[[sympy.Expr, sympy.Expr], sympy.Expr]
) -> int:
    if type(value) is not int or isinstance(left, bool) or isinstance(right, bool):
        return value  # a float all the same, or nothing that is a size
    return Named(value, combine(_expr(left), _expr(right)))


def _expr(value: int) -> sympy.Expr:
    return value.expr if isinstance(value, Named) else sympy.Integer(int(value))
