"""A module that somebody's own file defines, and the sizes that are typed for its inputs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from metacount.check.given.file import NAME, loaded
from metacount.errors import InputError, shown
from metacount.summary.copied import said
from metacount.summary.ran import made_inputs

if TYPE_CHECKING:
    from collections.abc import Callable


def module_of(path: str, name: str) -> nn.Module:
    """Find the module called `name` in a file, which is run:
    an instance, or what a call of it gives.

    A class or a function is called without arguments, on the meta device. What the file prints
    goes to stderr.
    """
    if not os.path.isfile(path):
        raise InputError(f"{shown(path)}: no such file")
    with contextlib.redirect_stdout(sys.stderr):
        file = loaded(path, shown(path))
        found: object = getattr(file, name, None)
        if found is None:
            own = [
                key
                for key, value in vars(file).items()
                if getattr(value, "__module__", None) == NAME or isinstance(value, nn.Module)
            ]
            remedy = f"it has {', '.join(own[:8])}" if own else "it has none"
            raise InputError(f"{shown(path)}: has no '{shown(name)}'; {remedy}")
        if not isinstance(found, nn.Module) and callable(found):
            found = _called(found, f"{shown(path)}:{name}")
    if not isinstance(found, nn.Module):
        raise InputError(f"{shown(path)}:{name} is no module: got {shown(repr(found))}")
    return found


def _called(make: Callable[..., object], place: str) -> object:
    try:
        with torch.device("meta"):
            return make()
    except Exception as error:
        # whatever somebody else's code raises
        raise InputError(
            f"{place} cannot be called without arguments: {said(error)}; "
            "name a function that makes the module"
        ) from None


def typed_inputs(module: nn.Module, texts: Sequence[str]) -> tuple[Tensor, ...]:
    """Make meta tensors of sizes as they are typed: `2,16,64`, or `2,16:int64` for tokens."""
    found: list[Tensor] = []
    for text in texts:
        sizes, colon, kind = text.partition(":")
        parts = sizes.split(",")
        if not all(part.isdecimal() and part.isascii() and len(part) < 13 for part in parts):
            raise InputError(f"--input is sizes as in 2,16,64 or 2,16:int64: got {shown(text)}")
        found += made_inputs(module, [int(part) for part in parts], kind if colon else None)
    return tuple(found)
