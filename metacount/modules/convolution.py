"""The causal convolution before a recurrent mixer, and the inputs it keeps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.modules.cache import StateCache


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
