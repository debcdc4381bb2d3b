"""RMSNorm and LayerNorm: written out, torch's own, and compiled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.bench import reference
from metacount.bench.case import DTYPES, Built, Case, Inputs, Variant, gain
from metacount.bench.work import norm_work
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.spec import ModelSpec

WAYS = ("", "-torch", "-compiled")
NAMES = tuple(kind + way for kind in ("rmsnorm", "layernorm") for way in WAYS)
EPS = 1e-5


class TorchRMSNorm(nn.Module):
    """torch.nn.functional.rms_norm."""

    def __init__(self, weight_D: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight_D

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute torch's RMSNorm of x: [N, D] -> [N, D]."""
        return F.rms_norm(x_ND, self.weight.shape, self.weight, EPS)


class TorchLayerNorm(nn.Module):
    """torch.nn.functional.layer_norm."""

    def __init__(self, weight_D: nn.Parameter, bias_D: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight_D, bias_D

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute torch's LayerNorm of x: [N, D] -> [N, D]."""
        return F.layer_norm(x_ND, self.weight.shape, self.weight, self.bias, EPS)


def case(model: str, spec: ModelSpec, n_tokens: int, dtype: str) -> Case:
    """Make a case of the norms of `spec`'s width over `n_tokens` tokens."""
    d, value_bytes = spec.d_model, DTYPES[dtype].itemsize
    set_bytes = n_tokens * d * value_bytes
    return Case(
        topic="norm",
        model=model,
        dtype=dtype,
        sizes={"d_model": d},
        workload={"tokens": n_tokens},
        variants=NAMES,
        rows=n_tokens,
        checked_rows=128,
        # float32 copies: widened, centred, squared, scaled
        needs_bytes=5 * set_bytes + 16 * n_tokens * d,
        set_bytes=set_bytes,
        build=lambda device, n_sets: _build(d, n_tokens, DTYPES[dtype], device, n_sets),
    )


def _build(d: int, n_tokens: int, dtype: torch.dtype, device: torch.device, n_sets: int) -> Built:
    scale, shift = gain(d, device, dtype), gain(d, device, dtype)
    with torch.device("meta"):
        rms, layer = RMSNorm(d, eps=EPS), LayerNorm(d, bias=True, eps=EPS)
    rms.weight, layer.weight, layer.bias = scale, scale, shift

    def rms_rows(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        return (reference.rms_norm(inputs[0][rows], scale, EPS),)

    def layer_rows(inputs: Inputs, rows: list[int]) -> tuple[Tensor]:
        return (reference.layer_norm(inputs[0][rows], scale, shift, EPS),)

    modules: dict[str, nn.Module] = {
        "rmsnorm": rms,
        "rmsnorm-torch": TorchRMSNorm(scale),
        "rmsnorm-compiled": rms,
        "layernorm": layer,
        "layernorm-torch": TorchLayerNorm(scale, shift),
        "layernorm-compiled": layer,
    }
    variants = [
        Variant(
            name=name,
            module=module,
            work=norm_work(
                n_tokens, d, bias=name.startswith("layernorm"), value_bytes=dtype.itemsize
            ),
            reference=layer_rows if name.startswith("layernorm") else rms_rows,
            compiled="default" if name.endswith(WAYS[2]) else None,
        )
        for name, module in modules.items()
    ]
    inputs = [(torch.randn(n_tokens, d, device=device, dtype=dtype),) for _ in range(n_sets)]
    return Built(inputs=list(inputs), variants=variants)
