"""A copy of somebody's module on the meta device: its structure without its values.

What is measured is the copy, so that the original stays as it is: no weight is moved, no hook is
called, no buffer or cache is written, no mode is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from metacount.errors import InputError, shown
from metacount.measure.torch_private import tensors_of, unhook

DEEP = 4  # of lists and dicts in which a module keeps tensors


def copied_on_meta(module: nn.Module) -> nn.Module:
    """Copy `module`: the tensors of the copy have no values, and it has no hooks.

    Raises `InputError` for a module that has parameters without a shape, or cannot be copied.
    """
    lazy = [name for name, p in module.named_parameters(remove_duplicate=False) if is_lazy(p)]
    if lazy:
        raise InputError(
            f"{named(module)}: parameter {shown(lazy[0])} has no shape yet (a lazy module): "
            "run the module once, then measure it"
        )
    memo: dict[int, object] = {}
    for owner in module.modules():
        held = (*tensors_of(owner).values(), *_tensors(list(vars(owner).values()), DEEP))
        for tensor in held:
            if id(tensor) not in memo:
                memo[id(tensor)] = _on_meta(tensor)
    try:
        made = copy.deepcopy(module, memo)
    except Exception as error:
        # whatever somebody else's objects raise when they are copied
        raise InputError(f"{named(module)} cannot be copied: {said(error)}") from None
    for owner in made.modules():
        unhook(owner)
    return made


def _on_meta(tensor: Tensor) -> Tensor:
    try:
        bare = torch.empty_like(tensor.detach(), device="meta")
    except RuntimeError as error:
        raise InputError(f"a {type(tensor).__name__} has no copy on meta: {said(error)}") from None
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(bare, requires_grad=tensor.requires_grad)
    return bare


def _tensors(value: object, depth: int) -> Iterator[Tensor]:
    """Yield the tensors that are no parameters and no buffers,
    in attributes and what these hold.
    """
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | set):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        yield from _tensors(vars(value), depth - 1)


def named(module: nn.Module) -> str:
    """Name a module as an error calls it."""
    return shown(type(module).__name__)


def said(error: BaseException) -> str:
    """Write somebody else's error in one line."""
    text = " ".join(str(error).split())
    return shown(f"{type(error).__name__}: {text}" if text else type(error).__name__)
