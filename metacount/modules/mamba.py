"""Mamba: a convolution, then a scan whose step, input and output depend on the token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.convolution import CausalConv1d
from metacount.modules.linear import Linear
from metacount.modules.norm import RMSNorm, at_least_float32
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.modules.cache import StateCache


class Mamba(nn.Module):
    """y = out(scan(x) · silu(z)), with x and z from one projection.

    Gu, Dao 2023, arXiv:2312.00752, algorithm 2 and figure 3. Each of I channels has a state of N
    values, h ← exp(Δ·A)·h + Δ·B·x, read by C: A is learned, and Δ, B and C come from the token.
    Jamba (arXiv:2403.19887) puts a norm on each of the three, Falcon-Mamba one without weights.
    """

    def __init__(self, part: parts.Mamba, d_model: int, *, norms: Norms) -> None:
        super().__init__()
        inner, rank, state = part.d_ssm, part.dt_rank, part.state_dim
        self.read = (rank, state, state)
        self.in_proj = Linear(d_model, 2 * inner, bias=part.in_bias)
        self.conv1d = CausalConv1d(inner, part.conv_kernel, bias=part.conv_bias)
        self.x_proj = Linear(inner, sum(self.read), bias=False)
        self.dt_proj = Linear(rank, inner, bias=True)
        self.A_log = nn.Parameter(torch.ones(inner, state))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = Linear(inner, d_model, bias=part.out_bias)
        self.normed = part.norms != "none"
        if self.normed:
            eps = norms.eps if part.norm_eps is None else part.norm_eps
            affine = part.norms == "affine"
            self.dt_layernorm = RMSNorm(rank, affine=affine, eps=eps)
            self.b_layernorm = RMSNorm(state, affine=affine, eps=eps)
            self.c_layernorm = RMSNorm(state, affine=affine, eps=eps)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; a filled cache is continued, by any number of tokens."""
        state_BIN = None if cache is None else cache.states.get("recurrent")
        x_BSI, z_BSI = self.in_proj(x_BSD).chunk(2, dim=-1)
        x_BSI = F.silu(self.conv1d(x_BSI.transpose(1, 2), cache).transpose(1, 2))
        dt_BSR, b_BSN, c_BSN = self.x_proj(x_BSI).split(self.read, dim=-1)
        if self.normed:
            dt_BSR, b_BSN = self.dt_layernorm(dt_BSR), self.b_layernorm(b_BSN)
            c_BSN = self.c_layernorm(c_BSN)
        dt_BSI = F.softplus(at_least_float32(self.dt_proj(dt_BSR)))
        # the scan's factors and its state are in float32 at least
        decay_BSIN = torch.exp(dt_BSI[..., None] * -torch.exp(at_least_float32(self.A_log)))
        added_BSIN = (dt_BSI * x_BSI)[..., None] * b_BSN[:, :, None]
        if state_BIN is None:
            state_BIN = torch.zeros_like(added_BSIN[:, 0])
        scan = step_by_step if x_BSD.shape[1] == 1 else by_doubling
        states_BSIN = scan(decay_BSIN, added_BSIN, state_BIN)
        if cache is not None:
            cache.states["recurrent"] = states_BSIN[:, -1].clone()
            cache.length += x_BSD.shape[1]
        # [b, s, i, n] @ [b, s, n, 1] -> [b, s, i, 1]
        y_BSI = (states_BSIN.to(c_BSN.dtype) @ c_BSN[..., None]).squeeze(-1)
        y_BSI = (y_BSI + self.D * x_BSI) * F.silu(z_BSI)
        return self.out_proj(y_BSI.to(x_BSD.dtype))


def step_by_step(decay_BSIN: Tensor, added_BSIN: Tensor, state_BIN: Tensor) -> Tensor:
    """Compute the states h ← decay·h + added after each position, one position after the other."""
    states = []
    for s in range(decay_BSIN.shape[1]):
        state_BIN = decay_BSIN[:, s] * state_BIN + added_BSIN[:, s]
        states.append(state_BIN)
    return torch.stack(states, dim=1)


def by_doubling(decay_BSIN: Tensor, added_BSIN: Tensor, state_BIN: Tensor) -> Tensor:
    """Compute `step_by_step`'s states in ⌈log2 S⌉ rounds over all positions (Hillis, Steele 1986).

    After a round with reach r, a position holds what the last 2·r positions did to the state: two
    such spans one after the other decay by the product, and add the decayed first to the second.
    """
    first = added_BSIN[:, :1] + decay_BSIN[:, :1] * state_BIN[:, None]
    added_BSIN = torch.cat((first, added_BSIN[:, 1:]), dim=1)
    reach, n = 1, decay_BSIN.shape[1]
    while reach < n:
        late = added_BSIN[:, reach:] + decay_BSIN[:, reach:] * added_BSIN[:, :-reach]
        added_BSIN = torch.cat((added_BSIN[:, :reach], late), dim=1)
        late = decay_BSIN[:, reach:] * decay_BSIN[:, :-reach]
        decay_BSIN = torch.cat((decay_BSIN[:, :reach], late), dim=1)
        reach *= 2
    return added_BSIN
