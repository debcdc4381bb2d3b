"""Equations of torch's own small modules: shown only where what ran is theirs."""

from __future__ import annotations

import pytest
from torch import nn

from metacount.flow.equations import of_torch
from metacount.flow.steps import Seen


def seen(module: nn.Module, *operators: str, name: str = "") -> Seen:
    return Seen(
        module=module, holder=None, name=name, gives="", operators=operators, inputs=((2, 3),)
    )


@pytest.mark.parametrize("product", ["mm", "bmm", "mv"])
def test_a_product_alone_has_no_bias(product: str) -> None:
    assert of_torch(seen(nn.Linear(3, 4, bias=False), product)) == "y = x·Wᵀ"


@pytest.mark.parametrize("operators", [("addmm",), ("addmv",), ("mm", "add"), ("bmm", "add")])
def test_a_bias_is_in_the_product_or_added(operators: tuple[str, ...]) -> None:
    assert of_torch(seen(nn.Linear(3, 4), *operators)) == "y = x·Wᵀ + b"


@pytest.mark.parametrize("operators", [(), ("add",), ("mm", "mul"), ("addmm", "silu")])
def test_what_ran_is_no_linear_alone(operators: tuple[str, ...]) -> None:
    assert of_torch(seen(nn.Linear(3, 4), *operators)) is None


@pytest.mark.parametrize(
    ("name", "equation"),
    [
        ("q_proj", "q = x·W_qᵀ"),
        ("k_proj", "k = x·W_kᵀ"),
        ("v_proj", "v = x·W_vᵀ"),
        ("o_proj", "y = x·W_oᵀ"),
        ("gate_proj", "gate = x·W_gateᵀ"),
        ("up_proj", "up = x·W_upᵀ"),
        ("down_proj", "y = x·W_downᵀ"),
        ("lm_head", "logits = x·W_headᵀ"),
        ("q_a_proj", "c_q = x·W_DQᵀ"),
        ("kv_b_proj", "[k_n, v] = x·W_UKVᵀ"),
        ("fc1", "y = x·Wᵀ"),
    ],
)
def test_names_of_projections_say_what_they_give(name: str, equation: str) -> None:
    assert of_torch(seen(nn.Linear(3, 4, bias=False), "mm", name=name)) == equation


@pytest.mark.parametrize(
    ("module", "operator", "equation"),
    [
        (nn.Embedding(5, 3), "embedding", "y = row x of the table"),
        (nn.LayerNorm(3), "native_layer_norm", "y = (x − mean(x)) / √(var(x) + ε) · w + b"),
        (
            nn.LayerNorm(3, bias=False),
            "native_layer_norm",
            "y = (x − mean(x)) / √(var(x) + ε) · w",
        ),
        (nn.Conv1d(3, 3, 2), "convolution", "y = x ∗ W + b"),
        (nn.Conv1d(3, 3, 2, bias=False), "convolution", "y = x ∗ W"),
        (nn.SiLU(), "silu", "y = silu(x)"),
        (nn.Tanh(), "tanh", "y = tanh(x)"),
    ],
)
def test_other_modules(module: nn.Module, operator: str, equation: str) -> None:
    assert of_torch(seen(module, operator)) == equation
    assert of_torch(seen(module, operator, "mul")) is None
