"""How many layers there are of a kind, as a formula: patterns made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy

from metacount.tracing.layers import CodePart, Law, Stack, law, limits, moved
from metacount.tracing.symbols import symbol

N, first = symbol("num_layers"), symbol("first_k")


def law_of(kinds: Callable[[dict[str, int]], str], **fields: int) -> Law:
    """The law of the layers of kind X in a stack whose kinds are a text for its fields."""
    stack = Stack(path="layers", length=fields["num_layers"])
    own = kinds(fields)
    indices = frozenset(i for i, kind in enumerate(own) if kind == "X")
    return law(
        stack, indices, fields, lambda change: {"layers": tuple(kinds({**fields, **change}))}
    )


def every(period: int, start: int, last: bool = False) -> Callable[[dict[str, int]], str]:
    def kinds(fields: dict[str, int]) -> str:
        n = fields["num_layers"]
        return "".join(
            "X" if i % period == start or (last and i == n - 1) else "o" for i in range(n)
        )

    return kinds


@pytest.mark.parametrize(
    ("kinds", "number", "expected"),
    [
        (every(1, 0), 61, N),
        (every(2, 0), 12, sympy.ceiling(N / 2)),
        (every(4, 3), 48, sympy.floor(N / 4)),
        (every(6, 5, last=True), 30, sympy.ceiling(N / 6)),  # gemma4: the last one is full too
        (every(4, 0), 27, sympy.ceiling(N / 4)),
        (lambda f: "X" + every(6, 5)(f)[1:], 48, 1 + sympy.floor(N / 6)),  # mimo_v2_flash
        (lambda f: "o" + every(4, 0)(f)[1:], 27, sympy.floor((N - 1) / 4)),  # kimi_linear
        (lambda f: "oXX" + "o" * (f["num_layers"] - 3), 20, sympy.Integer(2)),
    ],
)
def test_periodic_layers(kinds: Any, number: int, expected: Any) -> None:
    found = law_of(kinds, num_layers=number)
    assert found.confirmed
    for n in range(4, 64):
        value = found.expr.subs(N, n)
        assert value == expected.subs(N, n) == kinds({"num_layers": n}).count("X")


@pytest.mark.parametrize(
    ("places", "period", "fields"),
    [
        # at 4 to 8, 12 and 13 layers, those of Bamba-9B are as many as floor((N - 4) / 5)
        ((9, 18, 27), 28, {}),
        ((4,), 8, {"period": 8, "offset": 4}),  # Jamba's attention
        ((0, 1, 7, 9, 51), 52, {}),
    ],
)
def test_a_long_pattern_is_seen_twice(
    places: tuple[int, ...], period: int, fields: dict[str, int]
) -> None:
    def kinds(at: dict[str, int]) -> str:
        own = [i + at.get("offset", 0) - fields.get("offset", 0) for i in places]
        n, repeats = at["num_layers"], at.get("period", period)
        return "".join("X" if i % repeats in own else "o" for i in range(n))

    found = law_of(kinds, num_layers=12, **fields)
    assert found.confirmed and found.moved == {"num_layers"} and found.alone
    for n in range(3, 200):
        assert found.expr.subs(N, n) == kinds({"num_layers": n, **fields}).count("X")


def test_the_first_ones() -> None:
    def kinds(fields: dict[str, int]) -> str:
        n, k = fields["num_layers"], fields["first_k"]
        return ("o" * k + "X" * n)[:n]

    found = law_of(kinds, num_layers=61, first_k=3)
    assert found.expr == N - first
    assert found.moved == {"num_layers", "first_k"}
    part = CodePart(role="moe", expr=symbol("d"), layers=found, where="layers[3-60]")
    assert limits((part,)) == (sympy.Ge(N, first),)
    assert moved((part,)) == {"num_layers", "first_k"}


def test_what_has_no_law_is_a_number() -> None:
    primes = law_of(
        lambda f: "".join("X" if sympy.isprime(i) else "o" for i in range(f["num_layers"])),
        num_layers=40,
    )
    assert (primes.expr, primes.count, primes.confirmed) == (12, 12, 0)
