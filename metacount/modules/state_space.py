"""State spaces: Mamba, whose step, input and output depend on the token, and Mamba-2.

Mamba-2's heads decay as a whole, so that a chunk of positions is a few matrix products.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.cache import StateCache
from metacount.modules.convolution import CausalConv1d, recurrence
from metacount.modules.linear import Linear
from metacount.modules.norm import RMSNorm, at_least_float32, eps_of
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms


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
            eps, affine = eps_of(part, norms), part.norms == "affine"
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
        scan = recurrence if x_BSD.shape[1] == 1 else by_doubling
        states_BSIN = scan(decay_BSIN, added_BSIN, state_BIN)
        if cache is not None:
            cache.keep(x_BSD.shape[1], recurrent=states_BSIN[:, -1].clone())
        # [b, s, i, n] @ [b, s, n, 1] -> [b, s, i, 1]
        y_BSI = (states_BSIN.to(c_BSN.dtype) @ c_BSN[..., None]).squeeze(-1)
        y_BSI = (y_BSI + self.D * x_BSI) * F.silu(z_BSI)
        return self.out_proj(y_BSI.to(x_BSD.dtype))


def by_doubling(decay_BSIN: Tensor, added_BSIN: Tensor, state_BIN: Tensor) -> Tensor:
    """Compute `recurrence`'s states in ⌈log2 S⌉ rounds over all positions (Hillis, Steele 1986).

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


class GatedNorm(nn.Module):
    """RMSNorm of each group of channels, of x·silu(z), or of x before it meets silu(z)."""

    def __init__(self, width: int, n_groups: int, *, before_gate: bool, eps: float) -> None:
        super().__init__()
        self.n_groups, self.before_gate, self.eps = n_groups, before_gate, eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BSI: Tensor, z_BSI: Tensor) -> Tensor:
        """Norm x [B, S, I], gated by z [B, S, I], in groups of channels: -> [B, S, I]."""
        wide, gate = at_least_float32(x_BSI), F.silu(at_least_float32(z_BSI))
        if not self.before_gate:
            wide = wide * gate
        groups = wide.unflatten(-1, (self.n_groups, -1))
        groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.eps)
        y = self.weight * groups.flatten(-2)
        return y * gate if self.before_gate else y


class Mamba2(nn.Module):
    """y = out(norm(scan(x) · silu(z))), with x, z, B, C and Δ from one projection.

    Dao, Gu 2024, arXiv:2405.21060, figure 6 and listing 1. Each of H heads has a state of P·N
    values, h ← exp(Δ·A)·h + Δ·x·Bᵀ, read by C: A is one learned number a head, groups of heads
    share B and C. The first forward runs in chunks, as several tokens at once do; one token more
    is a step of the recurrence.
    """

    def __init__(self, part: parts.Mamba2, d_model: int, *, norms: Norms) -> None:
        super().__init__()
        heads, groups = part.n_heads, part.n_groups
        inner, shared = heads * part.head_dim, groups * part.state_dim
        self.head_dim, self.state_dim = part.head_dim, part.state_dim
        self.chunk_size = part.chunk_size
        self.steps, self.scales = (part.dt_min, part.dt_max), part.scales
        self.convolved = (inner, shared, shared)
        self.projected = (inner, sum(self.convolved), heads)
        self.in_proj = Linear(d_model, sum(self.projected), bias=part.in_bias)
        self.conv1d = CausalConv1d(sum(self.convolved), part.conv_kernel, bias=part.conv_bias)
        self.dt_bias = nn.Parameter(torch.ones(heads))
        self.A_log = nn.Parameter(torch.ones(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm: GatedNorm | None = None
        if part.norm != "none":
            before = part.norm == "before_gate"
            self.norm = GatedNorm(inner, groups, before_gate=before, eps=eps_of(part, norms))
        self.out_proj = Linear(inner, d_model, bias=part.out_bias)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; a filled cache is continued, by any number of tokens."""
        state_BHPN = None if cache is None else cache.states.get("recurrent")
        z_BSI, mixed, dt_BSH = self._projected(x_BSD)
        mixed = F.silu(self.conv1d(mixed.transpose(1, 2), cache).transpose(1, 2))
        x_BSI, b, c = mixed.split(self.convolved, dim=-1)
        x_BSHP = at_least_float32(x_BSI).unflatten(-1, (-1, self.head_dim))
        # every head of a group has the group's B and C
        b_BSHN, c_BSHN = (self._of_heads(t, x_BSHP.shape[2]) for t in (b, c))
        dt_BSH = F.softplus(at_least_float32(dt_BSH + self.dt_bias))
        if self.steps != (None, None):
            dt_BSH = dt_BSH.clamp(*self.steps)
        decay_BSH = -torch.exp(at_least_float32(self.A_log)) * dt_BSH
        factors = (dt_BSH[..., None] * x_BSHP, decay_BSH, b_BSHN, c_BSHN)
        if state_BHPN is not None and x_BSD.shape[1] == 1:
            y_BSHP, state_BHPN = step_by_step(*factors, state_BHPN)
        else:
            y_BSHP, state_BHPN = in_chunks(*factors, state_BHPN, self.chunk_size)
        if cache is not None:
            cache.keep(x_BSD.shape[1], recurrent=state_BHPN.clone())
        y_BSI = (y_BSHP + self.D[:, None] * x_BSHP).flatten(2)
        y_BSI = y_BSI * F.silu(z_BSI) if self.norm is None else self.norm(y_BSI, z_BSI)
        y_BSD = self.out_proj(y_BSI.to(x_BSD.dtype))
        return y_BSD if self.scales is None else y_BSD * self.scales.out

    def _projected(self, x_BSD: Tensor) -> tuple[Tensor, ...]:
        """Project x to the gate, what is convolved (x, B and C side by side), and the steps."""
        projected = self.in_proj(x_BSD).split(self.projected, dim=-1)
        if self.scales is None:
            return projected
        z_BSI, mixed, dt_BSH = projected
        parts = zip(
            mixed.split(self.convolved, dim=-1),
            (self.scales.x, self.scales.b, self.scales.c),
            strict=True,
        )
        mixed = torch.cat([part * scale for part, scale in parts], dim=-1)
        return z_BSI * self.scales.gate, mixed, dt_BSH * self.scales.step

    def _of_heads(self, x: Tensor, n_heads: int) -> Tensor:
        """Give each head its group's B or C: [B, S, groups·N] -> [B, S, H, N]."""
        x = at_least_float32(x).unflatten(-1, (-1, self.state_dim))
        return x.repeat_interleave(n_heads // x.shape[2], dim=2)


def step_by_step(
    x_BSHP: Tensor, decay_BSH: Tensor, b_BSHN: Tensor, c_BSHN: Tensor, state_BHPN: Tensor
) -> tuple[Tensor, Tensor]:
    """Run h ← exp(decay)·h + x·bᵀ, y = h·c, one position after the other; -> y [B, S, H, P], h."""
    outputs = []
    for s in range(x_BSHP.shape[1]):
        added = x_BSHP[:, s, :, :, None] * b_BSHN[:, s, :, None]
        state_BHPN = torch.exp(decay_BSH[:, s, :, None, None]) * state_BHPN + added
        # [b, h, p, n] @ [b, h, n, 1] -> [b, h, p, 1]
        outputs.append((state_BHPN @ c_BSHN[:, s, :, :, None]).squeeze(-1))
    return torch.stack(outputs, dim=1), state_BHPN


def in_chunks(
    x_BSHP: Tensor,
    decay_BSH: Tensor,
    b_BSHN: Tensor,
    c_BSHN: Tensor,
    state_BHPN: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence in chunks of `chunk_size` (Q) positions, the last one padded with zeros.

    Inside a chunk a position sees the ones before it as in attention, C·Bᵀ masked by decays; what
    came before the chunk it sees through the state that the chunk began with. The letters of the
    products: b batch, c chunk, q and k positions in it, h head, p channel, n value of the state.
    """
    n = x_BSHP.shape[1]
    rest = (chunk_size - n % chunk_size) % chunk_size
    x, decay, b, c = (
        F.pad(t, (0, 0) * (t.dim() - 2) + (0, rest)).unflatten(1, (-1, chunk_size))
        for t in (x_BSHP, decay_BSH, b_BSHN, c_BSHN)
    )
    decay = decay.permute(0, 3, 1, 2)  # [b, h, c, q]
    so_far = decay.cumsum(-1)
    # among the positions of a chunk
    scores = torch.einsum("bcqhn,bckhn->bcqkh", c, b)
    scores = scores * torch.exp(sums_between(decay)).permute(0, 2, 3, 4, 1)
    inside = torch.einsum("bcqkh,bckhp->bcqhp", scores, x)
    # what each chunk adds to the state, and the state before each chunk and after the last
    left = torch.exp(so_far[..., -1:] - so_far).permute(0, 2, 3, 1)[..., None]
    added = torch.einsum("bckhn,bckhp->bchpn", b * left, x)
    first = torch.zeros_like(added[:, 0]) if state_BHPN is None else state_BHPN
    added = torch.cat((first[:, None], added), dim=1)
    between = torch.exp(sums_between(F.pad(so_far[..., -1], (1, 0))))  # [b, h, after, before]
    states = torch.einsum("bhac,bchpn->bahpn", between, added)
    # what each position reads of the state that its chunk began with
    before = torch.einsum("bcqhn,bchpn->bcqhp", c, states[:, :-1])
    before = before * torch.exp(so_far).permute(0, 2, 3, 1)[..., None]
    return (inside + before).flatten(1, 2)[:, :n], states[:, -1]


def sums_between(x: Tensor) -> Tensor:
    """Sum x[j + 1] + … + x[i] into row i and column j, -inf where j > i: [..., n] -> [..., n, n].

    Summed as they are: the difference of two long sums would lose the small ones.
    """
    n = x.shape[-1]
    ones = torch.ones(n, n, dtype=torch.bool, device=x.device)
    terms = x[..., None].expand(*x.shape, n).masked_fill(~ones.tril(-1), 0)
    return terms.cumsum(-2).masked_fill(~ones.tril(), -torch.inf)
