"""The causal convolution before a recurrent mixer, the inputs it keeps, and the mixer of LFM2."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.cache import StateCache
from metacount.modules.linear import Linear
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms


class CausalConv1d(nn.Conv1d):
    """One filter of W values a channel; a position sees itself and the W - 1 before it.

    The cache keeps the last W inputs, zeros where there are fewer. Of those the next token needs
    W - 1, so that one position more than there are new tokens is computed; from nothing, the input
    is padded on both sides. Both are as transformers' own code runs it.
    """

    def __init__(self, channels: int, width: int, *, bias: bool) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)

    def reset_parameters(self) -> None:
        """Initialise as `nn.Conv1d` does; on meta there is nothing to initialise."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x_BCS: Tensor, cache: StateCache | None = None) -> Tensor:
        """Convolve [B, C, S] to [B, C, S]; a filled cache is continued, by any number of tokens."""
        n, width = x_BCS.shape[-1], self.kernel_size[0]
        if cache is not None and cache.states:
            seen, padding = torch.cat((cache.states["conv"], x_BCS), dim=-1), 0
        else:
            seen, padding = F.pad(x_BCS, (max(width - n, 0), 0)), width - 1
        if cache is not None:
            # clone: a slice alone would keep the whole storage alive
            cache.states["conv"] = seen[..., -width:].clone()
        y = F.conv1d(seen, self.weight, self.bias, padding=padding, groups=self.groups)
        end = y.shape[-1] - padding
        return y[..., end - n : end]


class ShortConvolution(nn.Module):
    """y = C · conv(B · x), with B, C and x from one projection of the input.

    Liquid AI 2025, arXiv:2511.23404, section 2. The convolution is causal and has one filter of
    width W for each channel. The cache keeps the convolution's last W inputs, zeros where the
    sequence is shorter: it does not grow.
    """

    def __init__(self, part: parts.ShortConv, d_model: int, *, norms: Norms | None = None) -> None:
        super().__init__()
        self.in_proj = Linear(d_model, 3 * d_model, bias=part.conv_bias)
        self.conv = CausalConv1d(d_model, part.conv_kernel, bias=part.conv_bias)
        self.out_proj = Linear(d_model, d_model, bias=part.conv_bias)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; a filled cache is continued by any number of tokens."""
        b_BDS, c_BDS, x_BDS = self.in_proj(x_BSD).transpose(1, 2).chunk(3, dim=1)
        y_BDS = c_BDS * self.conv(b_BDS * x_BDS, cache)
        if cache is not None:
            cache.length += x_BSD.shape[1]
        return self.out_proj(y_BDS.transpose(1, 2))
