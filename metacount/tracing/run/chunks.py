"""Numbers of chunks, ⌈S/c⌉, in what is asked of sizes: code that pads to whole chunks asks so."""

from __future__ import annotations

from collections.abc import Iterable

import sympy


def known_counts(domain: Iterable[sympy.Basic]) -> dict[sympy.Expr, sympy.Expr]:
    """Find numbers for ⌈S/c⌉: 1 where a domain says S ≤ c, n where it says ⌈S/c⌉ = n."""
    found = {}
    for relation in domain:
        if not isinstance(relation, sympy.Rel):
            continue
        left, right = relation.args
        if isinstance(relation, sympy.Eq) and isinstance(left, sympy.ceiling) and right.is_Integer:
            found[left] = right
        size = right.is_Symbol or right.is_Integer
        if isinstance(relation, sympy.Le | sympy.Lt) and left.is_Symbol and size:
            found[sympy.ceiling(left / right)] = sympy.Integer(1)
    return found


def in_one_chunk(relation: sympy.Rel) -> sympy.Rel:
    """Write ⌈S/c⌉ = 1 as S ≤ c."""
    if isinstance(relation, sympy.Eq) and isinstance(relation.lhs, sympy.ceiling):
        above, below = relation.lhs.args[0].as_numer_denom()
        if relation.rhs == 1:
            return sympy.Le(above, below, evaluate=False)
    return relation


def always(relation: sympy.Basic) -> bool:
    """Tell whether a relation only says that x, rounded up, is not below x: S ≤ c·⌈S/c⌉."""
    if not isinstance(relation, sympy.Le | sympy.Ge):
        return False
    more = sympy.Dummy("more", nonnegative=True)
    difference = sympy.expand(
        (relation.gts - relation.lts).replace(sympy.ceiling, lambda x: x + more)
    )
    return bool(difference.is_nonnegative)
