"""One transformer block: attention, feed-forward or experts, and where the norms stand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from metacount.modules.altup import AltUp, Laurel, LayerInput
from metacount.modules.attention import Attention, BorrowingAttention, Visibility
from metacount.modules.cache import LayerCache, Lent, StateCache
from metacount.modules.compressed import CompressedAttention, HyperConnection, written
from metacount.modules.ffn import FeedForward, GatedFeedForward, feed_forward
from metacount.modules.mla import LatentAttention
from metacount.modules.moe import MixtureOfExperts
from metacount.modules.norm import make_norm as make_norm
from metacount.modules.recurrent import make_recurrent, name_of
from metacount.modules.shared_block import SharedBlock, SharedUse
from metacount.spec import ModelSpec
from metacount.spec import attention as parts
from metacount.spec.field import altered
from metacount.spec.position import Rope, TransformerXL
from metacount.spec.stack import BESIDE, SHARING, WITH_ATTENTION, WITH_STATE


def make_attention(
    spec: ModelSpec, index: int
) -> Attention | LatentAttention | CompressedAttention:
    """Make the self-attention of block `index`."""
    stack, positions = spec.last_stack, spec.positions
    windowed, norms = spec.is_windowed_layer(index), stack.norms
    part = stack.attention_of(windowed)
    assert not isinstance(part, parts.NoAttention)  # of a block that has one
    rope = positions if isinstance(positions, Rope) and spec.has_rope_layer(index) else None
    if isinstance(part, parts.LatentAttention):
        part = altered(part, indexer=None) if spec.shares_index(index) else part
        return LatentAttention(part, spec.d_model, norms=norms, rope=rope, windowed=windowed)
    if isinstance(part, parts.CompressedAttention):
        assert rope is not None  # the spec requires it
        letter = part.letter_of(index)
        return CompressedAttention(part, spec.d_model, letter, rope=rope, norms=norms)
    growth = positions.growth if isinstance(positions, Rope) else None
    if growth is not None and growth.nope_only and rope is not None:
        growth = None
    if part.qk_norm == "l2" and rope is None:
        # Llama 4 norms only the queries and keys that it rotated
        part = altered(part, qk_norm="none")
    if part.indexer is not None and not spec.has_index_layer(index):
        part = altered(part, indexer=None)
    if spec.last_stack.borrows(index):
        return BorrowingAttention(
            part, spec.d_model, norms=norms, rope=rope, windowed=windowed, growth=growth
        )
    return Attention(
        part,
        spec.d_model,
        norms=norms,
        rope=rope,
        windowed=windowed,
        growth=growth,
        relative=isinstance(positions, TransformerXL),
    )


def make_cross_attention(spec: ModelSpec) -> Attention:
    """Make cross-attention: the same heads and biases, no positions, QK-norm, sinks and gate."""
    part = spec.last_stack.attention
    assert isinstance(part, parts.Attention)  # the spec requires it
    bare = altered(part, qk_norm="none", sinks=False, output_gate=False, head_gate="none")
    return Attention(bare, spec.d_model, norms=spec.last_stack.norms)


def make_feed_forward(
    spec: ModelSpec, index: int
) -> FeedForward | GatedFeedForward | MixtureOfExperts:
    """Make the feed-forward of block `index`, dense or a mixture of experts in its place."""
    stack = spec.last_stack
    assert stack.feed_forward is not None  # of a block that has one
    if stack.mixture is not None and stack.ffn_of(index) == "E":
        n_hashed = spec.vocab_size if index < stack.mixture.n_hash_layers else None
        return MixtureOfExperts(stack.mixture, spec.d_model, stack.feed_forward, n_hashed=n_hashed)
    part = stack.feed_forward
    width, sparsity = part.width_of(index), part.sparsity_of(index)
    return feed_forward(part, spec.d_model, width=width, sparsity=sparsity)


# sublayer -> names of the norm before it and of the norm after it
NORMS: dict[str, dict[str, tuple[str | None, str | None]]] = {
    "pre": {
        "self_attn": ("input_layernorm", None),
        "cross_attn": ("cross_attention_layernorm", None),
        "mlp": ("post_attention_layernorm", None),
    },
    "post": {
        "self_attn": (None, "self_attention_layernorm"),
        "cross_attn": (None, "cross_attention_layernorm"),
        "mlp": (None, "feedforward_layernorm"),
    },
    "sandwich": {
        "self_attn": ("input_layernorm", "post_attention_layernorm"),
        "cross_attn": ("pre_cross_attention_layernorm", "post_cross_attention_layernorm"),
        "mlp": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    },
    "post_branch": {
        "self_attn": (None, "post_attention_layernorm"),
        "cross_attn": (None, "post_cross_attention_layernorm"),
        "mlp": (None, "post_feedforward_layernorm"),
    },
    "parallel": {"self_attn": ("input_layernorm", None), "mlp": (None, None)},
    "parallel_two": {
        "self_attn": ("input_layernorm", None),
        "mlp": ("post_attention_layernorm", None),
    },
}
# Behind the feed-forward, before and behind experts whose outputs are added in one layer.
OF_BOTH = ("post_mlp_layernorm", "pre_moe_layernorm", "post_moe_layernorm")
NORMS["deep"] = NORMS["post"]
NORMS["stream"] = dict(NORMS["pre"])


def deep_alpha(spec: ModelSpec, cross: bool) -> float:
    """Compute DeepNorm's weight of the residual: Wang et al. 2022, arXiv:2203.00555, figure 2.

    (2N)^1/4 in a single stack; with N encoder and M decoder layers 0.81·(N⁴·M)^1/16 in the encoder
    and (3M)^1/4 in the decoder (whose blocks are those with cross-attention).
    """
    n_layers: int = spec.last_stack.n_layers
    if cross:
        return (3 * n_layers) ** 0.25  # int ** float is Any
    if spec.has_encoder and spec.encoder is not None:
        return 0.81 * (spec.encoder.n_layers**4 * n_layers) ** 0.0625
    return (2 * n_layers) ** 0.25


class Block(nn.Module):
    """x -> x + mixer -> + feed-forward, with the norms of the spec's placement.

    The mixer is attention, one that keeps a state, or the sum of both side by side; a layer may go
    without it or without the feed-forward. What a mixer that keeps a state reads may be x plus what
    a block shared by many layers gives (Zamba2).

    pre          x + f(norm(x))                   (GPT-2, LLaMA)
    post         norm(x + f(x))                   (the original Transformer, BERT)
    sandwich     x + norm(f(norm(x)))             (Gemma 2; CogView, arXiv:2105.13290)
    deep         norm(α·x + f(x)), see `deep_alpha`
    post_branch  x + norm(f(x))                   (OLMo 2, arXiv:2501.00656)
    stream       y + f(y) with y = norm(x)        (MiniMax, arXiv:2501.08313)
    parallel     x + attn(norm(x)) + ffn(norm(x)), one norm or two (PaLM, GPT-NeoX)
    hybrid       post_branch in layers of attention, pre in those with a state (OLMo Hybrid)

    `residual_scale` multiplies what is added to x, after any norm of the branch; `residual_weight`
    multiplies x.

    Experts may stand beside the feed-forward and read what it reads; their output is given beside
    the block's, and added behind the next block: a shortcut around its attention (Cai et al. 2024,
    arXiv:2404.05019; LongCat-Flash, arXiv:2509.01322, section 2.2). In a sandwich each of the two
    has norms of its own, the router reads x, and the sum is what the sublayer gives (Gemma 4).

    With AltUp x is several copies of the stream: the block computes one of them, predicted from
    all, and corrects all by it. LAuReL adds to what is behind attention, a layer's own embedding to
    what is behind the block: of copies, to all but the first. With hyper-connections x is several
    streams: each branch reads a sum of them and adds to all.

    `kind` says what distinguishes the block from others of its stack: blocks of equal kind have
    the same structure and cost.
    """

    layer_scalar: Tensor | None

    def __init__(self, spec: ModelSpec, index: int, *, cross: bool = False) -> None:
        super().__init__()
        stack = spec.last_stack
        norms, window, law = stack.norms, stack.attention.window, stack.windowed
        letter = stack.mixer_of(index)
        self.parallel = norms.placement.startswith("parallel")
        self.residual_scale = stack.residual_scale
        self.alpha = stack.residual_weight
        if norms.placement == "deep":
            self.alpha *= deep_alpha(spec, cross)
        self.window = window.size if window is not None and law and law.holds(index) else None
        self.attends = letter in WITH_ATTENTION
        self.shares = letter == SHARING
        both = stack.ffn_of(index) == BESIDE
        self.sums = both and norms.placement == "sandwich"
        self.beside = both and not self.sums
        self.keeps = name_of(stack.recurrent) if letter in WITH_STATE else None
        self.kind = (
            f"moe={spec.is_moe_layer(index)} window={self.window} "
            f"rope={spec.has_rope_layer(index)} cross={cross}"
            + " index" * spec.has_index_layer(index)
            + " shares" * spec.shares_index(index)
        )
        if not stack.uniform:
            self.kind += f" mixer={letter} ffn={stack.ffn_of(index)}"
        self.borrows = self.attends and stack.borrows(index)
        self.shares_index = spec.shares_index(index)
        dense = stack.feed_forward
        sparse = dense is not None and dense.sparsity_of(index) is not None
        self.kind += " borrows" * self.borrows + " sparse" * sparse
        self.hashed = stack.mixture is not None and index < stack.mixture.n_hash_layers
        self.kind += " hashed" * self.hashed
        if isinstance(stack.attention, parts.CompressedAttention):
            self.kind += f" compression={stack.attention.letter_of(index)}"
        placement = norms.placement
        if placement == "hybrid":
            placement = "pre" if letter == "R" else "post_branch"
        self.norms = NORMS[placement]
        self.norms_sum = placement in ("post", "deep")  # the norm stands behind the addition
        self.adds_to_normed = placement == "stream"
        has = {"self_attn": letter != "N", "cross_attn": cross, "mlp": stack.ffn_of(index) != "N"}
        self.sublayers = [name for name, there in has.items() if there]
        for name in self.sublayers:
            before, after = self.norms[name]
            if before and not (index == 0 and name == "self_attn" and not norms.first):
                self.add_module(before, make_norm(norms, spec.d_model))
            self._add_branch(spec, name, index)
            if after:
                self.add_module(after, make_norm(norms, spec.d_model))
        self._add_around(spec)

    def _add_branch(self, spec: ModelSpec, name: str, index: int) -> None:
        """Make what one sublayer runs."""
        stack = spec.last_stack
        if name == "cross_attn":
            self.add_module(name, make_cross_attention(spec))
        elif name == "mlp":
            self.add_module(name, make_feed_forward(spec, index))
            if self.beside or self.sums:
                assert stack.mixture is not None and stack.feed_forward is not None
                like, eps = stack.feed_forward, stack.norms.eps  # the spec requires both
                self.moe = MixtureOfExperts(stack.mixture, spec.d_model, like, eps=eps)
            for norm in OF_BOTH if self.sums else ():
                self.add_module(norm, make_norm(stack.norms, spec.d_model))
        elif self.shares:
            self.add_module("shared_use", SharedUse(spec))
        elif self.attends:
            self.add_module(name, make_attention(spec, index))
        if name == "self_attn" and self.keeps is not None:
            mixer = make_recurrent(
                stack.recurrent, spec.d_model, stack.norms, layer=index, n_layers=stack.n_layers
            )
            self.add_module(self.keeps, mixer)

    def _add_around(self, spec: ModelSpec) -> None:
        """Make what stands around and beside the branches."""
        stack = spec.last_stack
        inputs, norms = stack.layer_inputs, stack.norms
        self.altup = self.laurel = self.per_layer_input = None
        ones = torch.ones(1) if stack.layer_scalar else None
        self.register_buffer("layer_scalar", ones)
        if stack.altup is not None:
            self.altup = AltUp(stack.altup, spec.d_model, norms=norms, scaled=inputs is not None)
        if stack.laurel is not None:
            self.laurel = Laurel(stack.laurel, spec.d_model, norms=norms)
        if inputs is not None:
            self.per_layer_input = LayerInput(spec, inputs)
        self.attn_hc = self.ffn_hc = None
        if stack.hyper is not None:
            self.attn_hc, self.ffn_hc = (
                HyperConnection(stack.hyper, spec.d_model, norm_eps=norms.eps) for _ in range(2)
            )

    def forward(
        self,
        x_BSD: Tensor,
        visibility: Visibility,
        *,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
        query_BSD: Tensor | None = None,
        source_BTD: Tensor | None = None,
        source_visibility: Visibility | None = None,
        cross_cache: LayerCache | None = None,
        absorbed: bool = False,
        states: StateCache | None = None,
        shared: SharedBlock | None = None,
        first_BSD: Tensor | None = None,
        lent: Lent | None = None,
        input_BSP: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run the block: [B, S, D] -> [B, S, D]. See `Attention` for the arguments passed on to it.

        `shared` is the stored block that the layer uses, which also reads the embedding. With
        experts beside the feed-forward, what they give comes second. With AltUp x is [A, B, S, D],
        with hyper-connections [B, S, N, D]. `input_BSP` is the layer's own embedding; a table of
        experts is asked by `tokens`.
        """
        copies_ABSD = x_BSD
        if self.altup is not None:
            copies_ABSD = self.altup.predict(x_BSD)
            x_BSD = copies_ABSD[self.altup.active]

        def self_attn(x: Tensor) -> Tensor:
            attention = self.get_submodule("self_attn")
            if isinstance(attention, LatentAttention):
                return attention(x, visibility, cache=cache, absorbed=absorbed, lent=lent)
            if isinstance(attention, CompressedAttention):
                return attention(x, visibility, cache=cache)
            return attention(x, visibility, bias=bias, cache=cache, query_BSD=query_BSD, lent=lent)

        def mixer(x: Tensor) -> Tensor:
            if self.keeps is None:
                return self_attn(x)
            y: Tensor = self.get_submodule(self.keeps)(x, cache=states)
            return y + self_attn(x) if self.attends and not self.shares else y

        def cross_attn(x: Tensor) -> Tensor:
            return self.get_submodule("cross_attn")(
                x, source_visibility, source_BTD=source_BTD, cache=cross_cache
            )

        run: dict[str, Callable[[Tensor], Tensor]]
        run = {"self_attn": mixer, "cross_attn": cross_attn}
        if "mlp" in self.sublayers:
            mlp = self.get_submodule("mlp")
            run["mlp"] = partial(mlp, tokens=tokens) if self.hashed else mlp
        if self.parallel:
            return self._parallel(x_BSD, self_attn)
        if self.attn_hc is not None:
            return self._streamed(x_BSD, run)
        for name in self.sublayers:
            before, after = self.norms[name]
            norm = self._modules.get(before) if before else None
            read_BSD = x_BSD
            if self.shares and name == "self_attn":
                use = self.get_submodule("shared_use")
                read_BSD = x_BSD + use(x_BSD, first_BSD, visibility, block=shared, cache=cache)
            normed = read_BSD if norm is None else norm(read_BSD)
            if name == "mlp" and self.beside:
                beside_BSD = self.moe(normed)
            y = run[name](normed)
            if name == "mlp" and self.sums:
                y = self._both(y, x_BSD)
            x_BSD = self._join(normed if self.adds_to_normed else x_BSD, y, after)
            if name == "self_attn" and self.laurel is not None:
                x_BSD = self.laurel.branch(x_BSD, normed)
        if self.beside:
            return x_BSD, self._scaled(beside_BSD)
        own = self.per_layer_input
        if self.altup is None:
            x_BSD = x_BSD if own is None else x_BSD + own(x_BSD, input_BSP)
            return x_BSD if self.layer_scalar is None else x_BSD * self.layer_scalar
        corrected_ABSD = self.altup.correct(copies_ABSD, x_BSD)
        if own is None:
            return corrected_ABSD
        read_BSD = self.altup.scaled(corrected_ABSD)
        others_ABSD = corrected_ABSD[1:] + own(read_BSD, input_BSP)
        return torch.cat((corrected_ABSD[:1], others_ABSD))

    def _streamed(self, x_BSND: Tensor, run: dict[str, Callable[[Tensor], Tensor]]) -> Tensor:
        for name, hyper in (("self_attn", self.attn_hc), ("mlp", self.ffn_hc)):
            assert hyper is not None  # both are there, or none
            read_BSD, post_BSN, comb_BSNN = hyper(x_BSND)
            norm = self.get_submodule(self.norms[name][0] or "")
            x_BSND = written(x_BSND, run[name](norm(read_BSD)), post_BSN, comb_BSNN)
        return x_BSND

    def _parallel(self, x_BSD: Tensor, self_attn: Callable[[Tensor], Tensor]) -> Tensor:
        normed = self.get_submodule("input_layernorm")(x_BSD)
        second = self.norms["mlp"][0]
        for_mlp = normed if second is None else self.get_submodule(second)(x_BSD)
        y = self_attn(normed) + self.get_submodule("mlp")(for_mlp)
        return self._weighted(x_BSD) + y * self.residual_scale

    def _both(self, dense_BSD: Tensor, x_BSD: Tensor) -> Tensor:
        """Add what experts make of x to what the feed-forward gives, each behind its own norm."""
        after_dense, before, after = (self.get_submodule(name) for name in OF_BOTH)
        dense_BSD = after_dense(dense_BSD)
        y: Tensor = dense_BSD + after(self.moe(before(x_BSD), routed_BSD=x_BSD))
        return y

    def _weighted(self, x: Tensor) -> Tensor:
        return x if self.alpha == 1.0 else x * self.alpha

    def _join(self, x: Tensor, y: Tensor, after: str | None) -> Tensor:
        norm = None if after is None else self.get_submodule(after)
        if norm is not None and not self.norms_sum:
            y = norm(y)  # before the scale, which it would undo
        y = self._scaled(y)
        if norm is not None and self.norms_sum:
            return norm(self._weighted(x) + y)
        return self._weighted(x) + y

    def _scaled(self, y: Tensor) -> Tensor:
        return y if self.residual_scale == 1.0 else y * self.residual_scale
