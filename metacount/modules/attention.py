"""Attention with any number of key/value heads; who sees whom; the two products in the middle."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from metacount.modules.cache import LayerCache, Lent
from metacount.modules.indexer import BlockIndexer
from metacount.modules.linear import Linear, adapted
from metacount.modules.norm import LayerNorm, RMSNorm, at_least_float32
from metacount.modules.position import RelativeProjection, apply_rope, grown
from metacount.modules.visibility import Visibility as Visibility
from metacount.spec import attention as parts
from metacount.spec.position import QueryGrowth, Rope
from metacount.spec.stack import Norms


class ScaledDotProduct(nn.Module):
    """softmax(scale·q·kᵀ + bias)·v with grouped heads, written out.

    No fused kernel: a counter sees both products, on every device, and nothing is hidden.
    """

    def __init__(
        self, *, scale: float, softcap: float | None = None, sinks: int | None = None
    ) -> None:
        super().__init__()
        self.scale, self.softcap = scale, softcap
        self.sinks = nn.Parameter(torch.zeros(sinks)) if sinks is not None else None

    def forward(
        self,
        q_BHSK: Tensor,
        k_BGTK: Tensor,
        v_BGTU: Tensor,
        visibility: Visibility,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Compute [B, H, S, U]; `bias`, [H, S, T] or [B, H, S, T], is added to scaled scores."""
        n_heads, n_kv_heads = q_BHSK.shape[1], k_BGTK.shape[1]
        q = q_BHSK.unflatten(1, (n_kv_heads, n_heads // n_kv_heads))
        # [b, g, r, s, k] @ [b, g, 1, k, t] -> [b, g, r, s, t]
        scores = (q @ k_BGTK.transpose(-1, -2).unsqueeze(2)).flatten(1, 2) * self.scale
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        scores = at_least_float32(scores)
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        scores = scores.masked_fill(~visibility.keep(scores.device), -math.inf)
        weights = self._softmax(scores).to(v_BGTU.dtype)
        weights = weights.unflatten(1, (n_kv_heads, n_heads // n_kv_heads))
        # [b, g, r, s, t] @ [b, g, 1, t, u] -> [b, g, r, s, u]
        return (weights @ v_BGTU.unsqueeze(2)).flatten(1, 2)

    def _softmax(self, scores_BHST: Tensor) -> Tensor:
        if self.sinks is None:
            return scores_BHST.softmax(-1)
        # a sink takes its share of the softmax and gives no value (gpt-oss, arXiv:2508.10925)
        sink = self.sinks.to(scores_BHST.dtype)[:, None, None].expand(*scores_BHST.shape[:-1], 1)
        return torch.cat((scores_BHST, sink), dim=-1).softmax(-1)[..., :-1]


def l2_norm(x: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x²) + eps): RMSNorm without a weight (Llama 4's QK-norm)."""
    wide = at_least_float32(x)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


RMS = Norms(kind="rmsnorm")


class Attention(nn.Module):
    """Multi-head, multi-query or grouped-query attention; self- or cross-.

    Vaswani et al. 2017, arXiv:1706.03762 (multi-head); Shazeer 2019, arXiv:1911.02150 (one key and
    value head); Ainslie et al. 2023, arXiv:2305.13245 (groups). `head_dim` is free of
    d_model / n_heads. QK-norm: RMSNorm over each head ("head", Qwen3) or all of
    them ("full", OLMo 2), LayerNorm over each head ("layernorm", Persimmon), or "l2" (Llama 4).

    `rope` rotates (`windowed`: as in the windowed layers), `growth` makes far queries grow,
    `relative` adds Transformer-XL's positions. It reads `d_input` values where these are not D.

    With a block indexer (MiniMax-M3) a query reads the blocks that it chooses only; the products
    are computed over all positions, and what was not chosen is masked. The cache then holds the
    indexer's keys, too.
    """

    borrows = False  # whether it reads keys and values of another layer

    def __init__(
        self,
        part: parts.Attention,
        d_model: int,
        *,
        norms: Norms = RMS,
        rope: Rope | None = None,
        windowed: bool = False,
        growth: QueryGrowth | None = None,
        relative: bool = False,
        d_input: int | None = None,
    ) -> None:
        super().__init__()
        n_heads, n_kv_heads, head_dim = part.n_heads, part.n_kv_heads, part.head_dim
        self.head_dim, self.norm_eps, self.out_scale = head_dim, norms.eps, part.out_scale
        self.query_growth, self.rotary_dim = growth, None
        self.v_norm, self.windowed = part.v_norm, windowed
        if rope is not None:
            self.rotary_dim = head_dim if rope.rotary_dim is None else rope.rotary_dim
            self.rope_style = rope.style
            self.rope_theta, self.rope_scaling = rope.of_layer(windowed)
        self.qk_norm = part.qk_norm
        self.scale = head_dim**-0.5 if part.scale is None else part.scale
        # each head's query, then its gate (Qiu et al. 2025, arXiv:2505.06708)
        self.output_gate = part.output_gate
        q_dim = 2 * head_dim if part.output_gate else head_dim
        read = d_model if d_input is None else d_input
        self.q_proj = Linear(read, n_heads * q_dim, bias=part.q_bias)
        self.k_proj = Linear(read, n_kv_heads * head_dim, bias=part.k_bias)
        self.v_proj = Linear(read, n_kv_heads * head_dim, bias=part.v_bias)
        self.o_proj = Linear(n_heads * head_dim, d_model, bias=part.o_bias)
        self.q_norm: RMSNorm | LayerNorm | None = None
        self.k_norm: RMSNorm | LayerNorm | None = None
        if part.qk_norm == "layernorm":
            self.q_norm, self.k_norm = (LayerNorm(head_dim, bias=True, eps=norms.eps) for _ in "qk")
        elif part.qk_norm in ("head", "full"):
            heads = (1, 1) if part.qk_norm == "head" else (n_heads, n_kv_heads)
            self.q_norm, self.k_norm = (
                RMSNorm(n * head_dim, unit_offset=norms.unit_offset, eps=norms.eps) for n in heads
            )
        self.relative = RelativeProjection(part, d_model) if relative else None
        self.indexer = None
        if part.indexer is not None:
            assert rope is not None and self.rotary_dim is not None  # the spec requires it
            self.indexer = BlockIndexer(
                part.indexer,
                d_model,
                n_heads=n_heads,
                rotary_dim=self.rotary_dim,
                rope=rope,
                norms=norms,
            )
        self.core = ScaledDotProduct(
            scale=self.scale, softcap=part.softcap, sinks=n_heads if part.sinks else None
        )

    def forward(
        self,
        x_BSD: Tensor,
        visibility: Visibility,
        *,
        source_BTD: Tensor | None = None,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
        query_BSD: Tensor | None = None,
        adapters: nn.ModuleDict | None = None,
        lent: Lent | None = None,
    ) -> Tensor:
        """Compute the attention of x: [B, S, D] -> [B, S, D].

        `source_BTD` is what keys and values are made of in cross-attention: when a cache already
        holds them, they are not made again. `query_BSD` replaces x as the source of the queries.
        `adapters` q, k and v add to the projections of these names. `lent` is where keys and values
        are left to later layers.
        """
        asks = x_BSD if query_BSD is None else query_BSD
        q, gate_BSW = adapted(self.q_proj(asks), asks, "q", adapters), None
        if self.output_gate:
            q, gate_BSW = (t.flatten(-2) for t in self._by_head(q, 2 * self.head_dim).chunk(2, -1))
        q = self._heads(q, self.q_norm)
        queries = visibility.queries(q.device)
        given = self._given(cache, lent) if source_BTD is not None or self.borrows else ()
        if given:
            k, v = given
        else:
            made_of = x_BSD if source_BTD is None else source_BTD
            k = self._heads(adapted(self.k_proj(made_of), made_of, "k", adapters), self.k_norm)
            v = self._heads(adapted(self.v_proj(made_of), made_of, "v", adapters), None)
            if source_BTD is None:
                k = self._rope(k, visibility)
            k = self._unit_rms(k)
            if self.v_norm:
                v = l2_norm(v, self.norm_eps)
            if self.indexer is not None:
                index_BTI = self.indexer.keys(x_BSD, visibility)
                if cache is not None:
                    k, v, index_BTI = cache.update(k, v, index_BTI)
                bias = self.indexer(x_BSD, index_BTI, visibility)
            elif cache is not None:
                k, v = cache.update(k, v)
            if lent is not None:
                lent.tensors[self.windowed] = k, v
        if source_BTD is None:
            q = self._rope(q, visibility)
        q = self._unit_rms(q)
        if self.query_growth is not None:
            q = grown(q, queries, self.query_growth)
        if self.relative is not None:
            bias = self.relative(q, queries, visibility.keys(q.device)) * self.scale
            q = q + self.relative.content_bias[:, None, :]
        y_BHSK = self.core(q, k, v, visibility, bias)
        y_BSW = y_BHSK.transpose(1, 2).flatten(2)
        y_BSD = self.o_proj(y_BSW if gate_BSW is None else y_BSW * torch.sigmoid(gate_BSW))
        return y_BSD if self.out_scale == 1.0 else y_BSD * self.out_scale

    def _unit_rms(self, x_BHSK: Tensor) -> Tensor:
        """Divide queries or keys by their root mean square, where the model does that."""
        return l2_norm(x_BHSK, self.norm_eps) if self.qk_norm == "l2" else x_BHSK

    def _given(self, cache: LayerCache | None, lent: Lent | None) -> tuple[Tensor, ...]:
        """Return the cached keys and values of a source; an empty tuple means to make them."""
        return () if cache is None else cache.tensors

    def _heads(self, x_BSW: Tensor, norm: RMSNorm | LayerNorm | None) -> Tensor:
        """Split [B, S, heads·K] into [B, heads, S, K]; `norm`, if any, is over all heads or one."""
        if norm is not None and self.qk_norm == "full":
            x_BSW = norm(x_BSW)
        x = self._by_head(x_BSW, self.head_dim).transpose(1, 2)
        return norm(x) if norm is not None and self.qk_norm != "full" else x

    def _by_head(self, x_BSW: Tensor, width: int) -> Tensor:
        """Split [B, S, heads·width] into [B, S, heads, width]."""
        return x_BSW.unflatten(-1, (-1, width))

    def _rope(self, x: Tensor, visibility: Visibility) -> Tensor:
        if self.rotary_dim is None:
            return x
        return apply_rope(
            x,
            visibility.queries(x.device),
            rotary_dim=self.rotary_dim,
            theta=self.rope_theta,
            style=self.rope_style,
            scaling=self.rope_scaling,
            length=visibility.query_start + visibility.n_queries,
        )
