"""Which layers are of a kind: the sequence, the closed count, and the formulas' own count agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from metacount.formulas.pieces import layers_by_law, windowed_layers
from metacount.spec.attention import Law

N = sympy.Symbol("N", integer=True, positive=True)
LAYERS = st.integers(1, 41)


@st.composite
def by_step(draw: st.DrawFn) -> Law:
    every = draw(st.integers(1, 7))
    return Law(
        after=draw(st.integers(0, 45)),
        every=every,
        offset=draw(st.integers(0, every - 1)),
        but=draw(st.booleans()),
    )


@st.composite
def by_letters(draw: st.DrawFn) -> Law:
    letters = draw(st.text("LG", min_size=1, max_size=9))
    return Law(letters=letters, letter=draw(st.sampled_from("LG")), but=draw(st.booleans()))


def formula(law: Law, n_layers: int) -> Any:
    """The formulas' count of the same layers: algebra that shares no code with the law."""
    if law.letters is None:
        found = layers_by_law(
            n_layers, n_dense_layers=law.after, moe_every=law.every, moe_offset=law.offset
        )
    else:
        windowed = windowed_layers(n_layers, law.letters)
        found = windowed if law.letter == "L" else n_layers - windowed
    return n_layers - found if law.but else found


def disagree(law: Law, n_layers: int, count: Callable[[Law, Any], Any] = Law.count) -> list[str]:
    """What differs from the sequence: the count of numbers, of a symbol, or the formulas'."""
    listed = sum(law.sequence(n_layers))
    found = {"numbers": count(law, n_layers), "formula": formula(law, n_layers)}
    if law.letters is not None or law.after <= n_layers:  # a symbol is taken at its word
        found["symbol"] = sympy.sympify(count(law, N)).subs(N, n_layers)
    return [name for name, value in found.items() if value != listed]


@given(by_step() | by_letters(), LAYERS)
def test_the_sequence_and_the_counts_agree(law: Law, n_layers: int) -> None:
    assert disagree(law, n_layers) == []


@pytest.mark.parametrize(
    ("law", "sequence"),
    [
        (Law(), "1111111"),
        (Law(after=3), "0001111"),
        (Law(every=3), "0010010"),
        (Law(every=3, offset=1), "1001001"),
        (Law(after=2, every=2), "0001010"),
        (Law(letters="LLG"), "1101101"),
        (Law(letters="LG", letter="G"), "0101010"),
        (Law(letters="LLLLLLG", but=True), "0000001"),
        (Law(every=4, but=True), "1110111"),
    ],
)
def test_layers_by_hand(law: Law, sequence: str) -> None:
    assert law.sequence(7) == tuple(mark == "1" for mark in sequence)
    assert disagree(law, 7) == []
