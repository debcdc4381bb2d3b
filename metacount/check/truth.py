"""What the model has: one quantity in letters, and with ints at any sizes of its structure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy

from metacount.check.given.vocabulary import LETTERS, NAMES, WINDOWED_LETTER
from metacount.formulas import attention
from metacount.spec import ModelSpec, Workload
from metacount.textbook.closed_form import QUANTITIES, WINDOWED, closed_form, readable, run_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping


def count_of(spec: ModelSpec, workload: Workload, quantity: str) -> int:
    """The quantity counted with ints."""
    return int(sum(QUANTITIES[quantity](spec, run_sizes(spec, workload)).values()))


class Truth:
    """One quantity of one model in letters, its windowed layers written out in N."""

    def __init__(self, spec: ModelSpec, workload: Workload, quantity: str) -> None:
        self.spec, self.workload, self.quantity = spec, workload, quantity
        form = closed_form(spec, workload, quantity)
        self.value = form.total
        self.folded: dict[Any, Any] = {}
        if WINDOWED.letter in form.numbers:
            floors = attention.windowed_layers(LETTERS["n_layers"], spec.last_stack.seen)
            self.folded = {floors: WINDOWED_LETTER}
        unfolded = {letter: floors for floors, letter in self.folded.items()}
        self.parts = {part: expr.xreplace(unfolded) for part, expr in form.parts.items()}
        self.expr = sympy.Add(*self.parts.values())

    def shown(self, expr: Any) -> Any:
        """`expr` as short as it goes, with a letter for the number of windowed layers."""
        for floors, letter in self.folded.items():
            first, *others = sympy.Add.make_args(floors)
            folded = sympy.expand(expr.xreplace({first: letter - sympy.Add(*others)}))
            if not folded.has(*floors.atoms(sympy.floor)):
                expr = folded
        return readable(expr)

    def names(self, letters: set[Any]) -> tuple[str, ...]:
        """The names of some letters and of those of the count, in the legend's order."""
        used = {letter.name for letter in letters | self.expr.free_symbols}
        return tuple(name for letter, name in NAMES.items() if letter in used)

    def rules(self) -> Mapping[Any, Any]:
        """What the spec's rules say of sizes, as a product in a letter's place: h = h_kv·g."""
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


def _positive(name: str) -> Any:
    return sympy.Dummy(name, integer=True, positive=True)
