"""The parts of a feed-forward block alone: each product, and the activation between them.

Their times say where the time of the whole goes, and what the activation costs that no product
hides. Their inputs are their own: random hidden values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.layers.case import Inputs, Reference, Variant
from metacount.bench.work import elementwise_work, product_work
from metacount.modules.ffn import FeedForward

if TYPE_CHECKING:
    from metacount.bench.layers.ffn import JoinedGatedFeedForward
    from metacount.modules.ffn import GatedFeedForward

PLAIN_PARTS = (":up", ":activation", ":down")
GATED_PARTS = (":gate_up", ":activation", ":down")
MOST_SET_BYTES = 2**28  # one set of hidden values this large leaves nothing of itself in a cache


class Product(nn.Module):
    """x·Wᵀ."""

    def __init__(self, weight_YX: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight_YX.detach(), requires_grad=False)

    def forward(self, x_NX: Tensor) -> Tensor:
        """Multiply x by Wᵀ: [N, X] -> [N, Y]."""
        return F.linear(x_NX, self.weight)


class Gelu(nn.Module):
    """gelu(x), with erf."""

    def forward(self, x_NM: Tensor) -> Tensor:
        """Compute gelu(x), with erf: [N, M] -> [N, M]."""
        return F.gelu(x_NM)


class SiluMul(nn.Module):
    """silu of the first half times the second."""

    def forward(self, x_NX: Tensor) -> Tensor:
        """Multiply silu of the first half by the second: [N, 2·M] -> [N, M]."""
        gate, up = x_NX.chunk(2, dim=-1)
        return F.silu(gate) * up


def needs_bytes(n_tokens: int, widths: list[int], value_bytes: int) -> int:
    """Estimate bytes of the parts' own inputs: up to three sets of hidden values of each width."""
    return sum(3 * min(3 * n_tokens * m * value_bytes, MOST_SET_BYTES) for m in widths)


def variants(
    plain: FeedForward,
    gated: Mapping[str, tuple[GatedFeedForward, JoinedGatedFeedForward]],
    n_tokens: int,
    device: torch.device,
    n_sets: int,
) -> Iterator[Variant]:
    """Yield the parts of the plain block, then of each gated one."""
    up, down = plain.up_proj.weight, plain.down_proj.weight
    yield from _parts("gelu", PLAIN_PARTS, up, down, Gelu(), n_tokens, device, n_sets)
    for name, (_, joined) in gated.items():
        yield from _parts(
            name, GATED_PARTS, joined.gate_up, joined.down, SiluMul(), n_tokens, device, n_sets
        )


def _parts(
    name: str,
    parts: tuple[str, ...],
    first_XD: Tensor,
    down_DM: Tensor,
    activation: nn.Module,
    n_tokens: int,
    device: torch.device,
    n_sets: int,
) -> Iterator[Variant]:
    (wide, d), m, size = first_XD.shape, down_DM.shape[1], down_DM.dtype.itemsize

    def sets(width: int) -> list[Inputs]:
        large = n_tokens * width * size >= MOST_SET_BYTES
        shape = (n_tokens, width)
        return [
            (torch.randn(shape, device=device, dtype=down_DM.dtype),)
            for _ in range(1 if large else min(3, n_sets))
        ]

    hidden = sets(wide)
    narrow: list[Inputs] = hidden if wide == m else [(x[:, :m].contiguous(),) for (x,) in hidden]
    yield Variant(
        name=name + parts[0],
        module=Product(first_XD),
        part=True,
        reference=_product(first_XD),
        work=product_work(n_tokens, d, wide, value_bytes=size),
    )
    yield Variant(
        name=name + parts[1],
        module=activation,
        part=True,
        inputs=hidden,
        reference=_gelu if wide == m else _silu_mul,
        work=elementwise_work(n_tokens * wide, n_tokens * m, value_bytes=size),
    )
    yield Variant(
        name=name + parts[2],
        module=Product(down_DM),
        part=True,
        inputs=narrow,
        reference=_product(down_DM),
        work=product_work(n_tokens, m, d, value_bytes=size),
    )


def _product(weight_YX: Tensor) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        return (inputs[0][rows].double() @ weight_YX.double().T,)

    return rows_of


def _gelu(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
    return (reference.gelu(inputs[0][rows].double()),)


def _silu_mul(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
    gate, up = inputs[0][rows].double().chunk(2, dim=-1)
    return (reference.silu(gate) * up,)
