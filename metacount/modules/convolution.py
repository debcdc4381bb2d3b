"""Mixers behind a causal convolution: that of LFM2, and the gated recurrence of Griffin."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.cache import StateCache
from metacount.modules.ffn import activate
from metacount.modules.linear import Linear
from metacount.modules.norm import at_least_float32
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


DECAY = 8.0  # the paper's c: what the recurrence gate's exponent is multiplied with


def recurrence(decay_BSW: Tensor, x_BSW: Tensor, state_BW: Tensor) -> Tensor:
    """Compute h_t = a_t·h_{t-1} + x_t, position after position, from `state`: [B, S, ...]."""
    states = []
    for t in range(x_BSW.shape[1]):
        state_BW = decay_BSW[:, t] * state_BW + x_BSW[:, t]
        states.append(state_BW)
    return torch.stack(states, dim=1)


def doubled(decay_BSW: Tensor, x_BSW: Tensor, state_BW: Tensor) -> Tensor:
    """Compute `recurrence` in log2(S) steps, each over spans twice as long.

    A span of positions takes a state h to a·h + x; two neighbours are one such span:
    (a', x') after (a, x) is (a'·a, a'·x + x').
    """
    x_BSW = torch.cat((x_BSW[:, :1] + decay_BSW[:, :1] * state_BW[:, None], x_BSW[:, 1:]), dim=1)
    span = 1
    while span < x_BSW.shape[1]:
        before_a = F.pad(decay_BSW[:, :-span], (0, 0, span, 0), value=1.0)
        before_x = F.pad(x_BSW[:, :-span], (0, 0, span, 0))
        x_BSW = decay_BSW * before_x + x_BSW
        decay_BSW = decay_BSW * before_a
        span *= 2
    return x_BSW


class RgLru(nn.Module):
    """The real-gated linear recurrent unit: De et al. 2024, arXiv:2402.19427, equations 1-4.

    r_t = sigmoid(W_a·x_t + b_a),  i_t = sigmoid(W_x·x_t + b_x),  a_t = exp(-c·softplus(Λ)·r_t)
    h_t = a_t·h_{t-1} + sqrt(1 - a_t²)·(i_t·x_t)

    Each gate is block-diagonal, G blocks of W/G. The first position has no factor on its input.
    transformers bounds the derivative of the square root at 1000; here it is the exact one.
    """

    def __init__(self, width: int, n_blocks: int) -> None:
        super().__init__()
        self.n_blocks, block = n_blocks, width // n_blocks
        self.recurrent_param = nn.Parameter(torch.zeros(width))
        self.input_gate_weight = nn.Parameter(torch.zeros(n_blocks, block, block))
        self.input_gate_bias = nn.Parameter(torch.zeros(n_blocks, block))
        self.recurrent_gate_weight = nn.Parameter(torch.zeros(n_blocks, block, block))
        self.recurrent_gate_bias = nn.Parameter(torch.zeros(n_blocks, block))

    def forward(self, x_BSW: Tensor, state_BW: Tensor | None) -> Tensor:
        """Compute every position's state, [B, S, W]; without `state` the sequence begins here."""
        input_gate = self._gate(x_BSW, self.input_gate_weight, self.input_gate_bias)
        recurrence_gate = self._gate(x_BSW, self.recurrent_gate_weight, self.recurrent_gate_bias)
        log_decay = -DECAY * recurrence_gate * F.softplus(self.recurrent_param)
        factor = (1 - (2 * log_decay).exp()).sqrt()
        if state_BW is None:
            factor = torch.cat((torch.ones_like(factor[:, :1]), factor[:, 1:]), dim=1)
            state_BW = x_BSW.new_zeros(x_BSW.shape[0], x_BSW.shape[2])
        gated = at_least_float32(x_BSW * input_gate * factor)
        return doubled(at_least_float32(log_decay.exp()), gated, at_least_float32(state_BW))

    def _gate(self, x_BSW: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x_GNw = x_BSW.flatten(0, 1).unflatten(-1, (self.n_blocks, -1)).transpose(0, 1)
        # [g, n, w] @ [g, w, w]
        gate_GNw = torch.bmm(x_GNw, weight) + bias[:, None]
        return gate_GNw.transpose(0, 1).flatten(1).view_as(x_BSW).sigmoid()


class RecurrentBlock(nn.Module):
    """out(RG-LRU(conv(x)) · act(y)), x and y two projections of the input: the paper's figure 2.

    The cache keeps the convolution's last inputs, one position less than it is wide, and one value
    a channel in float32 or wider.
    """

    def __init__(self, part: parts.RgLru, d_model: int, *, norms: Norms | None = None) -> None:
        super().__init__()
        width = part.lru_width
        self.kernel, self.activation = part.conv_kernel, part.activation
        self.linear_y = Linear(d_model, width, bias=True)
        self.linear_x = Linear(d_model, width, bias=True)
        self.linear_out = Linear(width, d_model, bias=True)
        self.conv_1d = nn.Conv1d(width, width, self.kernel, groups=width)
        self.rg_lru = RgLru(width, part.n_lru_blocks)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; a filled cache is continued by any number of tokens."""
        states = {} if cache is None else cache.states
        x_BWS = self.linear_x(x_BSD).transpose(1, 2)
        x_BSW = self._convolved(x_BWS, states.get("conv")).transpose(1, 2)
        h_BSW = self.rg_lru(x_BSW, states.get("recurrent"))
        if cache is not None:
            self._keep(cache, x_BWS, h_BSW)
        y_BSW = activate(self.linear_y(x_BSD), self.activation, 1.0)
        return self.linear_out(h_BSW.to(x_BSD.dtype) * y_BSW)

    def _convolved(self, x_BWS: Tensor, before: Tensor | None) -> Tensor:
        conv, n = self.conv_1d, x_BWS.shape[-1]
        if before is None:
            y = F.conv1d(x_BWS, conv.weight, conv.bias, padding=self.kernel - 1, groups=conv.groups)
            return y[..., :n]
        x_BWT = torch.cat((before, x_BWS), dim=-1)
        if n == 1:  # one position's filter, as transformers runs it
            assert conv.bias is not None
            return ((x_BWT * conv.weight[:, 0]).sum(-1) + conv.bias).unsqueeze(-1)
        return F.conv1d(x_BWT, conv.weight, conv.bias, groups=conv.groups)

    def _keep(self, cache: StateCache, x_BWS: Tensor, h_BSW: Tensor) -> None:
        keep = self.kernel - 1
        before = cache.states.get("conv")
        if before is None:
            before = x_BWS.new_zeros(*x_BWS.shape[:2], keep)
        seen = torch.cat((before, x_BWS), dim=-1)
        # clone: a slice alone would keep the whole storage alive
        cache.states["conv"] = seen[..., seen.shape[-1] - keep :].clone()
        cache.states["recurrent"] = h_BSW[:, -1].clone()
        cache.length += x_BWS.shape[-1]
