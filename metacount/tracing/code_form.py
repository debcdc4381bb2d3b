"""A closed form read off code: its parts, the numbers for its letters, where it holds."""

from __future__ import annotations

from collections import defaultdict

import sympy

from metacount.frozen import frozen
from metacount.tracing.run.sizes import WrongHint
from metacount.tracing.solve.layers import Law


@frozen
class CodePart:
    """One role's share in one kind of layer (`layers` of them), or outside of all layers."""

    role: str
    expr: sympy.Expr
    layers: Law | None
    where: str


@frozen
class CodeForm:
    """A closed form read off code.

    `by_role` has roles, or operators where `split` says so; `total` is in the config's fields and
    B, S, S_e (T for decode). `numbers` are the model's own, `value` what the form gives for
    them, which was measured too. `domain` are the conditions that the code put on sizes. `how` is
    "traced", "traced in B and S" or "interpolated in B and S". `confirmed` is at how many other
    sizes the form was measured too; `untried` are sizes that had to stay as they are. `solved_for`
    has sizes that the code makes numbers, with those at which the form was read. `least` has from
    which number on each letter may be (1 where it has none), `ratios` how many times another one.
    """

    quantity: str
    parts: tuple[CodePart, ...]
    by_role: dict[str, sympy.Expr]
    numbers: dict[str, int]
    value: int
    domain: tuple[sympy.Basic, ...]
    how: str
    source: str
    notes: tuple[str, ...]
    every_number: dict[sympy.Symbol, int]  # of letters that the form does not need, too
    split: str = "role"
    confirmed: int = 0
    untried: tuple[str, ...] = ()
    solved_for: tuple[tuple[str, tuple[int, ...]], ...] = ()
    least: tuple[tuple[sympy.Symbol, int], ...] = ()
    ratios: tuple[sympy.Basic, ...] = ()

    @property
    def solved(self) -> tuple[str, ...]:
        """Of each letter of `solved_for`, in words."""
        return tuple(
            f"{letter} read at {', '.join(map(str, at[:-1]))} and {at[-1]}, and solved for"
            for letter, at in self.solved_for
        )

    @property
    def total(self) -> sympy.Expr:
        """The sum of the roles."""
        return sympy.expand(sum(self.by_role.values(), sympy.Integer(0)))


class FormDiffers(WrongHint):
    """A form whose value somewhere is not what was measured there."""


def summed(parts: tuple[CodePart, ...]) -> dict[str, sympy.Expr]:
    """Sum the parts of each role, each as often as there are such layers."""
    found: dict[str, sympy.Expr] = defaultdict(lambda: sympy.Integer(0))
    for part in parts:
        found[part.role] += part.expr * (1 if part.layers is None else part.layers.expr)
    return {role: sympy.expand(expr) for role, expr in found.items() if expr != 0}


def without_law(part: CodePart) -> CodePart:
    """Return the same part with its layers counted in numbers."""
    if part.layers is None:
        return part
    count = part.layers.count
    plain = Law(expr=sympy.Integer(count), count=count, confirmed=0)
    return CodePart(role=part.role, expr=part.expr, layers=plain, where=part.where)


def agrees(
    by_role: dict[str, sympy.Expr],
    numbers: dict[sympy.Symbol, int],
    measured: dict[str, sympy.Expr],
    split: str,
) -> bool:
    """Tell whether a form gives what was measured, role by role.

    By operator only the sum can be compared: with symbols other operators may do the same work.
    """
    found = {
        role: expr.xreplace({s: sympy.Integer(numbers[s]) for s in expr.free_symbols}).doit()
        for role, expr in by_role.items()
    }
    if split == "operator":
        return bool(sum(found.values()) == sum(measured.values()))
    roles = {*found, *measured}
    return all(found.get(role, 0) == measured.get(role, 0) for role in roles)
