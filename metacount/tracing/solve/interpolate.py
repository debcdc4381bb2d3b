"""FLOPs and cache as polynomials in B, S and S_e where no symbol goes: exact, from plain runs.

Every coefficient is solved for exactly; runs that were not used must confirm it.
"""

from __future__ import annotations

from collections.abc import Callable

import sympy

from metacount.tracing.run.sizes import NotTraced, divides

# What is added to the asked lengths: of one sequence, or of the decoder's and the encoder's. First
# what finds the polynomial of degree 2, for each of B and B + 1; then what tests it, with its B.
FOUND_AT = {1: ((0,), (3,), (8,)), 2: ((0, 0), (3, 0), (8, 0), (0, 3), (0, 8), (3, 3))}
HELD_OUT = {
    1: ((2, 5), (0, 14), (3, 1)),
    2: ((2, 5, 1), (0, 14, 2), (3, 1, 11)),
}
FARTHEST = 14


def interpolated(
    measured: Callable[[tuple[int, ...]], dict[str, int]],
    asked: dict[sympy.Symbol, int],
    step: int = 1,
) -> dict[str, sympy.Expr]:
    """Interpolate each part as a polynomial of degree 1 in the first letter
    and 2 in the others together.

    `asked` has B and one length or two, with their numbers; `measured` gives the parts of a run at
    such numbers; lengths grow by multiples of `step`. Raises `NotTraced` where a run that was held
    out differs: then no such polynomial is what the code does.
    """
    letters, base = list(asked), list(asked.values())
    lengths = len(letters) - 1

    def at(offsets: tuple[int, ...]) -> tuple[int, ...]:
        batch, *lengths = zip(base, offsets, strict=True)
        return (sum(batch), *(n + step * more for n, more in lengths))

    powers = [p for p in _powers(lengths) if sum(p) <= 2]
    terms = [
        letters[0] ** i * sympy.Mul(*(x**n for x, n in zip(letters[1:], p, strict=True)))
        for i in (0, 1)
        for p in powers
    ]
    points = [at((i, *found)) for i in (0, 1) for found in FOUND_AT[lengths]]
    runs = [measured(point) for point in points]
    matrix = sympy.Matrix([[_value(term, letters, p) for term in terms] for p in points])
    inverse = matrix.inv()
    forms: dict[str, sympy.Expr] = {}
    for part in sorted({name for run in runs for name in run}):
        coefficients = inverse * sympy.Matrix([run.get(part, 0) for run in runs])
        forms[part] = sympy.expand(sum(c * t for c, t in zip(coefficients, terms, strict=True)))
    for offsets in HELD_OUT[lengths]:
        point = at(offsets)
        run = measured(point)
        for part in {*forms, *run}:
            value = _value(forms.get(part, sympy.Integer(0)), letters, point)
            if value != run.get(part, 0):
                numbers = ", ".join(f"{x} = {n}" for x, n in zip(letters, point, strict=True))
                raise NotTraced(
                    f"no polynomial in {_list(letters)}: {part} at {numbers} is "
                    f"{run.get(part, 0)}, where {value} would follow"
                )
    return {part: form for part, form in forms.items() if form != 0}


def by_steps(
    at: Callable[[tuple[int, ...]], dict[str, int]],
    asked: dict[sympy.Symbol, int],
    steps: tuple[int, ...],
) -> tuple[dict[str, sympy.Expr], int]:
    """Interpolate the form through lengths side by side;
    else through some that are whole chunks apart.
    """
    first: NotTraced | None = None
    for step in steps:
        try:
            return interpolated(at, asked, step), step
        except NotTraced as error:
            first = first or error
    assert first is not None
    raise first


def as_here(letter: sympy.Symbol, number: int, step: int) -> sympy.Basic:
    """State that a length leaves the same of a chunk as the asked one."""
    if number % step == 0:
        return divides(sympy.Integer(step), letter)
    return sympy.Eq(sympy.Mod(letter, step), number % step, evaluate=False)


def _powers(lengths: int) -> list[tuple[int, ...]]:
    return (
        [(i,) for i in range(3)] if lengths == 1 else [(i, j) for i in range(3) for j in range(3)]
    )


def _value(expr: sympy.Expr, letters: list[sympy.Symbol], point: tuple[int, ...]) -> sympy.Expr:
    return sympy.sympify(expr).xreplace(dict(zip(letters, map(sympy.Integer, point), strict=True)))


def _list(letters: list[sympy.Symbol]) -> str:
    names = [str(letter) for letter in letters]
    return ", ".join(names[:-1]) + " and " + names[-1]
