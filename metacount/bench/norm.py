"""RMSNorm and LayerNorm: written out, torch's own, and compiled."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from metacount.bench import reference
from metacount.bench.case import DTYPES, Apply, Case, Variant, weight, with_weights, work_of
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.spec import ModelSpec

EPS = 1e-5


def case(model: str, spec: ModelSpec, n_tokens: int, dtype: str) -> Case:
    """Make a case of the norms of `spec`'s width over `n_tokens` tokens."""
    d = spec.d_model
    set_bytes = n_tokens * d * DTYPES[dtype].itemsize
    return Case(
        topic="norm",
        model=model,
        dtype=dtype,
        sizes={"d_model": d},
        workload={"tokens": n_tokens},
        rows=n_tokens,
        checked_rows=128,
        # float32 copies: widened, centred, squared, scaled
        needs_bytes=5 * set_bytes + 16 * n_tokens * d,
        set_bytes=set_bytes,
        build=partial(_build, d, n_tokens, DTYPES[dtype]),
    )


def _build(
    d: int, n_tokens: int, dtype: torch.dtype, device: torch.device, n_sets: int
) -> list[Variant]:
    scale, shift = weight((d,), device, dtype), weight((d,), device, dtype)
    inputs = [(torch.randn(n_tokens, d, device=device, dtype=dtype),) for _ in range(n_sets)]
    with torch.device("meta"):
        rms, layer = RMSNorm(d, eps=EPS), LayerNorm(d, bias=True, eps=EPS)
    kinds = {
        "rmsnorm": (
            with_weights(rms, {"weight": scale}),
            Apply(lambda x, w: F.rms_norm(x, (d,), w, EPS), scale),
            lambda given, rows: (reference.rms_norm(given[0][rows], scale, EPS),),
        ),
        "layernorm": (
            with_weights(layer, {"weight": scale, "bias": shift}),
            Apply(lambda x, w, b: F.layer_norm(x, (d,), w, b, EPS), scale, shift),
            lambda given, rows: (reference.layer_norm(given[0][rows], scale, shift, EPS),),
        ),
    }
    return [
        Variant(
            name=kind + way,
            module=module,
            compiled=compiled,
            baseline=kind + way == "rmsnorm",
            # no matrix product; weights, every value in and every value out
            work=work_of(0, *module.parameters(), inputs[0][0], inputs[0][0]),
            reference=expected,
            inputs=list(inputs),
        )
        for kind, (written_out, torchs, expected) in kinds.items()
        for way, module, compiled in (
            ("", written_out, None),
            ("-torch", torchs, None),
            ("-compiled", written_out, "default"),
        )
    ]
