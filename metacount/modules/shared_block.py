"""Blocks of attention and feed-forward that are stored once and used at many layers (Zamba2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metacount.modules.attention import Attention, Visibility
from metacount.modules.ffn import feed_forward
from metacount.modules.linear import Adapter, Linear
from metacount.modules.norm import make_norm
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention as AttentionPart
from metacount.spec.ffn import FeedForward as FeedForwardPart
from metacount.spec.position import Rope
from metacount.spec.stack import SharedBlock as SharedPart

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.modules.cache import LayerCache


class AttentionAdapter(Adapter):
    """What one use adds to the queries, the keys or the values."""


class FeedForwardAdapter(Adapter):
    """What one use adds to gate and up of the feed-forward, or to up alone."""


class SharedBlock(nn.Module):
    """mlp(norm(attention(norm([x, x₀])))), x₀ the embedding; no residual inside.

    Glorioso et al. 2024, arXiv:2405.16712, eq. 6, and arXiv:2411.15242, section 2. It is stored
    once; each use brings adapters, which add to its projections, and a cache.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        attention, dense, _ = parts_of(spec)
        norms, d_model = spec.last_stack.norms, spec.d_model
        rope = spec.positions if isinstance(spec.positions, Rope) else None
        self.input_layernorm = make_norm(norms, 2 * d_model)
        self.self_attn = Attention(attention, d_model, norms=norms, rope=rope, d_input=2 * d_model)
        self.pre_ff_layernorm = make_norm(norms, d_model)
        self.mlp = feed_forward(dense, d_model)

    def forward(
        self,
        x_BSD: Tensor,
        first_BSD: Tensor,
        visibility: Visibility,
        *,
        adapters: nn.ModuleDict,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Run the block on x [B, S, D] and the embedding [B, S, D] -> [B, S, D]."""
        both_BSE = self.input_layernorm(torch.cat((x_BSD, first_BSD), dim=-1))
        y_BSD = self.self_attn(both_BSE, visibility, cache=cache, adapters=adapters)
        y: Tensor = self.mlp(self.pre_ff_layernorm(y_BSD), adapters=adapters)
        return y


class SharedUse(nn.Module):
    """What one layer has of its own to use a stored block: adapters, and a linear layer behind it.

    What it gives is added to the mixer's input in front of the norm, not to the residual.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        attention, dense, shared = parts_of(spec)
        d_model, rank = spec.d_model, shared.adapter_rank
        self.linear = Linear(d_model, d_model, bias=False)
        self.adapters = nn.ModuleDict()
        if rank is not None and dense.d_ff is not None:
            name, width = ("gate_up", 2 * dense.d_ff) if dense.gated else ("up", dense.d_ff)
            self.adapters[name] = FeedForwardAdapter(d_model, rank, width)
        if rank is not None and shared.attention_adapters:
            heads = {"q": attention.n_heads, "k": attention.n_kv_heads, "v": attention.n_kv_heads}
            for name, n in heads.items():
                width = n * attention.head_dim
                self.adapters[name] = AttentionAdapter(2 * d_model, rank, width)

    def forward(
        self,
        x_BSD: Tensor,
        first_BSD: Tensor,
        visibility: Visibility,
        *,
        block: SharedBlock,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Run the stored `block` on x [B, S, D] and the embedding [B, S, D] -> [B, S, D]."""
        y = block(x_BSD, first_BSD, visibility, adapters=self.adapters, cache=cache)
        given: Tensor = self.linear(y)
        return given


def parts_of(spec: ModelSpec) -> tuple[AttentionPart, FeedForwardPart, SharedPart]:
    """Return the parts that a shared block is made of."""
    stack = spec.last_stack
    assert isinstance(stack.attention, AttentionPart)  # the spec requires all three
    assert stack.feed_forward is not None
    assert stack.shared is not None
    return stack.attention, stack.feed_forward, stack.shared
