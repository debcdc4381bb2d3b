"""Indexers: score every position for every query, keep the best, or the best blocks of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from metacount.modules.linear import Linear
from metacount.modules.norm import LayerNorm, RMSNorm, at_least_float32
from metacount.modules.position import apply_rope
from metacount.modules.visibility import Visibility
from metacount.spec import attention as parts
from metacount.spec.position import Rope
from metacount.spec.stack import Norms

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
        self.rope_dim, self.rope = rope_dim, rope
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
        found: Tensor = self.core(q_BSHK, keys_BTK, weights_BSH, visibility)
        return found

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
        return rotated(x_BHSK, visibility, self.rope_dim, self.rope)


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
        self.local_blocks, self.rotary_dim, self.rope = part.local_blocks, rotary_dim, rope
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
        found: Tensor = self.core(q_BHSK, keys_BTK, visibility)
        return found

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
        return rotated(x_BHSK, visibility, self.rotary_dim, self.rope)


def rotated(x_BHSK: Tensor, visibility: Visibility, rotary_dim: int, rope: Rope) -> Tensor:
    """Rotate the first `rotary_dim` values of an index's queries or keys, by halves."""
    return apply_rope(
        x_BHSK,
        visibility.queries(x_BHSK.device),
        rotary_dim=rotary_dim,
        theta=rope.theta,
        style="half",
        scaling=rope.scaling,
        length=visibility.query_start + visibility.n_queries,
    )


CHOOSING = (Indexer, BlockIndexer)  # whose parameters have no gradient
