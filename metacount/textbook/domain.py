"""Conditions on sizes as short texts of integer arithmetic, and whether they hold at some numbers.

Read without torch and SymPy: `count` asks them before it says that a formula was proven. A text is
taken apart as Python's grammar has it; it is never run.

>>> holds("n_heads % n_kv_heads == 0", {"n_heads": 8, "n_kv_heads": 2})
True
>>> holds("S + 1 < window", {"S": 2048})
Traceback (most recent call last):
...
metacount.textbook.domain.NotKnown: window
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without loading ast
LARGEST_POWER = 8
SHOWN = 8  # conditions on a screen
FROM = 3  # torch asks of every size whether it is 0 or 1; smaller ones are cases of their own


class NotKnown(KeyError):
    """A size that the condition speaks of has no number here."""

    def __str__(self) -> str:
        return str(self.args[0])


class NotReadable(ValueError):
    """A text that is no condition."""


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mult": lambda a, b: a * b,
    "FloorDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
}
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "Eq": lambda a, b: a == b,
    "NotEq": lambda a, b: a != b,
    "Lt": lambda a, b: a < b,
    "LtE": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b,
    "GtE": lambda a, b: a >= b,
}


def holds(condition: str, numbers: Mapping[str, int]) -> bool:
    """Whether one comparison of whole numbers is true. Raises `NotKnown`, `NotReadable`."""
    try:
        tree: Any = compile(condition, "<condition>", "eval", ONLY_AST)
    except (SyntaxError, ValueError) as error:
        raise NotReadable(condition) from error
    body = tree.body
    if type(body).__name__ != "Compare" or len(body.ops) != 1:
        raise NotReadable(condition)
    compared = _COMPARED.get(type(body.ops[0]).__name__)
    if compared is None:
        raise NotReadable(condition)
    return compared(_value(body.left, numbers), _value(body.comparators[0], numbers))


def _value(node: Any, numbers: Mapping[str, int]) -> int:
    kind = type(node).__name__
    if kind == "Constant" and type(node.value) is int:
        value: int = node.value
        return value
    if kind == "Name":
        if type(numbers.get(node.id)) is not int:
            raise NotKnown(node.id)
        return numbers[node.id]
    if kind == "UnaryOp" and type(node.op).__name__ == "USub":
        return -_value(node.operand, numbers)
    if kind == "BinOp":
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        operator = type(node.op).__name__
        if operator == "Pow" and 0 <= right <= LARGEST_POWER:
            power: int = left**right
            return power
        if operator in _ARITHMETIC and (right or operator not in ("FloorDiv", "Mod")):
            return _ARITHMETIC[operator](left, right)
    raise NotReadable(kind)


def sizes_text(where: Sequence[str], small: Sequence[str] = (), most: int | None = None) -> str:
    """The sizes for which something was shown: numbers that sizes are held at, those of this model
    below 3, all others from 3 on, and conditions.

    Of a model that meets them all, `most` conditions are enough, and how many others there are.

    >>> sizes_text(["n_kv_heads = 1", "head_dim is even"], ["B = 1"])
    'B = 1, n_kv_heads = 1 and all other sizes from 3, where head_dim is even'
    >>> sizes_text(["head_dim is even", "S > 3", "S > 4"], most=1)
    'all sizes from 3, where head_dim is even; and 2 other conditions, met here (`count --json`)'
    """
    held = dict.fromkeys((*small, *(text for text in where if _is_number(text))))
    rest = [text for text in where if text not in held]
    if most is not None and len(rest) > most:
        n = len(rest) - most
        rest = [*rest[:most], f"and {n} other conditions, met here (`count --json`)"]
    sizes = (
        f"{', '.join(held)} and all other sizes from {FROM}" if held else f"all sizes from {FROM}"
    )
    return sizes + (f", where {'; '.join(rest)}" if rest else "")


def _is_number(condition: str) -> bool:
    name, equals, number = condition.partition(" = ")
    return bool(equals) and number.isdecimal() and name.isidentifier()
