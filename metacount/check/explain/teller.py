"""The cheapest story of a difference: over readings, and over what was changed everywhere."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

from metacount.algebra.monomials import Monomial, Table, key_of, less
from metacount.check.comparison import RUN
from metacount.check.explain.changes import ONE_LAYER, Changes
from metacount.check.explain.extras import TOO_FEW as EXPERT_TOO_FEW
from metacount.check.explain.extras import TOO_MANY as EXPERT_TOO_MANY
from metacount.check.explain.factors import factors
from metacount.check.explain.literals import LARGE
from metacount.check.explain.mistakes import LAYERS, Library
from metacount.check.explain.readings import Reading
from metacount.check.explain.story import (
    AGAINST,
    OR,
    Edit,
    Search,
    Story,
    Told,
    against,
    beside,
    fits,
)
from metacount.check.given.vocabulary import LETTERS
from metacount.check.parts.products import CAUSAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.algebra.monomials import Key
    from metacount.check.explain.change import Change

MOST_MONOMIALS = 40  # of a difference: with more, no list of mistakes is an explanation
MOST_SEARCHES = 40  # over readings and changes of everything, so that no formula takes long
MOST_EVERYWHERE, WIDTH = 3, 5  # changes of the whole count at once; of them, followed further
TWO = 1.7  # two mistakes in place of one change: with less between them, both are told
READ = 0.03  # of a size that is read into a formula
HERE = 1.3  # of a story that takes sizes as equal: another one makes the same formula at all sizes
SMALL = 0.3  # more, where the number is small: it may be a factor
DEAREST = 6.2
MOST_MISTAKES, FEW = 5, 3
EXPERTS = (EXPERT_TOO_MANY, EXPERT_TOO_FEW)
COPIES = ("counted twice", "counted three times", "only half counted")
UNDOES = {Fraction(1, 2): COPIES[0], Fraction(2): COPIES[2]}  # of a part, what a factor did to it
FAR = 3  # letters between what is left out and what is left over
MOST_CANCELLED = 20
SCOPED = 0.05  # a change of one part, beside one of everything


class Teller:
    """The cheapest story so far, over readings and over what may have been changed everywhere."""

    def __init__(self, library: Library, changes: Changes, quantity: str) -> None:
        self.mistakes, self.changes, self.quantity = library, changes, quantity
        self.space = library.space
        self.best: Told | None = None
        self.seen: set[tuple[Key, Key | None]] = set()
        self.searches = 0
        self.more = 0.0  # what all stories of the reading cost that is looked at

    @property
    def dearest(self) -> float:
        return DEAREST + self.more if self.best is None else self.best.cost

    def tell(self, reading: Reading) -> None:
        """Look for a cheaper story under this reading."""
        ours = reading.taken(self.mistakes.whole)
        key = (frozenset(reading.theirs.items()), frozenset(ours.items()) if ours else None)
        if ours is None or key in self.seen:
            return
        if len(less(reading.theirs, ours)) > MOST_MONOMIALS:
            return
        self.seen.add(key)
        base = READ * len(reading.words) + sum(one.cost for one in reading.relations)
        read = [word.rpartition(" = ")[2] for word in reading.words]
        meant = reading.meant(self.mistakes.whole)
        self.more = 0.0 if meant == reading.relations else HERE
        base += self.more
        base += SMALL * sum(2 < int(number) < LARGE for number in read if number.isdigit())
        if base + 1 >= self.dearest or self.searches > MOST_SEARCHES:
            return
        self._levels(reading, ((), ours, base))
        for other, (everywhere, table, cost) in self._of_the_run(reading):
            self._levels(other, (everywhere, table, base + cost))

    def _of_the_run(
        self, reading: Reading
    ) -> list[tuple[Reading, tuple[tuple[Change, ...], Table, float]]]:
        """Put the formula's numbers in place of sizes of the run that are not among its letters."""
        options: list[list[Change | None]] = []
        for i, letter in enumerate(self.space.letters):
            if letter not in RUN or any(key[i] for key in reading.written):
                continue
            if all(key[i] for key in self.mistakes.whole):
                numbers = {1, *(reading.numbers or ())} - {int(self.changes.here[i])}
                found = [self.changes.read(reading.numbers).number(i, n) for n in sorted(numbers)]
                options.append([None, *(change for change in found if change)])
        variants = []
        for several in product(*options):
            everywhere = tuple(change for change in several if change)
            other = reading.without({int(change.place or 0) for change in everywhere})
            table = other.taken(self.mistakes.whole)
            for change in everywhere:
                table = None if table is None else change.of(table)
            if everywhere and table and {*table.values()} & {*reading.theirs.values()}:
                cost = sum(1 + change.cost for change in everywhere)
                variants.append((other, (everywhere, table, cost)))
        variants.sort(key=lambda one: one[1][2])
        return variants[:WIDTH]

    def _levels(self, reading: Reading, first: tuple[tuple[Change, ...], Table, float]) -> None:
        level = [first]
        tried: set[Key] = set()
        for depth in range(MOST_EVERYWHERE + 1):
            following: list[tuple[tuple[Change, ...], Table, float]] = []
            for everywhere, table, cost in level:
                if cost + (len(everywhere) == 0) < self.dearest:
                    self._tell(reading, everywhere, table, cost)
                if depth < MOST_EVERYWHERE:
                    following += self._further(reading, everywhere, table, cost, tried)
            following.sort(key=lambda one: (len(less(reading.theirs, one[1])), one[2]))
            level = following[: WIDTH - depth]

    def _between(self, reading: Reading, scope: Table, difference: Table) -> Iterator[Change]:
        changes = self.changes.read(reading.numbers)
        return changes.between(scope, difference, reading.summands)

    def _further(
        self,
        reading: Reading,
        everywhere: tuple[Change, ...],
        table: Table,
        cost: float,
        tried: set[Key],
    ) -> Iterator[tuple[tuple[Change, ...], Table, float]]:
        difference = less(reading.theirs, table)
        for change in (
            *self._between(reading, table, difference),
            *factors(self.space, reading.theirs, table, self.quantity),
        ):
            if change.factor and change.words.startswith("counted"):
                continue  # a factor of everything has its own words
            if change.words == "only half counted":
                continue
            after = cost + 1 + change.cost
            if after >= self.dearest or any(change.words == other.words for other in everywhere):
                continue
            changed = change.of(table)
            if changed is None or len(less(reading.theirs, changed)) >= len(difference):
                continue
            key = frozenset(changed.items())
            if key not in tried:
                tried.add(key)
                yield (*everywhere, change), changed, after

    def _tell(
        self, reading: Reading, everywhere: tuple[Change, ...], table: Table, cost: float
    ) -> None:
        difference = less(reading.theirs, table)
        self.searches += 1
        if self.searches > MOST_SEARCHES:
            return
        if not difference:
            story: Story | None = Story(told=(), cost=0.0)
        else:
            edits = [*self._edits(reading, everywhere, difference)]
            story = Search(edits, self.mistakes.room).cheapest(
                difference, self.dearest - cost, MOST_MISTAKES - len(everywhere)
            )
        if (
            story is not None
            and cost + story.cost < self.dearest
            and self._plain(difference, story, everywhere)
        ):
            told = Told(reading=reading, everywhere=everywhere, story=story, cost=cost + story.cost)
            self.best = told if self.best is None else beside(told, self.best)

    def sure(self, reading: Reading) -> None:
        """Keep the parts left out that nothing left over comes near, where no story is whole."""
        ours = reading.taken(self.mistakes.whole)
        if self.best is not None or ours is None:
            return
        left, told = less(reading.theirs, ours), list[Edit]()
        known = sorted(self.mistakes.known, key=lambda one: (-len(one.adds), one.cost))
        for mistake in known:
            adds = reading.taken(mistake.adds)
            if not adds or not mistake.words.endswith("left out"):
                continue
            rest = less(left, adds)
            if any(left.get(key) != value for key, value in adds.items()):
                continue
            if all(self._distance(key, other) > FAR for key in adds for other in rest):
                told.append(Edit(words=mistake.words, adds=adds, true=adds, cost=mistake.cost))
                left = rest
        # where nothing of the count is left, the formula has it in other letters
        if told and left and left != reading.theirs:
            story = Story(told=tuple(told), cost=DEAREST)
            self.best = Told(reading=reading, everywhere=(), story=story, cost=DEAREST)

    def instead(self, reading: Reading, table: Table, words: str, cost: float) -> str:
        """Name two mistakes that add what one change adds, where they are little less likely."""
        known = {i for key in self.mistakes.whole for i, n in enumerate(key) if n}
        if any(
            n and i not in known and not self.space.letters[i].is_Symbol
            for key in table
            for i, n in enumerate(key)
        ):
            return ""  # a floor that the count has not got can be nothing else
        same = words.rpartition(": ")[2]  # the same change of two halves is no other mistake
        ours = reading.taken(self.mistakes.whole)
        edits = [
            edit
            for edit in self._edits(reading, (), table)
            if edit.words not in EXPERTS
            and same not in edit.words
            and "nothing at these sizes" not in edit.words
        ]
        for change in self._between(reading, ours or {}, table):
            after = None if change.words in (*COPIES, same) else change.of(ours or {})
            adds = less(after, ours) if ours and after else {}
            if adds and all(adds != edit.adds for edit in edits):
                edits.append(Edit(words=change.words, adds=adds, true=adds, cost=change.cost))
        index = Search(edits, self.mistakes.room).by_adds
        best, found = cost + TWO, ""
        for key, one in index.items():
            rest = less(table, one.adds)
            other = index.get(key_of(rest))
            if other is None or other is one or key == key_of(table):
                continue
            if not fits((one, other), self.mistakes.room):
                continue
            # monomials of sizes that are equal here only are not against each other
            undone = not reading.relations and against(one, other)
            if (both := 1 + one.cost + other.cost + AGAINST * undone) < best:
                best = both
                found = " and ".join(
                    f"({edit.words})" if OR in edit.words else edit.words for edit in (one, other)
                )
        return found

    def linear(self, reading: Reading, table: Table) -> str:
        """Name another reading of S² + S:
        one of two products without its square, the other with it.
        """
        i = self.space.place[LETTERS["seq_len"]]
        if any({1, 2} <= {key[i] for key in one} for one in reading.summands):
            return ""  # S·(S + 1) is written
        same = [
            edit
            for edit in self._edits(reading, (), table)
            if edit.change and edit.adds == table and edit.words != CAUSAL
        ]
        return min(same, key=lambda edit: edit.cost).words.replace(OR, " or ") if same else ""

    def _plain(self, left: Table, story: Story, everywhere: tuple[Change, ...]) -> bool:
        """Tell whether a story is no accident,
        which many large parts that cancel each other would be.
        """
        if len(story.told) + len(everywhere) < FEW:
            return True
        each = [abs(self.space.value(edit.adds, self.changes.here)) for edit in story.told]
        whole = abs(self.space.value(left, self.changes.here))
        return (bool(everywhere) and not each) or sum(each) <= MOST_CANCELLED * max(whole, each[-1])

    def _edits(
        self, reading: Reading, everywhere: tuple[Change, ...], difference: Table
    ) -> Iterator[Edit]:
        def changed(table: Table | None) -> Table | None:
            for change in everywhere:
                table = None if table is None else change.of(table)
            return table

        places = {change.place for change in everywhere}
        late = not any(change.whole for change in everywhere)
        # what stands alone in the text may be seen in the difference only together
        alone = {item for one in reading.summands if len(one) == 1 for item in one.items()}
        undoes = [
            UNDOES[one.factor[0]]
            for one in everywhere
            if one.whole and one.factor and one.factor[0] in UNDOES
        ]
        for mistake in self.mistakes.known:
            true = reading.taken(mistake.adds)
            adds = changed(true)
            if adds and true:
                undone = AGAINST * any(mistake.words.endswith(one) for one in undoes)
                yield Edit(
                    words=mistake.words,
                    adds=adds,
                    true=true,
                    cost=mistake.cost + undone,
                    uses=mistake.uses,
                    change=mistake.otherwise,
                )
                if late and adds != true and all(value > 0 for value in true.values()):
                    # what is counted too much may have been written as it is
                    yield Edit(
                        words=mistake.words,
                        adds=true,
                        true=true,
                        uses=mistake.uses,
                        cost=mistake.cost + SCOPED,
                        late=True,
                    )
        for scope in self.mistakes.scopes:
            before = reading.taken(scope.table)
            now = changed(before)
            if now is None or before is None:
                continue
            for change in self._between(reading, now, difference):
                if change.place is not None and change.place in places:
                    continue  # what was changed everywhere is not changed back
                if scope.name != LAYERS and change.words in ONE_LAYER["n_layers"]:
                    continue  # a layer more or less is one of everything
                if len(scope.uses) == 1 and change.words in COPIES:
                    continue  # in the library, in other words
                after, after_true = change.of(now), change.of(before)
                if after is None or after_true is None:
                    continue
                adds = less(after, now)
                if adds and any(
                    difference.get(key) == value or (key, value) in alone
                    for key, value in adds.items()
                ):
                    yield Edit(
                        words=f"{scope.name}: {change.words}",
                        adds=adds,
                        true=less(after_true, before),
                        uses=scope.uses,
                        change=True,
                        cost=change.cost + scope.cost + SCOPED,
                    )

    def _distance(self, a: Monomial, b: Monomial) -> int:
        """Count the letters by which two monomials differ, those of the run apart."""
        powers = zip(self.space.letters, a, b, strict=True)
        return sum(abs(n - m) for letter, n, m in powers if letter not in RUN)
