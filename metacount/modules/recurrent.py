"""Mixers that keep a state: the module of each part, and the name that it has in a block."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from metacount.modules.convolution import RecurrentBlock, ShortConvolution
from metacount.modules.delta import GatedDelta, KimiDelta
from metacount.modules.lightning import Lightning
from metacount.modules.mlstm import MLstm
from metacount.modules.state_space import Mamba, Mamba2
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms


class Made(NamedTuple):
    """The name of a mixer in its block, as in transformers, and its class."""

    name: str
    module: Any  # made of (part, d_model, norms=Norms)
    by_depth: bool = False  # and of layer and n_layers: it is another one in each layer


MIXERS: dict[type, Made] = {
    parts.GatedDelta: Made("linear_attn", GatedDelta),
    parts.KimiDelta: Made("linear_attn", KimiDelta),
    parts.Lightning: Made("linear_attn", Lightning, by_depth=True),
    parts.Mamba: Made("mamba", Mamba),
    parts.Mamba2: Made("mamba", Mamba2),
    parts.MLstm: Made("mlstm_layer", MLstm),
    parts.ShortConv: Made("conv", ShortConvolution),
    parts.RgLru: Made("temporal_block", RecurrentBlock),
}


def make_recurrent(
    part: Any, d_model: int, norms: Norms, *, layer: int = 0, n_layers: int = 1
) -> nn.Module:
    """Make the module of a part in a layer; it runs as `module(x_BSD, cache=StateCache)`."""
    made = MIXERS[type(part)]
    depth = {"layer": layer, "n_layers": n_layers} if made.by_depth else {}
    module: nn.Module = made.module(part, d_model, norms=norms, **depth)
    return module


def name_of(part: Any) -> str:
    """Return the name that the mixer of a part has in its block."""
    return MIXERS[type(part)].name
