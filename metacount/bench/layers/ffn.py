"""Feed-forward blocks: GELU at 4·d against SwiGLU at three widths, each in several ways."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...build import DTYPES
from ...modules.ffn import FeedForward, GatedFeedForward
from ...spec import ModelSpec
from .. import reference
from ..work import ffn_work
from .case import Built, Case, Inputs, Reference, Variant, part, weight

WAYS = ("", "-joined", "-compiled")


class JoinedGatedFeedForward(nn.Module):
    """SwiGLU with gate and up in one matrix [2·M, D], gate first: two products instead of three."""

    def __init__(self, gate_up_XD: nn.Parameter, down_DM: nn.Parameter) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up_XD, down_DM

    def forward(self, x_ND: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        gate_NM, up_NM = F.linear(x_ND, self.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate_NM) * up_NM, self.down)


def rule_width(d_model: int) -> int:
    """Width at which SwiGLU has the parameters of a two-matrix block of width 4·d: 8·d/3.

    Rounded up to a multiple of d/16, at most of 256: LLaMA-7B's 11008, never 0.8 % too many.

    >>> [rule_width(d) for d in (512, 1024, 4096, 16384)]
    [1376, 2752, 11008, 43776]
    """
    multiple = min(256, max(1, d_model // 16))
    return multiple * -(-(8 * d_model) // (3 * multiple))


def widths(spec: ModelSpec) -> dict[str, int]:
    """Name and width of each SwiGLU: the rule's, 4·d, and the model's own where it is another."""
    d = spec.d_model
    found = {"swiglu": rule_width(d), "swiglu-4d": 4 * d}
    own = spec.d_ff_expert if spec.is_moe else spec.d_ff
    if spec.gated and own is not None and own not in found.values():
        found["swiglu-own"] = own
    return found


def variant_names(gated: dict[str, int]) -> tuple[str, ...]:
    """Every variant of the block, the baseline first."""
    return ("gelu", "gelu-compiled", *(name + way for name in gated for way in WAYS))


def case(model: str, spec: ModelSpec, n_tokens: int, dtype: str) -> Case:
    """The feed-forward block of `spec`'s width, over `n_tokens` tokens."""
    d, gated = spec.d_model, widths(spec)
    value_bytes = DTYPES[dtype].itemsize
    params = 2 * d * 4 * d + sum(3 * d * m for m in gated.values())
    widest = max(4 * d, *gated.values())
    set_bytes = n_tokens * d * value_bytes
    return Case(
        topic="ffn",
        model=model,
        dtype=dtype,
        sizes={"d_model": d, "gelu_d_ff": 4 * d}
        | {f"{name.replace('-', '_')}_d_ff": width for name, width in gated.items()},
        workload={"tokens": n_tokens},
        variants=variant_names(gated),
        rows=n_tokens,
        checked_rows=128,
        # the hidden layer twice for the gate, once more for their product
        needs_bytes=params * value_bytes + 4 * n_tokens * widest * value_bytes + 4 * set_bytes,
        set_bytes=set_bytes,
        build=lambda device, n_sets: _build(d, gated, n_tokens, DTYPES[dtype], device, n_sets),
    )


def _build(
    d: int,
    gated: dict[str, int],
    n_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    n_sets: int,
) -> Built:
    with torch.device("meta"):
        plain = FeedForward(d, 4 * d, activation="gelu")
    plain.up_proj.weight = weight((4 * d, d), device, dtype)
    plain.down_proj.weight = weight((d, 4 * d), device, dtype)
    size = dtype.itemsize
    work = ffn_work(n_tokens, d, 4 * d, gated=False, value_bytes=size)
    expected = _plain_reference(plain)
    variants = [
        Variant(name="gelu", module=plain, work=work, reference=expected),
        Variant(name="gelu-compiled", module=plain, work=work, reference=expected, compiled=True),
    ]
    for name, width in gated.items():
        work = ffn_work(n_tokens, d, width, gated=True, value_bytes=size)
        separate, joined = gated_pair(d, width, device, dtype)
        expected = _gated_reference(separate)
        variants += [
            Variant(name=name, module=separate, work=work, reference=expected),
            Variant(name=name + WAYS[1], module=joined, work=work, reference=expected),
            Variant(
                name=name + WAYS[2], module=joined, work=work, reference=expected, compiled=True
            ),
        ]
    inputs = [(torch.randn(n_tokens, d, device=device, dtype=dtype),) for _ in range(n_sets)]
    return Built(inputs=list(inputs), variants=variants)


def gated_pair(
    d_model: int, d_ff: int, device: torch.device, dtype: torch.dtype
) -> tuple[GatedFeedForward, JoinedGatedFeedForward]:
    """SwiGLU with three matrices and with two, over the same memory."""
    joined = JoinedGatedFeedForward(
        weight((2 * d_ff, d_model), device, dtype), weight((d_model, d_ff), device, dtype)
    )
    with torch.device("meta"):
        separate = GatedFeedForward(d_model, d_ff, activation="silu")
    separate.gate_proj.weight = part(joined.gate_up, slice(0, d_ff))
    separate.up_proj.weight = part(joined.gate_up, slice(d_ff, 2 * d_ff))
    separate.down_proj.weight = joined.down
    return separate, joined


def _plain_reference(module: FeedForward) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> Tensor:
        up, down = module.up_proj.weight, module.down_proj.weight
        return reference.plain_ffn(inputs[0][rows], up, down)

    return rows_of


def _gated_reference(module: GatedFeedForward) -> Reference:
    def rows_of(inputs: Inputs, rows: list[int]) -> Tensor:
        gate, up = module.gate_proj.weight, module.up_proj.weight
        return reference.swiglu(inputs[0][rows], gate, up, module.down_proj.weight)

    return rows_of
