"""The angles of RoPE, plain and scaled: how fast each pair of values turns.

With P rotated values and base b, pair i turns by b^(-2i/P) a position (Su et al. 2021,
arXiv:2104.09864, eq. 15). Every scaling changes these speeds; its formula stands at its function.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from metacount.spec.position import RopeScaling


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


KINDS: dict[str, Callable[[Tensor, int, float, RopeScaling, int], Tensor]] = {
    "linear": linear,
    "dynamic": dynamic,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
}


def _factor(scaling: RopeScaling) -> float:
    assert scaling.factor is not None  # the part requires it of its kind
    return scaling.factor


def _trained(scaling: RopeScaling) -> int:
    assert scaling.n_trained is not None
    return scaling.n_trained
