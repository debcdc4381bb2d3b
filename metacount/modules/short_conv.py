"""The gated short convolution of LFM2: in projection, gate, causal convolution, gate, out."""

from __future__ import annotations

from torch import Tensor, nn

from metacount.modules.cache import StateCache
from metacount.modules.convolution import CausalConv1d
from metacount.modules.linear import Linear
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms


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
