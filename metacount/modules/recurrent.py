"""Mixers that keep a state: the module of each part, and the name that it has in a block."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from metacount.spec.norm import Norms


class Made(NamedTuple):
    """The name of a mixer in its block, as in transformers, and its class."""

    name: str
    module: Any  # made of (part, d_model, norms=Norms)


MIXERS: dict[type, Made] = {}


def make_recurrent(part: Any, d_model: int, norms: Norms) -> nn.Module:
    """The module of a part; it runs as `module(x_BSD, cache=StateCache)`."""
    module: nn.Module = MIXERS[type(part)].module(part, d_model, norms=norms)
    return module


def name_of(part: Any) -> str:
    """The name that the mixer of a part has in its block."""
    return MIXERS[type(part)].name
