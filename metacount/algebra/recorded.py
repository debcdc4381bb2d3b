"""Whole numbers that write down what they are compared with, in the code that has the rules; and
such arithmetic as JavaScript of BigInts, exact at every size.

JavaScript's own / and % round towards zero; Python's, and so the formulas', towards minus infinity:
the page's `floorDiv` and `floorMod` do as Python does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from metacount.algebra.text import Node, read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Log = dict[str, bool]  # by comparison, how it came out


class NotRecorded(TypeError):
    """An operation that would go on with a plain number, unseen."""


class Recorded(int):
    """The number `value`, which `text` computes; what it is compared with goes into `log`.

    >>> log = {}
    >>> h, n = Recorded(32, "h", log), Recorded(6, "n", log)
    >>> bool(h % n), log
    (True, {'(h % n) != 0': True})
    """

    text: str
    log: Log

    def __new__(cls, value: int, text: str, log: Log) -> Recorded:
        """Return the number `value`, called `text`."""
        made = super().__new__(cls, value)
        made.text, made.log = text, log
        return made

    def __abs__(self) -> Recorded:
        return Recorded(abs(int(self)), f"max({self.text}, 0 - {self.text})", self.log)

    def __neg__(self) -> Recorded:
        return Recorded(-int(self), f"(0 - {self.text})", self.log)

    def __bool__(self) -> bool:
        return _asking("ne", "!=")(self, 0)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int.__hash__(self)


def _text(value: int) -> str:
    return value.text if isinstance(value, Recorded) else str(int(value))


def _recording(name: str, sign: str, *, reflected: bool) -> Callable[[Recorded, int], Recorded]:
    def record(self: Recorded, other: int) -> Recorded:
        left, right = (other, self) if reflected else (self, other)
        value = getattr(int, f"__{name}__")(int(left), int(right))
        return Recorded(value, f"({_text(left)} {sign} {_text(right)})", self.log)

    return record


def _asking(name: str, sign: str) -> Callable[[Recorded, object], bool]:
    def ask(self: Recorded, other: object) -> bool:
        if not isinstance(other, int):
            return False
        outcome = bool(getattr(int, f"__{name}__")(int(self), int(other)))
        self.log[f"{self.text} {sign} {_text(other)}"] = outcome
        return outcome

    return ask


def _refused(self: Recorded, *_: object) -> NoReturn:
    raise NotRecorded(f"{self.text}: an operation that is not recorded")


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}.items():
    setattr(Recorded, f"__{_name}__", _recording(_name, _sign, reflected=False))
    setattr(Recorded, f"__r{_name}__", _recording(_name, _sign, reflected=True))
for _name, _sign in {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    setattr(Recorded, f"__{_name}__", _asking(_name, _sign))
REFUSED = "pow rpow truediv rtruediv divmod rdivmod and or lshift rshift round"
for _name in REFUSED.split():
    setattr(Recorded, f"__{_name}__", _refused)


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
