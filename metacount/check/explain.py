"""Explains a difference: the smallest set of mistakes that together make it, to the last term."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations, product
from math import ceil, floor
from typing import TYPE_CHECKING

from metacount.algebra.exact import is_zero, plain, value_at
from metacount.algebra.monomials import (
    Key,
    NotMonomials,
    Space,
    Table,
    key_of,
    less,
    plus,
)
from metacount.check.changes import (
    FACTORS,
    KINDS,
    LIKELY,
    NO_SEQ_LEN,
    ONE_LAYER,
    RARE,
    RATIOS,
    WIDTHS,
    Changes,
    factor_words,
    factors,
)
from metacount.check.comparison import RUN, Truth, count_of
from metacount.check.judgement import Term
from metacount.check.mistakes import LAYERS, Library, Mistake, parts_of
from metacount.check.mistakes import TOO_FEW as EXPERT_TOO_FEW
from metacount.check.mistakes import TOO_MANY as EXPERT_TOO_MANY
from metacount.check.names import LETTERS, numbers_of
from metacount.check.parts import Letters
from metacount.check.readings import (
    LARGE,
    Literals,
    Numerals,
    Reading,
    read,
    relations,
    summands,
    unlike,
    whole_quotients,
)
from metacount.check.sizes import alike
from metacount.errors import SpecError
from metacount.frozen import frozen
from metacount.spec.field import altered
from metacount.textbook.closed_form import EXPLAINED, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import sympy

    from metacount.check.call import Answer
    from metacount.check.changes import Change
    from metacount.check.sizes import Case
    from metacount.spec import ModelSpec

LEFT_OUT = " left out"
OR = ", or "  # two mistakes that add the same: nobody can tell which was made
MOST_ALTERNATIVES = 3
MOST_STEPS = 4_000  # tables looked at
CLOSE = 0.05  # stories as likely as each other
AGAINST = 1.5  # for two mistakes that undo each other in part
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
class Told:
    """A story under one reading: mistakes in parts, then changes of everything."""

    reading: Reading
    everywhere: tuple[Change, ...]
    edits: tuple[Edit, ...]
    cost: float


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

    def cheapest(
        self, difference: Table, below: float, most: int
    ) -> tuple[float, tuple[Edit, ...]] | None:
        """Find the cheapest set of edits that add up to `difference`, and what it costs,
        if it costs less than `below`.
        """
        self.best, self.steps = below, 0
        self.found: list[tuple[float, tuple[Edit, ...]]] = []
        for n in range(1, most + 1):
            if n >= self.best:
                break
            self._from(difference, n, (), 0.0)
        return min(self.found, key=lambda found: found[0], default=None)

    def _from(self, left: Table, n: int, told: tuple[Edit, ...], cost: float) -> None:
        if n == 1:
            last = self.by_adds.get(key_of(left))
            near = [] if last is None else [last]
        elif len(left) > n * self.longest:
            return
        else:
            # the monomial that the fewest edits touch: one of them must be made
            near = min((self.by_key.get(monomial, []) for monomial in left), key=len, default=[])
        for edit in near:
            self.steps += n > 1
            dearest = self.best + CLOSE - (n - 1)
            after = cost + 1 + edit.cost
            if self.steps > MOST_STEPS or after > dearest or not fits((*told, edit), self.room):
                continue
            rest = less(left, edit.adds)
            if n > 1 and (not rest or (n > 2 and len(rest) >= len(left))):
                continue
            after += AGAINST * any(against(edit, other) for other in told)
            if after > dearest:
                continue
            if n > 1:
                self._from(rest, n - 1, (*told, edit), after)
            else:
                self.best = min(self.best, after)
                self.found.append((after, (*told, edit)))


def against(a: Edit, b: Edit) -> bool:
    """Tell whether one edit takes away what the other adds:
    left out although it is plainly there.
    """
    undone = {key for key, value in a.adds.items() if b.adds.get(key, 0) * value < 0}
    return bool(undone) and undone in (a.adds.keys(), b.adds.keys())


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
    return altered(a, words=a.words + OR + b.words)


MOST_MONOMIALS = 40  # of a difference: with more, no list of mistakes is an explanation
MOST_SEARCHES = 40  # over readings and changes of everything, so that no formula takes long
MOST_EVERYWHERE, WIDTH = 3, 5  # changes of the whole count at once; of them, followed further
TWO = 1.7  # two mistakes in place of one change: with less between them, both are told
READ = 0.03  # of a size that is read into a formula
HERE = 1.3  # of a story that takes sizes as equal: another one makes the same formula at all sizes
SMALL = 0.3  # more, where the number is small: it may be a factor
DEAREST = 6.2
MOST_MISTAKES = 5
EXPERTS = (EXPERT_TOO_MANY, EXPERT_TOO_FEW)
COPIES = ("counted twice", "counted three times", "only half counted")
UNDOES = {Fraction(1, 2): COPIES[0], Fraction(2): COPIES[2]}  # of a part, what a factor did to it
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
        edits: tuple[Edit, ...] = ()
        if difference:
            search = Search([*self._edits(reading, everywhere, difference)], self.mistakes.room)
            most = MOST_MISTAKES - len(everywhere)
            story = search.cheapest(difference, self.dearest - cost, most)
            if story is None:
                return
            cost, edits = cost + story[0], story[1]
        if cost < self.dearest:
            self.best = Told(reading=reading, everywhere=everywhere, edits=edits, cost=cost)

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
                # a layer more or less is rather one of everything
                of_all = scope.name != LAYERS and change.words in ONE_LAYER["n_layers"]
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
                        cost=change.cost + scope.cost + SCOPED + SMALL * of_all,
                    )


UNKNOWN = "not accounted for: no part of the model explains this"
UNTOLD = "not accounted for: no mistakes are known by name of this quantity"
FEWEST = 8  # sizes at which a mistake must fit before it is named
MOST = 16
MULTIPLES = [2**n for n in range(3, 13)]  # that widths are rounded up to

Values = tuple[Fraction, ...]


def explain_numbers(case: Case, answer: Answer, truth: Truth) -> tuple[Term, ...]:
    """Explain the difference as mistakes that fit at all sizes tried;
    as one unknown term otherwise.

    Two mistakes are named where nothing else fits; an accident would have to hold at every size.
    """
    difference = answer.value - truth.value
    unknown = (Term(expr=None, value=difference, words=UNKNOWN, known=False),)
    if truth.quantity not in EXPLAINED:
        return (Term(expr=None, value=difference, words=UNTOLD, known=False),)
    equal = [one for one in answer.cases if _alike(case[0], one[0][0])]
    for others in (answer.cases, equal):
        tried = [(case, answer.value), *others[:MOST]]
        if len(tried) > FEWEST and (terms := _terms_at(tried, truth)):
            return terms
    return unknown


def _alike(spec: ModelSpec, other: ModelSpec) -> bool:
    try:
        return alike(spec, other) == other
    except SpecError:
        return False


def _terms_at(tried: list[tuple[Case, Fraction]], truth: Truth) -> tuple[Term, ...]:
    """Explain the difference at all of these sizes; nothing where no mistake is known for it."""
    cases = [case for case, _ in tried]
    ours = [count_of(*case, truth.quantity) for case in cases]
    wanted = tuple(Fraction(value - n) for (_, value), n in zip(tried, ours, strict=True))
    off_by = {value / n for (_, value), n in zip(tried, ours, strict=True)} if all(ours) else set()
    factor = off_by.pop() if len(off_by) == 1 else None
    if factor in FACTORS:
        words = factor_words(factor, [], truth.quantity)
        return (Term(expr=None, value=wanted[0], words=words),)
    library = _library(truth, numbers_of(*cases[0]))
    space = library.space
    at = [space.values(numbers_of(*case)) for case in cases]
    index: dict[Values, tuple[str, float]] = {}
    known = [
        (mistake.words, mistake.cost, tuple(space.value(mistake.adds, values) for values in at))
        for mistake in (*library.known, *_swapped(library, space))
    ]
    known += _sizes(library, space, wanted, at)
    known += _layers(truth, cases)
    for words, cost, adds in sorted(known, key=lambda one: one[1]):
        first, least = index.setdefault(adds, (words, cost))
        if first != words and cost <= least and OR not in first:
            index[adds] = first + OR + words, least
    terms = [
        Term(
            expr=None,
            value=adds[0],
            words="nothing at these sizes: " * (not adds[0]) + index[adds][0],
        )
        for adds in _fitting(wanted, index)
    ]
    if not terms and factor is not None:
        terms = [Term(expr=None, value=wanted[0], words=factor_words(factor, [], truth.quantity))]
    return tuple(sorted(terms, key=lambda term: -abs(term.value)))


def _library(truth: Truth, exprs: Iterable[sympy.Expr]) -> Library:
    """Return the known mistakes of a count, in a space that has the letters of `exprs` too."""
    letters = Letters(truth.spec, truth.workload)
    parts = parts_of(letters, truth.quantity)
    counted = [part.expr for part in parts]
    counted += [expr for part in parts for _, expr in part.variants]
    space = Space([*map(plain, counted), *exprs])
    return Library(letters, truth.quantity, parts, space)


def _fitting(wanted: Values, index: dict[Values, tuple[str, float]]) -> tuple[Values, ...]:
    """Find one mistake, or the only likeliest two, that make the difference at every size."""
    if wanted in index:
        return (wanted,)
    pairs = set()
    for adds in index:
        rest = tuple(map(Fraction.__sub__, wanted, adds))
        if rest in index and any(rest) and any(adds):
            pairs.add(frozenset((adds, rest)))
    several = [tuple(pair) for pair in pairs if len(pair) > 1]
    if not several:
        return ()
    cost = min(sum(index[adds][1] for adds in pair) for pair in several)
    best = [pair for pair in several if sum(index[adds][1] for adds in pair) == cost]
    return best[0] if len(best) == 1 else ()


def _scopes(library: Library) -> list[tuple[str, Table, float]]:
    """List what of a count may be changed as one, all of it first: words before, and a cost."""
    parts = [(f"{scope.name}: ", scope.table, SCOPED + scope.cost) for scope in library.scopes]
    return [("", library.whole, 0.0), *parts]


def _swapped(library: Library, space: Space) -> Iterator[Mistake]:
    """Yield the mistakes of one size in another's place, in a part or in all."""
    changes = Changes(space, dict.fromkeys(space.letters, 1), None)
    for a, b in (
        (LETTERS[name], LETTERS[other]) for kind in KINDS for name, other in permutations(kind, 2)
    ):
        if a not in space.place or b not in space.place:
            continue
        if (change := changes.letter(space.place[a], next(iter(space.table(b))))) is None:
            continue
        for words, table, cost in _scopes(library):
            after = change.of(table)
            if after is not None and after != table:
                yield Mistake(
                    words=words + change.words, adds=less(after, table), cost=change.cost + cost
                )


def _sizes(
    library: Library, space: Space, wanted: Values, at: list[list[Fraction]]
) -> Iterator[tuple[str, float, Values]]:
    """Yield what would make the difference at every size, in one size's place.

    That is a number, the size and one more or less, or a multiple of the residual width.
    """
    d_model = [values[space.place[LETTERS["d_model"]]] for values in at]
    for name, letter in LETTERS.items():
        i = space.place.get(letter)
        if i is None:
            continue
        sizes = [values[i] for values in at]
        for words, table, cost in _scopes(library):
            linear = {key: value for key, value in table.items() if key[i]}
            if not linear or any(key[i] != 1 for key in linear):
                continue
            rest: Table = {(*key[:i], 0, *key[i + 1 :]): value for key, value in linear.items()}
            below = [space.value(rest, values) for values in at]
            if not all(below):
                continue
            meant = [size + one / n for size, one, n in zip(sizes, wanted, below, strict=True)]
            steps = {number - size for number, size in zip(meant, sizes, strict=True)}
            number = meant[0]
            if {*meant} == {number} and number.denominator == 1 and number > 0:
                text = f"{number} stands where {name} = {sizes[0]} belongs"
                if number == 1:
                    text = NO_SEQ_LEN if name == "seq_len" else f"not multiplied by {name}"
                yield words + text, 0.3 + cost, wanted
            elif len(steps) == 1 and abs(step := steps.pop()) == 1:
                sign = "+" if step > 0 else "-"
                yield f"{words}{name} {sign} 1 in place of {name}", 0.3 + cost, wanted
            elif name in WIDTHS and name != "d_model" and (rule := _rule(meant, d_model)):
                yield f"{words}{rule} in place of {name}", 0.3 + cost, wanted


def _rule(widths: list[Fraction], d_model: list[Fraction]) -> str:
    """Say how widths follow from d_model, as people make them; nothing where they do not."""
    both = [*zip(widths, d_model, strict=True)]
    for ratio in (RATIOS | RARE) - {1}:
        text = f"{ratio}·d_model"
        if all(width == ratio * d for width, d in both):
            return text
        for word, whole in (("floor", floor), ("ceil", ceil)):
            if all(width == whole(ratio * d) for width, d in both):
                return f"{word}({text})"
        for n in MULTIPLES:
            if all(width == n * ceil(ratio * d / n) for width, d in both):
                return f"{text} rounded up to a multiple of {n}"
            if all(width == n * ceil(Fraction(floor(ratio * d), n)) for width, d in both):
                return f"floor({text}) rounded up to a multiple of {n}"
    return ""


def _layers(truth: Truth, cases: list[Case]) -> Iterator[tuple[str, float, Values]]:
    """Yield what one layer more or less adds, of all and of the dense ones: a loop's usual slip."""
    for name, words in ONE_LAYER.items():
        for step, text in zip((1, -1), words, strict=True):
            other = truth.expr.xreplace({LETTERS[name]: LETTERS[name] + step})
            if other != truth.expr:
                adds = other - truth.expr
                yield text, 0.0, tuple(value_at(adds, numbers_of(*case)) for case in cases)


HEADS = "multiplied by n_heads once too often"
__all__ = ["UNKNOWN", "explain", "explain_numbers"]


def explain(
    theirs: sympy.Expr,
    difference: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    text: str | None = None,
    meanings: Callable[[tuple[str, ...]], Mapping[str, sympy.Expr]] | None = None,
) -> tuple[Term, ...]:
    """Explain `difference`, theirs less ours, as terms that sum to it, the largest first.

    A step in which each product of the forward has two in the backward is explained by a third of
    it, as a forward is.
    """
    if truth.quantity == "train_matmul_flops":
        forward = Truth(truth.spec, truth.workload, "matmul_flops")
        if is_zero(plain(truth.expr - 3 * forward.expr)):
            found = explain(plain(theirs / 3), plain(difference / 3), forward, numbers)
            return tuple(
                altered(term, expr=term.expr and readable(3 * term.expr), value=3 * term.value)
                for term in found
            )
    if truth.quantity not in EXPLAINED:
        value = value_at(difference, numbers)
        return (Term(expr=truth.shown(difference), value=value, words=UNTOLD, known=False),)
    try:
        told, teller = _told(theirs, truth, numbers, text, meanings)
    except NotMonomials:
        return _terms([], difference, truth, numbers, ())
    if told is None:
        return _terms([], difference, truth, numbers, ())
    return _terms(_said(told, truth, teller), difference, truth, numbers, told.reading.words)


def _told(
    theirs: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    text: str | None,
    meanings: Callable[[tuple[str, ...]], Mapping[str, sympy.Expr]] | None,
) -> tuple[Told | None, Teller]:
    theirs, whole = whole_quotients(theirs, numbers)
    literals = None if text is None or meanings is None else Literals(text, meanings, numbers)
    if literals is not None and literals.expr is None:
        literals = None
    marked: dict[sympy.Expr, int] = {} if literals is None else literals.values
    marks = [] if literals is None else [literals.expr, *marked]
    library = _library(truth, [theirs, plain(theirs), plain(truth.expr), *marks, *numbers])
    space = library.space
    known = relations(space, numbers, pins=literals is None)
    written = None if literals is None else frozenset(marked.values())
    changes = Changes(space, {**numbers, **marked}, written)
    teller = Teller(library, changes, truth.quantity)
    readings: list[Numerals] = []
    if literals is None:
        parts_of_theirs = tuple(space.table(one) for one in summands(theirs))
        readings.append((space.table(plain(theirs)), parts_of_theirs, (), None))
    else:
        readings += literals.read(library.whole, space)
        # what is most alike first: a cheap story ends the search under the others early
        readings.sort(key=lambda one: sum(unlike(one[0], library.whole)[1:]))

    for table, several, said, left in readings:
        for reading in read(table, several, library.whole, known, (*whole, *said), left):
            teller.tell(reading)
    return teller.best, teller


def _said(told: Told, truth: Truth, teller: Teller) -> list[tuple[sympy.Expr, str]]:
    """Return the terms of a story: what each adds, and its words."""
    space = teller.space
    now: Table = told.reading.taken(space.table(plain(truth.expr))) or {}
    said = []

    width = space.place.get(LETTERS["head_dim"])
    heads = any(one.place == width for one in told.reading.relations)

    def add(table: Table, words: str, cost: float | None) -> None:
        if heads:  # d_model is n_heads·head_dim here
            words = words.replace(HEADS, f"{HEADS} (as d_model in place of head_dim)")
        other = "" if cost is None else teller.instead(told.reading, table, words, cost)
        said.append((space.expr(table), f"{words}{OR}{other}" if other else words))

    for edit in told.edits:
        if not edit.late:
            add(edit.true, edit.words, edit.cost if edit.change else None)
            now = plus(now, edit.true)
    for change in told.everywhere:
        after = change.of(now)
        if after is None:
            return []
        add(
            less(after, now),
            change.words,
            None if change.whole or change.cost == LIKELY else change.cost,
        )
        now = after
    for edit in told.edits:
        if edit.late:
            add(edit.true, edit.words, None)
            now = plus(now, edit.true)
    return said if now == told.reading.theirs else []


def _terms(
    said: list[tuple[sympy.Expr, str]],
    difference: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    words: tuple[str, ...],
) -> tuple[Term, ...]:
    left = difference
    terms = []
    for expr, word in said:
        left = left - expr
        terms.append(Term(expr=truth.shown(expr), value=value_at(expr, numbers), words=word))
    terms.sort(key=lambda term: -abs(term.value))
    left = plain(left)
    if left == 0:
        return tuple(terms)
    value, shown = value_at(left, numbers), truth.shown(left)
    if value == 0:
        text = f"nothing at these sizes, as {', '.join(words)}"
        return (*terms, Term(expr=shown, value=value, words=text))
    return (*terms, Term(expr=shown, value=value, words=UNKNOWN, known=False))
