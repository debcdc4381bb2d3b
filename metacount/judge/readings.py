"""What a formula takes for granted: sizes that are equal at this model, numbers that are sizes.

A formula with d² for d·h·h_d, or 32 for N, is read as what it means at this model, so that what is
wrong in it stands alone; what was taken as equal is said.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, Any

import sympy

from metacount.frozen import frozen
from metacount.judge.condition import named
from metacount.judge.exact import value_at
from metacount.judge.monomials import Table, less, substituted
from metacount.judge.text import TOKEN, parse
from metacount.judge.vocabulary import LETTERS
from metacount.resolve import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from metacount.judge.monomials import Space

MOST_RELATIONS = 10
MOST_LITERALS = 40
MOST_SUMMANDS = 200
SMALLEST_LITERAL = 3  # 1 and 2 are factors
LARGE = 30  # seldom a factor
PREFIX = "number_"


@frozen
class Relation:
    """A letter, what it is equal to at the model, and that in words."""

    words: str
    place: int
    by: Table
    free: bool  # whether it may be taken where it makes no monomial match yet
    pin: bool = False  # a number
    cost: float = 0.0


@frozen
class Reading:
    """Both sides with some sizes taken as one."""

    theirs: Table
    summands: tuple[Table, ...]  # theirs as written, before equal monomials were added up
    relations: tuple[Relation, ...]
    words: tuple[str, ...]

    def taken(self, table: Table) -> Table | None:
        """A table with these sizes taken as one."""
        return _taken(table, self.relations)


def _taken(table: Table, relations: tuple[Relation, ...]) -> Table | None:
    found: Table | None = table
    for relation in relations:
        found = None if found is None else substituted(found, relation.place, relation.by)
    return found


def relations(space: Space, numbers: Mapping[Any, int], *, pins: bool) -> list[Relation]:
    """What is equal at the model's sizes; with `pins`, every size and its number too."""
    found = []
    d, heads, width, kv, ff = (
        LETTERS[name] for name in ("d_model", "n_heads", "head_dim", "n_kv_heads", "d_ff")
    )

    def add(words: str, letter: Any, by: Any, *, free: bool = True, pin: bool = False,
            cost: float = 0.0) -> None:  # fmt: skip
        if letter in space.place and by.free_symbols <= space.place.keys():
            table = space.table(by)
            found.append(Relation(words=words, place=space.place[letter], by=table, free=free,
                                  pin=pin, cost=cost))  # fmt: skip

    if width in numbers and numbers[heads] * numbers[width] == numbers[d]:
        add(f"{named(heads * width)} = {named(d)}", width, d / heads)
    if kv in numbers and numbers[heads] == numbers[kv]:
        add(f"{named(kv)} = {named(heads)}", kv, heads)
    elif kv in numbers and numbers[kv] > 1:
        add(f"{named(kv)} = {named(heads / (numbers[heads] // numbers[kv]))}", kv,
            heads / (numbers[heads] // numbers[kv]), free=False, cost=0.4)  # fmt: skip
    for wide in (ff, LETTERS["d_ff_expert"]):
        if wide in numbers and (4 * numbers[wide]) % numbers[d] == 0:
            ratio = sympy.Rational(numbers[wide], numbers[d])
            add(f"{named(wide)} = {named(ratio * d)}", wide, ratio * d, cost=0.15)
    narrow = [LETTERS[name] for name in ("qk_nope_head_dim", "v_head_dim", "head_dim")]
    for a, b in combinations([letter for letter in narrow if letter in numbers], 2):
        if numbers[a] == numbers[b]:
            add(f"{named(b)} = {named(a)}", b, a)
    for letter, n in numbers.items():
        if n > 2 and not pins:
            continue  # the numbers that were written are read as what they are
        add(f"{named(letter)} = {n}", letter, sympy.Integer(n), free=n == 1, pin=True)
    return found


def whole_quotients(expr: Any, numbers: Mapping[Any, int]) -> tuple[Any, list[str]]:
    """`expr` without the floors and ceilings that change nothing at these sizes."""
    said, same = [], {}
    for call in sorted(expr.atoms(sympy.floor, sympy.ceiling), key=str):
        inside = call.args[0]
        if not inside.has(sympy.floor, sympy.ceiling) and len(inside.free_symbols) > 0:
            _, below = inside.as_numer_denom()
            if value_at(inside, numbers).denominator == 1 and not below.is_Add:
                same[call] = inside
                said.append(f"{named(inside)} is whole")
    return expr.xreplace(same), said


def read(
    theirs: Table, summands: tuple[Table, ...], ours: Table, known: list[Relation],
    words: tuple[str, ...] = (),
) -> Iterator[Reading]:  # fmt: skip
    """The formula as it stands, and with what makes the two sides most alike taken as equal."""
    yield Reading(theirs=theirs, summands=summands, relations=(), words=words)
    chosen: tuple[Relation, ...] = ()
    mine, its = theirs, ours
    now = _unlike(mine, its)
    for _ in range(MOST_RELATIONS):
        tried = []
        for relation in known:
            used = any(key[relation.place] for key in mine)
            if (relation in chosen or (relation.pin and used)
                    or not (used or any(key[relation.place] for key in its))):  # fmt: skip
                continue
            a, b = (substituted(table, relation.place, relation.by) for table in (mine, its))
            if a is None or b is None:
                continue
            exact, far, differing = _unlike(a, b)
            free = relation.free
            if (far, differing) < now[1:] if free else exact < now[0]:
                tried.append(((not free, far, differing), relation, a, b))
        if not tried:
            break
        _, relation, mine, its = min(tried, key=lambda one: one[0])
        now = _unlike(mine, its)
        chosen = (*chosen, relation)
        taken = [_taken(summand, chosen) for summand in summands]
        yield Reading(theirs=mine, summands=tuple(table for table in taken if table),
                      relations=chosen, words=(*words, *(one.words for one in chosen)))  # fmt: skip


def _unlike(theirs: Table, ours: Table) -> tuple[int, int, int]:
    """How many monomials of theirs are not ours, to the number; how far off; how many differ."""
    exact = sum(ours.get(key) != value for key, value in theirs.items())
    far = sum(
        min((sum(map(abs, map(int.__sub__, key, other))) for other in ours), default=0)
        for key in theirs if key not in ours
    )  # fmt: skip
    return exact, far, len(less(theirs, ours))


def summands(expr: Any) -> list[Any]:
    """The summands of a formula as they were written: sums of parts are taken apart, sizes such as
    (N - 1) or (h + h_kv) are not.

    >>> N, d, m, h = sympy.symbols("N d m h")
    >>> summands(N * (2 * d * m + d * (h - 1)) + d)
    [d, 2*N*d*m, N*d*(h - 1)]
    """
    found, waiting = [], [expr]
    while waiting and len(found) < MOST_SUMMANDS:
        one = waiting.pop()
        if one.is_Add:
            waiting += one.args
            continue
        sums = [arg for arg in sympy.Mul.make_args(one) if arg.is_Add
                and any(term.as_coeff_Mul()[1].is_Mul for term in arg.args)]  # fmt: skip
        if sums:
            rest = one / sums[0]
            waiting += [rest * arg for arg in sums[0].args]
        else:
            found.append(one)
    return sorted(found, key=lambda one: len(str(one)))


class Literals:
    """The numbers in a formula's text, each with the sizes of the model that it may stand for."""

    def __init__(
        self, text: str, meanings: Callable[[tuple[str, ...]], Mapping[str, Any]],
        numbers: Mapping[Any, int],
    ) -> None:  # fmt: skip
        self.numbers = numbers
        self.values: dict[Any, int] = {}
        marked = self._marked(text)
        self.expr: Any = None
        if len(self.values) > MOST_LITERALS:
            return
        marks = {letter.name: letter for letter in self.values}

        def meaning(names: tuple[str, ...]) -> dict[str, Any]:
            known = meanings(tuple(name for name in names if name not in marks))
            return {**known, **{name: marks[name] for name in names if name in marks}}

        try:
            self.expr, _ = parse(marked, meaning)
        except InputError:
            return
        self.expr, _ = whole_quotients(self.expr, {**numbers, **self.values})

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

    def meant(self, value: int) -> list[Any]:
        """The sizes that a number may stand for."""
        found: list[Any] = [letter for letter, n in self.numbers.items() if n == value]
        layers, dense = LETTERS["n_layers"], LETTERS["n_dense_layers"]
        if dense in self.numbers and self.numbers[layers] - self.numbers[dense] == value:
            found.append(layers - dense)
        return found

    def read(
        self, ours: Table, space: Space
    ) -> Iterator[tuple[Table, tuple[Table, ...], tuple[str, ...]]]:
        """Their table and summands with sizes for numbers: for none, large ones only, for all."""
        marked = space.table(self.expr)
        parts = [space.table(one) for one in summands(self.expr)]
        meant = {letter: [size for size in self.meant(value)
                          if size.free_symbols <= space.place.keys()]
                 for letter, value in self.values.items()}  # fmt: skip
        seen = set()
        for least in (None, LARGE, SMALLEST_LITERAL):
            options = {
                letter: [] if least is None or value < least else meant[letter]
                for letter, value in self.values.items()
            }
            chosen = {letter: sizes[0] if sizes else sympy.Integer(self.values[letter])
                      for letter, sizes in options.items()}  # fmt: skip
            if (key := tuple(chosen.values())) in seen:
                continue
            seen.add(key)
            yield from self._reading(marked, parts, chosen, space)
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
        self, marked: Table, parts: list[Table], chosen: Mapping[Any, Any], space: Space
    ) -> Iterator[tuple[Table, tuple[Table, ...], tuple[str, ...]]]:
        table = self._with(marked, chosen, space)
        tables = [self._with(part, chosen, space) for part in parts]
        if table is not None:
            said = {f"{named(size)} = {value_at(size, self.numbers)}": None
                    for size in chosen.values() if size.free_symbols}  # fmt: skip
            yield table, tuple(one for one in tables if one), tuple(said)

    def _unlike(
        self, marked: Table, chosen: Mapping[Any, Any], ours: Table, space: Space
    ) -> tuple[int, int]:
        table = self._with(marked, chosen, space)
        if table is None:
            return len(marked) + 1, 0
        numerals = sum(not size.free_symbols for size in chosen.values())
        _, far, differing = _unlike(table, ours)
        return far + differing, numerals

    def _with(self, marked: Table, chosen: Mapping[Any, Any], space: Space) -> Table | None:
        found: Table | None = marked
        for letter, size in chosen.items():
            by = ({space.one: Fraction(int(size))} if size.is_Integer else space.table(size))
            found = None if found is None else substituted(found, space.place[letter], by)
        return found
