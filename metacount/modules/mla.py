"""Multi-head latent attention (DeepSeek-V2), expanded or absorbed into the latent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metacount.modules.attention import Indexer, ScaledDotProduct, Visibility, rotated
from metacount.modules.cache import LayerCache, Lent
from metacount.modules.linear import Linear
from metacount.modules.norm import RMSNorm, eps_of
from metacount.spec import attention as parts
from metacount.spec.position import Rope
from metacount.spec.stack import Norms

NORMS = Norms(kind="rmsnorm", eps=1e-6)
ROPE = Rope(style="interleaved")


class LatentAttention(nn.Module):
    """Keys and values of all heads come from one latent of width C and one rotated key of width P.

    DeepSeek-AI 2024, arXiv:2405.04434, section 2.1 and appendix C; their d_c is C, d_c' is
    `q_lora_rank`, d_h^R is P. The cache holds the normed latent and the rotated key: C + P values
    per token, whichever way the product is computed:

    * expanded: keys and values of every head are made for every token attended to;
    * absorbed: the key expansion is applied to the query and the value expansion to the result,
      so that attention runs over the latent itself as if it were one shared key/value head.

    `scaled` latents (LongCat-Flash, arXiv:2509.01322, section 2.3): the query times
    √(D/q_lora_rank), the normed latent times √(D/C), before it is cached.

    With an indexer (DeepSeek-V3.2) a query reads the positions that it chooses only; the products
    are computed over all of them, and what was not chosen is masked. The cache then holds the
    indexer's keys, too. A layer without one reads what an earlier layer's chose, where it is lent.
    """

    def __init__(
        self,
        part: parts.LatentAttention,
        d_model: int,
        *,
        norms: Norms = NORMS,
        rope: Rope | None = ROPE,
        windowed: bool = False,
    ) -> None:
        super().__init__()
        n_heads, q_lora_rank, kv_lora_rank = part.n_heads, part.q_lora_rank, part.kv_lora_rank
        self.n_heads, self.v_head_dim = n_heads, part.v_head_dim
        self.nope, self.rope = part.qk_nope_head_dim, part.qk_rope_head_dim
        self.rank = kv_lora_rank
        self.rotates = rope is not None  # Kimi Linear goes without positions
        if rope is not None:
            self.rope_style = rope.style
            self.rope_theta, self.rope_scaling = rope.of_layer(windowed)
        eps = eps_of(part, norms)
        q_head_dim = self.nope + self.rope
        self.q_factor = self.kv_factor = None
        if part.scaled:
            self.kv_factor = (d_model / kv_lora_rank) ** 0.5
            self.q_factor = None if q_lora_rank is None else (d_model / q_lora_rank) ** 0.5
        if q_lora_rank is None:
            self.q_proj = Linear(d_model, n_heads * q_head_dim, bias=False)
        else:
            self.q_a_proj = Linear(d_model, q_lora_rank, bias=part.bias)
            self.q_a_layernorm = RMSNorm(q_lora_rank, eps=eps)
            self.q_b_proj = Linear(q_lora_rank, n_heads * q_head_dim, bias=False)
        self.q_lora_rank = q_lora_rank
        self.kv_a_proj_with_mqa = Linear(d_model, kv_lora_rank + self.rope, bias=part.bias)
        self.kv_a_layernorm = RMSNorm(kv_lora_rank, eps=eps)
        expanded = n_heads * (self.nope + self.v_head_dim)
        self.kv_b_proj = Linear(kv_lora_rank, expanded, bias=False)
        self.o_proj = Linear(n_heads * self.v_head_dim, d_model, bias=part.bias)
        self.indexer = None
        if part.indexer is not None:
            assert q_lora_rank is not None and rope is not None  # the spec requires them
            self.indexer = Indexer(
                part.indexer, d_model, q_lora_rank=q_lora_rank, rope_dim=self.rope, rope=rope
            )
        self.core = ScaledDotProduct(
            scale=q_head_dim**-0.5 if part.scale is None else part.scale, softcap=part.softcap
        )

    def forward(
        self,
        x_BSD: Tensor,
        visibility: Visibility,
        *,
        cache: LayerCache | None = None,
        absorbed: bool = False,
        lent: Lent | None = None,
    ) -> Tensor:
        """Compute the latent attention of x: [B, S, D] -> [B, S, D]."""
        latent_BSR = self._query_latent(x_BSD)
        q_BHSn, q_BHSP = self._query(x_BSD, latent_BSR).split((self.nope, self.rope), dim=-1)
        q_BHSP = self._rope(q_BHSP, visibility)
        latent_BSC, k_BSP = self.kv_a_proj_with_mqa(x_BSD).split((self.rank, self.rope), dim=-1)
        rotated_BSP = self._rope(k_BSP.unsqueeze(1), visibility).squeeze(1)
        kept_BSC = self.kv_a_layernorm(latent_BSC)
        if self.kv_factor is not None:
            kept_BSC = kept_BSC * self.kv_factor
        kept_BTc = torch.cat((kept_BSC, rotated_BSP), dim=-1)
        cached = [kept_BTc]
        if self.indexer is not None:
            cached.append(self.indexer.keys(x_BSD, visibility))
        if cache is not None:
            cached = list(cache.update(*cached))
        chosen = None if lent is None else lent.chosen_BST
        if self.indexer is not None:
            chosen = self.indexer(x_BSD, latent_BSR, cached[1], visibility)
            if lent is not None:
                lent.chosen_BST = chosen
        attend = self._absorbed if absorbed else self._expanded
        y_BHSU = attend(q_BHSn, q_BHSP, cached[0], visibility, chosen)
        return self.o_proj(y_BHSU.transpose(1, 2).flatten(2))

    def _query_latent(self, x_BSD: Tensor) -> Tensor | None:
        if self.q_lora_rank is None:
            return None
        latent_BSR: Tensor = self.q_a_layernorm(self.q_a_proj(x_BSD))
        return latent_BSR

    def _query(self, x_BSD: Tensor, latent_BSR: Tensor | None) -> Tensor:
        q = self.q_proj(x_BSD) if latent_BSR is None else self.q_b_proj(latent_BSR)
        if self.q_factor is not None:
            q = q * self.q_factor
        return q.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def _expanded(
        self, q_n: Tensor, q_p: Tensor, kept_BTc: Tensor, sees: Visibility, chosen: Tensor | None
    ) -> Tensor:
        latent_BTC, rotated_BTP = kept_BTc.split((self.rank, self.rope), dim=-1)
        kv_BHT = self.kv_b_proj(latent_BTC).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k_n, v_BHTU = kv_BHT.split((self.nope, self.v_head_dim), dim=-1)
        k_p = rotated_BTP.unsqueeze(1).expand(-1, self.n_heads, -1, -1)
        q, k = torch.cat((q_n, q_p), dim=-1), torch.cat((k_n, k_p), dim=-1)
        return self.core(q, k, v_BHTU, sees, chosen)

    def _absorbed(
        self, q_n: Tensor, q_p: Tensor, kept_BTc: Tensor, sees: Visibility, chosen: Tensor | None
    ) -> Tensor:
        weight = self.kv_b_proj.weight.unflatten(0, (self.n_heads, -1))
        key_HnC, value_HUC = weight.split((self.nope, self.v_head_dim), dim=1)
        # [b, h, s, n] @ [h, n, c] -> the query in the latent's own coordinates
        q = torch.cat((q_n @ key_HnC, q_p), dim=-1)
        shared = kept_BTc.unsqueeze(1)
        y_BHSC = self.core(q, shared, shared[..., : self.rank], sees, chosen)
        # [b, h, s, c] @ [h, c, u] -> [b, h, s, u]
        return y_BHSC @ value_HUC.transpose(-1, -2)

    def _rope(self, x: Tensor, visibility: Visibility) -> Tensor:
        if not self.rotates:
            return x
        rotation = self.rope_theta, self.rope_scaling
        return rotated(x, visibility, self.rope, self.rope_style, rotation)
