"""What the model has: one quantity in letters, and with ints at any sizes of its structure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from metacount.check.given.vocabulary import LETTERS, NAMES
from metacount.spec import ModelSpec, Workload
from metacount.textbook.closed_form import COUNTS, closed_form, named_layers, readable
from metacount.textbook.count import run_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping


def count_of(spec: ModelSpec, workload: Workload, quantity: str) -> int:
    """Count the quantity with ints."""
    return int(sum(COUNTS[quantity](spec, run_sizes(spec, workload)).values()))


class Truth:
    """One quantity of one model in letters, its kinds of layers written out in N."""

    def __init__(self, spec: ModelSpec, workload: Workload, quantity: str) -> None:
        self.spec, self.workload, self.quantity = spec, workload, quantity
        form = closed_form(spec, workload, quantity)
        self.value = form.total
        self.folded = {
            floors: letter
            for floors, letter in named_layers(spec, LETTERS["n_layers"]).items()
            if letter.name in form.numbers
        }
        unfolded = {letter: floors for floors, letter in self.folded.items()}
        self.parts = {part: expr.xreplace(unfolded) for part, expr in form.parts.items()}
        self.expr = sympy.Add(*self.parts.values())

    def shown(self, expr: sympy.Expr) -> sympy.Expr:
        """Shorten `expr` as far as it goes, with a letter for the number of layers of a kind."""
        for floors, letter in self.folded.items():
            first, *others = sympy.Add.make_args(floors)
            folded = sympy.expand(expr.xreplace({first: letter - sympy.Add(*others)}))
            if not folded.has(*floors.atoms(sympy.floor)):
                expr = folded
        return readable(expr)

    def names(self, letters: set[sympy.Expr]) -> tuple[str, ...]:
        """Name some letters and those of the count, in the legend's order."""
        used = {letter.name for letter in letters | self.expr.free_symbols}
        return tuple(name for letter, name in NAMES.items() if letter in used)

    def rules(self) -> Mapping[sympy.Expr, sympy.Expr]:
        """Return what the spec's rules say of sizes,
        as a product in a letter's place: h = h_kv·g.
        """
        found = {}
        groups = [("n_heads", "n_kv_heads"), ("n_experts", "n_groups")]
        for whole, part in groups:
            if getattr(self.spec, whole) and getattr(self.spec, part):
                found[LETTERS[whole]] = LETTERS[part] * _positive(f"{whole} / {part}")
        for name, n in self._multiples():
            found[LETTERS[name]] = n * _positive(f"{name} / {n}")
        return found

    def _multiples(self) -> list[tuple[str, int]]:
        spec = self.spec
        if spec.attention == "mla":
            return [("qk_rope_head_dim", 2)]
        found = []
        if spec.position == "rope":
            found.append(("head_dim" if spec.rotary_dim is None else "rotary_dim", 2))
        return found


def _positive(name: str) -> sympy.Expr:
    return sympy.Dummy(name, integer=True, positive=True)
