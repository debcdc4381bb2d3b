"""The middle of attention in other ways than `ScaledDotProduct`, and a cache that is never copied.

Each core takes the place of a module's `core`, with the same signature.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench.work import Positions
from metacount.modules.attention import Visibility
from metacount.modules.cache import LayerCache
from metacount.modules.norm import at_least_float32

BACKENDS = {
    "-cudnn": "CUDNN_ATTENTION",
    "-flash": "FLASH_ATTENTION",
    "-efficient": "EFFICIENT_ATTENTION",
    "-math": "MATH",
}


class FusedCore(nn.Module):
    """torch's scaled_dot_product_attention: the kernel it chooses on the device, or one by name."""

    def __init__(self, scale: float, backend: str | None = None) -> None:
        super().__init__()
        self.scale, self.backend = scale, backend

    def forward(
        self,
        q_BHSK: Tensor,
        k_BGTK: Tensor,
        v_BGTU: Tensor,
        sees: Visibility,
        _bias: Tensor | None = None,
    ) -> Tensor:
        """Attend causally from the first position on, or with one query to all: -> [B, H, S, U]."""
        with _only(self.backend):
            return F.scaled_dot_product_attention(
                q_BHSK,
                k_BGTK,
                v_BGTU,
                is_causal=sees.n_queries > 1,
                scale=self.scale,
                enable_gqa=q_BHSK.shape[1] != k_BGTK.shape[1],
            )


def _only(backend: str | None) -> AbstractContextManager[None]:
    """Let torch choose among its kernels in the block, or make it take this one."""
    if backend is None:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: AbstractContextManager[None] = sdpa_kernel(getattr(SDPBackend, BACKENDS[backend]))
    return found


class FoldedCore(nn.Module):
    """The written-out products, with the queries of a group as rows of one matrix.

    A key head is then read once for its whole group; broadcasting would copy it for each query.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        q_BHSK: Tensor,
        k_BGTK: Tensor,
        v_BGTU: Tensor,
        sees: Visibility,
        _bias: Tensor | None = None,
    ) -> Tensor:
        """Compute attention with the queries of a group as rows of one matrix: -> [B, H, S, U]."""
        n_groups, n_queries = k_BGTK.shape[1], q_BHSK.shape[2]
        q_BGXK = q_BHSK.unflatten(1, (n_groups, -1)).flatten(2, 3)
        # [b, g, r·s, k] @ [b, g, k, t] -> [b, g, r·s, t]
        scores = at_least_float32(q_BGXK @ k_BGTK.transpose(-1, -2) * self.scale)
        if n_queries > 1:
            hidden_ST = ~sees.keep(scores.device)
            scores = scores.unflatten(2, (-1, n_queries)).masked_fill(hidden_ST, -math.inf)
            scores = scores.flatten(2, 3)
        # [b, g, r·s, t] @ [b, g, t, u] -> [b, g, r·s, u]
        y_BGXU: Tensor = scores.softmax(-1).to(v_BGTU.dtype) @ v_BGTU
        y_BHSU: Tensor = y_BGXU.unflatten(2, (-1, n_queries)).flatten(1, 2)
        return y_BHSU


class StaticCache(LayerCache):
    """A cache with room for all positions: new rows are written in place, nothing is copied."""

    def __init__(self, tensors: tuple[Tensor, ...], past: int) -> None:
        super().__init__()
        self.tensors, self.length = tensors, past

    def update(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Write the new rows behind the past ones; return all rows."""
        for held, rows in zip(self.tensors, new, strict=True):
            held[..., self.length :, :].copy_(rows)
        return self.tensors


class OverCache(nn.Module):
    """A layer run at fixed positions over a cache that is given with the input.

    The last S rows of each cache tensor are what the layer itself computes, so that running it
    again changes nothing. `static` writes them in place; otherwise the past is concatenated with
    them, as `LayerCache` does.
    """

    def __init__(self, layer: nn.Module, at: Positions, *, static: bool, absorbed: bool = False):
        super().__init__()
        self.layer, self.static, self.absorbed = layer, static, absorbed
        self.past = at.kv_len - at.seq_len
        self.sees = Visibility(
            n_queries=at.seq_len, n_keys=at.kv_len, query_start=at.kv_len - at.seq_len
        )

    def forward(self, x_BSD: Tensor, *cache: Tensor) -> Tensor:
        """Run the layer over the cache: [B, S, D] and the cache -> [B, S, D]."""
        held = StaticCache(cache, self.past) if self.static else self._growing(cache)
        how = {"absorbed": True} if self.absorbed else {}
        y_BSD: Tensor = self.layer(x_BSD, self.sees, cache=held, **how)
        return y_BSD

    def _growing(self, cache: tuple[Tensor, ...]) -> LayerCache:
        held = LayerCache()
        if self.past:
            held.tensors = tuple(t[..., : self.past, :] for t in cache)
            held.length = self.past
        return held
