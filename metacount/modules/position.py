"""Positions: RoPE and its scalings, sinusoids, ALiBi, T5's buckets, Transformer-XL's projection.

A learned table is a plain `Table` and needs no code of its own. With P rotated values and base b,
pair i of RoPE turns by b^(-2i/P) a position (Su et al. 2021, arXiv:2104.09864, eq. 15). Every
scaling changes these speeds; its formula stands at its function.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.modules.linear import Linear, Table
from metacount.modules.norm import at_least_float32
from metacount.spec.attention import Attention
from metacount.spec.position import QueryGrowth, RelativeBuckets, RopeScaling


def speeds(
    rotary_dim: int,
    theta: float,
    scaling: RopeScaling | None,
    length: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Compute pairs' angles per position, [rotary_dim / 2], for a sequence of `length` so far."""
    even = torch.arange(0, rotary_dim, 2, device=device, dtype=dtype)
    plain = theta ** (-even / rotary_dim)
    if scaling is None or plain.is_meta:  # on meta no speed has a value
        return plain
    return KINDS[scaling.kind](plain, rotary_dim, theta, scaling, length)


def linear(plain: Tensor, _width: int, _theta: float, scaling: RopeScaling, _length: int) -> Tensor:
    """Divide every speed by `factor`: Chen et al. 2023, arXiv:2306.15595, eq. 4."""
    return plain / _factor(scaling)


def dynamic(plain: Tensor, width: int, theta: float, scaling: RopeScaling, length: int) -> Tensor:
    """Grow the base with the sequence: "dynamic NTK" (emozilla, 2023), with s = factor.

    b' = b·(s·L/L_0 - (s - 1))^(P/(P - 2)) where L = max(length, L_0), L_0 = `n_trained`.
    Peng et al. 2023, arXiv:2309.00071, section 3.3 and eq. 16, describe it.
    """
    trained, factor = _trained(scaling), _factor(scaling)
    stretch = factor * max(length, trained) / trained - (factor - 1)
    base = theta * stretch ** (width / (width - 2))
    even = torch.arange(0, width, 2, device=plain.device, dtype=plain.dtype)
    return base ** (-even / width)


def llama3(plain: Tensor, _width: int, _theta: float, scaling: RopeScaling, _length: int) -> Tensor:
    """Divide slow pairs' speeds by `factor`, keep fast ones', blend between them (Llama 3.1).

    A pair makes r = L_0·speed / 2π turns in the trained context. With r above `high_freq_factor` it
    stays, below `low_freq_factor` it is divided; between them the share
    (r - low) / (high - low) of it stays. arXiv:2407.21783, section 3.2, and meta-llama's model.py.
    """
    low, high = scaling.low_freq_factor or 0.0, scaling.high_freq_factor or 0.0
    turns = _trained(scaling) * plain / (2 * math.pi)
    if high == low:  # nothing between (Llama 4 Scout)
        return torch.where(turns < low, plain / _factor(scaling), plain)
    stays = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - stays) * plain / _factor(scaling) + stays * plain


def yarn(plain: Tensor, width: int, theta: float, scaling: RopeScaling, _length: int) -> Tensor:
    """Blend as `llama3`, but by a ramp over the pairs' numbers: Peng et al. 2023, arXiv:2309.00071.

    Pair i makes β turns in the trained context at i = P·ln(L_0/(2π·β)) / (2·ln b). The ramp leads
    from `beta_fast` turns, where a pair stays, to `beta_slow`, where it is divided by `factor`
    (eq. 17 to 23); its ends are whole numbers where `truncate` is set, as in the authors' code.
    """

    def pair_of(turns: float) -> float:
        inner = math.log(_trained(scaling) / (turns * 2 * math.pi))
        return width * inner / (2 * math.log(theta))

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    if first == last:
        last += 0.001  # a step instead of a ramp
    pairs = torch.arange(width // 2, device=plain.device, dtype=plain.dtype)
    divided = ((pairs - first) / (last - first)).clamp(0, 1)
    return plain / _factor(scaling) * divided + plain * (1 - divided)


def longrope(
    plain: Tensor, _width: int, _theta: float, scaling: RopeScaling, length: int
) -> Tensor:
    """Divide each speed by a number of its own: Ding et al. 2024, arXiv:2402.13753.

    `long_factors` in a sequence longer than `n_trained`, else `short_factors` (Phi-3).
    """
    chosen = scaling.long_factors if length > _trained(scaling) else scaling.short_factors
    return plain / plain.new_tensor(chosen)


def proportional(
    plain: Tensor, _width: int, _theta: float, scaling: RopeScaling, _length: int
) -> Tensor:
    """Turn the first `share` of the pairs alone, the fast ones; the others stay (Gemma 4)."""
    assert scaling.share is not None  # the part requires it
    turned = plain / (1.0 if scaling.factor is None else scaling.factor)
    n_turned = int(scaling.share * 2 * len(plain) // 2)
    return turned * (torch.arange(len(plain), device=plain.device) < n_turned)


KINDS: dict[str, Callable[[Tensor, int, float, RopeScaling, int], Tensor]] = {
    "linear": linear,
    "dynamic": dynamic,
    "llama3": llama3,
    "yarn": yarn,
    "proportional": proportional,
    "longrope": longrope,
}


def _factor(scaling: RopeScaling) -> float:
    assert scaling.factor is not None  # the part requires it of its kind
    return scaling.factor


def _trained(scaling: RopeScaling) -> int:
    assert scaling.n_trained is not None
    return scaling.n_trained


def sinusoid(positions: Tensor, width: int, *, style: str = "alternating") -> Tensor:
    """Compute a table of sinusoids, [S] -> [S, width]: sin in even columns, cos in odd ones.

    Vaswani et al. 2017, arXiv:1706.03762, section 3.5. In style "halves" all sines stand before all
    cosines, and wavelengths reach from 2π to 10000·2π (the paper's own tensor2tensor; XGLM).
    """
    if style == "halves":
        each = torch.arange(width // 2, device=positions.device, dtype=torch.float64)
        angle = positions[:, None].double() / 10000.0 ** (each / (width // 2 - 1))
        return F.pad(torch.cat((angle.sin(), angle.cos()), dim=-1), (0, width % 2))
    even = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64)
    angle = positions[:, None].double() / 10000.0 ** (even / width)
    table = torch.stack((angle.sin(), angle.cos()), dim=-1)
    return table.flatten(-2)[:, :width]


def apply_rope(
    x_BHSK: Tensor,
    positions: Tensor,
    *,
    rotary_dim: int,
    theta: float,
    style: str,
    scaling: RopeScaling | None = None,
    length: int = 0,
) -> Tensor:
    """Rotate pairs of the first `rotary_dim` columns by position·theta^(-2i/rotary_dim).

    Su et al. 2021, arXiv:2104.09864, eq. 34. Pairs are columns (i, i + rotary_dim/2) in style
    "half" (GPT-NeoX, LLaMA in transformers) and (2i, 2i + 1) in style "interleaved" (the paper).
    Works in float32, or in float64 where x is. `scaling` changes the angles, some kinds with the
    `length` of the sequence so far: see `rope_scaling.py`.
    """
    rotated, rest = at_least_float32(x_BHSK[..., :rotary_dim]), x_BHSK[..., rotary_dim:]
    speed_P = speeds(rotary_dim, theta, scaling, length, device=rotated.device, dtype=rotated.dtype)
    angle_SP = positions[:, None].to(rotated.dtype) * speed_P
    cos, sin = angle_SP.cos(), angle_SP.sin()
    if scaling is not None and scaling.attention_factor != 1.0:
        cos, sin = cos * scaling.attention_factor, sin * scaling.attention_factor
    if style == "half":
        a, b = rotated.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((turned.to(x_BHSK.dtype), rest), dim=-1)


def grown(q_BHSK: Tensor, positions: Tensor, growth: QueryGrowth) -> Tensor:
    """Scale queries by 1 + weight·ln(1 + floor((position + shift) / step)); see `QueryGrowth`."""
    steps = torch.floor((positions + growth.shift).to(at_least_float32(q_BHSK).dtype) / growth.step)
    factor_S = 1 + growth.weight * torch.log1p(steps)
    return (q_BHSK * factor_S[:, None]).to(q_BHSK.dtype)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return one slope per head: Press et al. 2022, arXiv:2108.12409, section 3, and its code for a
    number of heads that is no power of two.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power == n_heads:
        return slopes
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(n_heads - power)]


def alibi_bias(n_heads: int, queries: Tensor, keys: Tensor) -> Tensor:
    """Compute -slope·|key position - query position|: [S], [T] -> [H, S, T]; nothing is learned.

    Looking ahead (an encoder) costs as much as looking back.
    """
    if queries.is_meta:  # any number of heads, a symbol too: no slope has a value
        slopes = queries.new_empty(n_heads, dtype=torch.float64)
    else:
        slopes = torch.tensor(alibi_slopes(n_heads), device=queries.device, dtype=torch.float64)
    distance_ST = (keys[None, :] - queries[:, None]).abs()
    return -slopes[:, None, None] * distance_ST


class RelativeBias(nn.Module):
    """T5's relative bias: one learned value per bucket and head, shared by a stack's layers.

    Raffel et al. 2020, arXiv:1910.10683, section 2.1. Half of the buckets hold exact distances,
    half grow logarithmically up to `max_distance`; an encoder uses half of each for either side.
    """

    def __init__(self, part: RelativeBuckets, n_heads: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.n_buckets, self.max_distance = part.n_buckets, part.max_distance
        self.bidirectional = bidirectional
        self.relative_attention_bias = Table(part.n_buckets, n_heads)

    def bucket(self, offset: Tensor) -> Tensor:
        """Find the bucket of `key position - query position`, elementwise."""
        n = self.n_buckets // 2 if self.bidirectional else self.n_buckets
        first = torch.where(offset > 0, n, 0) if self.bidirectional else torch.zeros_like(offset)
        distance = offset.abs() if self.bidirectional else (-offset).clamp(min=0)
        exact = n // 2
        # float32, as in the code that trained the models: a bucket's edge depends on it
        ratio = (distance.float().clamp(min=1) / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (ratio * (n - exact)).long()).clamp(max=n - 1)
        return first + torch.where(distance < exact, distance, far)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Look up the bias of every query and key: [S], [T] -> [H, S, T]."""
        bias_STH = self.relative_attention_bias(self.bucket(keys[None, :] - queries[:, None]))
        return bias_STH.permute(2, 0, 1)


class RelativeScores(nn.Module):
    """q·r for every pair of positions; a module of its own so that its cost can be told apart."""

    def forward(self, q_BHSK: Tensor, r_HTK: Tensor, distance_ST: Tensor) -> Tensor:
        """Compute q·r of each pair: [B, H, S, K], [H, T, K], [S, T] -> [B, H, S, T]."""
        # [b, h, s, k] @ [h, k, t] -> one column per distance, then one per key
        by_distance = q_BHSK @ r_HTK.transpose(-1, -2)
        index = distance_ST.expand(*by_distance.shape[:2], -1, -1)
        return by_distance.gather(-1, index)


class RelativeProjection(nn.Module):
    """Transformer-XL's relative positions: Dai et al. 2019, arXiv:1901.02860, section 3.3.

    Their W_{k,R} is `r_proj`, their u and v are `content_bias` and `position_bias`.
    """

    def __init__(self, part: Attention, d_model: int) -> None:
        super().__init__()
        n_heads, head_dim = part.n_heads, part.head_dim
        self.n_heads, self.head_dim = n_heads, head_dim
        self.r_proj = Linear(d_model, n_heads * head_dim, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(n_heads, head_dim))
        self.position_bias = nn.Parameter(torch.zeros(n_heads, head_dim))
        self.scores = RelativeScores()

    def forward(self, q_BHSK: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """Score q: [B, H, S, K], [S], [T] -> [B, H, S, T]; a key ahead of q has distance 0."""
        distances = torch.arange(keys.shape[0], device=keys.device)
        table = sinusoid(distances, self.r_proj.in_features).to(q_BHSK.dtype)
        r_HTK = self.r_proj(table).unflatten(-1, (self.n_heads, self.head_dim)).transpose(0, 1)
        distance_ST = (queries[:, None] - keys[None, :]).clamp(min=0)
        q = q_BHSK + self.position_bias[:, None, :]
        return self.scores(q, r_HTK, distance_ST)
