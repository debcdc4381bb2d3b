"""Closed forms read off our reference modules: written out by hand in a spec's own fields."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import sympy
from helpers.miniatures import miniature
from helpers.release import one_in

from metacount.catalog import entry
from metacount.spec import ModelSpec, Workload
from metacount.tracing.forms import Tracer
from metacount.tracing.layers import CodeForm

RUN = Workload(seq_len=48, source_len=37)


def letters(names: str) -> Any:
    return sympy.symbols(names, integer=True, positive=True)


# sequences, tokens, an encoder's tokens, tokens that one token sees
B, S, Se, T = letters("B S S_e T")
d, N, V, m = letters("d_model n_layers vocab_size d_ff")
h, g, a = letters("n_heads n_kv_heads head_dim")
E, k, f = letters("n_experts top_k d_ff_expert")
first, Ne, W = letters("n_dense_layers n_encoder_layers window")
q, c, nope, rope, v = letters(
    "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
)


@cache
def small(name: str) -> ModelSpec:
    """The structure of a model of the catalog, at small sizes; few layers are built sooner."""
    spec: ModelSpec = miniature(entry(name).spec())
    return spec if spec.n_dense_layers else spec.replace(n_layers=2)


@cache
def tracer(name: str, split: str = "role") -> Tracer:
    spec = small(name)
    run = RUN if spec.has_encoder else Workload(seq_len=48)
    return Tracer(spec, run, split=split)


@cache
def form(name: str, quantity: str, split: str = "role") -> CodeForm:
    return tracer(name, split).form(quantity)


def same(found: Any, expected: Any) -> bool:
    return bool(sympy.expand(found - expected) == 0)


# q and o, k and v; scores and values over as many pairs
MATRICES = 2 * d * h * a + 2 * d * g * a
GATED = 3 * d * m
# the pairs of S tokens that do not look ahead
CAUSAL = S * (S + 1) / 2

# model -> quantity -> (by role, what it comes to at the miniature's sizes)
BY_HAND: dict[str, dict[str, tuple[dict[str, Any], int]]] = {
    # d 13, N 2, V 101, m 17, h = g = 6, a 10; B 1, S 48
    "llama-7b": {
        "params": (
            {
                "embedding": V * d,
                "head": V * d,
                "attention": N * MATRICES,
                "ffn": N * GATED,
                "norm": (2 * N + 1) * d,
            },
            2 * 1313 + 2 * (3120 + 663) + 5 * 13,
        ),
        "matmul_flops": (
            {
                "head": 2 * B * S * d * V,
                "attention": N * (2 * B * S * MATRICES + 4 * B * S**2 * h * a),
                "ffn": 2 * B * S * N * GATED,
            },
            96 * 1313 + 2 * (96 * 3120 + 4 * 2304 * 60 + 96 * 663),
        ),
        "causal_matmul_flops": (
            {
                "head": 2 * B * S * d * V,
                "attention": N * (2 * B * S * MATRICES + 4 * B * CAUSAL * h * a),
                "ffn": 2 * B * S * N * GATED,
            },
            96 * 1313 + 2 * (96 * 3120 + 4 * 1176 * 60 + 96 * 663),
        ),
        "decode_matmul_flops": (
            {
                "head": 2 * B * d * V,
                "attention": N * (2 * B * MATRICES + 4 * B * T * h * a),
                "ffn": 2 * B * N * GATED,
            },
            2 * 1313 + 2 * (2 * 3120 + 4 * 48 * 60 + 2 * 663),
        ),
        # keys and values, 2 bytes each
        "kv_cache_bytes": ({"self-attention": 2 * 2 * B * S * N * g * a}, 4 * 48 * 2 * 60),
    },
    # d 13, N 2, V 101, f 29, E 7, k 3, h 6, g 2, a 10
    "mixtral-8x7b": {
        "matmul_flops": (
            {
                "head": 2 * B * S * d * V,
                "attention": N * (2 * B * S * MATRICES + 4 * B * S**2 * h * a),
                # the router scores every expert, k of them run
                "moe": 2 * B * S * N * (d * E + k * 3 * d * f),
            },
            96 * 1313 + 2 * (96 * 2080 + 4 * 2304 * 60 + 96 * (91 + 3 * 1131)),
        ),
    },
}


@pytest.mark.parametrize(
    ("name", "quantity"),
    one_in(8, [(name, quantity) for name, forms in BY_HAND.items() for quantity in forms]),
)
def test_as_written_by_hand(name: str, quantity: str) -> None:
    by_role, value = BY_HAND[name][quantity]
    found = form(name, quantity)
    assert set(found.by_role) == set(by_role)
    for role, expected in by_role.items():
        assert same(found.by_role[role], expected), role
    assert same(found.total, sum(by_role.values()))
    assert found.value == value
    assert found.how == "traced"
    assert found.confirmed >= 3
    assert found.untried == ()
    assert not any(isinstance(condition, sympy.Eq) for condition in found.domain)


@pytest.mark.parametrize("quantity", ["matmul_flops", "causal_matmul_flops"])
def test_operators_come_to_what_roles_come_to(quantity: str) -> None:
    roles, operators = form("llama-7b", quantity), form("llama-7b", quantity, "operator")
    assert set(operators.by_role) == {"aten.mm", "aten.bmm"}
    assert same(operators.total, roles.total)
    # products with weights, and of tokens with tokens
    pairs = S**2 if quantity == "matmul_flops" else CAUSAL
    assert same(operators.by_role["aten.bmm"], 4 * B * N * h * a * pairs)
    assert operators.value == roles.value
    assert (operators.split, roles.split) == ("operator", "role")
    assert operators.confirmed >= 3
