"""Writes an expression as people write it: powers raised, products with a dot."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import sympy

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def in_letters(expr: sympy.Expr) -> str:
    """Write an expression as a person does.

    >>> import sympy
    >>> S, d, h_d = sympy.symbols("S d h_d")
    >>> in_letters(2 * d * S**2 * (h_d + 1))
    '2·S²·d·(h_d + 1)'
    """
    text = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(SUPERSCRIPTS), str(expr))
    return text.replace("*", "·").replace("Min(", "min(")
