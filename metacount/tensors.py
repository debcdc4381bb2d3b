"""Types and bytes of tensors; what a measurement changes for its own thread alone.

Torch has one switch for the whole process where this has one for a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Add up the logical bytes of tensors: values times the size of one."""
    return sum(t.numel() * t.element_size() for t in tensors)


# One measurement at a time changes what the process has once.
ONE_AT_A_TIME = RLock()

Function = Callable[..., Any]


class _Here:
    """A function in the place of another in one thread; all others get the other."""

    def __init__(self, ours: Function, theirs: Function) -> None:
        self.ours, self.theirs, self.thread = ours, theirs, get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.ours if get_ident() == self.thread else self.theirs)(*args, **kwargs)


@contextmanager
def replaced_here(owner: object, functions: Mapping[str, Function]) -> Iterator[None]:
    """Put functions in the place of those of a module, in this thread, until the block ends."""
    with ONE_AT_A_TIME:
        before = {name: getattr(owner, name) for name in functions}
        made = {name: _Here(ours, before[name]) for name, ours in functions.items()}
        for name, function in made.items():
            setattr(owner, name, function)
        try:
            yield
        finally:
            for name, function in made.items():
                setattr(owner, name, before[name])
                function.thread = 0  # whoever has kept it gets the other


# Make floating values of the default type, whatever they are given.
FLOATS = frozenset(
    [
        torch.bartlett_window,
        torch.blackman_window,
        torch.empty,
        torch.empty_permuted,
        torch.empty_strided,
        torch.eye,
        torch.hamming_window,
        torch.hann_window,
        torch.kaiser_window,
        torch.linspace,
        torch.logspace,
        torch.ones,
        torch.rand,
        torch.randn,
        torch.zeros,
    ]
)
ASKED = frozenset([Tensor.float, Tensor.type, torch.from_numpy])  # by their names


class FunctionMode(TorchFunctionMode):
    """Runs each of torch's functions that is called inside."""

    def __torch_function__(
        self, func: Function, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the function."""
        return self.run_function(func, args, kwargs or {})

    def run_function(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function, and return what it gives."""
        return func(*args, **kwargs)


class _MadeIn(FunctionMode):
    """Gives new tensors a type, as torch's default type does."""

    def __init__(self, dtype: torch.dtype, default: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.default = dtype, default

    def run_function(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function; what it makes of whole numbers and of Python's is of the type."""
        if func in FLOATS:
            return func(*args, **kwargs if kwargs.get("dtype") else {**kwargs, "dtype": self.dtype})
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.dtype is self.default and func not in ASKED:
            values = [*args, *kwargs.values()]
            values += [
                each for value in values if isinstance(value, list | tuple) for each in value
            ]
            if not any(map(_says_a_type, values)):
                return out.to(self.dtype)
        return out


def _says_a_type(value: object) -> bool:
    """Tell whether a result has its type from this argument, and not from the default."""
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, torch.dtype) or type(value).__module__ == "numpy"


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors of a type in this thread until the block ends.

    `torch.set_default_dtype` does it in all threads.
    """
    default = torch.tensor(0.0, device="meta").dtype  # of the process, or of a block around this
    with replaced_here(torch, {"get_default_dtype": lambda: dtype}), _MadeIn(dtype, default):
        yield


@contextmanager
def process_made_in(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors of a type in all threads until the block ends."""
    with ONE_AT_A_TIME:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
