"""Mixers that keep a state: the module of each part, and the name that it has in a block."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from metacount.modules.mamba import Mamba
from metacount.modules.mamba2 import Mamba2
from metacount.spec import mamba, mamba2
from metacount.spec.norm import Norms


class Made(NamedTuple):
    """The name of a mixer in its block, as in transformers, and its class."""

    name: str
    module: Any  # made of (part, d_model, norms=Norms)


MIXERS: dict[type, Made] = {
    mamba.Mamba: Made("mamba", Mamba),
    mamba2.Mamba2: Made("mamba", Mamba2),
}


def make_recurrent(part: Any, d_model: int, norms: Norms) -> nn.Module:
    """The module of a part; it runs as `module(x_BSD, cache=StateCache)`."""
    module: nn.Module = MIXERS[type(part)].module(part, d_model, norms=norms)
    return module


def name_of(part: Any) -> str:
    """The name that the mixer of a part has in its block."""
    return MIXERS[type(part)].name
