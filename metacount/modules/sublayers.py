"""Makes what a block is made of: its attention, its feed-forward or experts."""

from __future__ import annotations

from metacount.modules.attention import Attention
from metacount.modules.borrowed import BorrowingAttention
from metacount.modules.ffn import FeedForward, GatedFeedForward, feed_forward
from metacount.modules.mla import LatentAttention
from metacount.modules.moe import MixtureOfExperts
from metacount.spec import ModelSpec
from metacount.spec import attention as parts
from metacount.spec.field import altered
from metacount.spec.position import Rope, TransformerXL


def make_attention(spec: ModelSpec, index: int) -> Attention | LatentAttention:
    """Make the self-attention of block `index`."""
    part, norms, positions = spec.last_stack.attention, spec.last_stack.norms, spec.positions
    assert not isinstance(part, parts.NoAttention)  # who asks has asked
    windowed = spec.is_windowed_layer(index)
    rope = positions if isinstance(positions, Rope) and spec.has_rope_layer(index) else None
    if isinstance(part, parts.LatentAttention):
        return LatentAttention(part, spec.d_model, norms=norms, rope=rope, windowed=windowed)
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
    bare = altered(part, qk_norm="none", sinks=False, output_gate=False)
    return Attention(bare, spec.d_model, norms=spec.last_stack.norms)


def make_feed_forward(
    spec: ModelSpec, index: int
) -> FeedForward | GatedFeedForward | MixtureOfExperts:
    """Make the feed-forward of block `index`, dense or a mixture of experts in its place."""
    stack = spec.last_stack
    assert stack.feed_forward is not None  # who asks has asked
    if stack.mixture is not None and stack.ffn_of(index) == "E":
        return MixtureOfExperts(stack.mixture, spec.d_model, stack.feed_forward)
    part = stack.feed_forward
    width, sparsity = part.width_of(index), part.sparsity_of(index)
    return feed_forward(part, spec.d_model, width=width, sparsity=sparsity)
