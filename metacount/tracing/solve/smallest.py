"""From which number on a traced form holds, letter by letter: 1, 2 or `SMALLEST`.

What code asked of its sizes and is true of all sizes from `SMALLEST` on is left out of a domain.
Here it is asked how far below each size may go until one of these answers would be another.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import sympy
from sympy.polys.rings import PolyElement, PolyRing

from metacount.tracing.run.sizes import SMALLEST

# Letters that are most often small go down first: of B·S ≥ 2 one may be 1, not both.
FIRST = (
    "B",
    "top_k",
    "num_experts_per_tok",
    "n_shared_experts",
    "n_kv_heads",
    "num_key_value_heads",
)

COUNT = "count"  # of chunks: 1 or more wherever there are tokens


def smallest(
    relations: Iterable[sympy.Rel], quotients: dict[sympy.Expr, sympy.Expr]
) -> dict[sympy.Symbol, int]:
    """Find the least number of each letter for which `relations`,
    true from `SMALLEST` on, stay true.

    `quotients` has x -> y·q where y divides x; q is a letter, too. A letter without a relation is
    left out: nothing was asked of it.

    >>> B, S = sympy.symbols("B S", integer=True, positive=True)
    >>> smallest([sympy.Ne(B, 1, evaluate=False), sympy.Gt(B * S, 3)], {})
    {B: 2, S: 2}
    """
    pairs = tuple(quotients.items())
    asked = [a for one in dict.fromkeys(relations) if (a := _asked(one, pairs)).letters]
    letters = {s for one in asked for s in one.letters}
    ordered = sorted(letters, key=lambda s: (s.name not in FIRST, str(s)))
    found = {letter: 1 if letter.name == COUNT else SMALLEST for letter in ordered}
    hard = [one for one in asked if not one.holds(dict.fromkeys(letters, 1))]
    for letter in ordered:
        about = [one for one in hard if letter in one.letters]
        for number in range(1, found[letter]):
            if all(one.holds({**found, letter: number}) for one in about):
                found[letter] = number
                break
    return found


@lru_cache(maxsize=4096)
def _asked(relation: sympy.Rel, pairs: tuple[tuple[sympy.Expr, sympy.Expr], ...]) -> _Asked:
    return _Asked.of(relation, dict(pairs))


class _Asked:
    """One relation: expressions of which one must be positive where it is to hold."""

    def __init__(self, positive: list[sympy.Expr]) -> None:
        self._known: dict[tuple[int, ...], bool] = {}
        self.letters = sorted(set().union(*(e.free_symbols for e in positive)), key=str)
        self._positive = [for_arithmetic(expr, self.letters) for expr in positive]

    @classmethod
    def of(cls, relation: sympy.Rel, quotients: dict[sympy.Expr, sympy.Expr]) -> _Asked:
        """Read a relation between whole numbers, all of them at least 1."""
        if isinstance(relation, sympy.Eq):
            return cls([])  # of expressions that are the same
        counts = {
            n: sympy.Dummy(COUNT, integer=True, positive=True)
            for n in relation.atoms(sympy.ceiling)
        }
        difference = sympy.together((relation.lhs - relation.rhs).xreplace(counts).subs(quotients))
        above, below = difference.as_numer_denom()
        more = sympy.expand(above * below)
        if isinstance(relation, sympy.Ge):
            return cls([more + 1])
        if isinstance(relation, sympy.Le):
            return cls([1 - more])
        if isinstance(relation, sympy.Ne):
            return cls([more, -more])
        return cls([more if isinstance(relation, sympy.Gt) else -more])

    def holds(self, least: dict[sympy.Symbol, int]) -> bool:
        """Tell whether the relation can be shown wherever no letter is below its least number: by
        the signs of coefficients in what a letter has above that.
        """
        key = tuple(least[s] for s in self.letters)
        if key not in self._known:
            at = {s: least[s] for s in self.letters}
            self._known[key] = any(sign_above(one, at) == 2 for one in self._positive)
        return self._known[key]


def for_arithmetic(expr: sympy.Expr, letters: list[sympy.Symbol]) -> PolyElement | sympy.Expr:
    """Convert a polynomial to a form that is quicker to expand;
    another expression stays as it is.
    """
    try:
        return PolyRing(letters, sympy.QQ).from_expr(expr) if letters else expr
    except ValueError:
        return expr


def sign_above(expr: PolyElement | sympy.Expr, least: dict[sympy.Symbol, int]) -> int:
    """Return 2 if positive wherever no letter is below its least number,
    1 if not negative, 0 if not shown.

    By the signs of coefficients in what a letter has above that.
    """
    if isinstance(expr, PolyElement):
        above = expr.compose(
            [(s, s + n) for s, n in zip(expr.ring.gens, least.values(), strict=True)]
        )
        constant = above.const()
    else:  # floor(1/(s + 2)) is 0
        try:
            above = sympy.Poly(expr.xreplace({s: s + n for s, n in least.items()}), *least)
        except sympy.PolynomialError:
            return 0
        constant = above.TC()
    if any(c < 0 for c in above.coeffs()):
        return 0
    return 2 if constant > 0 else 1
