"""Modules that somebody has in hand, told apart without torch: what they say of themselves."""

from __future__ import annotations

from metacount.errors import InputError, shown
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any, TypeGuard

    from torch import nn

    from metacount.files import Json


def is_module(given: object) -> TypeGuard[nn.Module]:
    """Tell whether something is an `nn.Module`, as far as its methods tell."""
    return hasattr(given, "named_parameters") and not isinstance(given, type)


def has_config(module: object) -> bool:
    """Tell whether a module says what it is: by a spec of ours or a config of transformers'."""
    config = getattr(module, "config", None)
    return isinstance(getattr(module, "spec", None), ModelSpec) or hasattr(config, "to_dict")


def described(module: object) -> tuple[str, ModelSpec | Json]:
    """Return the name of a module's class, and its spec (ours) or config (transformers')."""
    kind = shown(type(module).__name__)
    spec = getattr(module, "spec", None)
    if isinstance(spec, ModelSpec):
        return kind, spec
    if not has_config(module):
        raise InputError(
            f"{kind} is a module without a config, so there is no formula: "
            "metacount.summary(module) measures it"
        )
    config: Any = getattr(module, "config", None)
    return kind, {**config.to_dict(), "architectures": [type(module).__name__]}


def check_size(given: object, params: int | None) -> None:
    """Raise `InputError` where a module has other parameters than what its config makes."""
    if params is None or not is_module(given):
        return
    found = sum(p.numel() for p in given.parameters())
    if found != params:
        raise InputError(
            f"{shown(type(given).__name__)} has {found:,} parameters, its config makes {params:,}: "
            "it was changed after it was built; metacount.summary(module) measures it as it is"
        )
