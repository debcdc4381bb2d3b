"""What a function's code uses: whether letters can decide for it, and the numbers that stand in it.

Letters refuse every question that Python lets an object refuse. What they cannot refuse (`type`,
`is`, what was kept from an earlier call, a clock, the caller's stack) is looked for in the code; a
function that uses what is not known to be harmless is judged by numbers alone.
"""

from __future__ import annotations

import builtins
import dis
import fractions
import functools
import math
import types
from fractions import Fraction
from typing import TYPE_CHECKING

from metacount.huggingface.config.keys import words

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_NUMBERS = 400
MOST_FUNCTIONS = 100
DEEPEST = 4  # tables in tables

HARMLESS = words(
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
            self._not(f"it uses {_name(value)}")
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
    name = getattr(value, "__name__", None)
    if isinstance(value, type) and issubclass(value, BaseException):
        return True
    if isinstance(value, type) and value in (Fraction,):
        return True
    if getattr(builtins, str(name), None) is value:
        return name in HARMLESS
    return isinstance(value, types.BuiltinFunctionType) and value.__module__ == "math"


def _name(value: object) -> str:
    found = getattr(value, "__name__", None)
    return found if isinstance(found, str) else f"a {type(value).__name__}"
