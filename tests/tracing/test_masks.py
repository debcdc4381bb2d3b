"""Pairs that masks keep, in letters: polynomials worked out by hand, and counts in plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from metacount.modules.attention import Visibility
from metacount.tracing.symbols import NotTraced, Sizes, divides, kept_pairs, symbol

S, T, W, P = (symbol(name) for name in ("S", "T", "W", "p"))
CAUSAL = S * (S + 1) / 2  # 1 + 2 + … + S


def kept(hints: dict[str, int], **fields: Any) -> tuple[Any, set[Any]]:
    """The polynomial of a mask whose sizes are named (or made of named ones), its conditions."""
    sizes = Sizes()
    named: dict[str, Any] = {name: sizes.new(name, hint) for name, hint in hints.items()}
    values: dict[str, Any] = {
        name: value(named) if callable(value) else named.get(value, value)
        for name, value in fields.items()
    }
    return kept_pairs(Visibility(**values), sizes), set(sizes.conditions)


def same(found: Any, expected: Any) -> bool:
    return bool(sympy.expand(found - expected) == 0)


def square(hints: dict[str, int], **fields: Any) -> tuple[Any, set[Any]]:
    return kept(hints, **{"n_queries": "S", "n_keys": "S", **fields})


def both(letter: str, kind: str = "bidirectional") -> dict[str, Any]:
    return {"kind": kind, "window" if kind == "bidirectional" else "prefix_len": letter}


HALF = W / 2
ONE_BY_KEYS = {"n_queries": 1, "n_keys": "T", "kind": "bidirectional"}
SUM = dict.fromkeys(("n_queries", "n_keys"), lambda n: n["S"] + n["T"])
# sizes by name, a mask in letters, the pairs that it keeps, and on which side it was laid out
POLYNOMIALS: dict[str, tuple[dict[str, int], dict[str, Any], Any, set[Any]]] = {
    "causal": ({"S": 5}, {}, CAUSAL, set()),
    "window not reached": ({"S": 31, "W": 64}, {"window": "W"}, CAUSAL, {sympy.Ge(W, S)}),
    # W for each query, but the first W - 1 see 1, 2, …, W - 1: 1 + 2 + … + (W - 1) fewer
    "window exceeded": (
        {"S": 31, "W": 8}, {"window": "W"}, W * S - W * (W - 1) / 2, {sympy.Ge(S, W)}),
    # 8·S - (1 + … + 7)
    "window of a number": ({"S": 31}, {"window": 8}, 8 * S - 28, {sympy.Ge(S, 8)}),
    "window of twice a size": (
        {"S": 61, "W": 8}, {"window": lambda n: 2 * n["W"]},
        2 * W * S - W * (2 * W - 1), {sympy.Ge(S, 2 * W)}),
    "below a number": ({"S": 29}, {"window": 30}, CAUSAL, {sympy.Ge(30, S)}),
    "everybody sees everybody": (
        {"S": 31, "T": 37}, {"n_keys": "T", "kind": "bidirectional"}, S * T, set()),
    "one query": ({"T": 31}, ONE_BY_KEYS, T, set()),
    # itself, and at each distance d of 1, …, h both ways: S + 2·Σ(S - d) = S + 2·h·S - h·(h + 1)
    **{
        f"{wide} to both sides": (
            {"S": 31, "W": wide}, both("W"), S + 2 * HALF * S - HALF * (HALF + 1),
            {divides(sympy.Integer(2), W), sympy.Ge(S, HALF + 1)})
        for wide in (8, 40)  # wider than the length, too
    },
    "to both sides, over all": (
        {"S": 31, "W": 80}, both("W"), S**2,
        {divides(sympy.Integer(2), W), sympy.Ge(HALF + 1, S)}),
    # a number is rounded once, h = 4: S + 8·S - 4·5
    "an odd number to both sides": (
        {"S": 31}, {"kind": "bidirectional", "window": 9}, 9 * S - 20, {sympy.Ge(S, 5)}),
    # S / W chunks of W·(W + 1)/2 pairs
    "chunks that fit": (
        {"S": 32, "W": 8}, {"chunked": True, "window": "W"}, S * (W + 1) / 2,
        {sympy.Ge(S, W), divides(W, S)}),
    # causal, and the p·(p - 1)/2 pairs of the prefix whose key comes later
    "a prefix": (
        {"S": 31, "p": 5}, both("p", "prefix"), CAUSAL + P * (P - 1) / 2, {sympy.Ge(S, P)}),
    "a long prefix of a number": (
        {"S": 512}, {"kind": "prefix", "prefix_len": 256}, CAUSAL + 256 * 255 / 2,
        {sympy.Ge(S, 256)}),
    "a length made of two": ({"S": 5, "T": 7}, SUM, (S + T) * (S + T + 1) / 2, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_pairs_are_a_polynomial(name: str) -> None:
    hints, fields, pairs, asked = POLYNOMIALS[name]
    form, conditions = square(hints, **fields)
    assert same(form, pairs)
    assert conditions == asked


@pytest.mark.parametrize(
    ("hints", "fields"),
    [
        ({"S": 31, "W": 9}, both("W")),  # an odd width
        ({"S": 16384}, {"chunked": True, "window": 8192}),  # too large to be laid out
        ({"T": 61}, {**ONE_BY_KEYS, "kind": "causal", "query_start": lambda n: n["T"] - 1}),
        ({"S": 31, "W": 8}, {"chunked": True, "window": "W"}),  # chunks that do not fit
        ({"S": 31, "W": 31}, {"window": "W"}),  # one hint for both says nothing of either side
    ],
    ids=["odd", "large", "later", "chunks", "edge"],
)
def test_what_is_refused(hints: dict[str, int], fields: dict[str, Any]) -> None:
    with pytest.raises(NotTraced):
        square(hints, **fields)


def test_masks_are_counted_in_numbers_inside_a_trace() -> None:
    # where tensors have no data
    sizes = Sizes()
    length = sizes.new("S", 31)
    with sizes.tracing():
        form = kept_pairs(Visibility(n_queries=length, n_keys=length), sizes)  # type: ignore[arg-type]
    assert same(form, CAUSAL)
