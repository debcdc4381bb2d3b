"""Changes what a process shares, while code is traced: the one place that does, under one lock.

Symbols have to pass for whole numbers in code that was written for numbers. All of it is undone at
the end, but one thing: `torch.SymInt` stays registered as a `numbers.Integral`, which Python cannot
take back. Two threads cannot trace at once; the second one waits.
"""

from __future__ import annotations

import copy
import logging
import math
import numbers
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy
import torch

from metacount.measure.others.transformers_private import bias_unstretched, type_check
from metacount.measure.torch_private import any_fan

if TYPE_CHECKING:
    from collections.abc import Callable

    Number: TypeAlias = float | torch.SymInt | torch.SymFloat
    Check: TypeAlias = Callable[[str, object, type], None]

K = TypeVar("K")

_LOCK = threading.RLock()
SYMBOLIC = (torch.SymInt, torch.SymFloat)
ROPE = "transformers.modeling_rope_utils"
OURS = "metacount.modules."
SCALE = ("Adafactor", "Muon")  # of torch.optim: they scale an update by a root of a size


class _Whole(type):
    """`int` for code that is traced: a symbol is one, and stays one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int | torch.SymInt)

    def __call__(cls, *args: Any, **kwargs: Any) -> int | torch.SymInt:
        if args and isinstance(args[0], SYMBOLIC):
            whole: torch.SymInt = torch.sym_int(args[0])
            return whole
        return int(*args, **kwargs)


class _TracedInt(metaclass=_Whole):
    pass


def _number(value: Number) -> float:
    """Return the number behind a symbol, without adding a condition to the domain."""
    return value.node.hint if isinstance(value, SYMBOLIC) else value


class _Math(ModuleType):
    """`math` for code that is traced: roots and logarithms of sizes are numbers.

    They scale values and are no sizes. Where one becomes a size after all, the form is wrong at
    other sizes, which is found out there.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    def sqrt(self, x: Number) -> float:
        return math.sqrt(_number(x))

    def log(self, x: Number, *base: Number) -> float:
        return math.log(_number(x), *map(_number, base))

    def log2(self, x: Number) -> float:
        return math.log2(_number(x))


class _RopeMath(_Math):
    """In the making of rotary tables, whose widths are given, nothing that is rounded is a size."""

    def floor(self, x: Number) -> int:
        return math.floor(_number(x))

    def ceil(self, x: Number) -> int:
        return math.ceil(_number(x))


class _Numpy(ModuleType):
    """NumPy for code that is traced: roots of sizes are numbers, as in `_Math`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)

    def sqrt(self, x: Number) -> object:
        return numpy.sqrt(_number(x))


@contextmanager
def symbols_as_numbers() -> Iterator[None]:
    """Let a symbol pass for a whole number, in the block,
    where torch and Python's library look at it.
    """
    with _LOCK, any_fan(), ExitStack() as undone:
        # torch.nn asks whether a size is an Integral
        numbers.Integral.register(torch.SymInt)
        # what torch logs of a failed attempt comes back as an exception
        undone.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        # some code copies its config: a copied symbol would belong to another environment
        copied: dict[object, object] = vars(copy)["_deepcopy_dispatch"]
        undone.enter_context(_put(copied, torch.SymInt, lambda size, _memo: size))
        yield


@contextmanager
def with_symbols(chosen: type) -> Iterator[None]:
    """Let `int(a / b)`, `isinstance(a, int)`,
    `math.sqrt(a)` in a class's files take symbols until the block ends.

    These files are those of transformers' models, or of our reference modules.

    So do the fields of strict configs. A tied head's bias is not stretched to the vocabulary's
    length, which is its own: that asks for numbers.
    """
    files = {c.__module__ for c in chosen.__mro__ if ".models." in c.__module__}
    own = {name for name in sys.modules if name.startswith(OURS)}
    files |= own if chosen.__module__ in own else {ROPE}
    with _LOCK, ExitStack() as undone:
        for name in sorted(files):
            space = vars(sys.modules[name])
            undone.enter_context(_put(space, "int", _TracedInt))
            if space.get("math") is math:
                made = (_RopeMath if name == ROPE else _Math)("math")
                undone.enter_context(_put(space, "math", made))
            if space.get("np") is numpy:
                undone.enter_context(_put(space, "np", _Numpy("numpy")))
        if (check := type_check()) is not None:
            space, name, plain = check
            undone.enter_context(_put(space, name, _or_symbol(plain)))
        undone.enter_context(bias_unstretched(chosen))
        for kind in (getattr(torch.optim, name, None) for name in SCALE):
            space = kind.__init__.__globals__ if kind else {}  # of its file
            if space.get("math") is math:
                undone.enter_context(_put(space, "math", _Math("math")))
            for pick in (min, max):
                undone.enter_context(_put(space, pick.__name__, _of_numbers(pick)))
        yield


@contextmanager
def _put(space: dict[K, object], name: K, value: object) -> Iterator[None]:
    """Put another value under a name, for a while."""
    had, before = name in space, space.get(name)
    space[name] = value
    try:
        yield
    finally:
        if had:
            space[name] = before
        else:
            del space[name]


def _of_numbers(pick: Callable[..., object]) -> Callable[..., object]:
    """Make a `min` or `max` of scales, which are numbers, as roots are."""
    return lambda *values: pick(*map(_number, values))


def _or_symbol(validate: Check) -> Check:
    def check(name: str, value: object, expected: type) -> None:
        if not (expected is int and isinstance(value, torch.SymInt)):
            validate(name, value, expected)

    return check
