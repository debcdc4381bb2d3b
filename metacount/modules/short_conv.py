"""The gated short convolution of LFM2: in projection, gate, causal convolution, gate, out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.cache import StateCache
from metacount.modules.linear import Linear
from metacount.spec import short_conv as parts
from metacount.spec.norm import Norms


class ShortConvolution(nn.Module):
    """y = C · conv(B · x), with B, C and x from one projection of the input.

    Liquid AI 2025, arXiv:2511.23404, section 2. The convolution is causal and has one filter of
    width W for each channel. The cache keeps the convolution's last W inputs, zeros where the
    sequence is shorter: it does not grow.
    """

    def __init__(self, part: parts.ShortConv, d_model: int, *, norms: Norms | None = None) -> None:
        super().__init__()
        self.width = part.conv_kernel
        self.in_proj = Linear(d_model, 3 * d_model, bias=part.conv_bias)
        self.conv = nn.Conv1d(d_model, d_model, self.width, groups=d_model, bias=part.conv_bias)
        self.out_proj = Linear(d_model, d_model, bias=part.conv_bias)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """[B, S, D] -> [B, S, D]; a filled cache is continued by any number of tokens."""
        b_BDS, c_BDS, x_BDS = self.in_proj(x_BSD).transpose(1, 2).chunk(3, dim=1)
        y_BDS = c_BDS * self._convolved(b_BDS * x_BDS, cache)
        return self.out_proj(y_BDS.transpose(1, 2))

    def _convolved(self, x_BDS: Tensor, cache: StateCache | None) -> Tensor:
        """Each position's filter over itself and the W - 1 before it, [B, D, S]."""
        n = x_BDS.shape[-1]
        if cache is not None and cache.states:
            x_BDT = torch.cat((cache.states["conv"], x_BDS), dim=-1)
            padding = 0
        else:
            x_BDT = F.pad(x_BDS, (max(self.width - n, 0), 0))
            padding = self.width - 1
        if cache is not None:
            # clone: a slice alone would keep the whole storage alive
            cache.states["conv"] = x_BDT[..., -self.width :].clone()
            cache.length += n
        y = F.conv1d(
            x_BDT, self.conv.weight, self.conv.bias, padding=padding, groups=x_BDT.shape[1]
        )
        end = x_BDT.shape[-1] if padding else y.shape[-1]
        return y[..., end - n : end]
