"""Whole numbers that write down what is asked of them: how rules are read off the code that has
them; and such arithmetic as JavaScript of BigInts, exact at every size.

JavaScript's own / and % round towards zero; Python's, and so the formulas', towards minus infinity:
the page's `floorDiv` and `floorMod` do as Python does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from metacount.algebra.text import read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.algebra.text import Node

Log = list[tuple[str, bool, tuple[int, int]]]

OPEN, CLOSE = "\ue000", "\ue001"  # of Unicode's private use: they stand in nobody's message


class NotRecorded(TypeError):
    """An operation that would go on with a plain number, unseen."""


class Recorded(int):
    """The number `value`, which `text` computes; what it is compared with goes into `log`.

    An entry is the comparison, how it came out, and the two numbers. Written into a text it is its
    own `text`, between `OPEN` and `CLOSE`.

    >>> log = []
    >>> h, n = Recorded(32, "h", log), Recorded(6, "n", log)
    >>> bool(h % n), f"{h} % {n}".count(OPEN), log
    (True, 2, [('(h % n) != 0', True, (2, 0))])
    """

    text: str
    log: Log

    def __new__(cls, value: int, text: str, log: Log) -> Recorded:
        """Return the number `value`, called `text`."""
        made = super().__new__(cls, value)
        made.text, made.log = text, log
        return made

    def _made(self, value: int, sign: str, left: int, right: int) -> Recorded:
        return Recorded(value, f"({_text(left)} {sign} {_text(right)})", self.log)

    def __add__(self, other: int) -> Recorded:
        return self._made(int(self) + int(other), "+", self, other)

    def __radd__(self, other: int) -> Recorded:
        return self._made(int(other) + int(self), "+", other, self)

    def __sub__(self, other: int) -> Recorded:
        return self._made(int(self) - int(other), "-", self, other)

    def __rsub__(self, other: int) -> Recorded:
        return self._made(int(other) - int(self), "-", other, self)

    def __mul__(self, other: int) -> Recorded:
        return self._made(int(self) * int(other), "*", self, other)

    def __rmul__(self, other: int) -> Recorded:
        return self._made(int(other) * int(self), "*", other, self)

    def __floordiv__(self, other: int) -> Recorded:
        return self._made(int(self) // int(other), "//", self, other)

    def __mod__(self, other: int) -> Recorded:
        return self._made(int(self) % int(other), "%", self, other)

    def __rfloordiv__(self, other: int) -> Recorded:
        return self._made(int(other) // int(self), "//", other, self)

    def __rmod__(self, other: int) -> Recorded:
        return self._made(int(other) % int(self), "%", other, self)

    def __neg__(self) -> Recorded:
        return self._made(-int(self), "-", 0, self)

    def __abs__(self) -> Recorded:
        return Recorded(abs(int(self)), f"max({self.text}, 0 - {self.text})", self.log)

    def _asked(self, sign: str, other: int, outcome: bool) -> bool:
        both = int(self), int(other)
        self.log.append((f"{self.text} {sign} {_text(other)}", outcome, both))
        return outcome

    def __bool__(self) -> bool:
        return self._asked("!=", 0, int(self) != 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            return False
        return self._asked("==", other, int(self) == int(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: int) -> bool:
        return self._asked("<", other, int(self) < int(other))

    def __le__(self, other: int) -> bool:
        return self._asked("<=", other, int(self) <= int(other))

    def __gt__(self, other: int) -> bool:
        return self._asked(">", other, int(self) > int(other))

    def __ge__(self, other: int) -> bool:
        return self._asked(">=", other, int(self) >= int(other))

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __str__(self) -> str:
        return f"{OPEN}{self.text}{CLOSE}"

    __repr__ = __str__

    def __format__(self, _spec: str) -> str:
        return str(self)

    def _refused(self, *_: object) -> NoReturn:
        raise NotRecorded(f"{self.text}: an operation that is not recorded")

    __pow__ = __rpow__ = __truediv__ = __rtruediv__ = _refused
    __divmod__ = __rdivmod__ = __and__ = __or__ = _refused
    __lshift__ = __rshift__ = __round__ = _refused


def _text(value: int) -> str:
    return value.text if isinstance(value, Recorded) else str(int(value))


COMPARED = {" == ": "===", " != ": "!==", " <= ": "<=", " >= ": ">=", " < ": "<", " > ": ">"}
FUNCTIONS = {"//": "floorDiv", "%": "floorMod", "min": "least", "max": "most"}


class NotWhole(ValueError):
    """A formula that leaves the whole numbers."""


def in_javascript(text: str, names: Mapping[str, str]) -> str:
    """Write a formula of whole numbers in JavaScript; `names` says what stands for each name.

    >>> in_javascript("2*d**2 - (S + 1) // 2", {"d": "v.d", "S": "v.S"})
    '((2n * (v.d ** 2n)) + -(floorDiv((v.S + 1n), 2n)))'
    """
    return _written(read(text).tree, names)


def condition(text: str, names: Mapping[str, str]) -> str:
    """Write one comparison of whole numbers in JavaScript.

    >>> condition("n_heads % n_kv_heads == 0", {"n_heads": "v.h", "n_kv_heads": "v.k"})
    'floorMod(v.h, v.k) === 0n'
    """
    left, sign, right = _split(text)
    if not sign:
        raise NotWhole(text)
    return f"{in_javascript(left, names)} {COMPARED[sign]} {in_javascript(right, names)}"


def names_in(text: str) -> tuple[str, ...]:
    """List the names of a condition, or of a formula, in the order in which they are read.

    >>> names_in("S + 1 < window")
    ('S', 'window')
    """
    left, sign, right = _split(text)
    return tuple(dict.fromkeys((*read(left).names, *(read(right).names if sign else ()))))


def _split(text: str) -> tuple[str, str, str]:
    """Split a comparison at its sign, which is empty where there is none."""
    sign = next((sign for sign in COMPARED if sign in text), "")
    return text.partition(sign) if sign else (text, "", "")


def _written(node: Node, names: Mapping[str, str]) -> str:
    if node.kind == "number":
        if node.value.denominator != 1:
            raise NotWhole(str(node.value))
        return f"{node.value.numerator}n"
    if node.kind == "name":
        return names[node.word]
    parts = [_written(part, names) for part in node.parts]
    if node.kind == "neg":
        return f"-({parts[0]})"  # its own brackets: JavaScript refuses -a ** b
    if node.kind in FUNCTIONS:
        return f"{FUNCTIONS[node.kind]}({', '.join(parts)})"
    if node.kind in ("+", "*", "**"):
        return f"({f' {node.kind} '.join(parts)})"
    raise NotWhole(node.kind)
