"""The numbers that were written in a formula, read as the sizes that they stand for."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.bounded import parse
from metacount.algebra.exact import value_at
from metacount.algebra.monomials import Table, substituted
from metacount.algebra.text import TOKEN
from metacount.check.condition import named
from metacount.check.explain.readings import unlike
from metacount.check.given.vocabulary import LETTERS
from metacount.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from metacount.algebra.monomials import Space

MOST_LITERALS = 40
MOST_SUMMANDS = 200
MOST_APART = 8  # numbers of one product, of which no two are one size
SMALLEST_LITERAL = 3  # 1 and 2 are factors
LARGE = 30  # seldom a factor
PREFIX = "number_"

# A formula with sizes for its numbers: its table, its summands, what was read, numbers left.
Numerals = tuple[Table, tuple[Table, ...], tuple[str, ...], frozenset[int]]


def whole_quotients(
    expr: sympy.Expr, numbers: Mapping[sympy.Expr, int]
) -> tuple[sympy.Expr, list[str]]:
    """Drop the floors and ceilings of `expr`
    that change nothing at these sizes; say what is whole.
    """
    said, same = [], {}
    for call in sorted(expr.atoms(sympy.floor, sympy.ceiling), key=str):
        inside = call.args[0]
        if not inside.has(sympy.floor, sympy.ceiling) and len(inside.free_symbols) > 0:
            _, below = inside.as_numer_denom()
            if value_at(inside, numbers).denominator == 1 and not below.is_Add:
                same[call] = inside
                said.append(f"{named(inside)} is whole")
    return expr.xreplace(same), said


def summands(expr: sympy.Expr) -> list[sympy.Expr]:
    """List the summands of a formula as they were written: sums of parts are taken apart, sizes
    such as (N - 1) or (h + h_kv) are not.

    >>> N, d, m, h = sympy.symbols("N d m h")
    >>> summands(N * (2 * d * m + d * (h - 1)) + d)
    [d, 2*N*d*m, N*d*(h - 1)]
    """
    found: list[sympy.Expr] = []
    waiting = [expr]
    while waiting and len(found) < MOST_SUMMANDS:
        one = waiting.pop()
        if one.is_Add:
            waiting += one.args
            continue
        sums = [
            arg
            for arg in sympy.Mul.make_args(one)
            if arg.is_Add and any(term.as_coeff_Mul()[1].is_Mul for term in arg.args)
        ]
        if sums:
            rest = one / sums[0]
            waiting += [rest * arg for arg in sums[0].args]
        else:
            found.append(one)
    return sorted(found, key=lambda one: len(str(one)))


class Literals:
    """The numbers in a formula's text, each with the sizes of the model that it may stand for."""

    def __init__(
        self,
        text: str,
        meanings: Callable[[tuple[str, ...]], Mapping[str, sympy.Expr]],
        numbers: Mapping[sympy.Expr, int],
    ) -> None:
        self.numbers = numbers
        self.values: dict[sympy.Expr, int] = {}
        marked = self._marked(text)
        self.expr: sympy.Expr | None = None
        if len(self.values) > MOST_LITERALS:
            return
        marks = {letter.name: letter for letter in self.values}

        def meaning(names: tuple[str, ...]) -> dict[str, sympy.Expr]:
            known = meanings(tuple(name for name in names if name not in marks))
            return {**known, **{name: marks[name] for name in names if name in marks}}

        try:
            self.expr, _ = parse(marked, meaning)
        except InputError:
            return
        self.expr, _ = whole_quotients(self.expr, {**numbers, **self.values})
        # a call is one letter of the tables: no size can be put in a number's place within it
        calls = self.expr.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max)
        self.expr = self.expr.xreplace({call: call.xreplace(self.values) for call in calls})

    def _marked(self, text: str) -> str:
        found, at, before = [], 0, ""
        while at < len(text) and (token := TOKEN.match(text, at)) is not None:
            kind = str(token.lastgroup)
            word, at = token[kind], token.end()
            if kind == "number" and word.isdigit() and before not in ("**", "^", "/", "//"):
                value = int(word)
                if value >= SMALLEST_LITERAL:
                    word = f"{PREFIX}{len(self.values)}"
                    letter = sympy.Symbol(word, integer=True, positive=True)
                    self.values[letter] = value
            found.append(word)
            before = word
        return " ".join(found)

    def meant(self, value: int) -> list[sympy.Expr]:
        """List the sizes that a number may stand for."""
        found: list[sympy.Expr] = [letter for letter, n in self.numbers.items() if n == value]
        layers, dense = LETTERS["n_layers"], LETTERS["n_dense_layers"]
        if dense in self.numbers and self.numbers[layers] - self.numbers[dense] == value:
            found.append(layers - dense)
        return found

    def read(self, ours: Table, space: Space) -> Iterator[Numerals]:
        """Yield their table and summands with sizes in place of numbers:
        of none, of large ones, of all.
        """
        marked = space.table(self.expr)
        parts = [space.table(one) for one in summands(self.expr)]
        meant = {
            letter: [size for size in self.meant(value) if size.free_symbols <= space.place.keys()]
            for letter, value in self.values.items()
        }
        seen = set()
        for least in (None, LARGE, SMALLEST_LITERAL):
            options = {
                letter: [] if least is None or value < least else meant[letter]
                for letter, value in self.values.items()
            }
            chosen = {
                letter: sizes[0] if sizes else sympy.Integer(self.values[letter])
                for letter, sizes in options.items()
            }
            if (key := tuple(chosen.values())) in seen:
                continue
            seen.add(key)
            yield from self._reading(marked, parts, chosen, space)
            taken: list[sympy.Expr] = []  # 128·128 is rather two sizes of 128 than one squared
            for sizes in options.values():
                free = [size for size in sizes if size not in taken] or sizes
                taken += free[:1]
            if len(taken) < MOST_APART and len({*taken}) > len({*chosen.values()} & {*taken}):
                apart = iter(taken)
                other = {a: next(apart) if options[a] else n for a, n in chosen.items()}
                yield from self._reading(marked, parts, other, space)
            several = [letter for letter, sizes in options.items() if len(sizes) > 1]
            for size in options[several[0]][1:] if len(several) == 1 else ():
                other = {**chosen, several[0]: size}
                yield from self._reading(marked, parts, other, space)
            best, first = self._unlike(marked, chosen, ours, space), chosen
            for letter, sizes in [*options.items()] * 2 if least is not None else ():
                for size in (sympy.Integer(self.values[letter]), *sizes) if sizes else ():
                    if size != chosen[letter]:
                        other = {**chosen, letter: size}
                        score = self._unlike(marked, other, ours, space)
                        if score < best:
                            best, chosen = score, other
            if chosen is not first:
                yield from self._reading(marked, parts, chosen, space)

    def _reading(
        self,
        marked: Table,
        parts: list[Table],
        chosen: Mapping[sympy.Expr, sympy.Expr],
        space: Space,
    ) -> Iterator[Numerals]:
        table = self._with(marked, chosen, space)
        tables = [self._with(part, chosen, space) for part in parts]
        if table is not None:
            said = {
                f"{named(size)} = {value_at(size, self.numbers)}": None
                for size in chosen.values()
                if size.free_symbols
            }
            left = {int(n) for n in chosen.values() if n.is_Integer}
            yield table, tuple(one for one in tables if one), tuple(said), frozenset(left)

    def _unlike(
        self, marked: Table, chosen: Mapping[sympy.Expr, sympy.Expr], ours: Table, space: Space
    ) -> tuple[int, int]:
        table = self._with(marked, chosen, space)
        if table is None:
            return len(marked) + 1, 0
        numerals = sum(not size.free_symbols for size in chosen.values())
        _, far, differing = unlike(table, ours)
        return far + differing, numerals

    def _with(
        self, marked: Table, chosen: Mapping[sympy.Expr, sympy.Expr], space: Space
    ) -> Table | None:
        found: Table | None = marked
        for letter, size in chosen.items():
            by = {space.one: Fraction(int(size))} if size.is_Integer else space.table(size)
            found = None if found is None else substituted(found, space.place[letter], by)
        return found
