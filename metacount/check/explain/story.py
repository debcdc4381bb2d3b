"""The simplest set of mistakes that together make a difference, to the last monomial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.algebra.monomials import Key, Table, key_of, less
from metacount.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.check.explain.change import Change
    from metacount.check.explain.readings import Reading

LEFT_OUT = " left out"
OR = ", or "  # two mistakes that add the same: nobody can tell which was made
MOST_ALTERNATIVES = 3
MOST_STEPS = 4_000  # tables looked at
CLOSE = 0.05  # stories as likely as each other
AGAINST = 1.5  # for two mistakes that undo each other in part
RIVAL = 0.3  # between two stories of one mistake each
SAME = 0.12  # mistakes that add the same, where one is little less likely


@frozen
class Edit:
    """A mistake as it stands in the search: `adds` to the formula, `true` to the count.

    `late` is one that what was changed everywhere did not change.
    """

    words: str
    adds: Table
    true: Table
    cost: float
    uses: tuple[tuple[str, int], ...] = ()
    change: bool = False  # of what is there: two other mistakes may add the same
    late: bool = False


@frozen
class Story:
    """Mistakes that together make a difference, and what they leave of it."""

    told: tuple[Edit, ...]
    cost: float


@frozen
class Told:
    """A story under one reading: mistakes in parts, then changes of everything."""

    reading: Reading
    everywhere: tuple[Change, ...]
    story: Story
    cost: float
    rival: str = ""  # one other mistake under another reading, as likely

    def single(self) -> str:
        """Return the words of the only mistake; nothing where there are more."""
        said = [edit.words for edit in self.story.told] + [one.words for one in self.everywhere]
        return said[0] if len(said) == 1 else ""


class Search:
    """The edits that may be combined, and the cheapest combination for a difference."""

    def __init__(self, edits: list[Edit], room: Mapping[str, int]) -> None:
        self.room = room
        self.by_adds: dict[Key, Edit] = {}
        for edit in sorted(edits, key=lambda edit: edit.cost):
            key = key_of(edit.adds)
            first = self.by_adds.setdefault(key, edit)
            # beside what everybody gets wrong, an unlikelier mistake is not worth a word
            near = SAME if first.cost or edit.words.endswith(LEFT_OUT) else 0.0
            if first is not edit and edit.cost <= first.cost + near:
                self.by_adds[key] = _either(first, edit)
        self.by_key: dict[object, list[Edit]] = {}
        for edit in self.by_adds.values():
            for monomial in edit.adds:
                self.by_key.setdefault(monomial, []).append(edit)
        self.longest = max((len(edit.adds) for edit in self.by_adds.values()), default=0)

    def cheapest(self, difference: Table, below: float, most: int) -> Story | None:
        """Find the cheapest set of edits that add up to `difference`,
        if it costs less than `below`.
        """
        self.best, self.steps = below, 0
        self.found: list[tuple[float, tuple[Edit, ...]]] = []
        for n in range(1, most + 1):
            if n >= self.best:
                break
            self._from(difference, n, (), 0.0, dict(self.room))
        if not self.found:
            return None
        cost, told = min(self.found, key=lambda found: found[0])
        return Story(told=told, cost=cost)

    def _from(
        self, left: Table, n: int, told: tuple[Edit, ...], cost: float, room: dict[str, int]
    ) -> None:
        if n == 1:
            last = self.by_adds.get(key_of(left))
            if last is None or not _fits(last, room):
                return
            total = cost + 1 + last.cost + AGAINST * any(against(last, one) for one in told)
            if total <= self.best + CLOSE:
                self.best = min(self.best, total)
                self.found.append((total, (*told, last)))
            return
        if len(left) > n * self.longest:
            return
        near = [self.by_key.get(monomial, []) for monomial in left]
        # the monomial that the fewest edits touch: one of them must be made
        for edit in min(near, key=len, default=[]):
            self.steps += 1
            after = cost + 1 + edit.cost
            if self.steps > MOST_STEPS or after + (n - 1) > self.best + CLOSE:
                continue
            if not _fits(edit, room):
                continue
            rest = less(left, edit.adds)
            if not rest or (n > 2 and len(rest) >= len(left)):
                continue
            after += AGAINST * any(against(edit, other) for other in told)
            if after + (n - 1) > self.best + CLOSE:
                continue
            used = dict(room)
            for part, count in edit.uses:
                used[part] -= count
            self._from(rest, n - 1, (*told, edit), after, used)


def against(a: Edit, b: Edit) -> bool:
    """Tell whether one edit takes away what the other adds:
    left out although it is plainly there.
    """
    undone = {key for key, value in a.adds.items() if b.adds.get(key, 0) * value < 0}
    return bool(undone) and undone in (a.adds.keys(), b.adds.keys())


def _fits(edit: Edit, room: dict[str, int]) -> bool:
    return all(room[part] >= count for part, count in edit.uses)


def fits(several: tuple[Edit, ...], room: Mapping[str, int]) -> bool:
    """Tell whether no part is changed more often than it is there."""
    left = dict(room)
    for edit in several:
        for part, count in edit.uses:
            left[part] -= count
    return all(count >= 0 for count in left.values())


def _either(a: Edit, b: Edit) -> Edit:
    plain = a.words.replace(":", "")
    if b.words.replace(":", "") in plain or a.words.count(OR) + 1 >= MOST_ALTERNATIVES:
        return a
    return Edit(
        words=a.words + OR + b.words,
        adds=a.adds,
        true=a.true,
        cost=a.cost,
        uses=a.uses,
        change=a.change,
        late=a.late,
    )


def beside(new: Told, old: Told) -> Told:
    """Return the new story; note the old one as its rival if that costs little more, each is one
    mistake and only the new one takes sizes as equal.
    """
    words = old.single()
    close = old.cost - new.cost < RIVAL and words and new.single() not in ("", words)
    if not close or old.reading.relations or not new.reading.relations:
        return new
    return Told(
        reading=new.reading, everywhere=new.everywhere, story=new.story, cost=new.cost, rival=words
    )
