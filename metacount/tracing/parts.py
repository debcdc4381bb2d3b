"""Amounts by role and layer, as a form shows them: layers with equal expressions together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import sympy

from metacount.tracing.code_form import CodePart
from metacount.tracing.run.count import Amounts
from metacount.tracing.solve.layers import Law, Layout, Place, Stack


def parts_of(amounts: Amounts, law: Callable[[Stack, frozenset[int]], Law]) -> Iterator[CodePart]:
    """Yield what is outside of layers,
    then each kind of layer with the law of how many there are.
    """
    outside: dict[str, sympy.Expr] = {}
    layers: dict[Stack, dict[int, dict[str, sympy.Expr]]] = defaultdict(lambda: defaultdict(dict))
    for (role, place), expr in amounts.items():
        if place is None:
            outside[role] = sympy.expand(outside.get(role, 0) + expr)
        else:
            now = layers[place.stack][place.index]
            now[role] = sympy.expand(now.get(role, 0) + expr)
    for role, expr in outside.items():
        if expr != 0:
            yield CodePart(role=role, expr=expr, layers=None, where="")
    for stack, found in layers.items():
        kinds: dict[tuple[tuple[str, sympy.Expr], ...], set[int]] = defaultdict(set)
        for index, exprs in found.items():
            kinds[tuple(sorted((r, e) for r, e in exprs.items() if e != 0))].add(index)
        for kind, indices in kinds.items():
            if not kind:
                continue
            number = law(stack, frozenset(indices))
            for role, expr in kind:
                yield CodePart(
                    role=role, expr=expr, layers=number, where=f"{stack.path}[{_ranges(indices)}]"
                )


def levelled(amounts: Amounts, layout: Layout) -> Amounts:
    """Move what single layers have beside others that are made alike to outside of layers.

    The first that reads a table which all of them share is the one that keeps it.
    """
    found: dict[tuple[str, Place | None], sympy.Expr] = defaultdict(lambda: sympy.Integer(0))
    alike: dict[tuple[str, Stack, object], list[Place]] = {}
    for role, place in amounts:
        layers = layout.get(place.stack.path, ()) if place else ()
        if place is None or len(layers) != place.stack.length:
            found[role, place] += amounts[role, place]
            continue
        kind = layers[place.index]
        alike[role, place.stack, kind] = [
            Place(stack=place.stack, index=i) for i, one in enumerate(layers) if one == kind
        ]
    for (role, _, _), group in alike.items():
        exprs = [sympy.expand(amounts.get((role, place), sympy.Integer(0))) for place in group]
        usual = max(exprs[::-1], key=exprs.count)  # of several the last layer's
        found[role, None] += sum(exprs) - len(exprs) * usual
        found |= {(role, place): usual for place in group}
    return dict(found)


def totals(amounts: Amounts) -> dict[str, sympy.Expr]:
    """Sum over layers, by role."""
    found: dict[str, sympy.Expr] = defaultdict(lambda: sympy.Integer(0))
    for (role, _), expr in amounts.items():
        found[role] += expr
    return {role: sympy.expand(expr) for role, expr in found.items()}


def counting(parts: tuple[CodePart, ...]) -> set[str]:
    """Name the fields that say how many layers there are."""
    return {s.name for part in parts if part.layers for s in part.layers.expr.free_symbols}


def moved(parts: tuple[CodePart, ...]) -> set[str]:
    """Name the fields for other values of which every law of layers was seen to hold."""
    laws = [part.layers.moved for part in parts if part.layers]
    return set(frozenset.intersection(*laws)) if laws else set()


def limits(parts: tuple[CodePart, ...]) -> tuple[sympy.Basic, ...]:
    """State that no kind has fewer than 0 layers: a ≥ b where there are a - b of them."""
    found: dict[sympy.Basic, None] = {}
    for law in {part.layers for part in parts if part.layers}:
        pair = sorted(law.expr.as_coefficients_dict().items(), key=lambda term: term[1])
        if [c for _, c in pair] == [-1, 1] and all(x.is_Symbol for x, _ in pair):
            found[sympy.Ge(pair[1][0], pair[0][0])] = None
    return tuple(found)


def _ranges(indices: set[int]) -> str:
    """Write indices as ranges, ends included.

    >>> _ranges({0, 1, 2, 5})
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for i in sorted(indices):
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
