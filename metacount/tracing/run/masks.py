"""Pairs that a mask keeps, as an expression in its sizes: from masks that are laid out and counted.

Masks of numbers on the same side of the window as the hints are laid out; a polynomial of degree 2
is solved for exactly, and masks that were not used must confirm it.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

import sympy
import torch

from metacount.measure.torch_private import unwatched
from metacount.modules.attention import Visibility
from metacount.tracing.run.sizes import NotTraced, Sizes, WrongHint, divides

SIZES = ("n_queries", "n_keys", "window", "prefix_len")
LARGEST = 25  # rows of a mask that is laid out, and twice the numbers that stand for a size
LARGEST_NUMBER = 512  # of those: masks grow with their square
POINTS = 80
DRAWS = 4000
HELD_OUT = 6  # at the least; as many as there are points


def kept_pairs(sees: Visibility, sizes: Sizes) -> sympy.Expr:
    """Count the pairs that the mask keeps, in the letters of its sizes. Raises `NotTraced`.

    On which side of the window the lengths are, that a window halves evenly, that chunks fit in:
    what the polynomial needs of that becomes a condition. Both axes must begin at 0.
    """
    if any(sizes.value(sizes.expr(start)) != 0 for start in (sees.query_start, sees.key_start)):
        raise NotTraced("the mask begins in the middle of a sequence")
    exprs = {
        name: sizes.expr(getattr(sees, name)) for name in SIZES if getattr(sees, name) is not None
    }
    letters = sorted(set().union(*(e.free_symbols for e in exprs.values())), key=str)
    largest = LARGEST + 2 * max((int(e) for e in exprs.values() if e.is_Integer), default=0)
    if largest > LARGEST + 2 * LARGEST_NUMBER:
        raise NotTraced(f"masks for a size of {(largest - LARGEST) // 2} are too large to lay out")
    if sees.kind == "bidirectional" and "window" in exprs:
        _must_be_even(exprs["window"], sizes)
    marks = _marks(sees.kind, exprs)
    chunked = sees.chunked and "window" in exprs
    whole = (exprs["n_keys"] / exprs["window"]) if chunked else sympy.Integer(1)
    for kept_marks, fits in ([], False), (marks, False), (marks, True):
        if fits and not sizes.value(whole).is_integer:
            continue
        order = _order([sizes.value(mark) for mark in kept_marks])
        every = (
            p
            for p in _points(letters, exprs, kept_marks, order, largest)
            if not fits or _at(whole, letters, p).is_integer
        )
        form = _solved(sees, exprs, letters, list(itertools.islice(every, POINTS)))
        if form is None:
            continue
        for longer, shorter in itertools.permutations(kept_marks, 2):
            if sizes.holds(sympy.Ge(longer, shorter)) and (longer - shorter).free_symbols:
                sizes.conditions[sympy.Ge(longer, shorter)] = None
        if fits:
            sizes.conditions[divides(exprs["window"], exprs["n_keys"])] = None
        return form
    raise WrongHint("the pairs that the mask keeps are no polynomial of its sizes")


def _at(expr: sympy.Expr, letters: list[sympy.Symbol], point: tuple[int, ...]) -> sympy.Expr:
    return expr.xreplace(dict(zip(letters, map(sympy.Integer, point), strict=True)))


def _must_be_even(window: sympy.Expr, sizes: Sizes) -> None:
    if not window.free_symbols:
        return  # a number is rounded once and for all
    if sizes.value(window) % 2:
        raise NotTraced("a window to both sides of an odd width rounds down")
    sizes.conditions[divides(sympy.Integer(2), window)] = None


def _marks(kind: str, exprs: dict[str, sympy.Expr]) -> list[sympy.Expr]:
    """List where the form of the count changes: lengths, how far a window reaches, the prefix."""
    marks = [exprs["n_queries"], exprs["n_keys"]]
    if "window" in exprs:
        window = exprs["window"]
        half = window // 2 if window.is_Integer else window / 2
        marks.append(half + 1 if kind == "bidirectional" else window)
    if exprs["prefix_len"] != 0:
        marks.append(exprs["prefix_len"])
    return list(dict.fromkeys(marks))


def _points(
    letters: list[sympy.Symbol],
    exprs: dict[str, sympy.Expr],
    marks: list[sympy.Expr],
    order: tuple[int, ...],
    largest: int,
) -> Iterator[tuple[int, ...]]:
    """Draw numbers for the letters for which the marks stand in the same order as at the hints."""
    draw = random.Random(str(exprs))
    seen = set()
    for _ in range(DRAWS):
        numbers = tuple(draw.randrange(2, largest) for _ in letters)
        at = dict(zip(letters, map(sympy.Integer, numbers), strict=True))
        values = [mark.xreplace(at) for mark in (*marks, *exprs.values())]
        fits = all(value.is_Integer and value >= 0 for value in values)
        if numbers not in seen and fits and _order(values[: len(marks)]) == order:
            seen.add(numbers)
            yield numbers


def _order(values: list[sympy.Expr]) -> tuple[int, ...]:
    numbers = [int(value) for value in values]
    return tuple((a > b) - (a < b) for a, b in itertools.combinations(numbers, 2))


def _solved(
    sees: Visibility,
    exprs: dict[str, sympy.Expr],
    letters: list[sympy.Symbol],
    points: list[tuple[int, ...]],
) -> sympy.Expr | None:
    """Find the polynomial through some of the points
    that the others confirm; None if there is none.
    """

    def counted(point: tuple[int, ...]) -> int:
        numbers: dict[str, Any] = {n: int(_at(e, letters, point)) for n, e in exprs.items()}
        with unwatched():
            mask = dataclasses.replace(sees, query_start=0, key_start=0, **numbers)
            return int(mask.keep(torch.device("cpu")).sum())

    terms = [
        sympy.Mul(*(x**p for x, p in zip(letters, powers, strict=True)))
        for powers in itertools.product(range(3), repeat=len(letters))
        if sum(powers) <= 2
    ]
    used: list[tuple[int, ...]] = []
    rows: list[list[sympy.Expr]] = []
    for point in points:
        row = [_at(term, letters, point) for term in terms]
        if sympy.Matrix([*rows, row]).rank() > len(rows):
            rows.append(row)
            used.append(point)
        if len(rows) == len(terms):
            break
    held_out = [p for p in points if p not in used]
    if len(rows) < len(terms) or len(held_out) < HELD_OUT:
        return None
    solution = sympy.Matrix(rows).LUsolve(sympy.Matrix([counted(p) for p in used]))
    form = sympy.expand(sum(c * t for c, t in zip(solution, terms, strict=True)))
    return form if all(_at(form, letters, p) == counted(p) for p in held_out) else None
