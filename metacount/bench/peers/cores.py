"""Attention kernels of other projects in the place of a module's `core`: optional variants.

FlashAttention-3, FlashInfer and FlashMLA, as their own examples call them. None shows an operator
that a counter could price, so FLOPs are counted on a stand-in of the same shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metacount.modules.attention import Visibility

PAGE = 64  # positions of a page of FlashMLA's cache
LATENT = (512, 64)  # the only widths FlashMLA has: latent and rotated key


class _Core(nn.Module):
    """A core that knows the factor on its scores."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale


class FlashAttention3(_Core):
    """flash_attn_interface.flash_attn_func, which takes [B, S, H, K]."""

    def forward(
        self, q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, _bias: object = None
    ) -> Tensor:
        """Compute attention with FlashAttention-3: -> [B, H, S, U]."""
        from flash_attn_interface import (
            flash_attn_func,
        )

        q, k, v = (t.transpose(1, 2) for t in (q_BHSK, k_BGTK, v_BGTU))
        out = flash_attn_func(q, k, v, softmax_scale=self.scale, causal=sees.n_queries > 1)
        y_BSHU: Tensor = out[0] if isinstance(out, tuple) else out
        return y_BSHU.transpose(1, 2)


class FlashInfer(_Core):
    """flashinfer's kernels for one sequence, prefill or decode, [G, T, K] for keys and values."""

    def forward(
        self, q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, _bias: object = None
    ) -> Tensor:
        """Compute attention of one sequence with FlashInfer: -> [B, H, S, U]."""
        import flashinfer

        if len(q_BHSK) != 1:
            raise RuntimeError("flashinfer's single-sequence kernels take one sequence only")
        q_SHK, k, v = q_BHSK[0].transpose(0, 1), k_BGTK[0], v_BGTU[0]
        if sees.n_queries == 1:
            y = flashinfer.single_decode_with_kv_cache(
                q_SHK[0].contiguous(), k, v, kv_layout="HND", sm_scale=self.scale
            )[None]
        else:
            y = flashinfer.single_prefill_with_kv_cache(
                q_SHK.contiguous(), k, v, causal=True, kv_layout="HND", sm_scale=self.scale
            )
        y_BHSU: Tensor = y.transpose(0, 1)[None]
        return y_BHSU


class FlashMla(_Core):
    """flash_mla_with_kvcache over a cache of latents in pages of 64 positions: decode only."""

    def forward(
        self, q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, _bias: object = None
    ) -> Tensor:
        """Attend to latents, which are the keys and, first part, the values: -> [B, H, S, U]."""
        from flash_mla import (
            flash_mla_with_kvcache,
            get_mla_metadata,
        )

        n, heads, queries, width = q_BHSK.shape
        value, kv_len = v_BGTU.shape[-1], k_BGTK.shape[2]
        if (value, width - value) != LATENT or kv_len % PAGE:
            raise RuntimeError(
                f"FlashMLA takes latents of {LATENT[0]} + {LATENT[1]} and whole pages of {PAGE}"
            )
        pages = kv_len // PAGE
        device = q_BHSK.device
        table = torch.arange(n * pages, device=device, dtype=torch.int32).view(n, pages)
        lengths = torch.full((n,), kv_len, device=device, dtype=torch.int32)
        plan, splits = get_mla_metadata(lengths, queries * heads, 1)
        y_BSHU, _ = flash_mla_with_kvcache(
            q_BHSK.transpose(1, 2).contiguous(),
            k_BGTK.reshape(n * pages, PAGE, 1, width),
            table,
            lengths,
            value,
            plan,
            splits,
            softmax_scale=self.scale,
            causal=sees.n_queries > 1,
        )
        y: Tensor = y_BSHU.transpose(1, 2)
        return y
