"""Loads torchao's AdamW with a state in 8 bits, runs its step uncompiled, and opens its tensors.

Optional: the extra `adam8bit`. What its import has to say, of kernels that this machine cannot
load, is of no count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from metacount.errors import InputError
from metacount.measure.others.quiet import silent


def adam8bit(updated: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Make torchao's AdamW8bit; raise `InputError` where torchao is not installed."""
    try:
        with silent():
            from torchao.optim import AdamW8bit
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and str(error.name).startswith("torchao")
        why = "is not installed" if missing else "cannot be imported"
        raise InputError(
            f"adam8bit is AdamW8bit of the library torchao, which {why}; "
            "pip install 'metacount[adam8bit]', or choose adamw"
        ) from None
    made = AdamW8bit(list(updated), lr=rate)
    assert isinstance(made, torch.optim.Optimizer)
    return made


def torchao_version() -> str:
    """Return the version of torchao that is installed."""
    from importlib.metadata import version

    return version("torchao")


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run code that asks to be compiled as it is written, not compiled."""
    with torch.compiler.set_stance("force_eager"):
        yield


def is_wrapper(kind: type) -> bool:
    """Tell whether a class's tensors hold their values in other tensors, and can say in which."""
    return hasattr(kind, "__tensor_flatten__")


def inner_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that hold a tensor's values: itself, or those that it is a wrapper of."""
    flatten: Callable[[], tuple[list[str], object]] | None
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield name, tensor
        return
    for part in flatten()[0]:
        yield from inner_tensors(f"{name}.{part}", getattr(tensor, part))
