"""Letters that a function is called with, and what its code uses that they cannot refuse.

A function that asks what a letter is (equal, larger, true, an int, in a table, printed) may take a
branch at some sizes that it does not take with letters. So a question ends the call, is remembered
where the function catches what ends it, and numbers decide instead. What letters cannot refuse
(`type`, `is`, what was kept from an earlier call, a clock, the caller's stack) is looked for in the
code; a function that calls anything not known to be harmless is judged by numbers alone.
"""

from __future__ import annotations

import builtins
import dis
import fractions
import functools
import math
import types
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

from metacount.algebra.text import MAX_LENGTH
from metacount.errors import MAX_DIGITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MEANT = 1_000  # largest denominator of a fraction that a float may stand for: 2.6666666666666665
MAX_EXPONENT = 64
SUM, PRODUCT, SIGNED, POWER, ATOM = range(5)  # how tightly a text holds together


class Asked(BaseException):
    """A question to a letter. No `Exception`: no `except` of a function is meant for it."""


class Session:
    """One call with letters: what was asked, and whether floats would have been rounded."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.rounds = False

    def ask(self, what: str) -> NoReturn:
        """End the call, and remember why."""
        self.asked.append(what)
        raise Asked(what)

    def letter(self, text: str, level: int | None = None) -> Letter:
        """Make a letter that stands for the expression `text`, which holds together so tightly."""
        if len(text) > MAX_LENGTH:
            self.ask("for more than can be written down")
        if level is None:
            level = ATOM if text.isidentifier() or text.isdigit() else SUM
        made = object.__new__(Letter)
        for name, value in (("session", self), ("text", text), ("level", level)):
            object.__setattr__(made, name, value)
        return made

    def text(self, value: object, level: int = SUM) -> str:
        """Write what was made of the letters as text, in parentheses where it holds together less
        tightly than `level`; ask, which ends the call, where it is no arithmetic.
        """
        if type(value) is Letter:
            text: str = object.__getattribute__(value, "text")
            return text if object.__getattribute__(value, "level") >= level else f"({text})"
        if type(value) is bool or type(value) is int:
            number = Fraction(int(value))
        elif type(value) is Fraction:
            number = value
        elif type(value) is float:
            number = self._meant(value)
        else:
            self.ask(f"for arithmetic with a {type(value).__name__}")
        if max(abs(number.numerator), number.denominator) >= 10**MAX_DIGITS:
            self.ask("for arithmetic with a number of too many digits")
        return f"({number})" if number < 0 or number.denominator != 1 else str(number)

    def _meant(self, value: float) -> Fraction:
        if value != value or abs(value) > 2**53:
            self.ask(f"for arithmetic with {value}")
        exact = Fraction(value)
        if exact.denominator <= MEANT:
            return exact
        fraction = exact.limit_denominator(MEANT)
        if float(fraction) != value:
            self.ask(f"for arithmetic with {value}, which is no short fraction")
        self.rounds = True
        return fraction

    def called(self, name: str, *values: object) -> Letter:
        """Make a letter of the floor, ceil, min or max of letters and numbers."""
        first, *others = map(self.text, values)
        text = first if others else f"{name}({first})"
        for other in others:
            text = f"{name}({text}, {other})"
        return self.letter(text, ATOM)

    def joined(self, sign: str, left: object, right: object) -> Letter:
        """Join `left` and `right` with a sign between them."""
        level = SUM if sign in "+-" else PRODUCT
        if sign == "/":  # for which Python makes a float, exact by a power of two
            self.rounds |= not (type(right) is int and right > 0 and right & (right - 1) == 0)
        # a + (b - c) may be read from the left; a - (b - c), a * (b % c) must not be
        after = self.text(right, level if sign == "+" else level + 1)
        return self.letter(f"{self.text(left, level)} {sign} {after}", level)


def _session(letter: Letter) -> Session:
    session: Session = object.__getattribute__(letter, "session")
    return session


def _question(what: str) -> Callable[..., NoReturn]:
    return lambda letter, *_, **__: _session(letter).ask(what)


class Letter:
    """A size that only does arithmetic; `Session.letter` makes one."""

    __slots__ = ("level", "session", "text")

    def __getattribute__(self, name: str) -> NoReturn:
        _session(self).ask(f"for its attribute {name}")

    def __pow__(self, other: object, modulus: object = None) -> Letter:
        session = _session(self)
        if type(other) is not int or not 0 <= other <= MAX_EXPONENT or modulus is not None:
            session.ask("for a power that is no small whole number")
        return session.letter(f"{session.text(self, ATOM)}**{other}", POWER)

    def __neg__(self) -> Letter:
        return _session(self).letter(f"-{_session(self).text(self, POWER)}", SIGNED)

    def __pos__(self) -> Letter:
        return self

    def __bool__(self) -> bool:
        """Answer True for one size, as 0 is structure; of a sum it is a question."""
        return _session(self).text(self).isidentifier() or _session(self).ask("whether it is 0")

    def __floor__(self) -> Letter:
        return _session(self).called("floor", self)

    def __ceil__(self) -> Letter:
        return _session(self).called("ceil", self)


def _joining(sign: str, *, reflected: bool) -> Callable[[Letter, object], Letter]:
    def join(self: Letter, other: object) -> Letter:
        left, right = (other, self) if reflected else (self, other)
        return _session(self).joined(sign, left, right)

    return join


def _dividing(*, reflected: bool) -> Callable[[Letter, object], tuple[Letter, Letter]]:
    quotient, rest = (_joining(sign, reflected=reflected) for sign in ("//", "%"))
    return lambda self, other: (quotient(self, other), rest(self, other))


JOINED = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%"}
for _reflected in (False, True):
    for _name, _sign in JOINED.items():
        setattr(Letter, f"__{'r' * _reflected}{_name}__", _joining(_sign, reflected=_reflected))
    setattr(Letter, f"__{'r' * _reflected}divmod__", _dividing(reflected=_reflected))

# What a letter is asked by each of these methods.
QUESTIONS = {
    "whether it is equal": "eq ne",
    "which is smaller": "lt le",
    "which is larger": "gt ge",
    "for its hash, as a key is asked for": "hash",
    "for an int": "int index trunc",
    "for a float": "float",
    "for a number": "complex",
    "for a rounded number": "round",
    "for a text": "str repr format bytes",
    "for its sign": "abs",
    "for a length": "len",
    "for items": "iter contains getitem next",
    "for a call": "call",
    "for a power": "rpow",
    "for a product of matrices": "matmul rmatmul",
    "for bits": "and rand or ror xor rxor lshift rlshift rshift rrshift invert",
    "to change": "setattr delattr",
    "to be copied": "reduce_ex copy deepcopy",
    "for its attributes": "dir",
    "for its size": "sizeof",
    "for a context": "enter exit",
    "to wait": "await",
}
for _what, _names in QUESTIONS.items():
    for _name in _names.split():
        setattr(Letter, f"__{_name}__", _question(_what))


MOST_NUMBERS = 400
MOST_FUNCTIONS = 100
DEEPEST = 4  # tables in tables

HARMLESS = (
    "abs all any bool dict divmod enumerate filter float format frozenset getattr hasattr hash int "
    "isinstance len list map max min pow print range repr reversed round set slice sorted str sum "
    "tuple zip"
)
MODULES = (math, fractions)
KEEPS = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")
ASKS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
PLAIN = (type(None), bool, int, float, str, Fraction)


class Code:
    """What was found in the code of a function and of all that it calls."""

    def __init__(self, function: object) -> None:
        self.why: str | None = None  # why letters cannot decide
        self.functions: list[types.FunctionType] = []
        self.numbers: dict[Fraction, None] = {}
        self._value(function)

    def _not(self, why: str) -> None:
        self.why = self.why or why

    def _value(self, value: object, depth: int = 0) -> None:
        """Inspect a function, a number, a table, or something that may hide a branch."""
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self._code(value, {})
        elif isinstance(value, PLAIN):
            self._number(value)
        elif isinstance(value, tuple | frozenset):
            self._items(value, depth)
        elif isinstance(value, list | set):
            self._not("it uses a list or a set that outlives the call")
            self._items(value, depth)
        elif isinstance(value, dict):
            self._not("it uses a table that outlives the call")
            self._items([*value, *value.values()], depth)
        elif isinstance(value, types.ModuleType):
            if value not in MODULES:
                self._not(f"it uses {value.__name__}")
        elif not _harmless(value):
            self._not(f"it uses {_name_of(value)}")
            self._inside(value)

    def _items(self, values: Iterable[object], depth: int) -> None:
        if depth < DEEPEST:
            for value in [*values][:MOST_NUMBERS]:
                self._value(value, depth + 1)

    def _inside(self, value: object) -> None:
        """Inspect the functions in a method, a partial, a cache or an object that can be called."""
        if isinstance(value, functools.partial):
            self._items([value.func, *value.args, *value.keywords.values()], 0)
        elif isinstance(value, types.MethodType):
            self._value(value.__func__)
        elif isinstance(wrapped := getattr(value, "__wrapped__", None), types.FunctionType):
            self._value(wrapped)
        elif isinstance(called := vars(type(value)).get("__call__"), types.FunctionType):
            self._value(called)

    def _number(self, value: object) -> None:
        if isinstance(value, int | float | Fraction) and len(self.numbers) < MOST_NUMBERS:
            if isinstance(value, float) and not math.isfinite(value):
                return
            self.numbers[Fraction(value).limit_denominator(10**6)] = None

    def _function(self, function: types.FunctionType) -> None:
        if any(function is known for known in self.functions):
            return
        self.functions.append(function)
        if len(self.functions) > MOST_FUNCTIONS:
            self._not(f"it uses more than {MOST_FUNCTIONS} functions")
            return
        self._items(function.__defaults__ or (), 0)
        self._items((function.__kwdefaults__ or {}).values(), 0)
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self._value(cell.cell_contents)
            except ValueError:
                self._not(f"{name} has no value")
        self._code(code, function.__globals__)

    def _code(self, code: types.CodeType, names: dict[str, object]) -> None:
        before: dis.Instruction | None = None
        for step in dis.get_instructions(code):
            self._step(step, before, code, names)
            before = step
        for value in code.co_consts:
            if isinstance(value, types.CodeType):
                self._code(value, names)
            else:
                self._value(value)

    def _step(
        self,
        step: dis.Instruction,
        before: dis.Instruction | None,
        code: types.CodeType,
        names: dict[str, object],
    ) -> None:
        name, op = step.argval, step.opname
        if op in KEEPS or (op == "STORE_DEREF" and name in code.co_freevars):
            self._not(f"it keeps {name} for later calls")
        elif op == "IMPORT_NAME":
            if name not in [module.__name__ for module in MODULES]:
                self._not(f"it imports {name}")
        elif op == "LOAD_BUILD_CLASS":
            self._not("it makes a class")
        elif op == "IS_OP" and not _of_a_constant(before):
            self._not("it asks whether two values are the same object")
        elif op in ("LOAD_GLOBAL", "LOAD_NAME"):
            if name in names:
                self._value(names[name])
            elif hasattr(builtins, name):
                self._value(getattr(builtins, name))
        elif op in ASKS and name.startswith("__"):
            self._not(f"it asks for {name}")


def _of_a_constant(step: dis.Instruction | None) -> bool:
    """Tell whether `is` has None, True or False on its right."""
    if step is None or "CONST" not in step.opname:
        return False
    return any(step.argval is constant for constant in (None, True, False))


def _harmless(value: object) -> bool:
    if isinstance(value, type) and (issubclass(value, BaseException) or value is Fraction):
        return True
    name = _name_of(value)
    if getattr(builtins, name, None) is value:
        return name in HARMLESS.split()
    return isinstance(value, types.BuiltinFunctionType) and value.__module__ == "math"


def _name_of(value: object) -> str:
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"a {type(value).__name__}"
