"""A stack of layers, each with a mixer, a feed-forward or a mixture, and norms.

Beside them stand shared blocks (Zamba2) and what Gemma 3n has: AltUp, LAuReL, inputs of each layer.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Law,
    NoAttention,
)
from metacount.spec.ffn import FeedForward, Mixture
from metacount.spec.field import (
    MAX_LAYERS,
    MAX_VOCAB,
    always,
    below,
    choice,
    flag,
    number,
    one_of,
    part,
    pattern,
    size,
    where,
)
from metacount.spec.mixers import RECURRENT

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any


MAX_INPUTS = 256  # of the residual stream, each as large as the stream
# Fields that say how many blocks there are, or which are of a kind, not how large one is; and those
# of modules in a list, and of a place in it.
OF_LAYERS = (
    *("n_layers", "n_encoder_layers", "n_dense_layers", "moe_every", "moe_offset", "nope_every"),
    *("n_kv_shared_layers", "n_hash_layers"),
)
OF_LISTS = ("n_altup_inputs", "altup_active", "n_streams", "n_sinkhorn_rounds")
WITH_ATTENTION, WITH_STATE, WITH_FFN = "APS", "RPS", "FEB"  # letters of the two patterns
WITH_DENSE, WITH_EXPERTS = "FB", "EB"
BESIDE = "B"  # a layer of both; its experts' output is added one layer later, or, sandwiched, there
SHARING = "S"  # a layer whose mixer stands behind a shared block


@part
class Norms:
    """One kind of norm for the whole model, and its places in a block and a stack."""

    kind: str = choice("norm", "layernorm", "rmsnorm")
    bias: bool = flag("norm_bias", default=False)
    affine: bool = flag("norm_affine", default=True)
    unit_offset: bool = flag("norm_unit_offset", default=False)
    placement: str = choice(
        "norm_placement",
        "pre",
        "post",
        "sandwich",
        "deep",
        "parallel",
        "parallel_two",
        "post_branch",
        "stream",
        "hybrid",
        default="pre",
    )
    eps: float = number("norm_eps", default=1e-5)
    final: bool = flag("final_norm", default=True)
    first: bool = flag("first_norm", default=True)

    def check(self) -> None:
        """Raise `SpecError` for what the kind of norm does not have."""
        if self.kind == "rmsnorm" and self.bias:
            raise SpecError("norm_bias", "has no meaning with rmsnorm", True, "leave norm_bias out")
        if self.kind == "layernorm" and self.unit_offset:
            raise SpecError("norm_unit_offset", "belongs to rmsnorm", True)
        if not self.first and self.placement != "pre":
            raise SpecError("first_norm", "can only be left out of placement pre", False)
        for name, given in (("norm_bias", self.bias), ("norm_unit_offset", self.unit_offset)):
            if given and not self.affine:
                rule = "has no meaning without norm_affine"
                raise SpecError(name, rule, True, f"leave {name} out")


@part
class AltUp:
    """Copies of the residual stream, of which a block computes one and predicts the others."""

    n_inputs: int = size("n_altup_inputs", most=MAX_INPUTS)
    active: int = size("altup_active", default=0, least=0, most=MAX_INPUTS)

    def check(self) -> None:
        """Raise `SpecError` for a copy that there is not."""
        why = "copies are numbered from 0"
        below("altup_active", self.active, "n_altup_inputs", self.n_inputs, why)


@part
class Laurel:
    """A second residual of low rank around each attention."""

    rank: int = size("laurel_rank")


@part
class HyperConnections:
    """Several residual streams (DeepSeek-V4): each branch reads a sum of them, by weights that a
    projection of all of them makes, and adds to each; they are mixed by a matrix whose rows and
    columns sum to 1 after so many rounds of dividing by these sums.
    """

    needed = "by n_streams"

    n_streams: int = size("n_streams", most=MAX_INPUTS)
    n_rounds: int = size("n_sinkhorn_rounds", most=MAX_LAYERS)
    eps: float = number("stream_eps", default=1e-6)


@part
class LayerInputs:
    """An embedding of the token for each layer, which a gate lets in behind the layer."""

    needed = "by d_per_layer"

    width: int = size("d_per_layer")
    vocab_size: int = size("vocab_size_per_layer", most=MAX_VOCAB)


@part
class SharedBlock:
    """Stored blocks, used in turn by the layers of letter S in front of their mixer.

    Each is the stack's attention over hidden state and embedding side by side, and its
    feed-forward. A layer that uses one has adapters of its own and a linear layer of its own.
    """

    n_blocks: int = size("n_shared_blocks", most=MAX_LAYERS)
    adapter_rank: int | None = size("adapter_rank", default=None)
    attention_adapters: bool = flag("attention_adapters", default=False)

    def check(self) -> None:
        """Raise `SpecError` for adapters of attention without a rank."""
        if self.attention_adapters and self.adapter_rank is None:
            rule = "has no meaning without adapter_rank"
            remedy = "set adapter_rank, or leave attention_adapters out"
            raise SpecError("attention_adapters", rule, True, remedy)


@part
class Stack:
    """Layers that are made alike, but for what a law says of each."""

    n_layers: int = size("n_layers", most=MAX_LAYERS)
    residual_scale: float = number("residual_scale", default=1.0)
    residual_weight: float = number("residual_weight", default=1.0)
    attention: Attention | LatentAttention | CompressedAttention | NoAttention = one_of(
        choice("attention", default="gqa"),
        Attention,
        LatentAttention,
        CompressedAttention,
        NoAttention,
    )
    recurrent: Any = one_of(choice("recurrent", default="none"), *RECURRENT)
    mixer_pattern: str = pattern(
        "mixer_pattern",
        "A attention, R recurrent, P both in parallel, S R behind a shared block, N neither",
        "RRRA",
        default="A",
    )
    ffn_pattern: str = pattern(
        "ffn_pattern", "F feed-forward, E experts, B both, N neither", "FN", default="F"
    )
    feed_forward: FeedForward | None = where(
        "activation", FeedForward, remedy="set activation", default=None
    )
    mixture: Mixture | None = where("n_experts", Mixture, default=None)
    shared: SharedBlock | None = where("n_shared_blocks", SharedBlock, default=None)
    altup: AltUp | None = where("n_altup_inputs", AltUp, default=None)
    laurel: Laurel | None = where("laurel_rank", Laurel, default=None)
    hyper: HyperConnections | None = where("n_streams", HyperConnections, default=None)
    layer_inputs: LayerInputs | None = where("d_per_layer", LayerInputs, default=None)
    norms: Norms = always(Norms)
    layer_scalar: bool = flag("layer_scalar", default=False)

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

    def attention_of(
        self, windowed: bool
    ) -> Attention | LatentAttention | CompressedAttention | NoAttention:
        """Return the attention of a layer that sees a window only, or everything."""
        part = self.attention
        return part.of_layer(windowed) if isinstance(part, Attention) else part

    @property
    def windows_differ(self) -> bool:
        """Whether layers with a window have other heads than those that see everything."""
        return isinstance(self.attention, Attention) and self.attention.differs

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


def common_period(first: int, other: int) -> int:
    """Count the layers after which two patterns repeat together.

    >>> common_period(4, 6)
    12
    """
    import math

    return math.lcm(first, other)


@part
class Encoder(Stack):
    """The stack beside a decoder; made like it."""

    n_layers: int = size("n_encoder_layers", default=0, least=0, most=MAX_LAYERS)


KINDS: dict[str, dict[str, type[Stack]]] = {
    "decoder": {"decoder": Stack},
    "encoder": {"encoder": Stack},
    "prefix-decoder": {"decoder": Stack},
    "encoder-decoder": {"encoder": Encoder, "decoder": Stack},
}
