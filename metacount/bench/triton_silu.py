"""silu(gate)·up as one Triton kernel over [N, 2·M], gate first. Needs Triton and a CUDA device."""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # its variant is then said to be missing
    triton = tl = None

BLOCK = 1024


# Triton looks every name of an annotation up: it must know them
def _silu_mul(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside).to(tl.float32)
    tl.store(out + row * width + column, gate * tl.sigmoid(gate) * up, mask=inside)


if triton is not None:
    _kernel = triton.jit(_silu_mul)


def silu_mul(gate_up_NX: Tensor) -> Tensor:
    """Compute silu(gate)·up in float32: [N, 2·M] -> [N, M]."""
    n, width = gate_up_NX.shape[0], gate_up_NX.shape[1] // 2
    out = torch.empty(n, width, device=gate_up_NX.device, dtype=gate_up_NX.dtype)
    _kernel[(n, -(-width // BLOCK))](gate_up_NX, out, width, BLOCK=BLOCK)
    return out
