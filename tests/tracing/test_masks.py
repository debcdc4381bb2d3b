"""Pairs that masks keep, in letters: polynomials worked out by hand, and counts in plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
from helpers.release import daily

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
    return kept(hints, n_queries="S", n_keys="S", **fields)


@pytest.mark.parametrize("hint", [5, 61])
def test_causal(hint: int) -> None:
    form, conditions = square({"S": hint})
    assert same(form, CAUSAL)
    assert conditions == set()


def test_a_window_that_is_not_reached_is_causal() -> None:
    form, conditions = square({"S": 31, "W": 64}, window="W")
    assert same(form, CAUSAL)
    assert conditions == {sympy.Ge(W, S)}


def test_a_window_that_is_exceeded() -> None:
    form, conditions = square({"S": 31, "W": 8}, window="W")
    # W for each query, but the first W - 1 see 1, 2, …, W - 1: 1 + 2 + … + (W - 1) fewer
    assert same(form, W * S - W * (W - 1) / 2)
    assert conditions == {sympy.Ge(S, W)}


def test_a_window_given_as_a_number() -> None:
    form, conditions = square({"S": 31}, window=8)
    # 8·S - (1 + … + 7)
    assert same(form, 8 * S - 28)
    assert conditions == {sympy.Ge(S, 8)}


def test_a_window_made_of_a_size() -> None:
    form, conditions = square({"S": 61, "W": 8}, window=lambda n: 2 * n["W"])
    assert same(form, 2 * W * S - W * (2 * W - 1))
    assert conditions == {sympy.Ge(S, 2 * W)}


def test_everybody_sees_everybody() -> None:
    form, conditions = kept({"S": 31, "T": 37}, n_queries="S", n_keys="T", kind="bidirectional")
    assert same(form, S * T)
    assert conditions == set()


def test_as_many_keys_as_a_number_says() -> None:
    form, conditions = kept({"S": 31}, n_queries="S", n_keys=7, kind="bidirectional")
    assert same(form, 7 * S)
    assert conditions == set()


def test_one_query_sees_every_key() -> None:
    form, conditions = kept({"T": 31}, n_queries=1, n_keys="T", kind="bidirectional")
    assert same(form, T)
    assert conditions == set()


@pytest.mark.parametrize("window", [8, 40])  # wider than the length, too
def test_a_window_to_both_sides(window: int) -> None:
    form, conditions = square({"S": 31, "W": window}, kind="bidirectional", window="W")
    # itself, and at each distance d of 1, …, h both ways: S + 2·Σ(S - d) = S + 2·h·S - h·(h + 1)
    h = W / 2
    assert same(form, S + 2 * h * S - h * (h + 1))
    assert conditions == {divides(sympy.Integer(2), W), sympy.Ge(S, W / 2 + 1)}


def test_a_window_to_both_sides_that_reaches_over_all() -> None:
    form, conditions = square({"S": 31, "W": 80}, kind="bidirectional", window="W")
    assert same(form, S**2)
    assert conditions == {divides(sympy.Integer(2), W), sympy.Ge(W / 2 + 1, S)}


def test_a_window_of_an_odd_width_is_refused() -> None:
    with pytest.raises(NotTraced):
        square({"S": 31, "W": 9}, kind="bidirectional", window="W")


def test_a_number_for_a_window_is_rounded_once() -> None:
    form, conditions = square({"S": 31}, kind="bidirectional", window=9)
    # h = 4: S + 8·S - 4·5
    assert same(form, 9 * S - 20)
    assert conditions == {sympy.Ge(S, 5)}


@pytest.mark.parametrize(
    ("hint", "pairs", "side"),
    [
        (61, 30 * S - 435, sympy.Ge(S, 30)),  # 30·29/2 = 435
        (29, CAUSAL, sympy.Ge(30, S)),
    ],
)
def test_masks_are_laid_out_on_both_sides_of_a_number(hint: int, pairs: Any, side: Any) -> None:
    form, conditions = square({"S": hint}, window=30)
    assert same(form, pairs)
    assert conditions == {side}


def test_a_long_prefix_given_as_a_number() -> None:
    form, conditions = square({"S": 512}, kind="prefix", prefix_len=256)
    assert same(form, CAUSAL + 256 * 255 / 2)
    assert conditions == {sympy.Ge(S, 256)}


def test_masks_that_are_too_large_are_refused() -> None:
    with pytest.raises(NotTraced, match="8192"):
        square({"S": 16384}, chunked=True, window=8192)


def test_a_mask_that_begins_later_is_refused() -> None:
    with pytest.raises(NotTraced):
        kept({"T": 61}, n_queries=1, n_keys="T", query_start=lambda named: named["T"] - 1)


def test_chunks_that_fit() -> None:
    form, conditions = square({"S": 32, "W": 8}, chunked=True, window="W")
    # S / W chunks of W·(W + 1)/2 pairs
    assert same(form, S * (W + 1) / 2)
    assert conditions == {sympy.Ge(S, W), divides(W, S)}


def test_chunks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NotTraced):
        square({"S": 31, "W": 8}, chunked=True, window="W")


def test_one_chunk_that_is_not_full_is_causal() -> None:
    form, conditions = square({"S": 31, "W": 64}, chunked=True, window="W")
    assert same(form, CAUSAL)
    assert conditions == {sympy.Ge(W, S)}


def test_a_prefix_sees_all_of_itself() -> None:
    form, conditions = square({"S": 31, "p": 5}, kind="prefix", prefix_len="p")
    # causal, and the p·(p - 1)/2 pairs of the prefix whose key comes later
    assert same(form, CAUSAL + P * (P - 1) / 2)
    assert conditions == {sympy.Ge(S, P)}


def test_a_prefix_given_as_a_number() -> None:
    form, conditions = square({"S": 31}, kind="prefix", prefix_len=5)
    assert same(form, CAUSAL + 10)  # 1 + 2 + 3 + 4
    assert conditions == {sympy.Ge(S, 5)}


def test_no_prefix_is_causal() -> None:
    form, conditions = square({"S": 31}, kind="prefix", prefix_len=0)
    assert same(form, CAUSAL)
    assert conditions == set()


def test_a_length_on_the_edge_of_the_window_is_refused() -> None:
    # one hint for both says nothing about either side
    with pytest.raises(NotTraced):
        square({"S": 31, "W": 31}, window="W")


def test_a_length_made_of_two() -> None:
    form, conditions = kept(
        {"S": 5, "T": 7}, n_queries=lambda n: n["S"] + n["T"], n_keys=lambda n: n["S"] + n["T"]
    )
    assert same(form, (S + T) * (S + T + 1) / 2)
    assert conditions == set()


Sees = Callable[[int, int], bool]


def pairs(n_queries: int, n_keys: int, sees: Sees) -> int:
    """One by one, without a tensor."""
    return sum(sees(q, k) for q in range(n_queries) for k in range(n_keys))


# name -> (hints, the mask in letters, other sizes that are larger than any mask laid out, the rule)
LOOPS: dict[str, tuple[dict[str, int], dict[str, Any], dict[Any, int], Sees]] = {
    "causal": ({"S": 31}, {}, {S: 60}, lambda q, k: k <= q),
    "window exceeded": (
        {"S": 31, "W": 8},
        {"window": "W"},
        {S: 60, W: 27},
        lambda q, k: 0 <= q - k < 27,
    ),
    "window just reached": (
        {"S": 31, "W": 8},
        {"window": "W"},
        {S: 60, W: 60},
        lambda q, k: 0 <= q - k < 60,
    ),
    "window not reached": (
        {"S": 31, "W": 64},
        {"window": "W"},
        {S: 60, W: 77},
        lambda q, k: 0 <= q - k < 77,
    ),
    "both sides": (
        {"S": 31, "W": 8},
        {"kind": "bidirectional", "window": "W"},
        {S: 60, W: 34},
        lambda q, k: abs(q - k) <= 17,
    ),
    "both sides, almost all": (
        {"S": 31, "W": 8},
        {"kind": "bidirectional", "window": "W"},
        {S: 60, W: 118},
        lambda q, k: abs(q - k) <= 59,
    ),
    "both sides, all": (
        {"S": 31, "W": 80},
        {"kind": "bidirectional", "window": "W"},
        {S: 60, W: 130},
        lambda q, k: abs(q - k) <= 65,
    ),
    "chunks": (
        {"S": 32, "W": 8},
        {"chunked": True, "window": "W"},
        {S: 60, W: 15},
        lambda q, k: k <= q and k // 15 == q // 15,
    ),
    "prefix": (
        {"S": 31, "p": 5},
        {"kind": "prefix", "prefix_len": "p"},
        {S: 60, P: 29},
        lambda q, k: k <= q or k < 29,
    ),
}


@daily(3)
@pytest.mark.parametrize("name", LOOPS)
def test_at_sizes_that_were_not_laid_out(name: str) -> None:
    hints, fields, other, sees = LOOPS[name]
    form, conditions = square(hints, **fields)
    at = {letter: sympy.Integer(number) for letter, number in other.items()}
    for condition in conditions:
        if isinstance(condition, sympy.Rel):
            assert condition.xreplace(at) == True  # noqa: E712  # SymPy's own true
    assert form.xreplace(at) == pairs(60, 60, sees)


def test_two_lengths_at_sizes_that_were_not_laid_out() -> None:
    form, _ = kept({"S": 31, "T": 37}, n_queries="S", n_keys="T", kind="bidirectional")
    assert form.xreplace({S: sympy.Integer(60), T: sympy.Integer(47)}) == pairs(
        60, 47, lambda q, k: True
    )


def test_masks_are_counted_in_numbers_inside_a_trace() -> None:
    # where tensors have no data
    sizes = Sizes()
    length = sizes.new("S", 31)
    with sizes.tracing():
        form = kept_pairs(Visibility(n_queries=length, n_keys=length), sizes)  # type: ignore[arg-type]
    assert same(form, CAUSAL)
