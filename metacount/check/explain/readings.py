"""What a formula takes for granted: sizes that are equal at this model, numbers that are sizes.

A formula with d² for d·h·h_d, or 32 for N, is read as what it means at this model, so that what is
wrong in it stands alone; what was taken as equal is said.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import value_at
from metacount.algebra.monomials import Table, less, substituted
from metacount.check.comparison import RUN
from metacount.check.condition import named
from metacount.check.given.vocabulary import LETTERS
from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from metacount.algebra.monomials import Space

MOST_RELATIONS = 10


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
        return Reading(
            theirs=self.theirs,
            summands=self.summands,
            relations=left,
            words=tuple(words for words in self.words if words not in said),
            written=self.written,
            numbers=self.numbers,
        )

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

    def add(
        words: str,
        letter: sympy.Expr,
        by: sympy.Expr,
        *,
        free: bool = True,
        pin: bool = False,
        cost: float = 0.0,
    ) -> None:
        if letter in space.place and by.free_symbols <= space.place.keys():
            table = space.table(by)
            found.append(
                Relation(
                    words=words, place=space.place[letter], by=table, free=free, pin=pin, cost=cost
                )
            )

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
            add(f"{named(wide)} = {named(ratio * d)}", wide, ratio * d, cost=0.15)
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
    """Yield the formula as it stands,
    and with what makes the two sides most alike taken as equal.
    """

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
            meant = whole.meant(ours)
            if meant not in (chosen, chosen[:-1]) and (part := reading(meant)) is not None:
                yield part


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
