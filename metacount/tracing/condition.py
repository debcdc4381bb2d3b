"""Conditions of a domain: whether numbers fulfil them, and how a person says one."""

from __future__ import annotations

import sympy

from metacount.tracing.run.sizes import divides, unread

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable


def in_domain(
    asked: tuple[sympy.Basic, ...], numbers: dict[sympy.Symbol, int], own: dict[sympy.Symbol, int]
) -> bool:
    """Tell whether numbers for letters fulfil conditions;
    `own` are those that the form was read at.

    What was not read in SymPy's words is taken to hold for the very same numbers alone.
    """
    for condition in asked:
        letters = condition.free_symbols
        if isinstance(condition, unread):
            if any(numbers[s] != own[s] for s in letters if s in own):
                return False
            continue
        at = {s: sympy.Integer(numbers[s]) for s in letters}
        if isinstance(condition, divides):
            below, above = (arg.xreplace(at).doit() for arg in condition.args)
            if not (above / below).is_integer:
                return False
            continue
        left, right = (side.xreplace(at).doit() for side in (condition.lhs, condition.rhs))
        if not condition.func(left, right):
            return False
    return True


def in_words(condition: sympy.Basic, write: Callable[[sympy.Expr], str]) -> str:
    """Write one condition as a person says it; `write` prints an expression."""
    if isinstance(condition, divides):
        below, above = condition.args
        if below == 2 and above.is_Symbol:
            return f"{write(above)} is even"
        return f"{write(below)} divides {write(above)}"
    if isinstance(condition, unread):
        return str(condition.args[0])
    signs = {"==": "=", "!=": "≠", ">=": "≥", "<=": "≤", ">": ">", "<": "<"}
    return f"{write(condition.lhs)} {signs[condition.rel_op]} {write(condition.rhs)}"
