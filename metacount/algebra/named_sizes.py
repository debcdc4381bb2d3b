"""Numbers of a config that remember the expression in its fields that they are."""

from __future__ import annotations

from typing import Any

import sympy


class Named(int):
    """A number of a config that remembers the expression it is, through + - * // of numbers."""

    expr: Any

    def __new__(cls, value: int, expr: Any) -> Named:
        """The number `value`, which is `expr`."""
        made = super().__new__(cls, value)
        made.expr = expr
        return made

    def __add__(self, other: Any) -> Any:
        return _named(int(self) + _bare(other), self, other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return _named(int(self) - _bare(other), self, other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Any:
        return _named(int(self) * _bare(other), self, other, lambda a, b: a * b)

    def __floordiv__(self, other: Any) -> Any:
        exact = isinstance(other, int) and int(self) % int(other) == 0
        divided = (lambda a, b: a / b) if exact else (lambda a, b: sympy.floor(a / b))
        return _named(int(self) // _bare(other), self, other, divided)

    def __radd__(self, other: Any) -> Any:
        return _named(_bare(other) + int(self), other, self, lambda a, b: a + b)

    def __rsub__(self, other: Any) -> Any:
        return _named(_bare(other) - int(self), other, self, lambda a, b: a - b)

    def __rmul__(self, other: Any) -> Any:
        return _named(_bare(other) * int(self), other, self, lambda a, b: a * b)

    def __deepcopy__(self, _memo: Any) -> Named:
        return self


def _bare(value: Any) -> Any:
    return int(value) if isinstance(value, Named) else value


def _named(value: Any, left: Any, right: Any, combine: Any) -> Any:
    if type(value) is not int or isinstance(left, bool) or isinstance(right, bool):
        return value  # a float, or nothing that is a size
    return Named(value, combine(_expr(left), _expr(right)))


def _expr(value: Any) -> Any:
    return value.expr if isinstance(value, Named) else sympy.Integer(int(value))
