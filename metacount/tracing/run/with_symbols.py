"""What somebody's code needs to go on when a size is a symbol: `int` and `math` that take one."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import numpy
import torch

SYMBOLIC = (torch.SymInt, torch.SymFloat)
ROPE = "transformers.modeling_rope_utils"
OURS = "metacount.modules."


class _Whole(type):
    """`int` for code that is traced: a symbol is one, and stays one."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int | torch.SymInt)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], SYMBOLIC):
            return torch.sym_int(args[0])
        return int(*args, **kwargs)


class _TracedInt(metaclass=_Whole):
    pass


def _number(value: Any) -> Any:
    """The number behind a symbol, without a word about it to the domain."""
    return value.node.hint if isinstance(value, SYMBOLIC) else value


class _Math(ModuleType):
    """`math` for code that is traced: roots and logarithms of sizes are numbers.

    They scale values and are no sizes. Where one becomes a size after all, the form is wrong at
    other sizes, which is found out there.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    def sqrt(self, x: Any) -> float:
        return math.sqrt(_number(x))

    def log(self, x: Any, *base: Any) -> float:
        return math.log(_number(x), *map(_number, base))

    def log2(self, x: Any) -> float:
        return math.log2(_number(x))


class _RopeMath(_Math):
    """In the making of rotary tables, whose widths are given, nothing that is rounded is a size."""

    def floor(self, x: Any) -> Any:
        return math.floor(_number(x))

    def ceil(self, x: Any) -> Any:
        return math.ceil(_number(x))


class _Numpy(ModuleType):
    """NumPy for code that is traced: roots of sizes are numbers, as in `_Math`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)

    def sqrt(self, x: Any) -> Any:
        return numpy.sqrt(_number(x))


@contextmanager
def with_symbols(chosen: type) -> Iterator[None]:
    """Inside, `int(a / b)`, `isinstance(a, int)`, `math.sqrt(a)` in a class's files take symbols.

    These files are those of transformers' models, or of our reference modules.

    So do the fields of strict configs. A tied head's bias is not stretched to the vocabulary's
    length, which is its own: that asks for numbers.
    """
    files = {c.__module__ for c in chosen.__mro__ if ".models." in c.__module__}
    own = {name for name in sys.modules if name.startswith(OURS)}
    files |= own if chosen.__module__ in own else {ROPE}
    with ExitStack() as undone:
        for name in sorted(files):
            space = vars(sys.modules[name])
            undone.enter_context(_put(space, "int", _TracedInt))
            if space.get("math") is math:
                made = (_RopeMath if name == ROPE else _Math)("math")
                undone.enter_context(_put(space, "math", made))
            if space.get("np") is numpy:
                undone.enter_context(_put(space, "np", _Numpy("numpy")))
        strict = vars(sys.modules.get("huggingface_hub.dataclasses", sys))
        plain = strict.get("_validate_simple_type")
        if plain is not None:
            undone.enter_context(_put(strict, "_validate_simple_type", _or_symbol(plain)))
        base: Any = next((c for c in chosen.__mro__ if "_adjust_bias" in vars(c)), None)
        if base is not None:
            stretch = vars(base)["_adjust_bias"]
            undone.callback(setattr, base, "_adjust_bias", stretch)
            base._adjust_bias = lambda *_: None
        yield


@contextmanager
def _put(space: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Another value for a name of a module, for a while."""
    had, before = name in space, space.get(name)
    space[name] = value
    try:
        yield
    finally:
        if had:
            space[name] = before
        else:
            del space[name]


def _or_symbol(validate: Any) -> Any:
    def check(name: str, value: Any, expected: type) -> None:
        if not (expected is int and isinstance(value, torch.SymInt)):
            validate(name, value, expected)

    return check
