"""Meta kernels without torch's compiler: the first elementwise one would import it (0.5 s)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType

import torch
from torch._compile import _disable_dynamo

# Where torch keeps "this function with the compiler switched off" once it has asked the compiler.
SLOT = "__dynamo_disable"


def _guarded(module: ModuleType) -> Iterator[FunctionType]:
    """Functions under `torch._disable_dynamo`, found under all their decorators.

    Through closures, not `__wrapped__`, which decorators further out overwrite.
    """
    guard = _disable_dynamo(lambda: None).__code__
    for function in vars(module).values():
        while isinstance(function, FunctionType):
            names, cells = function.__code__.co_freevars, function.__closure__ or ()
            held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
            inner = held.get("fn")
            if function.__code__ is guard and isinstance(inner, FunctionType):
                yield inner
            function = inner


@contextmanager
def without_compiler() -> Iterator[None]:
    """Inside, torch's reference kernels run as they are instead of importing the compiler first.

    They are wrapped to tell the compiler not to trace them. As long as nobody has imported it
    there is nobody to tell; afterwards every function is left as it was found.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    functions = {
        function
        for module in (torch._refs, torch._refs.nn.functional)
        for function in _guarded(module)
        if not hasattr(function, SLOT)
    }
    for function in functions:
        setattr(function, SLOT, function)
    try:
        yield
    finally:
        for function in functions:
            delattr(function, SLOT)
