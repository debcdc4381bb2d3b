"""Feed-forward blocks against an elementwise loop with `math`; the 2/3 rule against LLaMA."""

from __future__ import annotations

import math

import pytest
import torch

from metacount.modules import gated_d_ff
from metacount.modules.ffn import activate


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("relu", -3.0, 0.0),
        ("relu", 3.0, 3.0),
        ("relu2", 3.0, 9.0),
        ("relu2", -3.0, 0.0),
        ("sigmoid", math.log(3), 0.75),
        ("silu", math.log(3), 0.75 * math.log(3)),
        # Φ(1) = 0.8413447460685429 (tables of the normal distribution)
        ("gelu", 1.0, 0.8413447460685429),
        # 0.5·(1 + tanh(0.7978845608·1.044715)): close to Φ(1), not equal
        ("gelu_tanh", 1.0, 0.8411919906082768),
        ("identity", -3.0, -3.0),
    ],
)
def test_activations_by_hand(name: str, x: float, y: float) -> None:
    value = activate(torch.tensor(x, dtype=torch.float64), name, 1.0).item()
    assert abs(value - y) < 1e-14


@pytest.mark.parametrize(
    ("d_model", "multiplier", "multiple_of", "d_ff"),
    [
        (4096, "1", 256, 11008),  # LLaMA 7B
        (5120, "1", 256, 13824),  # 13B
        (6656, "1", 256, 17920),  # 33B
        (8192, "1", 256, 22016),  # 65B
        (8192, "1.3", 4096, 28672),  # Llama 2 70B
        (4096, "1.3", 1024, 14336),  # Llama 3 8B
        (96, "1", 256, 256),  # 2/3 · 384 is a multiple already
        (97, "1", 256, 512),  # 258 is not
    ],
)
def test_gated_d_ff(d_model: int, multiplier: str, multiple_of: int, d_ff: int) -> None:
    assert gated_d_ff(d_model, multiplier=multiplier, multiple_of=multiple_of) == d_ff
