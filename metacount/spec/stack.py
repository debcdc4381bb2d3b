"""A stack of layers, each with a mixer, a feed-forward or a mixture, and norms."""

from __future__ import annotations

from metacount.spec.altup import AltUp, Laurel, LayerInputs
from metacount.spec.attention import Attention, NoAttention
from metacount.spec.ffn import FeedForward
from metacount.spec.field import (
    MAX_LAYERS,
    always,
    choice,
    number,
    one_of,
    part,
    pattern,
    size,
    where,
)
from metacount.spec.gated_delta import GatedDelta
from metacount.spec.kimi_delta import KimiDelta
from metacount.spec.law import Law
from metacount.spec.lightning import Lightning
from metacount.spec.mamba import Mamba
from metacount.spec.mamba2 import Mamba2
from metacount.spec.mla import LatentAttention
from metacount.spec.mlstm import MLstm
from metacount.spec.moe import Mixture
from metacount.spec.norm import Norms
from metacount.spec.recurrent import NoRecurrent
from metacount.spec.rg_lru import RgLru
from metacount.spec.shared_block import SharedBlock
from metacount.spec.short_conv import ShortConv

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any

WITH_ATTENTION, WITH_STATE, WITH_FFN = "APS", "RPS", "FEB"  # letters of the two patterns
WITH_DENSE, WITH_EXPERTS = "FB", "EB"
BESIDE = "B"  # a layer of both, whose experts' output is added one layer later
SHARING = "S"  # a layer whose mixer stands behind a shared block


@part
class Stack:
    """Layers that are made alike, but for what a law says of each."""

    n_layers: int = size(
        "n_layers",
        "N",
        "blocks of the only stack, or of the decoder",
        "blocks",
        "num_hidden_layers n_layer num_layers block_count decoder_layers num_decoder_layers",
        most=MAX_LAYERS,
    )
    residual_scale: float = number(
        "residual_scale", "factor on what each sublayer adds", default=1.0
    )
    residual_weight: float = number(
        "residual_weight", "factor on what each sublayer adds to", default=1.0
    )
    attention: Attention | LatentAttention | NoAttention = one_of(
        choice("attention", "key/value heads, multi-head latent attention, or none", default="gqa"),
        Attention,
        LatentAttention,
        NoAttention,
    )
    recurrent: Any = one_of(
        choice(
            "recurrent",
            "mixer that keeps a state of fixed size, beside or for attention",
            default="none",
        ),
        NoRecurrent,
        GatedDelta,
        KimiDelta,
        Lightning,
        Mamba,
        Mamba2,
        MLstm,
        ShortConv,
        RgLru,
    )
    mixer_pattern: str = pattern(
        "mixer_pattern",
        "of each layer, repeated: A attention, R recurrent, P both in parallel, S R behind a shared"
        " block, N neither",
        "A attention, R recurrent, P both in parallel, S R behind a shared block, N neither",
        "RRRA",
        default="A",
    )
    ffn_pattern: str = pattern(
        "ffn_pattern",
        "of each layer, repeated: F feed-forward, E experts, B both of one input, the experts'"
        " output added after the next layer, N neither",
        "F feed-forward, E experts, B both, N neither",
        "FN",
        default="F",
    )
    feed_forward: FeedForward | None = where(
        "activation",
        FeedForward,
        "without activation",
        remedy="set activation",
        default=None,
    )
    mixture: Mixture | None = where("n_experts", Mixture, "without n_experts", default=None)
    shared: SharedBlock | None = where(
        "n_shared_blocks", SharedBlock, "without n_shared_blocks", default=None
    )
    altup: AltUp | None = where("n_altup_inputs", AltUp, "without n_altup_inputs", default=None)
    laurel: Laurel | None = where("laurel_rank", Laurel, "without laurel_rank", default=None)
    layer_inputs: LayerInputs | None = where(
        "d_per_layer", LayerInputs, "without d_per_layer", default=None
    )
    norms: Norms = always(Norms)

    @property
    def uniform(self) -> bool:
        """Whether every layer has attention and a feed-forward."""
        return set(self.mixer_pattern) == {"A"} and set(self.ffn_pattern) == {"F"}

    def mixer_of(self, index: int) -> str:
        """Return the letter of layer `index` in `mixer_pattern`."""
        return self.mixer_pattern[index % len(self.mixer_pattern)]

    def shared_of(self, index: int) -> int | None:
        """Tell which of the shared blocks layer `index` uses, in turn; None where it uses none."""
        if self.shared is None or self.mixer_of(index) != SHARING:
            return None
        before = Law(letters=self.mixer_pattern, letter=SHARING).count(index)
        turn: int = before % self.shared.n_blocks
        return turn

    @property
    def names_experts(self) -> bool:
        """Whether `ffn_pattern` says which layers have experts, in place of the mixture's law."""
        return bool(set(self.ffn_pattern) & set(WITH_EXPERTS))

    def ffn_of(self, index: int) -> str:
        """Return layer `index`'s letter in `ffn_pattern`; E also if the mixture's law says so."""
        letter = self.ffn_pattern[index % len(self.ffn_pattern)]
        if letter == "F" and self.mixture is not None and not self.names_experts:
            return "E" if self.mixture.law.holds(index) else "F"
        return letter

    def borrows(self, index: int) -> bool:
        """Tell whether the attention of layer `index` reads keys and values of an earlier layer."""
        mixer = self.attention
        lent = mixer.n_kv_shared_layers if isinstance(mixer, Attention) else 0
        return bool(lent and index >= self.n_layers - lent)

    @property
    def windowed(self) -> Law | None:
        """Which layers have an attention that sees a window only; None where there is no window."""
        window = self.attention.window
        if window is None or set(self.mixer_pattern) <= set(WITH_ATTENTION):
            return None if window is None else window.law
        return Law(letters=self.seen)

    @property
    def seen(self) -> str:
        """What each layer's attention sees: L a window, G everything, R where there is none."""
        window = self.attention.window
        near = "G" if window is None else window.pattern
        mixers = self.mixer_pattern
        if set(mixers) <= set(WITH_ATTENTION):
            return near
        return "".join(
            near[i % len(near)] if mixers[i % len(mixers)] in WITH_ATTENTION else "R"
            for i in range(common_period(len(near), len(mixers)))
        )


def common_period(one: int, other: int) -> int:
    """Count the layers after which two patterns repeat together.

    >>> common_period(4, 6)
    12
    """
    import math

    return math.lcm(one, other)


@part
class Encoder(Stack):
    """The stack beside a decoder; made like it."""

    n_layers: int = size(
        "n_encoder_layers",
        "N_e",
        "blocks of the encoder",
        "blocks",
        "encoder_layers num_encoder_layers num_layers",
        default=0,
        least=0,
        most=MAX_LAYERS,
    )


KINDS: dict[str, dict[str, type[Stack]]] = {
    "decoder": {"decoder": Stack},
    "encoder": {"encoder": Stack},
    "prefix-decoder": {"decoder": Stack},
    "encoder-decoder": {"encoder": Encoder, "decoder": Stack},
}
