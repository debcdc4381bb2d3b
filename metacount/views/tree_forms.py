"""The formulas of a tree's rows in letters, from the textbook, and the legend of the letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount import units
from metacount.algebra.writing import in_letters
from metacount.frozen import frozen
from metacount.spec import legend
from metacount.textbook.closed_form import LAYERS, layers_of, named_layers, readable
from metacount.textbook.rows import Rows

if TYPE_CHECKING:
    from metacount.spec import ModelSpec


@frozen
class Form:
    """One formula as text, as LaTeX, and what it comes to."""

    text: str
    latex: str
    value: int


class Forms:
    """The formulas of one model's rows."""

    def __init__(self, spec: ModelSpec) -> None:
        self._rows = Rows(spec, symbols=True)
        self._numbers = {**self._rows.numbers, **layers_of(spec)}
        n_layers = legend.sympy_symbols(["n_layers"])["n_layers"]
        self._layers = named_layers(spec, n_layers)
        self._made: dict[tuple[tuple[int, str], ...], Form] = {}
        self._used: set[str] = set()

    def of(self, forms: tuple[tuple[int, str], ...]) -> Form:
        """Sum the formulas of some paths, each so many times."""
        if forms not in self._made:
            self._made[forms] = self._form(forms)
        return self._made[forms]

    def _form(self, forms: tuple[tuple[int, str], ...]) -> Form:
        import sympy

        found = sympy.sympify(sum(times * self._rows.form(path) for times, path in forms))
        expr = readable(found.subs(self._layers))
        numbers = self._numbers
        self._used |= {letter.name for letter in expr.free_symbols}
        value = expr.subs({letter: numbers[letter.name] for letter in expr.free_symbols})
        return Form(text=in_letters(expr), latex=sympy.latex(expr), value=int(value))

    def legend(self) -> list[tuple[str, str, str, str]]:
        """List letter, name, number and meaning of every size that was used so far."""
        return [
            (t.letter, t.name, units.exact(self._numbers[t.letter]), t.meaning)
            for t in (*legend.MODEL_TERMS, *LAYERS)
            if t.letter in self._used
        ]
