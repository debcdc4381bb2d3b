"""Feed-forward blocks against an elementwise loop with `math`; the 2/3 rule against LLaMA."""

from __future__ import annotations

import math

import pytest
import torch

from metacount.modules import gated_d_ff
from metacount.modules.ffn import XIelu, activate, gate


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


def test_xielu_by_hand() -> None:
    """Both α are 0.8 at first: 0.8·x² + x/2 above 0, 0.8·(e^x - 1 - x) + x/2 below."""
    x = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    expected = torch.tensor([3.2 + 1, 0.8 / math.e - 0.5, 0.0], dtype=torch.float64)
    assert (XIelu().double()(x) - expected).abs().max() < 1e-6  # e^x near 0


def test_clamped_swiglu_by_hand() -> None:
    def value(gate_: float, up: float) -> float:
        both = (torch.tensor(v, dtype=torch.float64) for v in (gate_, up))
        return gate(*both, "clamped_swiglu", 1.0).item()

    # gate 10 -> 7, up -9 -> -7: 7 · sigmoid(1.702·7) · (-7 + 1)
    assert abs(value(10.0, -9.0) - 7 / (1 + math.exp(-11.914)) * -6) < 1e-12
    # up 9 -> 7; the gate is limited from above alone
    assert abs(value(-10.0, 9.0) - -10 / (1 + math.exp(17.02)) * 8) < 1e-12
    assert value(0.0, 3.0) == 0.0


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
