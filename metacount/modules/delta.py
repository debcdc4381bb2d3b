"""Delta rules: gated DeltaNet, and Kimi delta attention with a decay for every channel of the keys.

A state for each head is corrected by each token, one by one or in chunks. Letters of shapes: K and
V are the widths of a key and of a value, Q the positions of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.cache import StateCache
from metacount.modules.convolution import CausalConv1d
from metacount.modules.linear import Linear
from metacount.modules.norm import RMSNorm, at_least_float32, eps_of
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms

UNIT_EPS = 1e-6  # added to the squared length of a query or key before its root


class GatedDelta(nn.Module):
    """y = out(norm(delta(q, k, v)) · silu(g)).

    Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, section 3. Queries, keys and values pass one
    causal convolution; every value head keeps a state [K, V]. The decay α = exp(-exp(A_log) ·
    softplus(a + dt_bias)) and the rate β = sigmoid(b) are one number a head and token. The first
    forward runs in chunks, as several tokens at once do; one token more is a step.
    """

    def __init__(self, part: parts.GatedDelta, d_model: int, *, norms: Norms) -> None:
        super().__init__()
        self.k_head_dim, self.v_head_dim = part.k_head_dim, part.v_head_dim
        self.n_v_heads = part.n_v_heads
        self.chunk_size, self.negative = part.chunk_size, part.negative
        key, value = part.n_k_heads * part.k_head_dim, part.n_v_heads * part.v_head_dim
        self.convolved = (key, key, value)
        self.q_proj = Linear(d_model, key, bias=False)
        self.k_proj = Linear(d_model, key, bias=False)
        self.v_proj = Linear(d_model, value, bias=False)
        self.a_proj = Linear(d_model, part.n_v_heads, bias=False)
        self.b_proj = Linear(d_model, part.n_v_heads, bias=False)
        self.g_proj = Linear(d_model, value, bias=False)
        self.conv1d = CausalConv1d(2 * key + value, part.conv_kernel, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(part.n_v_heads))
        self.A_log = nn.Parameter(torch.zeros(part.n_v_heads))
        self.o_norm = RMSNorm(part.v_head_dim, eps=eps_of(part, norms))
        self.o_proj = Linear(value, d_model, bias=False)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; a filled cache is continued, by any number of tokens."""
        state_BHKV = None if cache is None else cache.states.get("recurrent")
        mixed = torch.cat((self.q_proj(x_BSD), self.k_proj(x_BSD), self.v_proj(x_BSD)), dim=-1)
        mixed = F.silu(self.conv1d(mixed.transpose(1, 2), cache).transpose(1, 2))
        q, k, v = mixed.split(self.convolved, dim=-1)
        q_BHSK, k_BHSK = (unit(self._heads(t, self.k_head_dim)) for t in (q, k))
        v_BHSV = self._heads(v, self.v_head_dim)
        beta_BHS = at_least_float32(self.b_proj(x_BSD)).sigmoid().transpose(1, 2)
        if self.negative:
            beta_BHS = 2 * beta_BHS
        step = F.softplus(at_least_float32(self.a_proj(x_BSD)) + self.dt_bias)
        decay_BHS = (-torch.exp(at_least_float32(self.A_log)) * step).transpose(1, 2)
        q_BHSK = q_BHSK * self.k_head_dim**-0.5
        qkv = q_BHSK, k_BHSK, v_BHSV
        if state_BHKV is not None and x_BSD.shape[1] == 1:
            y_BHSV, state_BHKV = step_by_step(*qkv, decay_BHS[..., None], beta_BHS, state_BHKV)
        else:
            chunked = in_chunks(*qkv, decay_BHS, beta_BHS, state_BHKV, self.chunk_size)
            y_BHSV, state_BHKV = chunked
        if cache is not None:
            cache.keep(x_BSD.shape[1], recurrent=state_BHKV)
        gate_BSHV = self.g_proj(x_BSD).unflatten(-1, (-1, self.v_head_dim))
        y_BSHV = self.o_norm(y_BHSV.transpose(1, 2)) * F.silu(at_least_float32(gate_BSHV))
        return self.o_proj(y_BSHV.flatten(2).to(x_BSD.dtype))

    def _heads(self, x_BSC: Tensor, width: int) -> Tensor:
        """Split [B, S, heads·width] to [B, value heads, S, width]; a group shares its key head."""
        x = at_least_float32(x_BSC).unflatten(-1, (-1, width)).transpose(1, 2)
        return x.repeat_interleave(self.n_v_heads // x.shape[1], dim=1)


def unit(x: Tensor) -> Tensor:
    """Divide x by its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def step_by_step(
    q_BHSK: Tensor,
    k_BHSK: Tensor,
    v_BHSV: Tensor,
    decay_BHSk: Tensor,
    beta_BHS: Tensor,
    state_BHKV: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run S ← α·S, S ← S + β·k·(v - Sᵀ·k)ᵀ, y = Sᵀ·q, one position after the other; -> y, S.

    `decay_BHSk` is log α, of the whole state (k = 1) or of each channel of the keys (k = K). The
    products are over one vector each and are written element by element.
    """
    outputs = []
    for s in range(q_BHSK.shape[2]):
        q, k = q_BHSK[:, :, s, :, None], k_BHSK[:, :, s, :, None]
        state_BHKV = torch.exp(decay_BHSk[:, :, s, :, None]) * state_BHKV
        read_BHV = (state_BHKV * k).sum(-2)
        correction = beta_BHS[:, :, s, None] * (v_BHSV[:, :, s] - read_BHV)
        state_BHKV = state_BHKV + k * correction[:, :, None]
        outputs.append((state_BHKV * q).sum(-2))
    return torch.stack(outputs, dim=2), state_BHKV


def in_chunks(
    q_BHSK: Tensor,
    k_BHSK: Tensor,
    v_BHSV: Tensor,
    decay_BHS: Tensor,
    beta_BHS: Tensor,
    state_BHKV: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Run the delta rule in chunks of `chunk_size` (Q) positions, the last one padded with zeros.

    What position i of a chunk writes, c_i = β_i·(v_i - what k_i reads), depends on what the ones
    before it wrote: (I + A)·c = β·(v - what k reads of the state that the chunk began with), with
    A_ij = β_i·α_i/α_j·(k_i·k_j) below the diagonal, α from the start of the chunk. One triangle is
    solved for all chunks at once; the states are handed on from chunk to chunk.
    """
    n = q_BHSK.shape[2]
    q, k, v, decay, beta = cut((q_BHSK, k_BHSK, v_BHSV, decay_BHS, beta_BHS), chunk_size)
    so_far = decay.cumsum(-1)  # log of α from the start of the chunk
    between = torch.exp(after(so_far[..., :, None] - so_far[..., None, :]))
    beta_k, beta_v = beta[..., None] * k, beta[..., None] * v
    # [q, k] @ [k, q], both in every chunk
    triangle = (beta_k @ k.transpose(-1, -2)) * between
    scores = (q @ k.transpose(-1, -2)) * between
    from_start = torch.exp(so_far)[..., None]
    values, keys = (
        torch.linalg.solve_triangular(triangle, t, upper=False, unitriangular=True)
        for t in (beta_v, beta_k * from_start)
    )
    to_end = torch.exp(so_far[..., -1:] - so_far)[..., None]
    y, state = hand_on(
        q * from_start, keys, values, scores, k * to_end, from_start[..., -1, :], state_BHKV
    )
    return y[:, :, :n], state


def cut(tensors: tuple[Tensor, ...], chunk_size: int) -> list[Tensor]:
    """Cut [B, H, S, ...] into [B, H, chunks, Q, ...], padded with zeros, which change no state."""
    rest = (chunk_size - tensors[0].shape[2] % chunk_size) % chunk_size
    return [
        F.pad(t, (0, 0) * (t.dim() - 3) + (0, rest)).unflatten(2, (-1, chunk_size)) for t in tensors
    ]


def after(log_BHCij: Tensor, others: int = 0) -> Tensor:
    """Put -inf where j > i: a position sees itself and those before it; `others` axes follow j."""
    n = log_BHCij.shape[3]
    ones = torch.ones(n, n, dtype=torch.bool, device=log_BHCij.device)
    return log_BHCij.masked_fill(~ones.tril().reshape(n, n, *(1,) * others), -torch.inf)


def hand_on(
    q_BHCQK: Tensor,
    read_BHCQK: Tensor,
    values_BHCQV: Tensor,
    scores_BHCQQ: Tensor,
    written_BHCQK: Tensor,
    decay_BHCk: Tensor,
    state_BHKV: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the chunks one after the other; -> y [B, H, chunks·Q, V] and the state after the last.

    All factors hold their decays: of the queries and what the keys read from the start of a chunk,
    of what is written until its end, and of the state over the whole chunk.
    """
    if state_BHKV is None:
        shape = (*values_BHCQV.shape[:2], written_BHCQK.shape[-1], values_BHCQV.shape[-1])
        state_BHKV = values_BHCQV.new_zeros(shape)
    outputs = []
    for c in range(q_BHCQK.shape[2]):
        # [q, k] @ [k, v], [q, k] @ [k, v], [q, q] @ [q, v], [k, q] @ [q, v]
        corrections = values_BHCQV[:, :, c] - read_BHCQK[:, :, c] @ state_BHKV
        outputs.append(q_BHCQK[:, :, c] @ state_BHKV + scores_BHCQQ[:, :, c] @ corrections)
        added = written_BHCQK[:, :, c].transpose(-1, -2) @ corrections
        state_BHKV = decay_BHCk[:, :, c, :, None] * state_BHKV + added
    return torch.cat(outputs, dim=2), state_BHKV


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
        self.o_norm = RMSNorm(part.head_dim, eps=eps_of(part, norms))
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
            y_BHSV, state_BHKV = in_chunks_by_channel(*factors, state_BHKV, self.chunk_size)
        if cache is not None:
            cache.keep(x_BSD.shape[1], recurrent=state_BHKV)
        gate = at_least_float32(self.g_b_proj(self.g_a_proj(x_BSD))).sigmoid()
        y_BSHV = self.o_norm(y_BHSV.transpose(1, 2)) * gate.unflatten(-1, (-1, self.head_dim))
        return self.o_proj(y_BSHV.flatten(2).to(x_BSD.dtype))


def in_chunks_by_channel(
    q_BHSK: Tensor,
    k_BHSK: Tensor,
    v_BHSV: Tensor,
    decay_BHSK: Tensor,
    beta_BHS: Tensor,
    state_BHKV: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Run the delta rule in chunks, as `in_chunks`, with a decay for each channel.

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
