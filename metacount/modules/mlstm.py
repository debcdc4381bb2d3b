"""The mLSTM of xLSTM: a matrix memory for each head, written and kept by exponential gates.

Letters of shapes: K is the width of a key, V of a value, Q the positions of a chunk, C the chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metacount.modules.delta import after
from metacount.modules.linear import Linear
from metacount.modules.norm import at_least_float32, eps_of
from metacount.spec import mixers as parts
from metacount.spec.stack import Norms

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.modules.cache import StateCache


STATES = ("cell", "normalizer", "highest")  # of a cache, in the order of `Memory`


class MultiHeadNorm(nn.Module):
    """LayerNorm of each head's values, with a weight for each value of each head and no bias."""

    def __init__(self, width: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BSHV: Tensor) -> Tensor:
        """Norm the last axis: [B, S, H, V] -> [B, S, H·V]."""
        centred = x_BSHV - x_BSHV.mean(-1, keepdim=True)
        y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps)
        return y.flatten(2) * self.weight


class Memory(NamedTuple):
    """What an mLSTM keeps between positions: C, n and m of the paper.

    The cell C and the normaliser n are stored divided by exp(m), m the highest exponent so far.
    """

    cell_BHKV: Tensor
    normalizer_BHK: Tensor
    highest_BH: Tensor


class MLstm(nn.Module):
    """y = out(sigmoid(o) · norm(h)), h = Cᵀ·q / max(|nᵀ·q|, 1).

    Beck et al. 2024, arXiv:2405.04517, section 2.3, with two gates of each head,
    C ← σ(f)·C + exp(i)·k·vᵀ and n ← σ(f)·n + exp(i)·k; Beck et al. 2025, arXiv:2503.13427: q, k,
    v, o, i and f are each a projection of the input, a tanh bounds i and f, and a LayerNorm of
    each head comes before the output gate. As transformers runs it: whole chunks of positions as
    matrix products, the rest and more tokens step by step, and the memory is kept in the dtype of
    the input.
    """

    def __init__(self, part: parts.MLstm, d_model: int, *, norms: Norms) -> None:
        super().__init__()
        self.n_heads, self.chunk_size = part.n_heads, part.chunk_size
        self.k_head_dim, self.v_head_dim = part.k_head_dim, part.v_head_dim
        self.gate_softcap, self.divisor_eps = part.gate_softcap, part.divisor_eps
        keys, values = part.n_heads * part.k_head_dim, part.n_heads * part.v_head_dim
        self.q = Linear(d_model, keys, bias=False)
        self.k = Linear(d_model, keys, bias=False)
        self.v = Linear(d_model, values, bias=False)
        self.ogate_preact = Linear(d_model, values, bias=False)
        self.igate_preact = Linear(d_model, part.n_heads, bias=True)
        self.fgate_preact = Linear(d_model, part.n_heads, bias=True)
        self.multihead_norm = MultiHeadNorm(values, eps=eps_of(part, norms))
        self.out_proj = Linear(values, d_model, bias=False)

    def forward(self, x_BSD: Tensor, *, cache: StateCache | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; a filled cache is continued, by any number of tokens."""
        q_BHSK, k_BHSK, v_BHSV = (self._heads(m(x_BSD)) for m in (self.q, self.k, self.v))
        q_BHSK = q_BHSK * self.k_head_dim**-0.5
        i_BHS = self._gate(self.igate_preact(x_BSD))
        f_BHS = self._gate(self.fgate_preact(x_BSD))
        kept_BHS = -F.softplus(-f_BHS)  # log σ(f)
        sequence = (q_BHSK, k_BHSK, v_BHSV, i_BHS, kept_BHS)
        memory, outputs = self._memory(x_BSD, cache), []
        length = x_BSD.shape[1]
        chunked = length - length % self.chunk_size
        if chunked:
            chunks = [cut(t, 0, chunked).unflatten(2, (-1, self.chunk_size)) for t in sequence]
            y_BHSV, memory = in_chunks(*chunks, memory=memory, eps=self.divisor_eps)
            outputs.append(y_BHSV)
        if chunked < length:
            rest = [cut(t, chunked, length) for t in sequence]
            y_BHSV, memory = step_by_step(*rest, memory=memory, eps=self.divisor_eps)
            outputs.append(y_BHSV)
        if cache is not None:
            cache.states = {n: t.to(x_BSD.dtype) for n, t in zip(STATES, memory, strict=True)}
            cache.length += length
        y_BSC = self.multihead_norm(torch.cat(outputs, dim=2).transpose(1, 2)).to(x_BSD.dtype)
        return self.out_proj(torch.sigmoid(self.ogate_preact(x_BSD)) * y_BSC)

    def _heads(self, x_BSC: Tensor) -> Tensor:
        return at_least_float32(x_BSC).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def _gate(self, x_BSH: Tensor) -> Tensor:
        bounded = self.gate_softcap * torch.tanh(at_least_float32(x_BSH) / self.gate_softcap)
        return bounded.transpose(1, 2)

    def _memory(self, x_BSD: Tensor, cache: StateCache | None) -> Memory:
        """Take the memory that a cache holds; nothing has been written where there is none."""
        if cache is not None and cache.states:
            return Memory(*(at_least_float32(cache.states[name]) for name in STATES))
        heads = (x_BSD.shape[0], self.n_heads)
        like = at_least_float32(x_BSD.new_zeros(()))
        return Memory(
            like.new_zeros(*heads, self.k_head_dim, self.v_head_dim),
            like.new_zeros(*heads, self.k_head_dim),
            like.new_zeros(heads),
        )


def cut(x_BHS: Tensor, start: int, end: int) -> Tensor:
    """Copy some positions of [B, H, S, ...], head after head."""
    return x_BHS[:, :, start:end].clone(memory_format=torch.contiguous_format)


def in_chunks(
    q_BHCQK: Tensor,
    k_BHCQK: Tensor,
    v_BHCQV: Tensor,
    i_BHCQ: Tensor,
    kept_BHCQ: Tensor,
    *,
    memory: Memory,
    eps: float,
) -> tuple[Tensor, Memory]:
    """Run whole chunks of Q positions; -> h [B, H, C·Q, V] and the memory after the last.

    `kept` is log σ(f). Inside a chunk a position sees those before it as in attention, weighted by
    exp(i) and what is kept of them; what came before it reads off the memory of the chunk's start.
    All exponents are taken less the highest one, m.
    """
    so_far = kept_BHCQ.cumsum(-1)
    total = so_far[..., -1]
    # what each chunk writes, and the memory before each chunk and after the last
    to_end = total[..., None] - so_far + i_BHCQ
    largest, highest = to_end.max(-1).values, [memory.highest_BH]
    for c in range(total.shape[2]):
        m_BH = torch.maximum(total[:, :, c] + highest[-1], largest[:, :, c])
        highest.append(m_BH)
    before, behind = torch.stack(highest[:-1], dim=2), torch.stack(highest[1:], dim=2)
    written = k_BHCQK * torch.exp(to_end - behind[..., None])[..., None]
    # [k, q] @ [q, v]
    added_cell, added = written.transpose(-1, -2) @ v_BHCQV, written.sum(-2)
    keep = torch.exp(total + before - behind)[..., None]
    cells, normalizers = [memory.cell_BHKV], [memory.normalizer_BHK]
    for c in range(total.shape[2]):
        cell_BHKV = keep[:, :, c, :, None] * cells[-1] + added_cell[:, :, c]
        normalizer_BHK = keep[:, :, c] * normalizers[-1] + added[:, :, c]
        cells.append(cell_BHKV)
        normalizers.append(normalizer_BHK)
    cell, normalizer = torch.stack(cells[:-1], dim=2), torch.stack(normalizers[:-1], dim=2)
    # what each position reads: of its chunk, and of the memory that the chunk began with
    between = after(so_far[..., :, None] - so_far[..., None, :]) + i_BHCQ[..., None, :]
    from_start = so_far + before[..., None]
    m = torch.maximum(from_start, between.max(-1).values)
    # [q, k] @ [k, q], [q, k] @ [k, v], [q, q] @ [q, v], [q, k] @ [k, 1]
    scores = (q_BHCQK @ k_BHCQK.transpose(-1, -2)) * torch.exp(between - m[..., None])
    q = q_BHCQK * torch.exp(from_start - m)[..., None]
    y = q @ cell + scores @ v_BHCQV
    divisor = q @ normalizer[..., None] + scores.sum(-1, keepdim=True)
    divisor = torch.maximum(divisor.abs(), torch.exp(-m)[..., None]) + eps
    return (y / divisor).flatten(2, 3), Memory(cells[-1], normalizers[-1], highest[-1])


def step_by_step(
    q_BHSK: Tensor,
    k_BHSK: Tensor,
    v_BHSV: Tensor,
    i_BHS: Tensor,
    kept_BHS: Tensor,
    *,
    memory: Memory,
    eps: float,
) -> tuple[Tensor, Memory]:
    """Run the recurrence, one position after the other; -> h [B, H, S, V] and the memory."""
    cell, normalizer, m = memory
    outputs = []
    for s in range(q_BHSK.shape[2]):
        q, k, v, i = q_BHSK[:, :, s], k_BHSK[:, :, s], v_BHSV[:, :, s], i_BHS[:, :, s]
        decayed = kept_BHS[:, :, s] + m
        m = torch.maximum(decayed, i)
        keep, write = torch.exp(decayed - m)[..., None], torch.exp(i - m)[..., None]
        # [k, 1] @ [1, v], [1, k] @ [k, v], [1, k] @ [k, 1]
        cell = keep[..., None] * cell + write[..., None] * (k[..., None] @ v[..., None, :])
        normalizer = keep * normalizer + write * k
        y = (q[..., None, :] @ cell)[..., 0, :]
        divisor = (q[..., None, :] @ normalizer[..., None])[..., 0]
        divisor = torch.maximum(divisor.abs(), torch.exp(-m)[..., None]) + eps
        outputs.append(y / divisor)
    return torch.stack(outputs, dim=2), Memory(cell, normalizer, m)
