"""Attention with any number of key/value heads; who sees whom, and what an indexer chooses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.modules.cache import LayerCache, Lent
from metacount.modules.linear import Linear, adapted
from metacount.modules.norm import LayerNorm, RMSNorm, at_least_float32
from metacount.modules.position import RelativeProjection, apply_rope, grown
from metacount.spec import attention as parts
from metacount.spec.position import QueryGrowth, Rope, RopeScaling
from metacount.spec.stack import Norms


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """Which of T keys each of S queries sees.

    `kind`: causal | bidirectional | prefix; `window` counts positions, the query itself included;
    `chunked` cuts the sequence into chunks of `window` instead of sliding. A bidirectional window
    reaches `window // 2` to either side. With a `ratio` keys are entries of so many positions, seen
    from their last one on.
    """

    n_queries: int
    n_keys: int
    query_start: int = 0
    key_start: int = 0
    kind: str = "causal"
    window: int | None = None
    chunked: bool = False
    prefix_len: int = 0
    ratio: int | None = None

    def queries(self, device: torch.device) -> Tensor:
        """Return the positions of the queries, [S]."""
        return torch.arange(self.query_start, self.query_start + self.n_queries, device=device)

    def keys(self, device: torch.device) -> Tensor:
        """Return the positions of the keys, [T]."""
        return torch.arange(self.key_start, self.key_start + self.n_keys, device=device)

    def keep(self, device: torch.device, rows: slice = slice(None)) -> Tensor:
        """Tell where a query (row) sees a key (column), [S, T]; `rows` picks some queries."""
        q, k = self.queries(device)[rows, None], self.keys(device)[None, :]
        if self.kind == "bidirectional":
            if self.window is None:
                return (q >= 0) & (k >= 0)
            return (q - k).abs() <= self.window // 2
        if self.ratio is not None:
            return k < (q + 1) // self.ratio
        keep = k <= q
        if self.kind == "prefix":
            keep = keep | (k < self.prefix_len)
        if self.window is not None and self.chunked:
            keep = keep & (k // self.window == q // self.window)
        elif self.window is not None:
            keep = keep & (q - k < self.window)
        return keep


EPS = 1e-6  # of the LayerNorm over keys, whatever the model's norms have


class IndexScores(nn.Module):
    """Σ_j w_j·relu(q_j·k): the two products between positions."""

    def forward(
        self, q_BSHK: Tensor, keys_BTK: Tensor, weights_BSH: Tensor, _sees: Visibility
    ) -> Tensor:
        """Score every position for every query, visible or not: -> [B, S, T]."""
        # [b, s, h, k] @ [b, 1, k, t] -> [b, s, h, t]
        products = at_least_float32(q_BSHK) @ at_least_float32(keys_BTK).mT.unsqueeze(1)
        positive_BSHT = (products * q_BSHK.shape[-1] ** -0.5).relu()
        # [b, s, 1, h] @ [b, s, h, t] -> [b, s, 1, t]
        return (at_least_float32(weights_BSH).unsqueeze(-2) @ positive_BSHT).squeeze(-2)


class Indexer(nn.Module):
    """score of query t and position s = Σ_j w_tj·relu(q_tj·k_s), over few and narrow heads.

    DeepSeek-AI 2025, arXiv:2512.02556, eq. 1-2. Queries come from MLA's query latent, keys and the
    heads' weights w from the layer's input; all heads share one key. The first `rope_dim` values
    of queries and keys are rotated by halves, whichever way MLA rotates. Attention reads the
    `top_k` best positions that a query may see: the choice is no function that gradients pass.

    The checkpoint's code also multiplies queries and keys by one orthogonal matrix and rounds them
    to 8 bits; neither is done here.
    """

    def __init__(
        self, part: parts.Indexer, d_model: int, *, q_lora_rank: int, rope_dim: int, rope: Rope
    ) -> None:
        super().__init__()
        self.n_heads, self.top_k = part.n_heads, part.top_k
        self.rope_dim, self.rotation = rope_dim, rope.of_layer(False)
        self.wq_b = Linear(q_lora_rank, part.n_heads * part.head_dim, bias=False)
        self.wk = Linear(d_model, part.head_dim, bias=False)
        self.k_norm = LayerNorm(part.head_dim, bias=True, eps=EPS)
        self.weights_proj = Linear(d_model, part.n_heads, bias=False)
        self.core = IndexScores()

    def keys(self, x_BSD: Tensor, visibility: Visibility) -> Tensor:
        """Compute the key that the cache keeps of each new position, [B, S, K]."""
        return self._rotated(self.k_norm(self.wk(x_BSD)).unsqueeze(1), visibility).squeeze(1)

    def scores(
        self, x_BSD: Tensor, latent_BSR: Tensor, keys_BTK: Tensor, visibility: Visibility
    ) -> Tensor:
        """Score every position for every query, [B, S, T]."""
        q_BHSK = self.wq_b(latent_BSR).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        q_BSHK = self._rotated(q_BHSK, visibility).transpose(1, 2)
        weights_BSH = self.weights_proj(x_BSD) * self.n_heads**-0.5
        scores: Tensor = self.core(q_BSHK, keys_BTK, weights_BSH, visibility)
        return scores

    @torch.no_grad()
    def forward(
        self, x_BSD: Tensor, latent_BSR: Tensor, keys_BTK: Tensor, visibility: Visibility
    ) -> Tensor:
        """Return what to add to attention's scores, [B, 1, S, T]: 0 if chosen, -inf elsewhere."""
        scores_BST = self.scores(x_BSD, latent_BSR, keys_BTK, visibility)
        sees_ST = visibility.keep(scores_BST.device)
        scores_BST = scores_BST.masked_fill(~sees_ST, -math.inf)
        best = scores_BST.topk(min(self.top_k, scores_BST.shape[-1]), dim=-1).indices
        dropped = torch.full_like(scores_BST, -math.inf).scatter(-1, best, 0.0)
        return dropped.unsqueeze(1)

    def _rotated(self, x_BHSK: Tensor, visibility: Visibility) -> Tensor:
        return rotated(x_BHSK, visibility, self.rope_dim, "half", self.rotation)


class BlockScores(nn.Module):
    """q_j·k for each head apart: the one product between positions."""

    def forward(self, q_BHSK: Tensor, keys_BTK: Tensor, _sees: Visibility) -> Tensor:
        """Score every position for every query, visible or not: -> [B, H, S, T]."""
        # [b, h, s, k] @ [b, 1, k, t] -> [b, h, s, t]
        return at_least_float32(q_BHSK) @ at_least_float32(keys_BTK).mT.unsqueeze(1)


class BlockIndexer(nn.Module):
    """score of a block for head j and query t = max of q_tj·k_s over its positions s that t sees.

    MiniMax-M3, as transformers computes it. Each of a few heads chooses for as many of attention's
    heads; all heads share one key. Queries and keys are normed, and as many of their first values
    rotated, by halves, as attention rotates of a head, by the same angles. Attention reads the
    visible positions of the `top_blocks` best blocks, among which are always the query's own and
    those before it, `local_blocks` in all. No gradient passes the choice.
    """

    def __init__(
        self,
        part: parts.BlockIndexer,
        d_model: int,
        *,
        n_heads: int,
        rotary_dim: int,
        rope: Rope,
        norms: Norms,
    ) -> None:
        super().__init__()
        self.n_heads, self.each = part.n_heads, n_heads // part.n_heads
        self.block_len, self.top_blocks = part.block_len, part.top_blocks
        self.local_blocks = part.local_blocks
        self.rotary_dim, self.rotation = rotary_dim, rope.of_layer(False)
        self.q_proj = Linear(d_model, part.n_heads * part.head_dim, bias=False)
        self.k_proj = Linear(d_model, part.head_dim, bias=False)
        self.q_norm, self.k_norm = (
            RMSNorm(part.head_dim, unit_offset=norms.unit_offset, eps=norms.eps) for _ in "qk"
        )
        self.core = BlockScores()

    def keys(self, x_BSD: Tensor, visibility: Visibility) -> Tensor:
        """Compute the key that the cache keeps of each new position, [B, S, K]."""
        return self._rotated(self.k_norm(self.k_proj(x_BSD)).unsqueeze(1), visibility).squeeze(1)

    def scores(self, x_BSD: Tensor, keys_BTK: Tensor, visibility: Visibility) -> Tensor:
        """Score every position for every query, [B, H, S, T]."""
        q_BSHK = self.q_norm(self.q_proj(x_BSD).unflatten(-1, (self.n_heads, -1)))
        q_BHSK = self._rotated(q_BSHK.transpose(1, 2), visibility)
        scores: Tensor = self.core(q_BHSK, keys_BTK, visibility)
        return scores

    @torch.no_grad()
    def forward(self, x_BSD: Tensor, keys_BTK: Tensor, visibility: Visibility) -> Tensor:
        """Return what to add to attention's scores: 0 in the chosen blocks, -inf elsewhere.

        -> [B, H, S, T] for attention's H heads.
        """
        scores_BHST = self.scores(x_BSD, keys_BTK, visibility)
        device = scores_BHST.device
        scores_BHST = scores_BHST.masked_fill(~visibility.keep(device), -math.inf)
        block_T = (visibility.keys(device) // self.block_len).expand_as(scores_BHST)
        n_blocks = -(-scores_BHST.shape[-1] // self.block_len)
        nothing = scores_BHST.new_full((*scores_BHST.shape[:-1], n_blocks), -math.inf)
        best_BHSb = nothing.scatter_reduce(-1, block_T, scores_BHST, "amax")
        own_S1 = visibility.queries(device).unsqueeze(-1) // self.block_len
        before_Sb = own_S1 - torch.arange(n_blocks, device=device)
        local_Sb = (before_Sb >= 0) & (before_Sb < self.local_blocks)
        best_BHSb = best_BHSb.masked_fill(local_Sb, math.inf)
        chosen = best_BHSb.topk(min(self.top_blocks, n_blocks), dim=-1).indices
        dropped_BHSb = nothing.scatter(-1, chosen, 0.0)
        return dropped_BHSb.gather(-1, block_T).repeat_interleave(self.each, dim=1)

    def _rotated(self, x_BHSK: Tensor, visibility: Visibility) -> Tensor:
        return rotated(x_BHSK, visibility, self.rotary_dim, "half", self.rotation)


def rotated(
    x_BHSK: Tensor,
    visibility: Visibility,
    rotary_dim: int,
    style: str,
    rotation: tuple[float, RopeScaling | None],
) -> Tensor:
    """Rotate the first `rotary_dim` values of new queries or keys; `rotation`: theta, scaling."""
    return apply_rope(
        x_BHSK,
        visibility.queries(x_BHSK.device),
        rotary_dim=rotary_dim,
        theta=rotation[0],
        style=style,
        scaling=rotation[1],
        length=visibility.query_start + visibility.n_queries,
    )


CHOOSING = (Indexer, BlockIndexer)  # whose parameters have no gradient


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
Gate = Callable[[Tensor], Tensor]
HEAD_GATES: dict[str, Gate] = {"sigmoid": torch.sigmoid, "softplus": F.softplus}


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
            self.rotary_dim = rope.width_of(windowed, head_dim)
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
        self.v_proj: Linear | None = None  # values are what k_proj gives (Gemma 4)
        if not part.values_of_keys:
            self.v_proj = Linear(read, n_kv_heads * part.value_dim, bias=part.v_bias)
        self.o_proj = Linear(n_heads * part.value_dim, d_model, bias=part.o_bias)
        # one number for each head, which its output is times (Laguna, Step 3.5)
        self.value_dim, self.head_gate = part.value_dim, HEAD_GATES.get(part.head_gate)
        self.g_proj = Linear(read, n_heads, bias=False) if self.head_gate is not None else None
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
        if self.borrows:
            del self.k_proj, self.v_proj, self.k_norm

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
        q = self._heads(q, self.head_dim, self.q_norm)
        queries = visibility.queries(q.device)
        given = self._given(cache, lent) if source_BTD is not None or self.borrows else ()
        if given:
            k, v = given
        else:
            made_of = x_BSD if source_BTD is None else source_BTD
            keys = adapted(self.k_proj(made_of), made_of, "k", adapters)
            k = self._heads(keys, self.head_dim, self.k_norm)
            v = keys if self.v_proj is None else self.v_proj(made_of)
            v = self._heads(adapted(v, made_of, "v", adapters), self.value_dim, None)
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
        y_BSW = self._through_heads(y_BHSK.transpose(1, 2).flatten(2), asks)
        y_BSD = self.o_proj(y_BSW if gate_BSW is None else y_BSW * torch.sigmoid(gate_BSW))
        return y_BSD if self.out_scale == 1.0 else y_BSD * self.out_scale

    def _through_heads(self, y_BSW: Tensor, asks: Tensor) -> Tensor:
        """Multiply the output of each head with its gate, where there is one."""
        if self.g_proj is None or self.head_gate is None:
            return y_BSW
        gate_BSH = self.head_gate(self.g_proj(asks))
        return (self._by_head(y_BSW, self.value_dim) * gate_BSH.unsqueeze(-1)).flatten(2)

    def _unit_rms(self, x_BHSK: Tensor) -> Tensor:
        """Divide queries or keys by their root mean square, where the model does that."""
        return l2_norm(x_BHSK, self.norm_eps) if self.qk_norm == "l2" else x_BHSK

    def _given(self, cache: LayerCache | None, lent: Lent | None) -> tuple[Tensor, ...]:
        """Return the cached keys and values of a source; an empty tuple means to make them."""
        return () if cache is None else cache.tensors

    def _heads(self, x_BSW: Tensor, width: int, norm: RMSNorm | LayerNorm | None) -> Tensor:
        """Split [B, S, heads·K] into [B, heads, S, K]; `norm`, if any, is over all heads or one."""
        if norm is not None and self.qk_norm == "full":
            x_BSW = norm(x_BSW)
        x = self._by_head(x_BSW, width).transpose(1, 2)
        return norm(x) if norm is not None and self.qk_norm != "full" else x

    def _by_head(self, x_BSW: Tensor, width: int) -> Tensor:
        """Split [B, S, heads·width] into [B, S, heads, width]."""
        return x_BSW.unflatten(-1, (-1, width))

    def _rope(self, x: Tensor, visibility: Visibility) -> Tensor:
        if self.rotary_dim is None:
            return x
        rotation = self.rope_theta, self.rope_scaling
        return rotated(x, visibility, self.rotary_dim, self.rope_style, rotation)


class BorrowingAttention(Attention):
    """Attention that makes no keys and values: it reads those that an earlier layer left.

    Brandon et al. 2024, arXiv:2405.12981 (between layers); Gemma 3n. It has what any attention has
    but for their projections and the norm of keys, and keeps nothing.
    """

    borrows = True

    def _given(self, cache: LayerCache | None, lent: Lent | None) -> tuple[Tensor, ...]:
        """Return the keys and values left by the last layer that sees as far as this one."""
        assert lent is not None  # the stack gives it where a layer borrows
        return lent.tensors[self.windowed]
