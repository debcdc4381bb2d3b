"""Explains a difference: the smallest set of mistakes that together make it, to the last term.

A formula takes sizes for granted: d² for d·h·h_d, or 32 for N. It is read as what it means at this
model, so that what is wrong in it stands alone; what was taken as equal is said.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from itertools import combinations
from math import ceil, floor
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import (
    Key,
    NotMonomials,
    Space,
    Table,
    in_letters,
    is_zero,
    key_of,
    less,
    plain,
    plus,
    substituted,
    value_at,
)
from metacount.algebra.text import Node
from metacount.check.comparison import RUN, Evidence, Theirs, Truth, count_of, named
from metacount.check.judgement import Term
from metacount.check.mistakes import (
    COPIES,
    FACTORS,
    GROUPS,
    POSITIONS,
    RATIOS,
    SCOPED,
    WIDTHS,
    Change,
    Changes,
    Edit,
    ModelTerms,
    Scope,
    factor_words,
    factors,
)
from metacount.check.names import LETTERS, numbers_of
from metacount.check.sizes import Case, alike
from metacount.errors import InputError, SpecError
from metacount.frozen import frozen
from metacount.spec.field import altered
from metacount.textbook.closed_form import EXPLAINED, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from metacount.spec import ModelSpec

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

    @property
    def cost(self) -> float:
        """How unlikely it is that this was meant."""
        numbers = [word.rpartition(" = ")[2] for word in self.words]
        small = sum(2 < int(number) < LARGE for number in numbers if number.isdigit())
        relations = sum(relation.cost for relation in self.relations)
        return READ * len(self.words) + relations + SMALL * small

    def taken(self, table: Table | None) -> Table | None:
        """Return a table with the sizes of `relations` taken as one."""
        for relation in self.relations:
            table = None if table is None else substituted(table, relation.place, relation.by)
        return table


class Formula:
    """Somebody's formula, the numbers in it as letters of their own."""

    def __init__(self, expr: sympy.Expr, numbers: Mapping[sympy.Expr, int], theirs: Theirs) -> None:
        self.sizes, self.values = numbers, dict[sympy.Expr, int]()
        self.has_marks = False  # so that its numbers are known
        self.expr, self.quotients = drop_quotients(expr, numbers)
        marks: dict[str, sympy.Expr] = {}

        def marked(node: Node, parts: list[Node]) -> Node:
            number = node.value
            if node.kind == "number" and number >= SMALLEST_LITERAL and number.denominator == 1:
                word = f"number {len(marks)}"
                marks[word] = sympy.Symbol(word, integer=True, positive=True)
                self.values[marks[word]] = int(number)
                return Node("name", word=word)
            if node.kind in ("**", "/", "//") and node.parts[1].kind == "number":
                parts = [parts[0], node.parts[1]]
            return Node(node.kind, (*parts,), word=node.word, value=number)

        try:
            tree = theirs.tree.folded(marked)
            if len(marks) <= MOST_LITERALS:
                expr, _ = in_letters(tree, {**theirs.names, **marks})
                expr, _ = drop_quotients(expr, {**numbers, **self.values})
                # a call is one letter of the tables: no size can be put in a number's place in it
                calls = expr.atoms(sympy.floor, sympy.ceiling, sympy.Min, sympy.Max)
                self.expr = expr.xreplace({call: call.xreplace(self.values) for call in calls})
                self.has_marks = True
                return
        except InputError:
            pass
        self.values = {}

    def readings(self, ours: Table, space: Space) -> Iterator[Reading]:
        """Yield the formula as it stands, then with sizes for numbers and with equal sizes."""
        known = relations(space, self.sizes, pins=not self.has_marks)
        numerals = [*self._numerals(ours, space)]
        # what is most alike first: a cheap explanation ends the search under the others early
        numerals.sort(key=lambda numeral: sum(unlike(numeral[0], ours)[1:]))
        for table, words, numbers in numerals:
            chosen = [*_chosen(table, ours, known)]
            last = chosen[-1]
            # what is 1, and two types of tokens, are seldom written
            small = [
                a
                for a in known
                if a.pin
                and a not in last
                and (a.free or space.letters[a.place] == LETTERS["n_token_types"])
                and any(key[a.place] for key in ours)
                and not any(key[a.place] for key in table)
            ]
            # other numbers of the formula may stand for sizes that it has no letter for
            loose = {*RUN, LETTERS["n_kv_heads"]}
            pins = [a for a in last if a.pin and space.letters[a.place] in loose]
            for n in range(1, len(pins) + 1):
                chosen += [
                    tuple(a for a in last if a not in gone) for gone in combinations(pins, n)
                ]
            # sizes that are equal may have been written one for the other in every part
            equal = [a for a in known if a.free and not a.pin and not a.width and a not in last]
            chosen += [(*last, *more) for more in (small, equal) if more]
            for some in chosen:
                words_of_some = tuple(relation.words for relation in some)
                reading = Reading(
                    theirs=table,
                    relations=some,
                    words=(*self.quotients, *words, *words_of_some),
                    numbers=numbers,
                )
                if (taken := reading.taken(table)) is not None:
                    yield altered(reading, theirs=taken)

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
                letter: [*([] if least is None or n < least else meant[letter]), sympy.Integer(n)]
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
    """Count monomials that are not ours, how far off they are, and how many differ."""
    exact = len(theirs) - same(theirs, ours)
    far = sum(
        min((sum(map(abs, map(int.__sub__, key, other))) for other in ours), default=0)
        for key in theirs
        if key not in ours
    )
    return exact, far, len(less(theirs, ours))


def same(a: Table, b: Table) -> int:
    """Count the monomials that two tables have in common."""
    return sum(b.get(key) == value for key, value in a.items())


LEFT_OUT = " left out"
OR = ", or "  # two mistakes that add the same: nobody can tell which was made
MOST_ALTERNATIVES = 3
MOST_STEPS = 4_000  # tables looked at
CLOSE = 0.05  # explanations as likely as each other
AGAINST = 1.5  # for two mistakes that undo each other in part
UNDOES = {Fraction(1, 2): COPIES[0], Fraction(2): COPIES[2]}  # of a part, what a factor did to it
TWO = 2.7  # two mistakes in place of one change: with less between them, both are named
ALIKE = 0.12  # mistakes that add the same, where one is little less likely


class Search:
    """The edits that may be combined, and the cheapest combinations for a difference."""

    def __init__(
        self, edits: Iterable[Edit], room: Mapping[str, int], undoing: float = AGAINST
    ) -> None:
        self.room, self.undoing = room, undoing
        self.by_adds: dict[Key, Edit] = {}
        self.others: dict[Key, list[Edit]] = {}  # that add the same, of other parts
        for edit in sorted(edits, key=lambda edit: edit.cost):
            key = key_of(edit.adds)
            first = self.by_adds.setdefault(key, edit)
            # beside what everybody gets wrong, an unlikelier mistake is not worth a word
            near = ALIKE if first.cost or edit.words.endswith(LEFT_OUT) else 0.0
            if edit.uses != first.uses and edit.cost <= first.cost + ALIKE:
                self.others.setdefault(key, []).append(edit)
            if first is not edit and edit.cost <= first.cost + near:
                words, other = first.words.replace(":", ""), edit.words.replace(":", "")
                is_named = other in words or other.endswith(words.partition(OR)[0])
                if not is_named and words.count(OR) + 1 < MOST_ALTERNATIVES:
                    self.by_adds[key] = altered(first, words=first.words + OR + edit.words)
        self.by_key: dict[object, list[Edit]] = {}
        for edit in self.by_adds.values():
            for monomial in edit.adds:
                self.by_key.setdefault(monomial, []).append(edit)
        self.longest = max((len(edit.adds) for edit in self.by_adds.values()), default=0)

    def sets(
        self, difference: Table, below: float, most: int
    ) -> list[tuple[float, tuple[Edit, ...]]]:
        """Find sets of edits that add up to `difference`, each with what it costs, if that is less
        than `below`: the cheapest first.
        """
        self.best, self.steps = below, 0
        self.complete: list[tuple[float, tuple[Edit, ...]]] = []
        for n in range(1, most + 1):
            if n >= self.best:
                break
            self._add(difference, n, (), 0.0)
        return sorted(self.complete, key=lambda edits: edits[0])

    def _add(self, left: Table, n: int, edits: tuple[Edit, ...], cost: float) -> None:
        if n == 1:
            key = key_of(left)
            last = self.by_adds.get(key)
            near = [] if last is None else [last, *self.others.get(key, ())]
        elif len(left) > n * self.longest:
            return
        else:
            # the monomial that the fewest edits touch: one of them must be made
            near = min((self.by_key.get(monomial, []) for monomial in left), key=len, default=[])
        for edit in near:
            self.steps += n > 1
            dearest = self.best + CLOSE - (n - 1)
            after = cost + 1 + edit.cost
            if self.steps > MOST_STEPS or after > dearest or not self._fits((*edits, edit)):
                continue
            rest = less(left, edit.adds)
            if n > 1 and (not rest or (n > 2 and len(rest) >= len(left))):
                continue
            after += self.undoing * any(against(edit, other) for other in edits)
            if after > dearest:
                continue
            if n > 1:
                self._add(rest, n - 1, (*edits, edit), after)
            else:
                self.best = min(self.best, after)
                self.complete.append((after, (*edits, edit)))

    def _fits(self, edits: tuple[Edit, ...]) -> bool:
        """Tell whether no part is changed more often than it is there."""
        left = dict(self.room)
        for edit in edits:
            for part, count in edit.uses:
                left[part] -= count
        return all(count >= 0 for count in left.values())


def against(a: Edit, b: Edit) -> bool:
    """Tell whether one edit takes away what the other adds."""
    undone = {key for key, value in a.adds.items() if b.adds.get(key, 0) * value < 0}
    return bool(undone) and undone in (a.adds.keys(), b.adds.keys())


MOST_MONOMIALS = 40  # of a difference: with more, no list of mistakes is an explanation
MOST_SEARCHES = 40  # over readings and changes of everything, so that no formula takes long
MOST_EVERYWHERE, WIDTH = 3, 5  # changes of the whole count at once; of them, followed further
DEAREST = 6.2
MOST_MISTAKES = 5

State = tuple[tuple["Change", ...], Table, float]  # changes of the whole count, and their cost


@frozen
class Explanation:
    """Under one reading: mistakes in parts, then changes of everything."""

    reading: Reading
    everywhere: tuple[Change, ...]
    edits: tuple[Edit, ...]
    cost: float


class Explainer:
    """The cheapest explanation so far, over readings and changes of the whole count."""

    def __init__(self, model_terms: ModelTerms, changes: Changes) -> None:
        self.model_terms, self.changes, self.space = model_terms, changes, model_terms.space
        self.best: Explanation | None = None
        self.seen: set[tuple[Key, Key]] = set()
        self.searches = 0

    @property
    def dearest(self) -> float:
        return DEAREST if self.best is None else self.best.cost

    def look(self, reading: Reading) -> None:
        """Look for a cheaper explanation under this reading."""
        ours = reading.taken(self.model_terms.total)
        if ours is None or len(less(reading.theirs, ours)) > MOST_MONOMIALS:
            return
        key = key_of(reading.theirs), key_of(ours)
        late = self.searches > MOST_SEARCHES or reading.cost + 1 >= self.dearest
        if late or key in self.seen:
            return
        self.seen.add(key)
        level: list[State] = [((), ours, reading.cost)]
        tried: set[Key] = set()
        for depth in range(MOST_EVERYWHERE + 1):
            following: list[State] = []
            for everywhere, table, cost in level:
                nearer = not everywhere or same(reading.theirs, table)
                if nearer and cost + (not everywhere) < self.dearest:
                    self._search(reading, everywhere, table, cost)
                if depth < MOST_EVERYWHERE:
                    following += self._further(reading, (everywhere, table, cost), tried)
            following.sort(key=lambda state: (len(less(reading.theirs, state[1])), state[2]))
            level = following[: WIDTH - depth]

    def _further(self, reading: Reading, state: State, tried: set[Key]) -> Iterator[State]:
        (everywhere, table, cost), theirs = state, reading.theirs
        difference = less(theirs, table)
        differing, alike = len(difference), same(theirs, table)
        # of sizes of the run that are not among the letters of theirs, numbers may stand for two
        run = {
            i
            for i, letter in enumerate(self.space.letters)
            if letter in RUN and all(key[i] for key in table) and not any(k[i] for k in theirs)
        }
        numbers = self.changes.numbers(reading.numbers) if run else ()
        for change in (
            *self.changes.between(table, difference, reading.numbers),
            *factors(self.space, theirs, table, self.model_terms.quantity),
            *(change for change in numbers if change.place in run),
        ):
            after = cost + 1 + change.cost
            if change.words in COPIES or after >= self.dearest or change in everywhere:
                continue
            changed = change.of(table)
            if changed is None:
                continue
            nearer = len(less(theirs, changed)) < differing and same(theirs, changed) > alike
            if (nearer or change.place in run) and (key := key_of(changed)) not in tried:
                tried.add(key)
                yield (*everywhere, change), changed, after

    def _search(
        self, reading: Reading, everywhere: tuple[Change, ...], table: Table, cost: float
    ) -> None:
        difference, edits = less(reading.theirs, table), tuple[Edit, ...]()
        self.searches += 1
        if self.searches > MOST_SEARCHES:
            return
        if difference:
            search = Search(self._edits(reading, everywhere, difference), self.model_terms.room)
            most = MOST_MISTAKES - len(everywhere)
            sets = search.sets(difference, self.dearest - cost, most)
            if not sets:
                return
            cost, edits = cost + sets[0][0], sets[0][1]
        if cost < self.dearest:
            self.best = Explanation(reading=reading, everywhere=everywhere, edits=edits, cost=cost)

    def _edits(
        self, reading: Reading, everywhere: tuple[Change, ...], difference: Table
    ) -> Iterator[Edit]:
        """Yield the mistakes that matter to a difference, as what was changed everywhere left them.

        Of parts, they are the known ones, and changes of sizes.
        """

        def changed(table: Table | None) -> Table | None:
            for change in everywhere:
                table = None if table is None else change.of(table)
            return table

        scales = [change.by.get(self.space.one) for change in everywhere if change.of_all]
        undone = [UNDOES[factor] for factor in scales if factor in UNDOES]
        for edit in self.model_terms.known:
            true = reading.taken(edit.adds)
            if true and (adds := changed(true)):
                cost = edit.cost + AGAINST * any(edit.words.endswith(words) for words in undone)
                yield altered(edit, adds=adds, true=true, cost=cost)
                if not scales and adds != true and min(true.values()) > 0:
                    # what is counted too much may have been written as it is
                    yield altered(edit, adds=true, true=true, cost=cost + SCOPED, late=True)
        places = {change.place for change in everywhere if change.place is not None}
        for scope in self.model_terms.scopes:
            before = reading.taken(scope.table)
            tables = [(before, changed(before))]
            if before != scope.table and not everywhere:  # of sizes that are equal here
                tables.append((scope.table, scope.table))
            for was, now in tables:
                if was is None or now is None:
                    continue
                for change in self.changes.between(now, difference, reading.numbers):
                    if change.place in places or (len(scope.uses) == 1 and change.words in COPIES):
                        continue  # what was changed everywhere is not changed back
                    after = change.of(now)
                    adds = None if after is None else reading.taken(less(after, now))
                    if not adds or all(difference.get(k) != n for k, n in adds.items()):
                        continue
                    after_true = after if was is now else change.of(was)
                    true = None if after_true is None else reading.taken(less(after_true, was))
                    if true:
                        yield Edit(
                            words=f"{scope.name}: {change.words}",
                            adds=adds,
                            true=true,
                            cost=change.cost + SCOPED + scope.more(change.words),
                            uses=scope.uses,
                            change=True,
                        )

    def instead(self, change: Change | Edit, table: Table) -> str:
        """Name two mistakes that add what one change adds, where they are little less likely."""
        reading = self.best.reading if self.best is not None else None
        if reading is None or change.cost == 0:
            return ""
        words = change.words.rpartition(": ")[2]  # of two halves it is no other mistake
        edits = self._edits(reading, (), table)
        edits = (edit for edit in edits if words not in edit.words and edit.adds != table)
        undoing = 0.0 if reading.relations else AGAINST
        sets = Search(edits, self.model_terms.room, undoing).sets(table, change.cost + TWO, 2)
        pair = [edit.words.partition(OR)[0] for edit in sets[0][1]] if sets else []
        return OR + " and ".join(pair) if pair else ""


UNKNOWN = "not accounted for: no part of the model explains this"
UNTOLD = "not accounted for: no mistakes are known by name of this quantity"


def explain(
    expr: sympy.Expr,
    difference: sympy.Expr,
    truth: Truth,
    numbers: Mapping[sympy.Expr, int],
    theirs: Theirs,
) -> tuple[Term, ...]:
    """Explain `difference`, `expr` less the truth, as terms that sum to it, the largest first.

    A step in which each product of the forward has two in the backward is explained by a third of
    it, as a forward is.
    """
    if truth.quantity == "train_matmul_flops":
        forward = Truth(truth.spec, truth.workload, "matmul_flops")
        if is_zero(plain(truth.expr - 3 * forward.expr)):
            third = Node("/", (theirs.tree, Node("number", value=Fraction(3))))
            thirds = explain(
                plain(expr / 3),
                plain(difference / 3),
                forward,
                numbers,
                Theirs(third, theirs.names),
            )
            return tuple(
                altered(term, expr=term.expr and readable(3 * term.expr), value=3 * term.value)
                for term in thirds
            )
    parts: list[tuple[sympy.Expr, str]] = []
    words, left, unknown = "", difference, UNTOLD
    if truth.quantity in EXPLAINED:
        unknown = UNKNOWN
        with suppress(NotMonomials):
            parts, words = _parts(Formula(expr, numbers, theirs), truth)
    terms = []
    for part, what in parts:
        left = left - part
        terms.append(Term(expr=truth.shown(part), value=value_at(part, numbers), words=what))
    terms.sort(key=lambda term: -abs(term.value))
    if (left := plain(left)) != 0:
        value = value_at(left, numbers)
        if value == 0 and truth.quantity in EXPLAINED:
            unknown = f"nothing at these sizes, as {words}"
        terms.append(Term(expr=truth.shown(left), value=value, words=unknown, known=value == 0))
    return tuple(terms)


def _parts(formula: Formula, truth: Truth) -> tuple[list[tuple[sympy.Expr, str]], str]:
    """Return what each mistake adds, in words, and what was taken as equal."""
    exprs = [plain(formula.expr), plain(truth.expr), formula.expr, *formula.values, *formula.sizes]
    model_terms = ModelTerms(truth.spec, truth.workload, truth.quantity, exprs)
    if LETTERS["seq_len"] not in formula.expr.free_symbols:  # then a number is none of it
        model_terms.known = [edit for edit in model_terms.known if edit.words != POSITIONS]
    space = model_terms.space
    as_numbers = plain(formula.expr.xreplace(formula.values))
    sizes, sums = {**formula.sizes, **formula.values}, formula.expr.atoms(sympy.Add)
    changes = Changes(model_terms, sizes, space.table(as_numbers), sums)
    explainer = Explainer(model_terms, changes)
    for reading in formula.readings(model_terms.total, space):
        explainer.look(reading)
    best = explainer.best
    if best is None:
        return [], ""
    now, parts = best.reading.taken(space.table(plain(truth.expr))) or {}, []
    steps: list[Edit | Change] = [edit for edit in best.edits if not edit.late]
    steps += [*best.everywhere, *(edit for edit in best.edits if edit.late)]
    for step in steps:
        if isinstance(step, Edit):
            table, is_change = step.true or step.adds, step.change
        else:
            table, is_change = less(step.of(now) or {}, now), not step.of_all
        now = plus(now, table)
        other = explainer.instead(step, table) if is_change else ""
        parts.append((space.expr(table), step.words + other))
    words = ", ".join(best.reading.words)
    return (parts, words) if now == best.reading.theirs else ([], words)


FEWEST, MOST = 8, 16  # sizes at which a mistake must fit before it is named; that are looked at
MULTIPLES = [2**n for n in range(3, 13)]  # that widths are rounded up to


def explain_numbers(case: Case, evidence: Evidence, truth: Truth) -> tuple[Term, ...]:
    """Explain the difference as mistakes that fit at all sizes tried; else as one unknown term.

    Two mistakes are named where nothing else fits; an accident would have to hold at every size.
    """
    words = UNTOLD
    if truth.quantity in EXPLAINED:
        words = UNKNOWN
        equal = [other for other in evidence.cases if _alike(case[0], other[0][0])]
        for others in (evidence.cases, equal):
            tried = [(case, evidence.value), *others[:MOST]]
            if len(tried) > FEWEST and (terms := _terms_at(tried, truth)):
                return terms
    return (Term(expr=None, value=evidence.value - truth.value, words=words, known=False),)


def _alike(spec: ModelSpec, other: ModelSpec) -> bool:
    with suppress(SpecError):
        return alike(spec, other) == other
    return False


def _terms_at(tried: list[tuple[Case, Fraction]], truth: Truth) -> tuple[Term, ...]:
    """Explain the difference at all of these sizes; nothing where no mistake is known for it."""
    ours = [count_of(*case, truth.quantity) for case, _ in tried]
    wanted = [value - n for (_, value), n in zip(tried, ours, strict=True)]
    ratios = {value / n for (_, value), n in zip(tried, ours, strict=True)} if all(ours) else set()
    factor = ratios.pop() if len(ratios) == 1 else None
    if factor in FACTORS:
        words = factor_words(factor, [], truth.quantity)
        return (Term(expr=None, value=wanted[0], words=words),)
    numbers = numbers_of(*tried[0][0])
    model_terms = ModelTerms(truth.spec, truth.workload, truth.quantity, numbers)
    space = model_terms.space
    at = [space.values(numbers_of(*case)) for case, _ in tried]
    changes = Changes(model_terms, numbers, {})
    usual = [c for c in changes.usual if all(abs(n) == 1 for n in c.by.values())]
    known = [(edit, [space.value(edit.adds, n) for n in at]) for edit in model_terms.known]
    everything = Scope(name="", table=model_terms.total, uses=())
    for scope in (everything, *model_terms.scopes):
        where, more = (f"{scope.name}: ", SCOPED) if scope.name else ("", 0.0)
        for change in (*usual, *changes.numbers(())):
            after = change.of(scope.table)
            if after in (None, scope.table) or (scope.name and change.cost > GROUPS):
                continue
            adds = less(after or {}, scope.table)
            cost = change.cost + (more and more + scope.more(change.words))
            edit = Edit(words=where + change.words, adds={}, cost=cost)
            known.append((edit, [space.value(adds, n) for n in at]))
        for words in _instead(space, scope.table, wanted, at):
            edit = Edit(words=where + words, adds={}, cost=0.3 + (more and more + scope.cost))
            known.append((edit, wanted))
    # a table of sizes instead of letters
    edits = [altered(edit, adds=_by_place(adds)) for edit, adds in known if any(adds)]
    sets = Search(edits, model_terms.room).sets(_by_place(wanted), DEAREST, 2)
    cheapest = {frozenset(edit.words for edit in s): s for cost, s in sets if cost == sets[0][0]}
    if len(cheapest) == 1:
        terms = []
        for edit in next(iter(cheapest.values())):
            value = edit.adds.get((0,), Fraction(0))
            words = "nothing at these sizes: " * (not value) + edit.words
            terms.append(Term(expr=None, value=value, words=words))
        return tuple(sorted(terms, key=lambda term: -abs(term.value)))
    if factor is not None:
        words = factor_words(factor, [], truth.quantity)
        return (Term(expr=None, value=wanted[0], words=words),)
    return ()


def _by_place(values: list[Fraction]) -> Table:
    return {(i,): value for i, value in enumerate(values) if value}


def _instead(
    space: Space, table: Table, wanted: list[Fraction], at: list[list[Fraction]]
) -> Iterator[str]:
    """Say what, in one size's place, would make the difference at every size."""
    d_model = [values[space.place[LETTERS["d_model"]]] for values in at]
    for name, letter in LETTERS.items():
        i = space.place.get(letter, -1)
        linear = {key: value for key, value in table.items() if i >= 0 and key[i]}
        rest: Table = {(*key[:i], 0, *key[i + 1 :]): value for key, value in linear.items()}
        below = [space.value(rest, values) for values in at]
        if not all(below) or any(key[i] != 1 for key in linear):
            continue
        meant = [values[i] + n / b for values, n, b in zip(at, wanted, below, strict=True)]
        number = meant[0]
        if {*meant} == {number} and number.denominator == 1 and number > 1:
            yield f"{number} stands where {name} = {at[0][i]} belongs"
        elif name in WIDTHS and name != "d_model" and (rule := _rule(meant, d_model)):
            yield f"{rule} in place of {name}"


def _rule(widths: list[Fraction], d_model: list[Fraction]) -> str:
    """Say how widths follow from d_model, as people make them; nothing where they do not."""
    for ratio in RATIOS:
        exact = [ratio * d for d in d_model]
        for text, sizes in (
            (f"{ratio}·d_model", exact),
            (f"floor({ratio}·d_model)", [Fraction(floor(size)) for size in exact]),
            (f"ceil({ratio}·d_model)", [Fraction(ceil(size)) for size in exact]),
        ):
            if widths == sizes:
                return text
            for n in MULTIPLES:
                if widths == [n * ceil(size / n) for size in sizes]:
                    return f"{text} rounded up to a multiple of {n}"
    return ""
