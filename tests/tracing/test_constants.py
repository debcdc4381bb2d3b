"""Sizes that code makes numbers, as letters again: readings made by hand, and ALiBi's heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import sympy
from helpers.release import ONLY

from metacount.spec import Workload
from metacount.tracing.domain import in_words
from metacount.tracing.forms import Reading, Tracer, solved_constants
from metacount.tracing.layers import CodeForm, CodePart
from metacount.tracing.symbols import symbol

E, d, k, N = (symbol(name) for name in ("E", "d", "k", "N"))
NUMBERS = {E: 8, d: 64, k: 2, N: 20}


def reading(expr: Any, *domain: Any, number: int = 8) -> Reading:
    part = CodePart(role="moe", expr=expr, layers=None, where="")
    return Reading(parts=(part,), domain=(sympy.Eq(E, number, evaluate=False), *domain))


def read_as(make: Callable[[int], Reading]) -> Callable[[dict[str, int]], Reading]:
    return lambda change: make(change["E"])


def test_a_polynomial_of_degree_two_is_found() -> None:
    def at(n: int) -> Reading:
        return reading(3 * n * n * d + 5 * n * k + 7, k <= n, number=n)

    found = solved_constants(at(8), {"E"}, NUMBERS, read_as(at))
    assert sympy.expand(found.parts[0].expr - (3 * E**2 * d + 5 * E * k + 7)) == 0
    assert found.domain == (k <= E,)
    assert found.solved_for == (("E", (8, 9, 16, 24, 32)),)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: reading(d * n**3, number=n),  # of a higher degree
        lambda n: reading(d * 2**n, number=n),
        lambda n: reading(d * n, d >= (5 if n == 8 else 6), number=n),  # of another domain
        lambda n: reading(d * (n if n != 24 else n + 1), number=n),
    ],
)
def test_what_is_none_stays_a_number(make: Callable[[int], Reading]) -> None:
    here = make(8)
    assert solved_constants(here, {"E"}, NUMBERS, read_as(make)) is here


@cache
def bloom(quantity: str) -> CodeForm:
    config = {"model_type": "bloom", "n_layer": 2}
    return Tracer(config, Workload(seq_len=64)).form(quantity)


@ONLY
def test_alibi_leaves_the_number_of_heads_free() -> None:
    B, S, L, V, h = map(symbol, ("B", "S", "n_layer", "vocab_size", "hidden_size"))
    found = bloom("matmul_flops")
    expected = 2 * B * S * h * V + L * (24 * B * S * h**2 + 4 * B * S**2 * h)
    assert sympy.expand(found.total - expected) == 0
    assert [in_words(c, str) for c in found.domain] == ["n_head divides hidden_size"]
    ((name, numbers),) = found.solved_for
    # powers of two, and others: their slopes are made in another way
    assert name == "n_head" and {8, 16, 24} <= set(numbers)
    assert found.untried == ()
