"""FLOPs and cache as polynomials in B and S where no symbol goes: exact, from several plain runs.

Every coefficient is a whole number solved for exactly; runs that were not used must confirm it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from .sizes import NotTraced, symbol

# What is added to the asked batch and length: runs that find the polynomial, and runs that test it.
FOUND_AT = tuple((b, s) for b in (0, 1) for s in (0, 3, 8))
HELD_OUT = ((2, 5), (0, 14), (3, 1))
FARTHEST = max(s for _, s in HELD_OUT)


def interpolated(
    measured: Callable[[int, int], dict[str, int]], batch: int, length: int, letter: str
) -> dict[str, Any]:
    """Each part as a polynomial of degree 1 in B and 2 in the length, named `letter`.

    `measured` gives the parts of a run over so many sequences of so many tokens. Raises `NotTraced`
    where a run that was held out differs: then no such polynomial is what the code does.
    """
    b, s = symbol("B"), symbol(letter)
    terms = [b**i * s**j for i in (0, 1) for j in (0, 1, 2)]
    points = [(batch + i, length + j) for i, j in FOUND_AT]
    runs = [measured(*point) for point in points]
    matrix = sympy.Matrix([[term.subs({b: x, s: y}) for term in terms] for x, y in points])
    inverse = matrix.inv()
    forms: dict[str, Any] = {}
    for part in sorted({name for run in runs for name in run}):
        values = sympy.Matrix([run.get(part, 0) for run in runs])
        coefficients = inverse * values
        forms[part] = sympy.expand(sum(c * t for c, t in zip(coefficients, terms, strict=True)))
    for i, j in HELD_OUT:
        at = batch + i, length + j
        run = measured(*at)
        for part in {*forms, *run}:
            value = forms.get(part, sympy.Integer(0)).subs({b: at[0], s: at[1]})
            if value != run.get(part, 0):
                raise NotTraced(
                    f"no polynomial in B and {letter}: {part} at {at[0]} sequences of {at[1]} "
                    f"tokens is {run.get(part, 0)}, where {value} would follow"
                )
    return {part: form for part, form in forms.items() if form != 0}
