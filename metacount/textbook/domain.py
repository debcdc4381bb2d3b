"""Short texts of integer arithmetic: the value of a form, and whether a condition on sizes holds.

Read without torch and SymPy: `count` asks them before it says that a formula was proven. A text is
taken apart here, as Python would, and never run. Python's own parser is not asked: before its first
tree it makes a class for each kind of node, which takes longer than to read all of a structure.

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

LARGEST_POWER = 8
SHOWN = 8  # conditions on a screen
FROM = 3  # torch asks of every size whether it is 0 or 1; smaller ones are cases of their own


class NotKnown(KeyError):
    """A size that the condition speaks of has no number here."""

    def __str__(self) -> str:
        return str(self.args[0])


class NotReadable(ValueError):
    """A text that is no condition."""


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    " == ": lambda a, b: a == b,
    " != ": lambda a, b: a != b,
    " < ": lambda a, b: a < b,
    " <= ": lambda a, b: a <= b,
    " > ": lambda a, b: a > b,
    " >= ": lambda a, b: a >= b,
}
_NO_SIZES = ("True", "False", "None")
_SIGNS = ("(", ")", "+", "-", "*", "//", "%", ",")


def holds(condition: str, numbers: Mapping[str, int]) -> bool:
    """Tell whether one comparison of whole numbers is true. Raises `NotKnown`, `NotReadable`."""
    for sign, compared in _COMPARED.items():
        left, found, right = condition.partition(sign)
        if found:
            return compared(value(left, numbers), value(right, numbers))
    raise NotReadable(condition)


def value(text: str, numbers: Mapping[str, int]) -> int:
    """Compute the number that a text stands for. Raises `NotKnown`, `NotReadable`.

    >>> value("-d**2 + (7 - d)//2*d % 4 + min(d, 2)", {"d": 3})
    -5
    """
    spaced = text
    for sign in _SIGNS:
        spaced = spaced.replace(sign, f" {sign} ")
    words = spaced.replace("*  *", "**").split()[::-1]  # the next one stands last
    number = _sum(words, numbers)
    if words:
        raise NotReadable(text)
    return number


def _sum(words: list[str], numbers: Mapping[str, int]) -> int:
    number = _product(words, numbers)
    while words and words[-1] in ("+", "-"):
        sign, other = words.pop(), _product(words, numbers)
        number += other if sign == "+" else -other
    return number


def _product(words: list[str], numbers: Mapping[str, int]) -> int:
    number = _factor(words, numbers)
    while words and words[-1] in ("*", "//", "%"):
        sign, other = words.pop(), _factor(words, numbers)
        if sign == "*":
            number *= other
        elif other == 0:
            raise NotReadable(f"{sign} 0")
        else:
            number = number // other if sign == "//" else number % other
    return number


def _factor(words: list[str], numbers: Mapping[str, int]) -> int:
    """Read a number, a size or what stands in brackets, with its sign and its power."""
    word = words.pop() if words else ""
    if word == "-":
        return -_factor(words, numbers)  # of the power too: -d**2
    if word == "(":
        number = _sum(words, numbers)
        _end(words)
    elif word == "min" and words[-1:] == ["("]:
        words.pop()
        number = _sum(words, numbers)
        while words[-1:] == [","]:
            words.pop()
            number = min(number, _sum(words, numbers))
        _end(words)
    elif word.isascii() and word.isdecimal():
        number = int(word)
    elif word.isidentifier() and word not in _NO_SIZES and words[-1:] != ["("]:
        if type(numbers.get(word)) is not int:
            raise NotKnown(word)
        number = numbers[word]
    else:
        raise NotReadable(word)
    if words[-1:] == ["**"]:
        words.pop()
        power = _factor(words, numbers)
        if not 0 <= power <= LARGEST_POWER:
            raise NotReadable(f"to the power of {power}")
        raised: int = number**power
        return raised
    return number


def _end(words: list[str]) -> None:
    if not words or words.pop() != ")":
        raise NotReadable("a bracket is not closed")


def sizes_text(where: Sequence[str], small: Sequence[str] = (), most: int | None = None) -> str:
    """Write the sizes for which something was shown: numbers that sizes are held at, those of this
    model below 3, all others from 3 on, and conditions.

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
