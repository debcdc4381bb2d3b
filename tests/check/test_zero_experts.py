"""What a formula for LongCat-Flash may take zero experts for, in words."""

from __future__ import annotations

import pytest

import metacount

LAYERS = "floor((N + 1)/2)"  # with experts
MLA = "d*d_v*h + d*r_q + d*(d_c + d_r) + d_c*h*(d_n + d_v) + h*r_q*(d_n + d_r)"
RIGHT = f"N*({MLA} + 3*d*m + 2*d + d_c + r_q) + {LAYERS}*d*(3*E*m_e + E + E_z) + 2*V*d + d"


def test_the_right_formula_is_right() -> None:
    assert metacount.check(RIGHT, "longcat-flash").verdict in ("equal", "proven")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("+ 3*H*d*m_e*E_z", "zero experts counted like others; they have no matrices"),
        (
            "+ 2*H*E_z*d*m_e",
            "rows for zero experts counted, which transformers' class stores and no token reads",
        ),
        ("- H*E_z*d", "the router's rows for zero experts left out"),
        ("+ H*(E + E_z)", "the selection bias counted; it is a buffer, no parameter"),
    ],
)
def test_a_mistake_is_named(more: str, words: str) -> None:
    found = metacount.check(RIGHT + more.replace("H", LAYERS), "longcat-flash")
    assert found.verdict == "wrong"
    (term,) = found.terms
    assert term.words.partition(", or ")[0] == words
