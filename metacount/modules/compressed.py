"""DeepSeek-V4's attention over a window and compressed entries, and several residual streams.

Written after transformers 5.23, `modeling_deepseek_v4.py`, with its names of tensors.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.modules.attention import Visibility, l2_norm
from metacount.modules.cache import LayerCache
from metacount.modules.linear import Linear
from metacount.modules.norm import RMSNorm, at_least_float32
from metacount.modules.position import apply_rope
from metacount.spec import attention as parts
from metacount.spec.position import Rope
from metacount.spec.stack import HyperConnections, Norms


class PairProducts(nn.Module):
    """A product between positions, or of positions and entries; of a module so that it is told."""

    def forward(self, a: Tensor, b: Tensor, _sees: Visibility) -> Tensor:
        """Multiply a and b, all pairs, visible or not."""
        return a @ b


class Turning:
    """Rotates the last values of a head: of layers with a window alone by angles of their own."""

    def __init__(self, rope: Rope, letter: str, head_dim: int) -> None:
        self.width, self.style = rope.width_of(False, head_dim), rope.style
        self.theta, self.scaling = rope.of_layer(letter == "L")

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x, [..., S, K], by its positions [S]; negative ones turn back."""
        rest, turned = x[..., : -self.width], x[..., -self.width :]
        turned = apply_rope(
            turned,
            positions,
            rotary_dim=self.width,
            theta=self.theta,
            style=self.style,
            scaling=self.scaling,
        )
        return torch.cat((rest, turned), dim=-1)


class Compressor(nn.Module):
    """Makes an entry of every `ratio` tokens: Σ softmax(gate + bias)·kv over them, value by value.

    With two series (letter S) an entry sums its own tokens' second series and the first series of
    the entry before. Tokens that fill no entry yet wait in the cache.
    """

    def __init__(
        self,
        part: parts.CompressedAttention,
        d_model: int,
        letter: str,
        *,
        width: int,
        turning: Turning,
        eps: float,
    ) -> None:
        super().__init__()
        self.ratio, self.series, self.width = part.ratio_of(letter), 1 + (letter == "S"), width
        self.turning = turning
        self.kv_proj = Linear(d_model, self.series * width, bias=False)
        self.gate_proj = Linear(d_model, self.series * width, bias=False)
        self.position_bias = nn.Parameter(torch.zeros(self.ratio, self.series * width))
        self.kv_norm = RMSNorm(width, eps=eps)

    def entries(self, x_BSD: Tensor, kept: dict[str, Tensor], name: str) -> Tensor:
        """Return all entries so far, [B, E, K]; `kept` is what a cache holds under `name`."""
        kv, gate = self.kv_proj(x_BSD), self.gate_proj(x_BSD)
        before = kept.get(f"{name}.entries")
        if before is not None:
            kv = torch.cat((kept[f"{name}.kv"], kv), dim=1)
            gate = torch.cat((kept[f"{name}.gate"], gate), dim=1)
        n = kv.shape[1] // self.ratio
        first, usable = 0 if before is None else before.shape[1], n * self.ratio
        kept[f"{name}.kv"], kept[f"{name}.gate"] = kv[:, usable:].clone(), gate[:, usable:].clone()
        entries = kv.new_zeros(kv.shape[0], 0, self.width) if before is None else before
        if n:
            kv = kv[:, :usable].unflatten(1, (n, self.ratio))
            gate = gate[:, :usable].unflatten(1, (n, self.ratio)) + self.position_bias
            if self.series == 2:
                kv = self._with_last(kv, kept, f"{name}.last_kv", 0.0)
                gate = self._with_last(gate, kept, f"{name}.last_gate", -math.inf)
            shares = at_least_float32(gate).softmax(2).to(kv.dtype)
            made = self.kv_norm((kv * shares).sum(2))
            positions = torch.arange(first, first + n, device=made.device) * self.ratio
            entries = torch.cat((entries, self.turning(made, positions)), dim=1)
        kept[f"{name}.entries"] = entries
        return entries

    def _with_last(self, x: Tensor, kept: dict[str, Tensor], name: str, none: float) -> Tensor:
        """Put before each entry's second series, [B, n, c, 2·K], the first of the entry before."""
        first, second = x.chunk(2, dim=-1)
        last = kept.get(name)
        last = torch.full_like(first[:, 0], none) if last is None else last
        kept[name] = first[:, -1].clone()
        return torch.cat((torch.cat((last.unsqueeze(1), first[:, :-1]), dim=1), second), dim=2)


class EntryIndexer(Compressor):
    """score of token t and entry e = Σ_j w_tj·relu(q_tj·k_e), over few and narrow heads.

    Its entries are made by a compressor of its own. The `top_k` best that a token may see are read;
    no gradient passes the choice.
    """

    def __init__(
        self,
        part: parts.CompressedAttention,
        d_model: int,
        index: parts.Indexer,
        *,
        turning: Turning,
        eps: float,
    ) -> None:
        super().__init__(part, d_model, "S", width=index.head_dim, turning=turning, eps=eps)
        self.n_heads, self.top_k = index.n_heads, index.top_k
        self.q_b_proj = Linear(part.q_rank, index.n_heads * index.head_dim, bias=False)
        self.weights_proj = Linear(d_model, index.n_heads, bias=False)
        self.core = PairProducts()

    @torch.no_grad()
    def forward(
        self, x_BSD: Tensor, latent_BSR: Tensor, sees: Visibility, kept: dict[str, Tensor]
    ) -> Tensor:
        """Return what to add to attention's scores of entries, [B, 1, S, E]: 0 or -inf."""
        entries_BEK = self.entries(x_BSD, kept, "indexer")
        q_BHSK = self.q_b_proj(latent_BSR).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        q_BHSK = at_least_float32(self.turning(q_BHSK, sees.queries(x_BSD.device)))
        weights_BSH = at_least_float32(self.weights_proj(x_BSD)) * self.n_heads**-0.5
        if not entries_BEK.shape[1]:
            return x_BSD.new_zeros(x_BSD.shape[0], 1, x_BSD.shape[1], 0)
        scores = self.core(q_BHSK, at_least_float32(entries_BEK).mT.unsqueeze(1), sees)
        scores = (scores * self.width**-0.5).relu() * weights_BSH.mT.unsqueeze(-1)
        scores_BSE = scores.sum(1).masked_fill(~sees.keep(scores.device), -math.inf)
        best = scores_BSE.topk(min(self.top_k, scores_BSE.shape[-1]), dim=-1).indices
        dropped = torch.full_like(scores_BSE, -math.inf).scatter(-1, best, 0.0)
        return dropped.unsqueeze(1)


class EntryCompressor(Compressor):
    """The compressor of attention's own entries, in layers of letter S with an indexer."""

    def __init__(
        self,
        part: parts.CompressedAttention,
        d_model: int,
        letter: str,
        *,
        turning: Turning,
        eps: float,
    ) -> None:
        width = part.head_dim
        super().__init__(part, d_model, letter, width=width, turning=turning, eps=eps)
        self.indexer: EntryIndexer | None = None
        if letter == "S":
            assert part.indexer is not None  # the spec requires it
            self.indexer = EntryIndexer(part, d_model, part.indexer, turning=turning, eps=eps)

    def forward(
        self, x_BSD: Tensor, latent_BSR: Tensor, visibility: Visibility, cache: LayerCache | None
    ) -> tuple[Tensor, Visibility, Tensor | None]:
        """Return all entries [B, 1, E, K], who sees them, and what to add to their scores."""
        kept: dict[str, Tensor] = {} if cache is None else cache.kept
        entries_BEK = self.entries(x_BSD, kept, "compressor")
        sees = replace(
            visibility, ratio=self.ratio, n_keys=entries_BEK.shape[1], key_start=0, window=None
        )
        chosen = None if self.indexer is None else self.indexer(x_BSD, latent_BSR, sees, kept)
        return entries_BEK.unsqueeze(1), sees, chosen


class GroupedLinear(Linear):
    """A matrix for each of some groups of the input: [..., groups, in] -> [..., groups·out]."""

    def __init__(self, width: int, out: int, n_groups: int) -> None:
        super().__init__(width, n_groups * out, bias=False)
        self.n_groups = n_groups

    def forward(self, x: Tensor) -> Tensor:
        """Map each group by its own rows of the weight."""
        weight_gKR = self.weight.unflatten(0, (self.n_groups, -1)).mT
        # [g, n, k] @ [g, k, r]
        y_gNR = x.flatten(0, -3).transpose(0, 1) @ weight_gKR
        return y_gNR.transpose(0, 1).reshape(*x.shape[:-2], -1)


class CompressedAttention(nn.Module):
    """Queries from a latent; one key for all heads, which is its value; a window, and entries.

    What heads give is turned back, as values were rotated with the keys. By its letter a layer has
    a window alone (L), entries that an indexer chooses (S), or all entries of more tokens (H).
    """

    def __init__(
        self,
        part: parts.CompressedAttention,
        d_model: int,
        letter: str,
        *,
        rope: Rope,
        norms: Norms,
    ) -> None:
        super().__init__()
        h, width, eps = part.n_heads, part.head_dim, norms.eps
        self.n_heads, self.head_dim, self.eps, self.letter = h, width, eps, letter
        self.turning = Turning(rope, letter, width)
        self.q_a_proj = Linear(d_model, part.q_rank, bias=False)
        self.q_a_norm = RMSNorm(part.q_rank, eps=eps)
        self.q_b_proj = Linear(part.q_rank, h * width, bias=False)
        self.kv_proj = Linear(d_model, width, bias=False)
        self.kv_norm = RMSNorm(width, eps=eps)
        self.o_a_proj = GroupedLinear(h * width // part.o_groups, part.o_lora_rank, part.o_groups)
        self.o_b_proj = Linear(part.o_groups * part.o_lora_rank, d_model, bias=False)
        self.sinks = nn.Parameter(torch.zeros(h))
        self.core, self.compressor = PairProducts(), None
        if letter != "L":
            self.compressor = EntryCompressor(part, d_model, letter, turning=self.turning, eps=eps)

    def forward(
        self, x_BSD: Tensor, visibility: Visibility, *, cache: LayerCache | None = None
    ) -> Tensor:
        """Compute the attention of x: [B, S, D] -> [B, S, D]."""
        positions = visibility.queries(x_BSD.device)
        latent_BSR = self.q_a_norm(self.q_a_proj(x_BSD))
        q_BHSK = self.q_b_proj(latent_BSR).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        q_BHSK = self.turning(l2_norm(q_BHSK, self.eps), positions)
        keys = self.turning(self.kv_norm(self.kv_proj(x_BSD)).unsqueeze(1), positions)
        if cache is not None:
            # transformers keeps values of their own where there is no compressor
            new = (keys,) if self.compressor is not None else (keys, keys.clone())
            keys = cache.update(*new)[0]
        entries, sees, chosen = keys[..., :0, :], visibility, None
        if self.compressor is not None:
            entries, sees, chosen = self.compressor(x_BSD, latent_BSR, visibility, cache)
        scores = [self._scores(q_BHSK, keys, visibility, None)]
        if entries.shape[2]:
            scores.append(self._scores(q_BHSK, entries, sees, chosen))
        sinks = self.sinks.to(scores[0].dtype)[:, None, None].expand(*scores[0].shape[:-1], 1)
        shares = torch.cat((*scores, sinks), dim=-1).softmax(-1).to(keys.dtype)
        n = keys.shape[2]
        y_BHSK = self.core(shares[..., :n], keys, visibility)
        if entries.shape[2]:
            y_BHSK = y_BHSK + self.core(shares[..., n:-1], entries, sees)
        y_BHSK = self.turning(y_BHSK, -positions)
        y_BSgK = y_BHSK.transpose(1, 2).flatten(2).unflatten(-1, (self.o_a_proj.n_groups, -1))
        y_BSD: Tensor = self.o_b_proj(self.o_a_proj(y_BSgK))
        return y_BSD

    def _scores(self, q: Tensor, keys: Tensor, sees: Visibility, chosen: Tensor | None) -> Tensor:
        scores = at_least_float32(self.core(q, keys.mT, sees) * self.head_dim**-0.5)
        scores = scores.masked_fill(~sees.keep(scores.device), -math.inf)
        return scores if chosen is None else scores + chosen.to(scores.dtype)


class StreamWeights(Linear):
    """A projection of all streams, normed, in float32 at least: the weights that read them."""

    def __init__(self, width: int, out: int, norm_eps: float) -> None:
        super().__init__(width, out, bias=False)
        self.norm_eps = norm_eps

    def forward(self, x_BSND: Tensor) -> Tensor:
        """Project the streams: [B, S, N, D] -> [B, S, out]."""
        normed = l2_norm(at_least_float32(x_BSND.flatten(2)), self.norm_eps)
        return F.linear(normed, at_least_float32(self.weight))


class HyperConnection(nn.Module):
    """Reads and writes the streams around one branch (Xie et al. 2025, arXiv:2512.24880).

    A branch reads Σ_i pre_i·x_i; stream k becomes Σ_j comb_jk·x_j + post_k·y. `comb` is divided by
    the sums of its columns and rows in turn until both are 1.
    """

    def __init__(self, part: HyperConnections, d_model: int, *, norm_eps: float) -> None:
        super().__init__()
        n = part.n_streams
        self.n_streams, self.n_rounds, self.eps = n, part.n_rounds, part.eps
        self.fn = StreamWeights(n * d_model, (2 + n) * n, norm_eps)
        self.base, self.scale = nn.Parameter(torch.zeros((2 + n) * n)), nn.Parameter(torch.ones(3))

    def forward(self, x_BSND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the branch reads [B, S, D], post [B, S, N] and comb [B, S, N, N]."""
        n, eps = self.n_streams, self.eps
        sizes = (n, n, n * n)
        pre, post, comb = self.fn(x_BSND).split(sizes, dim=-1)
        bases = self.base.split(sizes)
        pre = torch.sigmoid(pre * self.scale[0] + bases[0]) + eps
        post = 2 * torch.sigmoid(post * self.scale[1] + bases[1])
        comb = (comb * self.scale[2] + bases[2]).unflatten(-1, (n, n)).softmax(-1) + eps
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
        for _ in range(self.n_rounds - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + eps)
            comb = comb / (comb.sum(-2, keepdim=True) + eps)
        read = (pre.unsqueeze(-1) * x_BSND).sum(2).to(x_BSND.dtype)
        return read, post.to(x_BSND.dtype), comb.to(x_BSND.dtype)


def written(x_BSND: Tensor, y_BSD: Tensor, post_BSN: Tensor, comb_BSNN: Tensor) -> Tensor:
    """Mix the streams, and add to each what a branch gave."""
    # [b, s, n, n] @ [b, s, n, d]
    mixed = comb_BSNN.mT @ x_BSND
    return post_BSN.unsqueeze(-1) * y_BSD.unsqueeze(-2) + mixed


class HyperHead(nn.Module):
    """Sums the streams behind the last block."""

    def __init__(self, part: HyperConnections, d_model: int, *, norm_eps: float) -> None:
        super().__init__()
        n = part.n_streams
        self.fn, self.eps = StreamWeights(n * d_model, n, norm_eps), part.eps
        self.base, self.scale = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.ones(1))

    def forward(self, x_BSND: Tensor) -> Tensor:
        """Sum the streams: [B, S, N, D] -> [B, S, D]."""
        pre = torch.sigmoid(self.fn(x_BSND) * self.scale + self.base) + self.eps
        return (pre.unsqueeze(-1) * x_BSND).sum(2).to(x_BSND.dtype)
