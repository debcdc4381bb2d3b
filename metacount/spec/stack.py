"""A stack of layers, each with a mixer, a feed-forward or a mixture, and norms."""

from __future__ import annotations

from metacount.spec.attention import Attention
from metacount.spec.ffn import FeedForward
from metacount.spec.field import MAX_LAYERS, always, choice, number, one_of, part, size, where
from metacount.spec.mla import LatentAttention
from metacount.spec.moe import Mixture
from metacount.spec.norm import Norms


@part
class Stack:
    """Layers that are made alike, but for what a law says of each."""

    n_layers: int = size(
        "n_layers", "N", "blocks of the only stack, or of the decoder", "blocks",
        "num_hidden_layers n_layer num_layers block_count decoder_layers num_decoder_layers",
        most=MAX_LAYERS)  # fmt: skip
    residual_scale: float = number(
        "residual_scale", "factor on what each sublayer adds", default=1.0
    )
    attention: Attention | LatentAttention = one_of(
        choice("attention", "key/value heads, or multi-head latent attention", default="gqa"),
        Attention, LatentAttention)  # fmt: skip
    feed_forward: FeedForward = always(FeedForward)
    mixture: Mixture | None = where("n_experts", Mixture, "without n_experts", default=None)
    norms: Norms = always(Norms)


@part
class Encoder(Stack):
    """The stack beside a decoder; made like it."""

    n_layers: int = size(
        "n_encoder_layers", "N_e", "blocks of the encoder", "blocks",
        "encoder_layers num_encoder_layers num_layers", default=0, least=0,
        most=MAX_LAYERS)  # fmt: skip


KINDS: dict[str, dict[str, type[Stack]]] = {
    "decoder": {"decoder": Stack},
    "encoder": {"encoder": Stack},
    "prefix-decoder": {"decoder": Stack},
    "encoder-decoder": {"encoder": Encoder, "decoder": Stack},
}
