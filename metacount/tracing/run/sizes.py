"""Sizes that are symbols while somebody's code runs, and what that code asked of them.

torch's `SymInt` carries an expression through Python and through shapes. Where code asks a question
that a symbol cannot answer (a comparison, a division), the answer is that of the number behind the
symbol, its hint; what was asked becomes part of the domain in which the resulting form holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sympy
import torch

from metacount.measure.torch_private import symbolic_shapes, symbolic_size, symbols_in_products
from metacount.tracing.run.patches import symbols_as_numbers

SMALLEST = 3  # torch's code asks of every size, and of S - 1, whether it is 0 or 1


class NotTraced(RuntimeError):
    """What the code does with a size has no closed form here; the message says what it is."""


class NeedsLength(NotTraced):
    """The code goes through the tokens one by one, or in so many pieces."""


class WrongHint(NotTraced):
    """Another number behind S may do where this one did not."""


def symbol(name: str) -> sympy.Symbol:
    """Make the SymPy symbol of one size: a positive whole number."""
    return sympy.Symbol(name, integer=True, positive=True)


class Sizes:
    """The symbolic sizes of one build, by name, and the numbers they stand for."""

    def __init__(self) -> None:
        self.env, self.mode = symbolic_shapes()
        self.hints: dict[sympy.Symbol, int] = {}
        self._letters: dict[sympy.Symbol, sympy.Symbol] = {}
        self._plain: dict[sympy.Basic, sympy.Basic] = {}
        self.conditions: dict[sympy.Basic, None] = {}
        self.stay_numbers: frozenset[str] = frozenset()  # names that get no symbol

    def new(self, name: str, hint: int) -> int | torch.SymInt:
        """Make a size of that name that is `hint` wherever code must know a number."""
        if name in self.stay_numbers:
            return hint
        raw, made = symbolic_size(self.env, name, hint)
        letter = symbol(name)
        self._letters[raw] = letter
        self.hints[letter] = hint
        return made

    def of_run(self, seq_len: int) -> None:
        """Take the number behind S of an earlier run again: what that run asked is true there."""
        if self.hints.get(symbol("S"), seq_len) != seq_len:
            self.hints[symbol("S")] = seq_len
            self._plain.clear()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Give tensors symbolic sizes and no data in the block;
        a symbol passes for a whole number.
        """
        with symbols_as_numbers(), self.mode, symbols_in_products():
            yield

    def expr(self, size: int | torch.SymInt) -> sympy.Expr:
        """Write a size as a SymPy expression in the names of sizes.

        Floors of quotients that are exact at the hints become quotients, under a condition.
        """
        if not isinstance(size, torch.SymInt):
            return sympy.Integer(size)
        return sympy.expand(self.plain(self.env.replace(size.node.expr)))

    @property
    def constants(self) -> dict[sympy.Symbol, int]:
        """Sizes that the code turned into numbers."""
        found = {}
        for raw, letter in self._letters.items():
            now = self.env.replace(raw)
            if now.is_Integer:
                found[letter] = int(now)
        return found

    @property
    def equalities(self) -> list[sympy.Rel]:
        """Sizes that the code made equal to others: each as a relation."""
        found = []
        for raw, letter in self._letters.items():
            now = self.env.replace(raw)
            if now != raw and not now.is_Integer:
                found.append(sympy.Eq(letter, self.plain(now), evaluate=False))
        return found

    def value(self, expr: sympy.Basic) -> sympy.Basic:
        """Evaluate an expression at the hints, exactly."""
        return expr.xreplace({s: sympy.Integer(self.hints[s]) for s in expr.free_symbols})

    def holds(self, relation: sympy.Rel) -> bool:
        """Tell whether a relation of plain expressions is true at the hints."""
        return bool(self.value(relation))

    def plain(self, raw: sympy.Basic) -> sympy.Basic:
        """Write torch's expression in SymPy's own words,
        under `conditions` where it was cut short.
        """
        if raw not in self._plain:
            self._plain[raw] = self._made_plain(raw)
        return self._plain[raw]

    def unread(self, raw: sympy.Basic) -> unread:
        """Write what was asked, in torch's words with our names,
        where SymPy has no words for it.
        """
        named = raw.xreplace(self._letters)
        letters = sorted(named.free_symbols & set(self.hints), key=str)
        return unread(sympy.Symbol(str(named)), *letters)

    def _made_plain(self, raw: sympy.Basic) -> sympy.Basic:
        if raw in self._letters:
            return self._letters[raw]
        if not raw.args:
            if raw.is_Symbol:
                raise NotTraced(f"a number computed from data ({raw}) decides about a size")
            # 0.5 of a head is a half
            return sympy.nsimplify(raw, rational=True) if raw.is_Float else raw
        kind = type(raw).__name__
        args = [self.plain(arg) for arg in raw.args]
        if kind in ("FloorDiv", "CleanDiv"):
            return self._quotient(args)
        if kind in ("ToFloat", "Identity"):
            return args[0]
        if kind in ("IntTrueDiv", "FloatTrueDiv"):
            return args[0] / args[1]
        if kind in ("TruncToInt", "FloorToInt"):
            return self._quotient(list(args[0].as_numer_denom()))
        if kind in ("Mod", "PythonMod"):
            return self._remainder(*args)
        if kind in ("Max", "Min"):
            return self._extreme(kind, args)
        if isinstance(raw, sympy.Not):
            return sympy.to_nnf(sympy.Not(args[0]))
        if isinstance(raw, sympy.Add | sympy.Mul | sympy.Pow | sympy.Rel | sympy.And | sympy.Or):
            return raw.func(*args)
        raise NotTraced(f"{kind} of sizes: {str(raw)[:80]}")

    def _quotient(self, args: list[sympy.Expr]) -> sympy.Expr:
        above, below = args
        whole = sympy.cancel(above / below)
        if whole.is_integer:
            return whole
        if self.value(above) % self.value(below) == 0:
            self.conditions[divides(below, above)] = None
            return whole
        extra, rest = above.as_coeff_Add()
        if below.is_Integer and 0 < extra < below and self.value(rest) % below == 0:
            # (x + 1)//2 of an even x
            self.conditions[divides(below, rest)] = None
            return rest / below
        whole = sympy.cancel(rest / below)
        if whole.is_integer and -SMALLEST <= extra < 0:
            return whole - 1  # (3·x - 1)//x
        return sympy.floor(above / below)

    def _remainder(self, above: sympy.Expr, below: sympy.Expr) -> sympy.Expr:
        whole = sympy.cancel(above / below)
        if whole.is_integer:
            return sympy.Integer(0)
        if self.value(above) % self.value(below) == 0:
            self.conditions[divides(below, above)] = None
            return sympy.Integer(0)
        if not above.free_symbols:
            return sympy.Mod(above, below)
        whole = sympy.floor(sympy.expand(above / below)).replace(
            lambda e: isinstance(e, sympy.floor) and e.args[0].could_extract_minus_sign(),
            lambda e: -sympy.ceiling(-e.args[0]),
        )
        return sympy.expand(above - below * whole)

    def _extreme(self, kind: str, args: list[sympy.Expr]) -> sympy.Expr:
        best = (max if kind == "Max" else min)(args, key=self.value)
        for other in args:
            if other is not best:
                relation = sympy.Ge(best, other) if kind == "Max" else sympy.Le(best, other)
                self.conditions[relation] = None
        return best


class unread(sympy.Function):
    """A condition in torch's own words: the first argument; the sizes in it follow."""


class divides(sympy.Function):
    """The condition that the first divides the second."""

    nargs = 2
