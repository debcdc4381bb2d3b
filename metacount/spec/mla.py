"""Multi-head latent attention: keys and values of all heads out of one latent."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import Heads
from metacount.spec.field import flag, number, part, size, where
from metacount.spec.indexer import Indexer


@part
class LatentAttention(Heads):
    """DeepSeek-V2's attention; `q_lora_rank` None: queries are not compressed."""

    word = "mla"

    q_lora_rank: int | None = size(
        "q_lora_rank", "r_q", "MLA: width of the query latent", "values", default=None
    )
    kv_lora_rank: int = size("kv_lora_rank", "d_c", "MLA: width of the key/value latent", "values")
    qk_nope_head_dim: int = size(
        "qk_nope_head_dim", "d_n", "MLA: part of a query head without RoPE", "values"
    )
    qk_rope_head_dim: int = size(
        "qk_rope_head_dim",
        "d_r",
        "MLA: part of a query head with RoPE",
        "values",
        "qk_pos_emb_head_dim",
    )
    v_head_dim: int = size(
        "v_head_dim", "d_v", "MLA: width of a value head", "values", "value_length"
    )
    bias: bool = flag("mla_bias", "a bias on MLA's q_a, kv_a and output projections", default=False)
    scaled: bool = flag(
        "scaled_latents",
        "MLA: queries times √(d/r_q), the normed key/value latent times √(d/d_c) (LongCat-Flash)",
        default=False,
    )
    indexer: Indexer | None = where("index_top_k", Indexer, "without index_top_k", default=None)
    norm_eps: float | None = number(
        "latent_norm_eps", "norm_eps of the norms over MLA's latents; none: the same", default=None
    )

    def check(self) -> None:
        """Raise `SpecError` unless the rotated part is made of pairs, and an indexer has room."""
        if self.qk_rope_head_dim % 2:
            raise SpecError(
                "qk_rope_head_dim",
                "must be even",
                self.qk_rope_head_dim,
                f"choose {self.qk_rope_head_dim + 1}",
            )
        if self.indexer is None:
            return
        if self.q_lora_rank is None:
            raise SpecError(
                "q_lora_rank",
                "is needed by an indexer, which reads the query latent",
                None,
                "set q_lora_rank, or leave index_top_k out",
            )
        if self.indexer.head_dim < self.qk_rope_head_dim:
            rule = f"must be at least qk_rope_head_dim = {self.qk_rope_head_dim}, which it rotates"
            raise SpecError(
                "index_head_dim",
                rule,
                self.indexer.head_dim,
                f"choose {self.qk_rope_head_dim} or more",
            )
