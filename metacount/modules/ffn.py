"""Feed-forward blocks: two matrices with an activation, or three with a gate."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.modules.linear import Linear, adapted
from metacount.modules.norm import at_least_float32
from metacount.spec import ffn as parts

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x·Φ(x), with erf
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu2": lambda x: F.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


def activate(x: Tensor, name: str, swish_beta: float) -> Tensor:
    """Apply `name` elementwise; SiLU with a β other than 1 is Swish-β, x·sigmoid(β·x)."""
    if name == "silu" and swish_beta != 1.0:
        return x * torch.sigmoid(swish_beta * x)
    return ACTIVATIONS[name](x)


def gate(
    gate_: Tensor, up: Tensor, name: str, swish_beta: float, limit: float | None = None
) -> Tensor:
    """Compute act(gate) · up, elementwise; with a limit the gate is no larger, up within it.

    `clamped_swiglu` is gpt-oss's form: both halves limited to 7, Swish-1.702, and up + 1.
    """
    if name == "clamped_swiglu":
        gate_, up = gate_.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return gate_ * torch.sigmoid(1.702 * gate_) * (up + 1)
    if limit is not None:
        gate_, up = gate_.clamp(max=limit), up.clamp(-limit, limit)
    return activate(gate_, name, swish_beta) * up


def scaled(x: Tensor, factor: float) -> Tensor:
    """Multiply x by a factor; a factor of 1 gives x itself, and costs nothing."""
    return x if factor == 1.0 else x * factor


class XIelu(nn.Module):
    """α_p·x² where x > 0, else α_n·(e^x - 1 - x), and x/2: Huang and Schlag 2024, arXiv:2411.13010.

    Both α are learned, and positive: softplus of what is stored, for α_n 1/2 more.
    """

    BETA, EPS = 0.5, -1e-6  # e^x - 1 loses its digits closer to 0

    def __init__(self) -> None:
        super().__init__()
        start = torch.tensor([0.8 - self.BETA, 0.8]).expm1().log()  # both α are 0.8
        self.alpha_n, self.alpha_p = (nn.Parameter(value) for value in start.chunk(2))

    def forward(self, x: Tensor) -> Tensor:
        """Apply xIELU elementwise."""
        above = x.square() * F.softplus(self.alpha_p)
        below = (x.clamp(max=self.EPS).expm1() - x) * (self.BETA + F.softplus(self.alpha_n))
        return torch.where(x > 0, above, below) + self.BETA * x


class FeedForward(nn.Module):
    """down(act(up(x))): Vaswani et al. 2017, arXiv:1706.03762, eq. 2; their d_ff is our M."""

    def __init__(self, part: parts.FeedForward, d_model: int, *, width: int | None = None) -> None:
        super().__init__()
        d_ff, bias = part.d_ff if width is None else width, part.bias
        assert d_ff is not None  # every layer is a mixture: then nobody asks for this
        self.activation, self.swish_beta = part.activation, part.swish_beta
        self.scale = part.scale
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias)
        self.act_fn = XIelu() if part.activation == "xielu" else None

    def forward(self, x_BSD: Tensor, *, adapters: nn.ModuleDict | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D]; an adapter `up` adds to the up projection."""
        up_BSM = adapted(self.up_proj(x_BSD), x_BSD, "up", adapters)
        if self.act_fn is not None:
            hidden_BSM = self.act_fn(up_BSM)
        else:
            hidden_BSM = activate(up_BSM, self.activation, self.swish_beta)
        return scaled(self.down_proj(hidden_BSM), self.scale)


class GatedFeedForward(nn.Module):
    """down(act(gate(x)) · up(x)): Shazeer 2020, arXiv:2002.05202, eq. 5 and 6.

    sigmoid is GLU, silu SwiGLU, gelu GeGLU, relu ReGLU, identity the bilinear layer.
    """

    def __init__(
        self,
        part: parts.FeedForward,
        d_model: int,
        *,
        width: int | None = None,
        sparsity: float | None = None,
    ) -> None:
        super().__init__()
        self.sparsity = sparsity
        d_ff, bias = part.d_ff if width is None else width, part.bias
        assert d_ff is not None  # every layer is a mixture: then nobody asks for this
        self.activation, self.swish_beta = part.activation, part.swish_beta
        self.gate_scale, self.scale, self.limit = part.gate_scale, part.scale, part.limit
        self.gate_proj = Linear(d_model, d_ff, bias=bias)
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias)

    def forward(self, x_BSD: Tensor, *, adapters: nn.ModuleDict | None = None) -> Tensor:
        """Map [B, S, D] to [B, S, D], gated; an adapter `gate_up` adds to both projections."""
        gate_BSM, up_BSM = self.gate_proj(x_BSD), self.up_proj(x_BSD)
        if adapters is not None and "gate_up" in adapters:
            both = torch.cat((gate_BSM, up_BSM), dim=-1)
            gate_BSM, up_BSM = adapted(both, x_BSD, "gate_up", adapters).chunk(2, dim=-1)
        gate_BSM = scaled(gate_BSM, self.gate_scale)
        if self.sparsity is not None:
            gate_BSM = top_values(gate_BSM, self.sparsity)
        hidden_BSM = gate(gate_BSM, up_BSM, self.activation, self.swish_beta, self.limit)
        return scaled(self.down_proj(hidden_BSM), self.scale)


def top_values(x: Tensor, sparsity: float) -> Tensor:
    """Return how far each value is above x's quantile, taken as normally distributed; else 0.

    Gemma 3n: of normally distributed values a share `sparsity` becomes zero.
    """
    share = torch.tensor(sparsity, dtype=at_least_float32(x).dtype, device=x.device)
    quantile = (torch.erfinv(2 * share - 1) * math.sqrt(2)).to(x.dtype)
    spread = x.std(-1, keepdim=True, unbiased=False)
    return F.relu(x - (x.mean(-1, keepdim=True) + spread * quantile))


def feed_forward(
    part: parts.FeedForward,
    d_model: int,
    *,
    width: int | None = None,
    sparsity: float | None = None,
) -> FeedForward | GatedFeedForward:
    """Build the feed-forward that a part describes, of its own width or of another."""
    if part.gated:
        return GatedFeedForward(part, d_model, width=width, sparsity=sparsity)
    return FeedForward(part, d_model, width=width)


def gated_d_ff(d_model: int, *, multiplier: str | Fraction = "1", multiple_of: int = 256) -> int:
    """Compute LLaMA's width of a gated block: 2/3 of 4·d, times a multiplier, rounded up.

    A gated block of this width has the parameters of a two-matrix block of width 4·d, before
    rounding. Written as text, the multiplier is exact: "1.3" is 13/10.

    >>> gated_d_ff(4096)
    11008
    >>> gated_d_ff(8192, multiplier="1.3", multiple_of=4096)
    28672
    """
    width = int(int(Fraction(8 * d_model, 3)) * Fraction(multiplier))
    return multiple_of * -(-width // multiple_of)
