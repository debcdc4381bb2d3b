"""What somebody's code needs to go on when a size is a symbol: `int` and `math` that take one."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

SYMBOLIC = (torch.SymInt, torch.SymFloat)
ROPE = "transformers.modeling_rope_utils"


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


@contextmanager
def with_symbols(chosen: type) -> Iterator[None]:
    """Inside, `int(a / b)`, `isinstance(a, int)`, `math.sqrt(a)` in a class's files take symbols.

    A tied head's bias is not stretched to the vocabulary's length, which is its own: that asks for
    numbers.
    """
    files = {c.__module__ for c in chosen.__mro__ if ".models." in c.__module__}
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name in (*files, ROPE):
        space = vars(sys.modules[name])
        new: dict[str, Any] = {"int": _TracedInt}
        if space.get("math") is math:
            new["math"] = (_RopeMath if name == ROPE else _Math)("math")
        before.append((space, {key: space[key] for key in new if key in space}))
        space.update(new)
    base: Any = next((c for c in chosen.__mro__ if "_adjust_bias" in vars(c)), None)
    stretch = None if base is None else vars(base)["_adjust_bias"]
    if base is not None:
        base._adjust_bias = lambda *_: None
    try:
        yield
    finally:
        if base is not None:
            base._adjust_bias = stretch
        for space, old in before:
            space.pop("int", None)
            space.update(old)
