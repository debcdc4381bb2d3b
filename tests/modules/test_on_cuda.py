"""Every structure on a CUDA device against the CPU in float64; skipped, with its reason, elsewhere.

`benchmarks/gpu_modules.py` does the same at the widths of published models.
"""

from __future__ import annotations

import pytest
import torch
from helpers.structures import first_of_each, miniatures
from torch import Tensor

from metacount.modules.build import DTYPES, build
from metacount.modules.model import Model
from metacount.spec import ModelSpec

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: no forward is compared with a CPU's"
)

# of logits; bf16 rounds every product, and a router may choose another expert
BOUNDS = {"fp32": 1e-5, "bf16": 1e-1}


def outcome(model: Model, ids: Tensor) -> Tensor:
    """Logits, or hidden states where a model has no head; the source is the target backwards."""
    how = {"memory_BTD": model.encode(ids.flip(1))} if model.spec.has_encoder else {}
    out = model(ids, **how)
    found: Tensor = out.hidden_BSD if out.logits_BSV is None else out.logits_BSV
    return found


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("spec", miniatures(), ids=first_of_each())
def test_a_device_computes_what_a_cpu_does(spec: ModelSpec, dtype: str) -> None:
    exact = build(spec, device="cpu", dtype="fp64", seed=0)
    torch.manual_seed(1)
    if exact.spec.vocab_size is None:
        given = torch.randn(2, 11, exact.spec.d_model, dtype=torch.float64)
    else:
        given = torch.randint(exact.spec.vocab_size, (2, 11))
    there = build(spec, device="cuda", dtype=dtype)
    there.load_state_dict({k: t.to(DTYPES[dtype]) for k, t in exact.state_dict().items()})
    moved = given.to("cuda", DTYPES[dtype] if given.is_floating_point() else None)
    with torch.no_grad():
        expected, got = outcome(exact, given), outcome(there, moved).double().cpu()
    assert (got - expected).norm() / expected.norm() < BOUNDS[dtype]
