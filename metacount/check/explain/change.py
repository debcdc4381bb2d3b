"""One change of a size or of a whole table: in words, how unlikely, what it makes of a table."""

from __future__ import annotations

from fractions import Fraction

from metacount.algebra.monomials import Monomial, Table, substituted, times
from metacount.frozen import frozen

# How much less likely than a known mistake.
UNWRITTEN = 9.0  # a number that nobody wrote, such as the mean of two that are there
LIKELY, POSSIBLE, ODD, STRANGE = 0.0, 0.2, 0.6, 9.0  # the last is dropped


@frozen
class Change:
    """One thing done to all of a table: in words, how unlikely, and to which letter or product."""

    words: str
    cost: float
    place: int | None  # the letter that something stands for
    by: Table | None  # what stands for it
    factor: tuple[Fraction, Monomial] | None = None  # or what everything is multiplied by

    @property
    def whole(self) -> bool:
        """Whether all of a table is multiplied, whatever is in it."""
        return self.factor is not None and not any(n < 0 for n in self.factor[1])

    def of(self, table: Table) -> Table | None:
        """Return the table with the change made."""
        if self.place is not None and self.by is not None:
            return substituted(table, self.place, self.by)
        assert self.factor is not None
        number, powers = self.factor
        # a product that stands for another one is changed where it is all there
        below = [(i, -n) for i, n in enumerate(powers) if n < 0]
        changed: Table = {}
        for key, value in table.items():
            fits = all(key[i] >= n for i, n in below)
            for new, scaled in (
                times({key: value}, number, powers) if fits else {key: value}
            ).items():
                changed[new] = changed.get(new, Fraction(0)) + scaled
        return {key: value for key, value in changed.items() if value}
