"""Whole numbers that write down what is asked of them: how rules are read off the code that has
them.
"""

from __future__ import annotations

from typing import NoReturn

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
