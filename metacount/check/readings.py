"""What a formula takes for granted: sizes that are equal at this model, numbers that are sizes.

A formula with d² for d·h·h_d, or 32 for N, is read as what it means at this model, so that what is
wrong in it stands alone; what was taken as equal is said.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.bounded import parse
from metacount.algebra.exact import value_at
from metacount.algebra.monomials import Table, less, substituted
from metacount.algebra.text import TOKEN
from metacount.check.comparison import RUN, named
from metacount.check.names import LETTERS
from metacount.errors import InputError
from metacount.frozen import frozen
from metacount.spec.field import altered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from metacount.algebra.monomials import Space

MOST_RELATIONS = 10


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
    """Both sides with some sizes taken as one."""

    theirs: Table
    summands: tuple[Table, ...]  # theirs as written, before equal monomials were added up
    relations: tuple[Relation, ...]
    words: tuple[str, ...]
    written: Table  # theirs without the relations
    numbers: frozenset[int] | None  # in its text, that were read as no size; None without a text

    def meant(self, ours: Table) -> tuple[Relation, ...]:
        """Return the relations that theirs shows to have been taken for granted.

        It does where it has not got the letter, or a monomial that is one of ours only so.
        """
        return tuple(
            one
            for one in self.relations
            if not any(key[one.place] for key in self.written)
            or self._connected(ours, one) > self._connected(ours, one, without=True)
        )

    def _connected(self, ours: Table, one: Relation, *, without: bool = False) -> int:
        """Count the monomials of ours that theirs has not got but has in other letters."""
        known = tuple(other for other in self.relations if not (without and other is one))
        # of two sizes that are equal, the one may stand beside itself: 4·d_n for 2·d_n + 2·d_v
        new = [
            key
            for key in self.written
            if key not in ours or (one.free and ours[key] != self.written[key])
        ]
        shapes = [_taken({key: Fraction(1)}, known) for key in new]
        missing = [_taken({key: Fraction(1)}, known) for key in ours if key not in self.written]
        found = {key for shape in shapes if shape for key in shape}
        return sum(not found.isdisjoint(shape) for shape in missing if shape)

    def without(self, places: set[int]) -> Reading:
        """Return the reading without the numbers of some letters, which theirs has not got."""
        left = tuple(one for one in self.relations if not (one.pin and one.place in places))
        said = {one.words for one in self.relations if one not in left}
        words = tuple(words for words in self.words if words not in said)
        return altered(self, relations=left, words=words)

    def taken(self, table: Table) -> Table | None:
        """Return a table with the sizes of `relations` taken as one."""
        return _taken(table, self.relations)


def _taken(table: Table, relations: tuple[Relation, ...]) -> Table | None:
    found: Table | None = table
    for relation in relations:
        found = None if found is None else substituted(found, relation.place, relation.by)
    return found


def relations(space: Space, numbers: Mapping[sympy.Expr, int], *, pins: bool) -> list[Relation]:
    """List what is equal at the model's sizes; with `pins`, every size and its number too."""
    found = []
    d, heads, width, kv, ff = (
        LETTERS[name] for name in ("d_model", "n_heads", "head_dim", "n_kv_heads", "d_ff")
    )

    def add(words: str, letter: sympy.Expr, by: sympy.Expr, **more: Any) -> None:
        if letter in space.place and by.free_symbols <= space.place.keys():
            place, table = space.place[letter], space.table(by)
            found.append(Relation(words=words, place=place, by=table, **more))

    if width in numbers and numbers[heads] * numbers[width] == numbers[d]:
        add(f"{named(heads * width)} = {named(d)}", width, d / heads)
    if kv in numbers and numbers[heads] == numbers[kv]:
        add(f"{named(kv)} = {named(heads)}", kv, heads)
    elif kv in numbers and numbers[kv] > 1:
        add(
            f"{named(kv)} = {named(heads / (numbers[heads] // numbers[kv]))}",
            kv,
            heads / (numbers[heads] // numbers[kv]),
            free=False,
            cost=0.4,
        )
    for wide in (ff, LETTERS["d_ff_expert"]):
        if wide in numbers and (12 * numbers[wide]) % numbers[d] == 0:
            ratio = sympy.Rational(numbers[wide], numbers[d])
            add(f"{named(wide)} = {named(ratio * d)}", wide, ratio * d, width=True, cost=0.15)
    narrow = [LETTERS[name] for name in ("qk_nope_head_dim", "v_head_dim", "head_dim")]
    for a, b in combinations([letter for letter in narrow if letter in numbers], 2):
        if numbers[a] == numbers[b]:
            add(f"{named(b)} = {named(a)}", b, a)
    for letter, n in numbers.items():
        if n > 2 and not pins:
            continue  # the numbers that were written are read as what they are
        # a formula without a letter of the run has its number, whatever else is wrong in it
        free = n == 1 or letter in RUN
        cost = 0.2 if free and n > 1 else 0.0
        add(f"{named(letter)} = {n}", letter, sympy.Integer(n), free=free, pin=True, cost=cost)
    for call in space.letters:
        for arg in call.args if isinstance(call, sympy.Min) else ():
            if arg.is_Symbol and value_at(arg, numbers) == value_at(call, numbers):
                add(f"{named(call)} = {named(arg)}", call, arg)
    return found


def read(
    theirs: Table,
    summands: tuple[Table, ...],
    ours: Table,
    known: list[Relation],
    words: tuple[str, ...] = (),
    numbers: frozenset[int] | None = None,
) -> Iterator[Reading]:
    """Yield the formula as it stands, and with sizes taken as equal that make both sides alike."""

    def reading(some: tuple[Relation, ...]) -> Reading | None:
        mine = _taken(theirs, some)
        taken = (_taken(summand, some) for summand in summands)
        if mine is None:
            return None
        return Reading(
            theirs=mine,
            summands=tuple(table for table in taken if table),
            relations=some,
            words=(*words, *(one.words for one in some)),
            written=theirs,
            numbers=numbers,
        )

    if (plain := reading(())) is not None:
        yield plain
    chosen: tuple[Relation, ...] = ()
    mine, its = theirs, ours
    now = unlike(mine, its)
    for _ in range(MOST_RELATIONS):
        tried = []
        for relation in known:
            used = any(key[relation.place] for key in mine)
            if (
                relation in chosen
                or (relation.pin and used)
                or (relation.width and any(key[relation.place] for key in theirs))
                or not (used or any(key[relation.place] for key in its))
            ):
                continue
            a, b = (substituted(table, relation.place, relation.by) for table in (mine, its))
            if a is None or b is None:
                continue
            exact, far, differing = unlike(a, b)
            free = relation.free
            if (far, differing) < now[1:] if free else exact < now[0]:
                tried.append(((not free, far, differing), relation, a, b))
        if not tried:
            break
        _, relation, mine, its = min(tried, key=lambda one: one[0])
        now = unlike(mine, its)
        chosen = (*chosen, relation)
        if (whole := reading(chosen)) is not None:
            yield whole


def unlike(theirs: Table, ours: Table) -> tuple[int, int, int]:
    """Count the monomials of theirs that are not ours to the number,
    how far off they are, and how many differ.
    """
    exact = sum(ours.get(key) != value for key, value in theirs.items())
    far = sum(
        min((sum(map(abs, map(int.__sub__, key, other))) for other in ours), default=0)
        for key in theirs
        if key not in ours
    )
    return exact, far, len(less(theirs, ours))


MOST_LITERALS = 40
MOST_SUMMANDS = 200
MOST_APART = 8  # numbers of one product, of which no two are one size
SMALLEST_LITERAL = 3  # 1 and 2 are factors
LARGE = 30  # seldom a factor
PREFIX = "number_"

# A formula with sizes for its numbers: its table, its summands, what was read, numbers left.
Numerals = tuple[Table, tuple[Table, ...], tuple[str, ...], frozenset[int] | None]


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
