"""Lightning attention: linear attention whose state decays at a fixed rate for each head and layer.

Letters of shapes: K is the width of a key and of a value, Q the positions of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.linear import Linear
from metacount.modules.norm import RMSNorm, eps_of
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.modules.cache import StateCache

SMALL = 1e-5  # keeps the rates of the last layer from zero


class Lightning(nn.Module):
    """y = out(sigmoid(gate(x)) · norm(S·q)), with S ← λ·S + k·vᵀ and q, k, v = silu(qkv(x)).

    MiniMax 2025, arXiv:2501.08313, section 2.2; Qin et al. 2024, arXiv:2401.04658. λ is exp(-r):
    r falls from 1/2^(8/H) for the first head to 1/2^8 for the last, and over the depth of the
    model to nearly nothing; `layer` of `n_layers` says where this one stands. The first forward
    runs in chunks, more tokens step by step.
    """

    def __init__(
        self,
        part: parts.Lightning,
        d_model: int,
        *,
        norms: Norms,
        layer: int = 0,
        n_layers: int = 1,
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim, self.chunk_size = part.n_heads, part.head_dim, part.chunk_size
        self.slowed = 1 - layer / (n_layers - 1 + SMALL) + SMALL
        width = part.n_heads * part.head_dim
        self.qkv_proj = Linear(d_model, 3 * width, bias=False)
        self.o_norm = RMSNorm(width, eps=eps_of(part, norms))
        self.output_gate = Linear(d_model, width, bias=False)
        self.o_proj = Linear(width, d_model, bias=False)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; a filled cache is continued, by any number of tokens."""
        qkv = F.silu(self.qkv_proj(x_BSD)).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        q_BHSK, k_BHSK, v_BHSK = qkv.chunk(3, dim=-1)
        rate_H = self.rates(x_BSD)
        if cache is not None and cache.states:
            y, state = step_by_step(q_BHSK, k_BHSK, v_BHSK, rate_H, cache.states["recurrent"])
        else:
            y, state = in_chunks(q_BHSK, k_BHSK, v_BHSK, rate_H, self.chunk_size)
        if cache is not None:
            cache.keep(x_BSD.shape[1], recurrent=state)
        y_BSC = self.o_norm(y.transpose(1, 2).flatten(2))
        return self.o_proj(torch.sigmoid(self.output_gate(x_BSD)) * y_BSC)

    def rates(self, like: Tensor) -> Tensor:
        """Compute the rate r of every head, [H]."""
        heads = torch.arange(1, self.n_heads + 1, dtype=like.dtype, device=like.device)
        return torch.exp2(-8 * heads / self.n_heads) * self.slowed


def step_by_step(
    q_BHSK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, rate_H: Tensor, state_BHKK: Tensor
) -> tuple[Tensor, Tensor]:
    """Run S ← λ·S + k·vᵀ, y = Sᵀ·q, one position after the other; -> y [B, H, S, K], S."""
    outputs = []
    for s in range(q_BHSK.shape[2]):
        token = slice(s, s + 1)
        # [k, 1] @ [1, k], [1, k] @ [k, k]
        added = k_BHSK[:, :, token].transpose(-1, -2) @ v_BHSK[:, :, token]
        state_BHKK = torch.exp(-rate_H)[:, None, None] * state_BHKK + added
        outputs.append(q_BHSK[:, :, token] @ state_BHKK)
    return torch.cat(outputs, dim=2), state_BHKK


def in_chunks(
    q_BHSK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, rate_H: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Run the recurrence in chunks of `chunk_size` (Q) positions; the last one may be shorter.

    Inside a chunk a position sees the ones before it as in attention, q·kᵀ with decays between
    them; what came before the chunk it reads off the state that the chunk began with.
    """
    state = k_BHSK.new_zeros((*k_BHSK.shape[:2], k_BHSK.shape[-1], k_BHSK.shape[-1]))
    rate, outputs = rate_H[:, None, None], []
    for start in range(0, q_BHSK.shape[2], chunk_size):
        q, k, v = (t[:, :, start : start + chunk_size] for t in (q_BHSK, k_BHSK, v_BHSK))
        n = q.shape[2]
        at = torch.arange(1, n + 1, device=q.device)[:, None]
        apart = at - at.T
        between = torch.exp(-rate * apart).masked_fill(apart < 0, 0)
        # [q, k] @ [k, q], [q, q] @ [q, k], [q, k] @ [k, k], [k, q] @ [q, k]
        inside = ((q @ k.transpose(-1, -2)) * between) @ v
        outputs.append(inside + (q * torch.exp(-rate * at)) @ state)
        added = (k * torch.exp(-rate * (n - at))).transpose(-1, -2) @ v
        state = torch.exp(-rate * n) * state + added
    return torch.cat(outputs, dim=2), state
