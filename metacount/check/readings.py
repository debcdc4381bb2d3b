"""What a formula takes for granted: sizes that are equal at this model, numbers that are sizes.

A formula with d² for d·h·h_d, or 32 for N, is read as what it means at this model, so that what is
wrong in it stands alone; what was taken as equal is said.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import Table, less, parse, plain, substituted, value_at
from metacount.algebra.text import TOKEN
from metacount.check.comparison import RUN, named
from metacount.check.names import LETTERS
from metacount.errors import InputError
from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from metacount.algebra.exact import Space

    Meanings = Callable[[tuple[str, ...]], Mapping[str, sympy.Expr]]

MOST_RELATIONS = 10
MOST_LITERALS = 40
SMALLEST_LITERAL = 3  # 1 and 2 are factors
MOST_OTHERS = 3  # readings with another size for one of the numbers
LARGE = 30  # seldom a factor
READ, SMALL = 0.03, 0.3  # costs of a size read into a formula; more where its number is small


@frozen
class Relation:
    """A letter, what it is equal to at the model, and that in words."""

    words: str
    place: int
    by: Table
    free: bool = True  # whether it may be taken where it makes no monomial match yet
    pin: bool = False  # a number
    width: bool = False  # of the feed-forward, as a multiple of d_model
    cost: float = 0.0


@frozen
class Reading:
    """A formula with some sizes taken as one. `numbers`: those in its text that are no size."""

    theirs: Table
    relations: tuple[Relation, ...]
    words: tuple[str, ...]
    numbers: frozenset[int]
    written: Table  # without the relations

    @property
    def cost(self) -> float:
        """How unlikely it is that this was meant."""
        numbers = [word.rpartition(" = ")[2] for word in self.words]
        small = sum(2 < int(number) < LARGE for number in numbers if number.isdigit())
        relations = sum(relation.cost for relation in self.relations)
        return READ * len(self.words) + relations + SMALL * small

    def taken(self, table: Table) -> Table | None:
        """Return a table with the sizes of `relations` taken as one."""
        return _taken(table, self.relations)


def _taken(table: Table | None, relations: tuple[Relation, ...]) -> Table | None:
    for relation in relations:
        table = None if table is None else substituted(table, relation.place, relation.by)
    return table


class Formula:
    """Somebody's formula, the numbers of its text as letters of their own."""

    def __init__(
        self,
        expr: sympy.Expr,
        numbers: Mapping[sympy.Expr, int],
        text: str | None,
        meanings: Meanings | None,
    ) -> None:
        self.sizes, self.values = numbers, dict[sympy.Expr, int]()
        self.has_text = False  # so that its numbers are known
        self.expr, self.quotients = drop_quotients(expr, numbers)
        if text is None or meanings is None:
            return
        marks: dict[str, sympy.Expr] = {}
        marked = self._marked(text, marks)

        def meaning(names: tuple[str, ...]) -> dict[str, sympy.Expr]:
            known = meanings(tuple(name for name in names if name not in marks))
            return {**known, **{name: marks[name] for name in names if name in marks}}

        try:
            if len(marks) <= MOST_LITERALS:
                expr, _ = drop_quotients(parse(marked, meaning)[0], {**numbers, **self.values})
                # a call is one letter of the tables: no size can be put in a number's place in it
                calls = expr.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max)
                self.expr = expr.xreplace({call: call.xreplace(self.values) for call in calls})
                self.has_text = True
                return
        except InputError:
            pass
        self.values = {}

    def _marked(self, text: str, marks: dict[str, sympy.Expr]) -> str:
        words, at, before = [], 0, ""
        while at < len(text) and (token := TOKEN.match(text, at)) is not None:
            kind = str(token.lastgroup)
            word, at = token[kind], token.end()
            number = int(word) if kind == "number" and word.isdigit() else 0
            if number >= SMALLEST_LITERAL and before not in ("**", "^", "/", "//"):
                word = f"number_{len(marks)}"
                marks[word] = sympy.Symbol(word, integer=True, positive=True)
                self.values[marks[word]] = number
            words.append(word)
            before = word
        return " ".join(words)

    def readings(self, ours: Table, space: Space) -> Iterator[Reading]:
        """Yield the formula as it stands, then with sizes for numbers and with equal sizes."""
        known = relations(space, self.sizes, pins=not self.has_text)
        numerals = [*self._numerals(ours, space)]
        # what is most alike first: a cheap explanation ends the search under the others early
        numerals.sort(key=lambda numeral: sum(unlike(numeral[0], ours)[1:]))
        for table, words, numbers in numerals:
            chosen = [*_chosen(table, ours, known)]
            # other numbers of the formula may stand for sizes of the run that it has no letter for
            last = chosen[-1]
            pins = [a for a in last if a.pin and space.letters[a.place] in RUN]
            for n in range(1, len(pins) + 1):
                chosen += [
                    tuple(a for a in last if a not in gone) for gone in combinations(pins, n)
                ]
            for some in chosen:
                if (taken := _taken(table, some)) is not None:
                    yield Reading(
                        theirs=taken,
                        relations=some,
                        words=(*self.quotients, *words, *(relation.words for relation in some)),
                        numbers=numbers,
                        written=table,
                    )

    def _numerals(
        self, ours: Table, space: Space
    ) -> Iterator[tuple[Table, tuple[str, ...], frozenset[int]]]:
        """Yield their table with sizes for none of the numbers, for large ones, for all."""
        marked = space.table(plain(self.expr))
        meant = {
            letter: [a for a in self._meant(n) if a.free_symbols <= space.place.keys()]
            for letter, n in self.values.items()
        }

        def table(chosen: Mapping[sympy.Expr, sympy.Expr]) -> Table | None:
            made: Table | None = marked
            for letter, size in chosen.items():
                made = made and substituted(made, space.place[letter], space.table(size))
            return made

        def score(chosen: Mapping[sympy.Expr, sympy.Expr]) -> tuple[int, int]:
            made = table(chosen)
            if made is None:
                return len(marked) + 1, 0
            _, far, differing = unlike(made, ours)
            return far + differing, sum(not size.free_symbols for size in chosen.values())

        seen = set()
        for least in (LARGE, SMALLEST_LITERAL, None):
            options = {
                letter: [
                    *([] if least is None or n < least else meant[letter]),
                    sympy.Integer(n),
                ]
                for letter, n in self.values.items()
            }
            chosen = {letter: sizes[0] for letter, sizes in options.items()}
            best = score(chosen)
            # a number may stand for another size that is as large
            choices = [chosen]
            choices += [
                {**chosen, letter: size}
                for letter, sizes in options.items()
                for size in sizes[1:-1]
            ][:MOST_OTHERS]
            while True:  # what makes both sides most alike, one number after the other
                others = [
                    {**chosen, letter: size}
                    for letter, sizes in options.items()
                    for size in sizes
                    if size != chosen[letter]
                ]
                nearest = min(others, key=score, default=chosen)
                if score(nearest) >= best:
                    break
                best, chosen = score(nearest), nearest
            for choice in (*choices, chosen):
                key = tuple(choice.values())
                if key not in seen and (made := table(choice)) is not None:
                    seen.add(key)
                    words = {
                        f"{named(size)} = {value_at(size, self.sizes)}": None
                        for size in choice.values()
                        if size.free_symbols
                    }
                    left = {int(size) for size in choice.values() if size.is_Integer}
                    yield made, tuple(words), frozenset(left)

    def _meant(self, value: int) -> list[sympy.Expr]:
        """List the sizes that a number may stand for."""
        sizes: list[sympy.Expr] = [letter for letter, n in self.sizes.items() if n == value]
        layers, dense = LETTERS["n_layers"], LETTERS["n_dense_layers"]
        if dense in self.sizes and self.sizes[layers] - self.sizes[dense] == value:
            sizes.append(layers - dense)
        return sizes


def drop_quotients(
    expr: sympy.Expr, numbers: Mapping[sympy.Expr, int]
) -> tuple[sympy.Expr, tuple[str, ...]]:
    """Drop the floors and ceilings of `expr` that change nothing at these sizes; say which."""
    words, same = [], {}
    for call in sorted(expr.atoms(sympy.floor, sympy.ceiling), key=str):
        inside = call.args[0]
        if inside.has(sympy.floor, sympy.ceiling) or not inside.free_symbols:
            continue
        if value_at(inside, numbers).denominator == 1 and not sympy.denom(inside).is_Add:
            same[call] = inside
            words.append(f"{named(inside)} is whole")
    return expr.xreplace(same), tuple(words)


def relations(space: Space, numbers: Mapping[sympy.Expr, int], *, pins: bool) -> list[Relation]:
    """List what is equal at the model's sizes; with `pins`, every size and its number too."""
    known = []
    d, heads, width, kv = (
        LETTERS[name] for name in ("d_model", "n_heads", "head_dim", "n_kv_heads")
    )

    def add(letter: sympy.Expr, by: sympy.Expr, words: str = "", **more: Any) -> None:
        if letter in space.place and by.free_symbols <= space.place.keys():
            words = words or f"{named(letter)} = {named(by)}"
            known.append(
                Relation(words=words, place=space.place[letter], by=space.table(by), **more)
            )

    if width in numbers and numbers[heads] * numbers[width] == numbers[d]:
        add(width, d / heads, f"{named(heads * width)} = {named(d)}")
    if kv in numbers and (numbers[kv] > 1 or numbers[heads] == 1):
        groups = numbers[heads] // numbers[kv]
        add(kv, heads / groups, free=groups == 1, cost=0.4 * (groups > 1))
    for wide in (LETTERS["d_ff"], LETTERS["d_ff_expert"]):
        if wide in numbers and (12 * numbers[wide]) % numbers[d] == 0:
            add(wide, sympy.Rational(numbers[wide], numbers[d]) * d, width=True, cost=1.0)
    narrow = [LETTERS[name] for name in ("qk_nope_head_dim", "v_head_dim", "head_dim")]
    for a, b in combinations([letter for letter in narrow if letter in numbers], 2):
        if numbers[a] == numbers[b]:
            add(b, a)
    for letter, n in numbers.items():
        if n <= 2 or pins:  # other numbers that were written are read as what they are
            # a formula without a letter of the run has its number, whatever else is wrong in it
            free = n == 1 or letter in RUN
            cost = 0.2 if free and n > 1 else 0.0
            add(letter, sympy.Integer(n), free=free, pin=True, cost=cost)
    for call in space.letters:
        for arg in call.args if isinstance(call, sympy.Min) else ():
            if arg.is_Symbol and value_at(arg, numbers) == value_at(call, numbers):
                add(call, arg)
    return known


def _chosen(theirs: Table, ours: Table, known: list[Relation]) -> Iterator[tuple[Relation, ...]]:
    """Yield no relation, then ever more of those that make both sides most alike."""
    chosen: tuple[Relation, ...] = ()
    mine, its = theirs, ours
    now = unlike(mine, its)
    yield ()
    for _ in range(MOST_RELATIONS):
        tried = []
        for relation in known:
            place = relation.place
            used = any(key[place] for key in mine)
            if (
                relation in chosen
                or (relation.pin and used)
                or (relation.width and any(key[place] for key in theirs))
                or not (used or any(key[place] for key in its))
            ):
                continue
            a, b = (substituted(table, place, relation.by) for table in (mine, its))
            if a is None or b is None:
                continue
            exact, far, differing = unlike(a, b)
            free = relation.free
            if (far, differing) < now[1:] if free else exact < now[0]:
                tried.append(((not free, far, differing), relation, a, b))
        if not tried:
            return
        _, relation, mine, its = min(tried, key=lambda trial: trial[0])
        now = unlike(mine, its)
        chosen = (*chosen, relation)
        yield chosen


def unlike(theirs: Table, ours: Table) -> tuple[int, int, int]:
    """Count the monomials of theirs that are not ours to the number, how far off they are, and
    how many differ.
    """
    exact = sum(ours.get(key) != value for key, value in theirs.items())
    far = sum(
        min((sum(map(abs, map(int.__sub__, key, other))) for other in ours), default=0)
        for key in theirs
        if key not in ours
    )
    return exact, far, len(less(theirs, ours))
