"""Kimi delta attention: the delta rule with a decay for every channel of the keys.

Letters of shapes: K is the width of a key (and of a value, V), Q the positions of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.convolution import CausalConv1d
from metacount.modules.gated_delta import after, cut, hand_on, step_by_step, unit
from metacount.modules.linear import Linear
from metacount.modules.norm import RMSNorm, at_least_float32
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.modules.cache import StateCache


class ForgetGate(nn.Module):
    """log α = -exp(A_log) · softplus(f_b(f_a(x)) + dt_bias), for each head and channel."""

    def __init__(self, part: parts.KimiDelta, d_model: int) -> None:
        super().__init__()
        self.head_dim = part.head_dim
        width = part.n_heads * part.head_dim
        self.f_a_proj = Linear(d_model, part.head_dim, bias=False)
        self.f_b_proj = Linear(part.head_dim, width, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(width))
        self.A_log = nn.Parameter(torch.zeros(1, 1, part.n_heads, 1))

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Compute log α of each head and channel: [B, S, D] -> [B, S, H, K]."""
        step = F.softplus(at_least_float32(self.f_b_proj(self.f_a_proj(x_BSD))) + self.dt_bias)
        return -torch.exp(at_least_float32(self.A_log)) * step.unflatten(-1, (-1, self.head_dim))


class KimiDelta(nn.Module):
    """y = out(norm(delta(q, k, v)) · sigmoid(g_b(g_a(x)))).

    Kimi Team 2025, arXiv:2510.26692, sections 3 and 4. As gated DeltaNet, but that the state decays
    channel by channel of the keys, so that inside a chunk two positions are compared element by
    element: the decay between them stands inside the product of their keys.
    """

    def __init__(self, part: parts.KimiDelta, d_model: int, *, norms: Norms) -> None:
        super().__init__()
        self.head_dim, self.chunk_size = part.head_dim, part.chunk_size
        width = part.n_heads * part.head_dim
        self.q_proj = Linear(d_model, width, bias=False)
        self.k_proj = Linear(d_model, width, bias=False)
        self.v_proj = Linear(d_model, width, bias=False)
        self.conv1d = CausalConv1d(3 * width, part.conv_kernel, bias=False)
        self.forget_gate = ForgetGate(part, d_model)
        self.b_proj = Linear(d_model, part.n_heads, bias=False)
        self.g_a_proj = Linear(d_model, part.head_dim, bias=False)
        self.g_b_proj = Linear(part.head_dim, width, bias=False)
        self.o_norm = RMSNorm(
            part.head_dim, eps=norms.eps if part.norm_eps is None else part.norm_eps
        )
        self.o_proj = Linear(width, d_model, bias=False)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; a filled cache is continued, by any number of tokens."""
        state_BHKV = None if cache is None else cache.states.get("recurrent")
        mixed = torch.cat((self.q_proj(x_BSD), self.k_proj(x_BSD), self.v_proj(x_BSD)), dim=-1)
        mixed = F.silu(self.conv1d(mixed.transpose(1, 2), cache).transpose(1, 2))
        q_BHSK, k_BHSK, v_BHSV = (
            at_least_float32(t).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for t in mixed.chunk(3, dim=-1)
        )
        q_BHSK, k_BHSK = unit(q_BHSK) * self.head_dim**-0.5, unit(k_BHSK)
        decay_BHSK = self.forget_gate(x_BSD).transpose(1, 2)
        beta_BHS = at_least_float32(self.b_proj(x_BSD)).sigmoid().transpose(1, 2)
        factors = (q_BHSK, k_BHSK, v_BHSV, decay_BHSK, beta_BHS)
        if state_BHKV is not None and x_BSD.shape[1] == 1:
            y_BHSV, state_BHKV = step_by_step(*factors, state_BHKV)
        else:
            y_BHSV, state_BHKV = in_chunks(*factors, state_BHKV, self.chunk_size)
        if cache is not None:
            cache.states["recurrent"] = state_BHKV
            cache.length += x_BSD.shape[1]
        gate = at_least_float32(self.g_b_proj(self.g_a_proj(x_BSD))).sigmoid()
        y_BSHV = self.o_norm(y_BHSV.transpose(1, 2)) * gate.unflatten(-1, (-1, self.head_dim))
        return self.o_proj(y_BSHV.flatten(2).to(x_BSD.dtype))


def in_chunks(
    q_BHSK: Tensor,
    k_BHSK: Tensor,
    v_BHSV: Tensor,
    decay_BHSK: Tensor,
    beta_BHS: Tensor,
    state_BHKV: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Run the delta rule in chunks, as `gated_delta.in_chunks`, with a decay for each channel.

    Products of keys with decays on either side would overflow (exp(-log α) on one of them), so the
    decay between two positions is applied to each pair: no matrix product, nor is the inverse of
    the triangle, which is written out row by row.
    """
    n = q_BHSK.shape[2]
    q, k, v, decay, beta = cut((q_BHSK, k_BHSK, v_BHSV, decay_BHSK, beta_BHS), chunk_size)
    so_far = decay.cumsum(-2)
    between = torch.exp(after(so_far[..., :, None, :] - so_far[..., None, :, :], others=1))
    pairs = k[..., None, :, :] * between  # the keys as position i still finds them
    beta_k = beta[..., None] * k
    triangle = (beta_k[..., :, None, :] * pairs).sum(-1)
    scores = (q[..., :, None, :] * pairs).sum(-1)
    solved = inverse_of_unit_triangle(triangle)
    # [q, q] @ [q, v], [q, q] @ [q, k]
    values, keys = solved @ (beta[..., None] * v), solved @ (beta_k * torch.exp(so_far))
    to_end = torch.exp(so_far[..., -1:, :] - so_far)
    y, state = hand_on(
        q * torch.exp(so_far),
        keys,
        values,
        scores,
        k * to_end,
        torch.exp(so_far[..., -1, :]),
        state_BHKV,
    )
    return y[:, :, :n], state


def inverse_of_unit_triangle(a_BHCQQ: Tensor) -> Tensor:
    """Invert I + the part of A below its diagonal: row i is e_i - Σ_j A_ij·row j, j < i."""
    n = a_BHCQQ.shape[-1]
    ones = torch.eye(n, dtype=a_BHCQQ.dtype, device=a_BHCQQ.device)
    rows = [ones[0].expand_as(a_BHCQQ[..., 0, :])]
    for i in range(1, n):
        above = torch.stack(rows, dim=-2)
        rows.append(ones[i] - (a_BHCQQ[..., i, :i, None] * above).sum(-2))
    return torch.stack(rows, dim=-2)
